"""The commands for dead items: list them with their reasons, and redrive them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.commands.bulk_runs import BulkOptions, BulkWork, apply_to_matching, bulk_options
from foqs.cli.commands.item_commands import PAGE_ITEMS, view_row
from foqs.cli.commands.item_selection import apply_to_ids, refuse_bulk_options
from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Column, Row, pattern_notes, print_message, short_text, show_rows
from foqs.cli.watch import run_watchable, watch_option
from foqs.runtime.durations import format_duration
from foqs_contract.bulk_actions import REDRIVE

if TYPE_CHECKING:
    from foqs_client import Client

_COLUMNS: Final[list[Column]] = [
    ("ID", lambda row: row["id"]),
    ("TOPIC", lambda row: row["topic"]),
    ("PRIORITY", lambda row: str(row["priority"])),
    ("AGE", lambda row: format_duration(row["age_ms"])),
    ("BYTES", lambda row: str(row["payload_bytes"])),
    ("WHY", lambda row: row["dead_reason"] or "-"),
    ("METADATA", lambda row: short_text(row, "metadata")),  # consumers write there what failed
    ("PAYLOAD", lambda row: short_text(row, "payload")),
]


@click.group()
def dead() -> None:
    """Dead items. They are kept until they are redriven or their retention ends."""


@dead.command(
    "list",
    epilog="\b\nExamples:\n  foqs dead list\n  foqs dead list --topic mail --payload -o json\n  foqs dead list --watch",
)
@click.option("--topic", default=None, help="Only items of this topic.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="The most items to show."
)
@click.option("--payload", is_flag=True, help="Show payloads too.")
@watch_option
@host_call_options
def dead_list(session: HostSession, topic: str | None, limit: int, payload: bool, watch_ms: int | None) -> None:
    """List dead items and why each is dead."""

    async def work(client: Client) -> tuple[list[Row], bool]:
        rows: list[Row] = []
        cursor: str | None = None
        while True:
            count = min(limit - len(rows), PAGE_ITEMS)
            page = await client.dead(topic, limit=count, cursor=cursor, with_payload=payload)
            rows += [view_row(view) for view in page.items]
            cursor = page.next_cursor
            if cursor is None or len(rows) >= limit:
                return rows, cursor is not None

    def draw(session: HostSession, found: tuple[list[Row], bool]) -> None:
        rows, more = found
        show_rows(rows, _COLUMNS if payload else _COLUMNS[:-1], session.output_format)
        if not rows:
            print_message(
                "No item is dead."
                if topic is None
                else " ".join(["No item of this topic is dead.", *pattern_notes([topic])])
            )
        elif more:
            print_message(f"There may be more than these {len(rows)}; --limit shows more.")

    run_watchable(session, watch_ms, work, draw)


@dead.command(
    "redrive",
    epilog="\b\nExamples:\n  foqs dead redrive 2-8796093022209\n  foqs dead redrive --topic mail\n"
    "  foqs dead redrive --all --yes",
)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--topic", default=None, help="All dead items of this topic.")
@click.option("--all", "everything", is_flag=True, help="All dead items of the namespace.")
@bulk_options
@host_call_options
def dead_redrive(
    session: HostSession, ids: Sequence[str], topic: str | None, everything: bool, how: BulkOptions
) -> None:
    """Make dead items ready again. Their attempts and their TTL start again."""
    from foqs_client import ItemFilter

    if bool(ids) + (topic is not None) + everything != 1:
        raise click.UsageError("Give one of these, and only one: IDs of items, --topic, --all.")
    if ids:
        refuse_bulk_options(how)
        apply_to_ids(session, ids, lambda client, part: client.redrive(part), "ready")
    else:
        apply_to_matching(session, ItemFilter(topic, ["dead"]), BulkWork(REDRIVE), how)
