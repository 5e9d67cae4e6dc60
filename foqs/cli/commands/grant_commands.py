"""The commands for grants: what a principal may do in a namespace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import click

from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Column, print_message, show_rows

_PERMISSIONS: Final = ("enqueue", "consume", "admin")
_COLUMNS: Final[list[Column]] = [
    ("PRINCIPAL", lambda row: row["principal"]),
    ("NAMESPACE", lambda row: row["namespace"]),
    ("PERMISSIONS", lambda row: ", ".join(row["permissions"])),
]


@click.group()
def grant() -> None:
    """Grants: what principals may do in a namespace."""


@grant.command("set", epilog="\b\nExample:\n  foqs grant set mailer enqueue consume -n orders")
@click.argument("principal")
@click.argument("permissions", nargs=-1, required=True, type=click.Choice(_PERMISSIONS))
@host_call_options
def grant_set(session: HostSession, principal: str, permissions: Sequence[str]) -> None:
    """Set the permissions of PRINCIPAL in the namespace. They replace earlier ones."""
    session.run(lambda client: client.set_grant(principal, permissions))
    print_message(f"{principal} may {', '.join(permissions)} in {session.namespace}.")


@grant.command("list", epilog="\b\nExample:\n  foqs grant list -n orders -o json")
@host_call_options
def grant_list(session: HostSession) -> None:
    """List the grants of the namespace, by principal."""
    rows = [dataclasses.asdict(found) for found in session.run(lambda client: client.grants())]
    show_rows(rows, _COLUMNS, session.output_format)
    if not rows:
        print_message(f"Nobody has a grant in {session.namespace}.")


@grant.command("revoke", epilog="\b\nExample:\n  foqs grant revoke mailer -n orders")
@click.argument("principal")
@host_call_options
def grant_revoke(session: HostSession, principal: str) -> None:
    """Remove all permissions of PRINCIPAL in the namespace."""
    session.run(lambda client: client.set_grant(principal, ()))
    print_message(f"{principal} has no grant in {session.namespace}.")
