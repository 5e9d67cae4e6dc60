"""How commands select items: by their ids, or by the options of a filter.

Knows nothing of single commands.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from foqs.cli.commands.bulk_runs import BulkOptions, bulk_options
from foqs.cli.commands.item_commands import show_outcomes
from foqs.cli.host_session import HostSession
from foqs.cli.values import DURATION

if TYPE_CHECKING:
    from foqs_client import Client, Outcome

IDS_PER_CALL: Final = 1_000

_R = TypeVar("_R")
_PRIORITY: Final = click.IntRange(-(2**31), 2**31 - 1)

IdsCall: TypeAlias = "Callable[[Client, Sequence[str]], Awaitable[Sequence[Outcome]]]"
"""(client, ids) -> the outcomes of the change."""


def item_selection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its items: IDS as `ids`, or the options of a filter as `only`; and the `BulkOptions` as `how`."""

    @click.argument("ids", nargs=-1, metavar="[ID]...")
    @click.option("--topic", default=None, help="Items of this topic.")
    @click.option("--group", default=None, help="Items of this group.")
    @click.option(
        "--state",
        "states",
        multiple=True,
        type=click.Choice(["ready", "deferred", "leased", "dead"]),
        help="Items in this state; may be repeated.",
    )
    @click.option(
        "--priority-min", type=_PRIORITY, default=None, help="Items with this priority number or a higher one."
    )
    @click.option(
        "--priority-max", type=_PRIORITY, default=None, help="Items with this priority number or a lower one."
    )
    @click.option("--older-than", type=DURATION, default=None, help="Items enqueued at least this long ago.")
    @click.option("--newer-than", type=DURATION, default=None, help="Items enqueued at most this long ago.")
    @click.option("--all", "everything", is_flag=True, help="All items of the namespace.")
    @bulk_options
    @functools.wraps(command)
    def with_selection(*args: Any, ids: Sequence[str], everything: bool, how: BulkOptions, **options: Any) -> None:
        from foqs_client import ItemFilter

        names = ("topic", "states", "priority_min", "priority_max", "older_than", "newer_than", "group")
        topic, states, priority_min, priority_max, older_ms, newer_ms, group = (options.pop(name) for name in names)
        only = ItemFilter(topic, list(states) or None, priority_min, priority_max, older_ms, newer_ms, group=group)
        selections = bool(ids) + everything + (only != ItemFilter())
        if selections != 1:
            raise click.UsageError("Give one of these, and only one: IDs of items, options such as --topic, --all.")
        if ids:
            refuse_bulk_options(how)
        command(*args, ids=ids, only=only, how=how, **options)

    return with_selection


def refuse_bulk_options(how: BulkOptions) -> None:
    """Raise UsageError for options that items by id do not have."""
    if how.rate is not None or how.background:
        raise click.UsageError(
            "--rate and --background are for items by filter; omit them, or choose the items by options such as --topic."
        )


async def call_in_parts(ids: Sequence[str], call: Callable[[Sequence[str]], Awaitable[Sequence[_R]]]) -> list[_R]:
    """Call with as many ids as a call may have, until all are done. Return the results in order."""
    results: list[_R] = []
    for start in range(0, len(ids), IDS_PER_CALL):
        results += await call(ids[start : start + IDS_PER_CALL])
    return results


def apply_to_ids(session: HostSession, ids: Sequence[str], call: IdsCall, past_tense: str) -> None:
    """Apply the change to each of the ids and show the outcomes."""

    async def call_all(client: Client) -> list[Outcome]:
        return await call_in_parts(ids, lambda part: call(client, part))

    show_outcomes(session, ids, session.run(call_all), past_tense)
