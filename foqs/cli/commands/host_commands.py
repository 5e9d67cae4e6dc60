"""The commands for the hosts of a cluster, below `foqs host`: list, drain and undrain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from foqs.cli.cluster_rows import HOST_COLUMNS, duplicate_names_warning, host_row
from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Row, print_message, show_rows
from foqs.cli.watch import run_watchable, watch_option

if TYPE_CHECKING:
    from foqs_client import Client


@click.command("list", epilog="\b\nExamples:\n  foqs host list\n  foqs host list -o json")
@watch_option
@host_call_options
def host_list(session: HostSession, watch_ms: int | None) -> None:
    """List the running hosts by name, and how many shards each should own."""

    async def work(client: Client) -> list[Row]:
        return [host_row(found) for found in await client.list_hosts()]

    def draw(session: HostSession, rows: list[Row]) -> None:
        show_rows(rows, HOST_COLUMNS, session.output_format)
        if text := duplicate_names_warning(rows):
            print_message(text)

    run_watchable(session, watch_ms, work, draw)


@click.command("drain", epilog="\b\nExample:\n  foqs host drain host2")
@click.argument("host")
@host_call_options
def host_drain(session: HostSession, host: str) -> None:
    """Hand the shards of HOST (a name or address) over to other hosts. It gets none until undrained, even after a restart."""
    session.run(lambda client: client.drain_host(host))
    print_message(f"{host} hands its shards over; watch it with: foqs host list")


@click.command("undrain", epilog="\b\nExample:\n  foqs host undrain host2")
@click.argument("host")
@host_call_options
def host_undrain(session: HostSession, host: str) -> None:
    """Let a drained host own shards again."""
    session.run(lambda client: client.undrain_host(host))
    print_message(f"{host} may own shards again.")
