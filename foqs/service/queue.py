"""The queue of one host: what a call means, over the shards this host owns.

Validated calls come in, works go to shards, results come back in order. Always
true: no await lies between choosing keys and reserving them, nor between
finding nothing and standing in the waiters' queues; every await has the call's
deadline; whatever was leased for a call that ends without it is released.
Speaks no Thrift and no SQL.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from foqs.core.batch import Result, Work
from foqs.core.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    NamespaceNotFound,
    NotFound,
    NotOwner,
    Overloaded,
    Unavailable,
)
from foqs.core.item import NUMBER_MAX, PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX, Key, NewItem, Row, State, format_id
from foqs.core.life import Event, Verdict
from foqs.core.ready import TopicName
from foqs.service.api import (
    ALREADY_GONE,
    CallLimits,
    HandOut,
    NamespaceSettings,
    Outcome,
    Seen,
    TopicStats,
)
from foqs.service.waiters import Waiters
from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus

Taken: TypeAlias = tuple[Shard, TopicName, Key]
"""A key reserved in its shard's index."""

_ITEM_OVERHEAD_BYTES: Final = 1_024

_TICK_S: Final = 0.001
"""A loop's timers may ring this much early; less time than that is none, or a wait would not end but spin."""

_ACTIVE: Final = (State.READY, State.LEASED)


