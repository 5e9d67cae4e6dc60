"""The command that shows what administrators changed."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.host_session import HostSession, host_call_options, renamed_option
from foqs.cli.output import Column, Row, print_message, short_text, show_rows
from foqs.cli.watch import run_watchable, watch_option

if TYPE_CHECKING:
    from foqs_client import AuditPage, Client

_COLUMNS: Final[list[Column]] = [
    ("WHEN", lambda row: row["at"]),
    ("WHO", lambda row: row["principal"] or "-"),
    ("FROM", lambda row: row["peer"]),
    ("HOST", lambda row: row["host"]),
    ("CALL", lambda row: row["call"]),
    ("NAMESPACE", lambda row: row["namespace"] or "-"),
    ("OUTCOME", lambda row: row["outcome"]),
    ("WHAT", lambda row: short_text(row, "target")),
]


@click.command(
    "audit",
    epilog="\b\nExamples:\n  foqs audit\n  foqs audit -n orders --limit 1000 -o jsonl\n  foqs audit --watch",
)
@renamed_option("--only", "-n")
@click.option(
    "--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="The maximum number of changes."
)
@watch_option
@host_call_options
def audit(session: HostSession, limit: int, watch_ms: int | None) -> None:
    """Show what administrators changed: who, when, where, and how it ended. The newest is first.

    With -n, only changes of that namespace; FOQS_NAMESPACE has no effect. Calls that were refused are shown too. Each
    host remembers its last 1,000 entries until it stops. Its log has every change, and of refused calls at most 10 a
    second for each principal. If there are more entries than the limit, principals have equal parts of the list.
    """
    only = session.namespace if session.is_namespace_named else None

    async def work(client: Client) -> AuditPage:
        return await client.audit(limit, only)

    def draw(session: HostSession, page: AuditPage) -> None:
        rows: list[Row] = []
        for entry in page.entries:
            fields = dataclasses.asdict(entry)
            at = datetime.fromtimestamp(fields.pop("at_ms") / 1_000, UTC)
            rows.append({"at": at.isoformat(timespec="milliseconds"), **fields})
        show_rows(rows, _COLUMNS, session.output_format)
        if not rows:
            print_message("No host remembers a change." if only is None else f"No host remembers a change of {only}.")
        if page.missing_hosts:
            print_message(f"These hosts did not report: {', '.join(page.missing_hosts)}")

    run_watchable(session, watch_ms, work, draw)
