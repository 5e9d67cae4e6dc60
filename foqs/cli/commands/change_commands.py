"""The commands that change existing items, by id or by filter: cancel, update and move; and extend, by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from foqs.cli.commands.bulk_runs import BulkOptions, BulkWork, apply_to_matching
from foqs.cli.commands.item_commands import show_moved
from foqs.cli.commands.item_selection import apply_to_ids, call_in_parts, item_selection_options
from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.values import DURATION
from foqs_contract.bulk_actions import CANCEL, MOVE, UPDATE

if TYPE_CHECKING:
    from foqs_client import Client, Enqueued, ItemFilter


@click.command(
    "cancel",
    epilog="\b\nExamples:\n  foqs item cancel 2-8796093022209\n  foqs item cancel --topic mail --older-than 7d\n"
    "  foqs item cancel --state deferred --priority-min 10 --yes",
)
@item_selection_options
@host_call_options
def item_cancel(session: HostSession, ids: Sequence[str], only: ItemFilter, how: BulkOptions) -> None:
    """Delete items by their IDs or by a filter; leased ones too, unless --state excludes them."""
    if ids:
        apply_to_ids(session, ids, lambda client, part: client.cancel(part), "cancelled")
    else:
        apply_to_matching(session, only, BulkWork(CANCEL), how)


@click.command(
    "update",
    epilog="\b\nExamples:\n  foqs item update 2-8796093022209 --priority -10\n"
    "  foqs item update --topic mail --state ready --delay 1h\n  foqs item update --topic mail --state deferred --delay 0",
)
@click.option("--priority", type=click.IntRange(-(2**31), 2**31 - 1), default=None, help="The new priority.")
@click.option("--delay", type=DURATION, default=None, help="Deliver after this time from now; 0 is now.")
@click.option("--metadata", default=None, help="Replaces the items' metadata.")
@item_selection_options
@host_call_options
def item_update(
    session: HostSession,
    ids: Sequence[str],
    only: ItemFilter,
    how: BulkOptions,
    priority: int | None,
    delay: int | None,
    metadata: str | None,
) -> None:
    """Change priority, delay or metadata of items by their IDs or by a filter.

    Only ready and deferred items accept a --delay.
    """
    from foqs_client import Change

    change = Change(priority, delay, metadata=None if metadata is None else metadata.encode("utf-8", "surrogateescape"))
    if change == Change():
        raise click.UsageError("Say what to change: --priority, --delay or --metadata.")
    if ids:
        apply_to_ids(session, ids, lambda client, part: client.update(part, change), "updated")
    else:
        apply_to_matching(session, only, BulkWork(UPDATE, change), how)


@click.command(
    "extend",
    epilog="\b\nExamples:\n  foqs item extend 2-8796093022209 --lease 5m\n  foqs item extend 2-8796093022209",
)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option(
    "--lease",
    type=DURATION,
    default=None,
    help="The leases last this long from now at least. Default: the items' own durations.",
)
@host_call_options
def item_extend(session: HostSession, ids: Sequence[str], lease: int | None) -> None:
    """Extend the leases of items by their IDs. The consumer of an item keeps it."""
    apply_to_ids(session, ids, lambda client, part: client.extend_held_leases(part, lease_ms=lease), "extended")


@click.command(
    "move",
    epilog="\b\nExamples:\n  foqs item move 2-8796093022209 --to mail\n"
    "  foqs item move --topic mail.failed --state dead --to mail\n"
    "  foqs item move --topic mail --state ready --older-than 7d --to mail.old --yes",
)
@click.option("--to", "target", required=True, metavar="TOPIC", help="The topic of the new items.")
@item_selection_options
@host_call_options
def item_move(session: HostSession, ids: Sequence[str], only: ItemFilter, how: BulkOptions, target: str) -> None:
    """Move ready, deferred and dead items to another topic, by their IDs or by a filter with --topic.

    Each becomes a new item with a new ID. Its attempts start again, and a dead one is ready.
    """
    if not ids:
        if only.topic is None:
            raise click.UsageError("Name the topic of the items with --topic.")
        apply_to_matching(session, only, BulkWork(MOVE, move_to=target), how)
        return

    async def move(client: Client) -> list[Enqueued]:
        return await call_in_parts(ids, lambda part: client.move(part, target))

    show_moved(session, ids, session.run(move))