class QueueService:
    """Answers the calls of `api.Queue`.

    Args:
        shards: the shards of this host, by number; changes as they come and go.
        statuses: how each shard that should be here is doing.
        handout_wait_s_max: how long a dequeue waits for the flushes that lease
            its items; shards that are later are left out.
        handout_bytes_max: what one dequeue may carry, reckoned by its namespace's
            largest payload.
    """

    def __init__(
        self,
        shards: Mapping[int, Shard],
        namespaces: Mapping[str, NamespaceSettings],
        limits: CallLimits,
        handout_wait_s_max: float,
        handout_bytes_max: int,
        statuses: Mapping[int, ShardStatus],
    ) -> None:
        self.limits = limits
        self.waiters = Waiters()
        self._shards = shards
        self._namespaces = namespaces
        self._handout_wait_s_max = handout_wait_s_max
        self._handout_bytes_max = handout_bytes_max
        self._statuses = statuses
        self._turn = 0
        self._draining = False

    def namespace(self, name: str) -> NamespaceSettings:
        settings = self._namespaces.get(name)
        if settings is None:
            raise NamespaceNotFound(
                f"there is no namespace {name!r}; add [namespaces.{name}] to the host's configuration",
                field="namespace_name",
            )
        return settings

    def on_ready(self, topics: Iterable[TopicName]) -> None:
        """A shard has READY items of these topics: somebody may be waiting."""
        self.waiters.wake(topics)

    def drain(self) -> None:
        """The host is stopping: nobody waits for work any more, and who does is answered."""
        self._draining = True
        self.waiters.wake_all()

    # -------------------------------------------------------------- enqueue

    async def enqueue(self, namespace: str, items: Sequence[NewItem], deadline: float) -> list[str | FoqsError]:
        if not items:
            return []
        works = _Works()
        shard, work = self._submit(items, works)
        await works.settled(deadline)
        if work.is_open:
            work.expire()
        return [_id_or_error(shard.number, result) for result in work.results]

    def _submit(self, items: Sequence[NewItem], works: _Works) -> tuple[Shard, Work]:
        """Hands the items to the shard with the shortest queue that takes them."""
        serving = self._answering()
        if not serving:
            raise Unavailable("no shard of this host is being served now; try again", retry_after_ms=500)
        self._turn += 1
        offset = self._turn % len(serving)
        serving = serving[offset:] + serving[:offset]
        refusal: FoqsError | None = None
        for shard in sorted(serving, key=lambda shard: shard.queued_items):
            try:
                return shard, works.add(shard.insert(items, works.finished))
            except (Overloaded, Unavailable) as error:
                refusal = refusal or error
        assert refusal is not None
        raise refusal

    # ---------------------------------------------------------------- apply

    async def apply(self, namespace: str, events: Sequence[tuple[int, Event]], deadline: float) -> list[Outcome]:
        outcomes: list[Outcome] = [None] * len(events)
        works = _Works()
        parts: list[tuple[Work, list[int]]] = []
        for number, indexes in _by_shard(events).items():
            shard = self._shards.get(number)
            issued = [i for i in indexes if shard is None or shard.has_issued(events[i][1].id)]
            for i in set(indexes).difference(issued):
                outcomes[i] = NotFound("no item was ever given this id")
            if not issued:
                continue
            try:
                work = self._owned(number).apply([events[i][1] for i in issued], works.finished)
            except FoqsError as error:
                for i in issued:
                    outcomes[i] = error
            else:
                parts.append((works.add(work), issued))
        await works.settled(deadline)
        for work, indexes in parts:
            if work.is_open:
                work.expire()
            for i, result in zip(indexes, work.results, strict=True):
                outcomes[i] = _outcome(result)
        return outcomes

    def _owned(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is not None:
            return shard
        if number in self._statuses:
            raise Unavailable(f"shard {number} is recovering; try again", retry_after_ms=500)
        raise NotOwner(f"this host does not own shard {number}; ask for the routing")

    # -------------------------------------------------------------- dequeue

    async def dequeue(
        self, namespace: str, wants: Sequence[tuple[str, int]], wait_ms: int, lease_ms: int | None, deadline: float
    ) -> HandOut:
        loop = asyncio.get_running_loop()
        topics: list[tuple[TopicName, int]] = [((namespace, topic), count) for topic, count in wants]
        until = min(deadline, loop.time() + wait_ms / 1000)
        item_bytes = _item_bytes_max(self.namespace(namespace))
        items_max = min(self.limits.items_per_call_max, max(1, self._handout_bytes_max // item_bytes))
        try:
            while True:
                soon = loop.time() + self._handout_wait_s_max
                taken = await self._reserve(topics, items_max, min(deadline, soon))
                if taken:
                    self._pass_on(topics)
                    handed = await self._lease(taken, lease_ms, item_bytes, deadline)
                    if handed.items:
                        return handed
                if until - loop.time() < _TICK_S or (self._draining and not taken):
                    return HandOut([], _nothing)
                if not taken:
                    # A shard that is late, or was not asked for being in trouble, wakes nobody: look again.
                    late = any(shard.index.needs_refill(topic) for shard in self._serving() for topic, _ in topics)
                    await self._wait([topic for topic, _ in topics], min(until, soon) if late else until)
        finally:
            self._pass_on(topics)

    def _pass_on(self, topics: Sequence[tuple[TopicName, int]]) -> None:
        """Wakes the next waiters of topics that still have something."""
        for topic, _ in topics:
            if any(shard.index.head(topic) or shard.index.needs_refill(topic) for shard in self._serving()):
                self.waiters.wake([topic])

    async def _reserve(self, topics: Sequence[tuple[TopicName, int]], items_max: int, until: float) -> list[Taken]:
        """Reserves the best items over the shards that answer by `until`: best first within a topic."""
        taken: list[Taken] = []
        missing = dict(topics)
        try:
            while True:
                await self._refill(missing, until)
                part = self._take(missing, items_max - len(taken))
                taken += part
                for _, topic, _ in part:
                    missing[topic] -= 1
                missing = {topic: count for topic, count in missing.items() if count}
                if not part or not any(
                    shard.index.needs_refill(topic) for shard in self._answering() for topic in missing
                ):
                    return [one for one in taken if one[0].serving]
        except BaseException:
            for shard, _, key in taken:
                shard.give_back([key[2]])
            raise

    def _serving(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.serving]

    def _answering(self) -> list[Shard]:
        return [shard for shard in self._serving() if shard.trouble is None]

    async def _refill(self, topics: Iterable[TopicName], until: float) -> None:
        """Has every shard that answers by `until` look at least at its best item of each topic."""
        loop = asyncio.get_running_loop()
        while (left_s := until - loop.time()) > _TICK_S:
            reads = [
                shard.refill(topic)
                for shard in self._answering()
                for topic in topics
                if shard.index.needs_refill(topic)
            ]
            if not reads:
                return
            done, _ = await asyncio.wait(reads, timeout=left_s)
            if any(read.exception() is not None for read in done):
                return

    def _take(self, topics: Mapping[TopicName, int], room: int) -> list[Taken]:
        """Reserves up to `room` keys by merging the shards' windows, as far as these reach."""
        taken: list[Taken] = []
        shards = self._answering()
        for topic, count in topics.items():
            heads = [(head, n) for n, shard in enumerate(shards) if (head := shard.index.head(topic))]
            heapq.heapify(heads)
            for _ in range(min(count, room - len(taken))):
                if not heads:
                    break
                shard = shards[heads[0][1]]
                taken.append((shard, topic, shard.index.take(topic)))
                head = shard.index.head(topic)
                if head is not None:
                    heapq.heapreplace(heads, (head, heads[0][1]))
                elif shard.index.needs_refill(topic):
                    break
                else:
                    heapq.heappop(heads)
        return taken

    async def _lease(self, taken: Sequence[Taken], lease_ms: int | None, item_bytes: int, deadline: float) -> HandOut:
        """Has the shards lease what was taken; what commits too late is given back by them."""
        until = min(deadline, asyncio.get_running_loop().time() + self._handout_wait_s_max)
        works = _Works()
        parts: list[tuple[Shard, list[int], Work]] = []
        for shard in dict.fromkeys(shard for shard, _, _ in taken):
            indexes = [i for i, (owner, _, _) in enumerate(taken) if owner is shard]
            keys = [taken[i][2] for i in indexes]
            parts.append((shard, indexes, works.add(shard.hand_out(keys, lease_ms, item_bytes, works.finished))))
        collected = False
        try:
            await works.settled(until)
            collected = True
        finally:
            if not collected:
                for shard, _, work in parts:
                    shard.release(_leased(work))
                    shard.abandon(work)
        rows: dict[int, tuple[Shard, Row]] = {}
        for shard, indexes, work in parts:
            if work.is_open:
                shard.abandon(work)
            for i, result in zip(indexes, work.results, strict=True):
                if isinstance(result, Verdict) and result.row is not None:
                    rows[i] = (shard, result.row)
        items = [Seen(shard.number, row, shard.now_ms()) for _, (shard, row) in sorted(rows.items())]

        def give_back() -> None:
            for shard, _, work in parts:
                shard.release(_leased(work))

        return HandOut(items, give_back)

    async def _wait(self, topics: Sequence[TopicName], until: float) -> None:
        waiter = self.waiters.join(topics)
        try:
            async with asyncio.timeout_at(until):
                await waiter.future
        except TimeoutError:
            pass
        finally:
            self.waiters.leave(waiter)

    # ---------------------------------------------------------------- looking

    async def topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        wanted = tuple(states) if states else _ACTIVE
        shards = self._serving()
        names = {name for shard in shards for name in shard.counts.topics(namespace)}
        page: list[TopicStats] = []
        for name in sorted(n for n in names if n.startswith(prefix) and (cursor is None or n > cursor)):
            topic = (namespace, name)
            if not any(shard.counts.of(topic, state) for shard in shards for state in wanted):
                continue
            if len(page) == limit:
                return page, page[-1].topic
            page.append(_stats(topic, shards))
        return page, None

    async def peek(
        self, namespace: str, topic: str, state: State, cursor: str | None, limit: int, deadline: float
    ) -> tuple[list[Seen], str | None]:
        after = None if cursor is None else _parse_cursor(cursor)
        seen: list[Seen] = []
        for shard in list(self._shards.values()):
            try:
                async with asyncio.timeout_at(deadline):
                    rows = await shard.listed((namespace, topic), state, after, limit + 1)
            except TimeoutError:
                raise DeadlineExceeded("the time ran out before every shard had answered; try again") from None
            seen.extend(Seen(shard.number, row, shard.now_ms()) for row in rows)
        seen.sort(key=lambda one: one.row.key)
        if len(seen) <= limit:
            return seen, None
        return seen[:limit], ":".join(map(str, seen[limit - 1].row.key))

    async def item(self, namespace: str, shard: int, number: int, deadline: float) -> Seen:
        owner = self._owned(shard)
        try:
            async with asyncio.timeout_at(deadline):
                rows = await owner.rows([number])
        except TimeoutError:
            raise DeadlineExceeded("the time ran out before the shard had answered; try again") from None
        if not rows or rows[0].namespace != namespace:
            raise NotFound("no such item in this namespace; it may have been acked, cancelled or expired")
        return Seen(shard, rows[0], owner.now_ms())

    def shards(self) -> list[ShardStatus]:
        statuses = []
        for number, status in sorted(self._statuses.items()):
            shard = self._shards.get(number)
            if shard is not None:
                status = replace(status, queued_items=shard.queued_items, reason=shard.trouble or status.reason)
            statuses.append(status)
        return statuses


# ------------------------------------------------------------------- helpers


class _Works:
    """The works of one call: settled when each of them is, or given up at a deadline.

    Costs one future and one timer, however many works there are; a work is
    settled by a flush, so never before the call waits.
    """

    __slots__ = ("_future", "_loop", "_open")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[None] = self._loop.create_future()
        self._open = 0

    def add(self, work: Work) -> Work:
        """One more to wait for; its `finished` callback is ours."""
        self._open += 1
        return work

    def finished(self) -> None:
        """One of them has all its results."""
        self._open -= 1
        if not self._open:
            self._end()

    async def settled(self, deadline: float) -> None:
        """Returns when all are settled, or at `deadline`. The works go on when the wait is cancelled."""
        if not self._open:
            return
        timer = self._loop.call_at(deadline, self._end)
        try:
            await self._future
        finally:
            timer.cancel()

    def _end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


def _by_shard(events: Sequence[tuple[int, Event]]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for i, (shard, _) in enumerate(events):
        groups.setdefault(shard, []).append(i)
    return groups


def _id_or_error(shard: int, result: Result | None) -> str | FoqsError:
    if isinstance(result, Row):
        return format_id(shard, result.id)
    assert isinstance(result, FoqsError)
    return result


def _outcome(result: Result | None) -> Outcome:
    if isinstance(result, FoqsError):
        return result
    assert isinstance(result, Verdict)
    if result.error is not None:
        return result.error
    return ALREADY_GONE if result.already_gone else None


def _leased(work: Work) -> list[Row]:
    """The rows a hand-out has leased so far."""
    return [result.row for result in work.results if isinstance(result, Verdict) and result.row is not None]


def _item_bytes_max(settings: NamespaceSettings) -> int:
    """What one item of a namespace may weigh in a reply."""
    return settings.payload_bytes_max + settings.metadata_bytes_max + _ITEM_OVERHEAD_BYTES


def _nothing() -> None:
    """Gives back no items."""


def _stats(topic: TopicName, shards: Sequence[Shard]) -> TopicStats:
    def count(state: State) -> int:
        return sum(shard.counts.of(topic, state) for shard in shards)

    heads = [head for shard in shards if (head := shard.index.head(topic))]
    windows = [(shard.now_ms(), shard.index.window(topic)) for shard in shards]
    ages = [now_ms - min(key[1] for key in window) for now_ms, window in windows if window]
    return TopicStats(
        topic=topic[1],
        ready=count(State.READY),
        deferred=count(State.DEFERRED),
        leased=count(State.LEASED),
        dead=count(State.DEAD),
        best_priority=min(heads)[0] if heads else None,
        oldest_ready_age_ms=max(0, *ages) if ages else None,
        next_due_in_ms=None,
        paused=False,
        counts_lag=False,
    )


def _parse_cursor(cursor: str) -> Key:
    try:
        priority, after, number = (int(part) for part in cursor.split(":"))
    except ValueError:
        priority = after = number = -1
    if PRIORITY_MIN <= priority <= PRIORITY_MAX and 0 <= after <= TIME_MS_MAX and 0 < number <= NUMBER_MAX:
        return (priority, after, number)
    raise InvalidArgument("this is not a cursor of an earlier reply", field="page.cursor")
