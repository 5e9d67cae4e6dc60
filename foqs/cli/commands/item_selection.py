"""Changes to many items, by ids or by a filter.

Always true: a change by filter shows the count and asks first; a page with an
unknown outcome is called again, which is safe; an interrupted command can be
repeated for the rest. Knows nothing of single commands.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from foqs.cli.commands.item_commands import show_outcomes
from foqs.cli.host_session import CommandFailed, HostSession, error_sentence
from foqs.cli.output import Column, print_message, show
from foqs.cli.values import DURATION

if TYPE_CHECKING:
    from foqs_client import BulkPage, Client, FoqsError, ItemFilter, Outcome

IDS_PER_CALL: Final = 1_000
ATTEMPTS_MAX: Final = 5
"""The most calls for one page."""
PAUSE_S: Final = 0.5

_R = TypeVar("_R")
_PRIORITY: Final = click.IntRange(-(2**31), 2**31 - 1)
_COLUMNS: Final[list[Column]] = [
    ("MATCHED", lambda row: str(row["matched"])),
    ("CHANGED", lambda row: str(row["changed"])),
    ("REFUSED", lambda row: str(row["refused"])),
]

PageCall: TypeAlias = "Callable[[Client, ItemFilter, str | None], Awaitable[BulkPage]]"
"""(client, filter, cursor) -> one page of the change."""
IdsCall: TypeAlias = "Callable[[Client, Sequence[str]], Awaitable[Sequence[Outcome]]]"
"""(client, ids) -> the outcomes of the change."""


def item_selection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command its items: IDS as `ids`, or the options of a filter as `only`, and `--yes`."""

    @click.argument("ids", nargs=-1, metavar="[ID]...")
    @click.option("--topic", default=None, help="Items of this topic.")
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
    @click.option("--yes", is_flag=True, help="Do not ask.")
    @functools.wraps(command)
    def with_selection(*args: Any, ids: Sequence[str], everything: bool, yes: bool, **options: Any) -> None:
        from foqs_client import ItemFilter

        names = ("topic", "states", "priority_min", "priority_max", "older_than", "newer_than")
        topic, states, priority_min, priority_max, older_ms, newer_ms = (options.pop(name) for name in names)
        only = ItemFilter(topic, list(states) or None, priority_min, priority_max, older_ms, newer_ms)
        selections = bool(ids) + everything + (only != ItemFilter())
        if selections != 1:
            raise click.UsageError("Name items by their IDs, or by options such as --topic, or give --all.")
        command(*args, ids=ids, only=only, yes=yes, **options)

    return with_selection


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


def apply_to_matching(
    session: HostSession, item_filter: ItemFilter, page_call: PageCall, action: str, *, yes: bool, removes_matches: bool
) -> None:
    """Count the matching items, ask, and apply the change page by page.

    Args:
        action: the verb of the change, as in "cancel 5 items".
        removes_matches: whether no item should match afterwards.
    """

    async def count(client: Client) -> int:
        return (await client.count(item_filter)).items

    matched = session.run(count)
    if matched and not yes:
        click.confirm(f"{action.capitalize()} {matched} items?", abort=True, err=True)
    progress = _Progress(matched)

    async def call_pages(client: Client) -> int:
        await _call_pages(client, item_filter, page_call, progress)
        return await count(client) if removes_matches else 0

    left = 0
    try:
        left = session.run(call_pages) if matched else 0
    except (CommandFailed, KeyboardInterrupt) as error:
        why = f"{error} " if isinstance(error, CommandFailed) else "Interrupted. "
        code = error.code if isinstance(error, CommandFailed) else 1
        raise CommandFailed(
            f"{why}{progress.changed} of {matched} items are done; repeat the command for the others.", code
        ) from None
    finally:
        progress.finish()
        show(
            [{"matched": matched, "changed": progress.changed, "refused": progress.refused, "left": left}],
            _COLUMNS,
            session.output_format,
        )
    if progress.refusal is not None:
        raise CommandFailed(
            f"{progress.refused} items were refused, the first because: {error_sentence(progress.refusal)}"
        )
    if left:
        print_message(f"{left} items match now: they are new, or were changed. Repeat the command for them.")


class _Progress:
    """The progress of a change, shown on a terminal."""

    def __init__(self, matched: int) -> None:
        self.matched = matched
        self.changed = 0
        self.refused = 0
        self.refusal: FoqsError | None = None
        self._is_shown = False

    def add(self, page: BulkPage) -> None:
        self.changed += page.changed
        self.refused += page.refused
        self.refusal = self.refusal or page.refusal
        if sys.stderr.isatty():
            click.echo(f"\r{self.changed} of {self.matched} items", nl=False, err=True)
            self._is_shown = True

    def finish(self) -> None:
        if self._is_shown:
            print_message("")


async def _call_pages(client: Client, item_filter: ItemFilter, page_call: PageCall, progress: _Progress) -> None:
    from foqs_client import FoqsError, Unreachable

    cursor: str | None = None
    failures = 0
    while True:
        try:
            found = await page_call(client, item_filter, cursor)
        except FoqsError as error:
            failures += 1
            is_retryable = error.retryable or error.hides_write
            if isinstance(error, Unreachable) or not is_retryable or failures == ATTEMPTS_MAX:
                raise
            await asyncio.sleep((error.retry_after_ms or 0) / 1_000 or PAUSE_S)
            continue
        failures = 0
        progress.add(found)
        cursor = found.next_cursor
        if cursor is None:
            return
