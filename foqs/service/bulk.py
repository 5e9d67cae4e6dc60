"""What is done with the items that a filter matches: looked at, counted, and changed, a page a call.

A page is found by reads beside the flushes (`walk`), and each of its items gets
an ordinary event that carries the filter: the flush that judges it asks the
filter again, so what does not match any more is not touched. Always true: a
change is made absolute when its walk begins, so that an item is changed once,
wherever its change puts it, and a page that is repeated does no harm; the
events of a page are of one shard, so they are queued all or none.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, TypeAlias

from foqs.core.errors import DeadlineExceeded, InvalidArgument, NotFound, UnknownOutcome
from foqs.core.filter import ItemFilter
from foqs.core.item import TIME_MS_MAX, Row, State
from foqs.core.life import Event, Kind
from foqs.service.api import BulkPage, ItemCount, Outcome, Pending, Seen
from foqs.service.payloads import fitting, with_payloads
from foqs.service.walk import Place, Walk, parse_place
from foqs.shard.shard import Shard

READS_MAX: Final = 20
"""A page ends after so many reads, whatever they brought: few match, or many topics have few."""

COUNT_ROWS: Final = 1_000
"""Rows looked at by one read of a count: so long may it hold up the shard's other reads."""
COUNTED_MAX: Final = 1_000
"""Topics whose counts are added up in one go: a millisecond."""

Apply: TypeAlias = Callable[
    [str, Sequence[tuple[int, Event]], float, Callable[[list[Outcome]], None]],
    Pending,
]
"""As `Queue.apply`."""


async def list_matching(
    shards: Sequence[Shard],
    namespace: str,
    only: ItemFilter,
    cursor: str | None,
    limit: int,
    bytes_max: int | None,
    deadline: float,
) -> tuple[list[Seen], str | None]:
    """As `Queue.matching`; with payloads of so many bytes at most, or without any where that is None."""
    walk = Walk(shards, namespace, only, _place(cursor))
    found: list[Seen] = []
    async with _by(deadline):
        await walk.begin()
        for _ in range(READS_MAX):
            if walk.place is None or len(found) == limit:
                break
            found += await walk.read(limit - len(found))
        next_cursor = _cursor(walk.place)
        if bytes_max is not None:
            count = fitting(found, bytes_max)
            if count < len(found):
                next_cursor = _cursor(walk.before(found[count]))
            found = await with_payloads(shards, namespace, found[:count])
    return found, next_cursor


async def count_matching(shards: Sequence[Shard], namespace: str, only: ItemFilter, deadline: float) -> ItemCount:
    """As `Queue.count`."""
    if only.is_by_topic_and_state and not any(shard.counts.lag for shard in shards):
        async with _by(deadline):
            return ItemCount(sum([await _counted(shard, namespace, only) for shard in shards]), None)
    walk = Walk(shards, namespace, only, None)
    items = payload_bytes = 0
    async with _by(deadline):
        await walk.begin()
        while walk.place is not None:
            rows = [seen.row for seen in await walk.read(COUNT_ROWS)]
            items += len(rows)
            payload_bytes += sum(row.payload_bytes for row in rows)
    return ItemCount(items, payload_bytes)


async def change_matching(
    shards: Sequence[Shard],
    apply: Apply,
    namespace: str,
    change: Event,
    only: ItemFilter,
    cursor: str | None,
    limit: int,
    deadline: float,
) -> BulkPage:
    """As `Queue.bulk`."""
    walk = Walk(shards, namespace, only, _place(cursor))
    event = _absolute(change, walk.only)
    found: list[Seen] = []
    async with _by(deadline):
        await walk.begin()
        shard = walk.shard
        for _ in range(READS_MAX):
            if walk.shard is None or walk.shard != shard or len(found) == limit:
                break
            found += await walk.read(limit - len(found))
    # One that changed its state while the page was read may have been met twice.
    found = [seen for seen in {seen.row.id: seen for seen in found}.values() if not _is_so(seen, event)]
    if not found:
        return BulkPage(0, 0, None, _cursor(walk.place))
    told: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()

    def done(outcomes: list[Outcome]) -> None:
        if not told.done():
            told.set_result(outcomes)

    apply(namespace, [(seen.shard, replace(event, id=seen.row.id)) for seen in found], deadline, done)
    return _page(change, found, await told, walk)


def _page(change: Event, found: Sequence[Seen], outcomes: Sequence[Outcome], walk: Walk) -> BulkPage:
    """What the caller is told. Raises what happened to all of it, or `UnknownOutcome`."""
    changed, refusals, undone, place = 0, [], None, walk.place
    for seen, outcome in zip(found, outcomes, strict=True):
        if isinstance(outcome, UnknownOutcome):
            raise UnknownOutcome("some of this page may be changed; call again with the same cursor")
        if outcome is None:
            changed += 1
        elif isinstance(outcome, InvalidArgument):
            refusals.append(outcome)
        elif isinstance(outcome, Exception) and not isinstance(outcome, NotFound) and undone is None:
            undone, place = outcome, walk.before(seen)
    if undone is not None and not changed:
        raise undone
    for refusal in refusals[:1]:
        refusal.field = "change.deliver_after_ms" if change.delay_ms is None else "change.delay_ms"
    return BulkPage(changed, len(refusals), refusals[0] if refusals else None, _cursor(place))


def _absolute(change: Event, only: ItemFilter) -> Event:
    """The change with the filter, its delay counted from the beginning of the walk."""
    if change.delay_ms is None:
        return replace(change, only=only)
    after = min(only.at_ms + change.delay_ms, TIME_MS_MAX)
    return replace(change, only=only, delay_ms=None, deliver_after_ms=after)


def _is_so(seen: Seen, event: Event) -> bool:
    """The item is as an UPDATE would leave it."""
    if event.kind is not Kind.UPDATE:
        return False
    row: Row = seen.row
    after = event.deliver_after_ms
    return (
        (event.priority is None or event.priority == row.priority)
        and (event.metadata is None or event.metadata == row.metadata)
        and (
            after is None
            or (row.state is State.READY and after <= seen.now_ms)
            or (row.state is State.DEFERRED and after == row.deliver_after_ms)
        )
    )


async def _counted(shard: Shard, namespace: str, only: ItemFilter) -> int:
    """As the counts say; others run between many topics."""
    if only.topic is not None:
        return sum(shard.counts.of((namespace, only.topic), state) for state in only.states)
    topics = shard.memory.topics(namespace)
    items = 0
    for start in range(0, len(topics), COUNTED_MAX):
        if start:
            await asyncio.sleep(0)
        part = topics[start : start + COUNTED_MAX]
        items += sum([shard.counts.of((namespace, topic), state) for topic in part for state in only.states])
    return items


def _place(cursor: str | None) -> Place | None:
    return None if cursor is None else parse_place(cursor)


def _cursor(place: Place | None) -> str | None:
    return None if place is None else str(place)


@asynccontextmanager
async def _by(deadline: float) -> AsyncIterator[None]:
    """Reads that must be done by a deadline. Raises DeadlineExceeded."""
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise DeadlineExceeded(
            "the time ran out while items were read, and nothing was changed; narrow the filter or give the call more time"
        ) from None
