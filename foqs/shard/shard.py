"""One owned shard: its writer, its ready index, its timers, its counts.

Opened by a takeover and a recovery from rows alone; closed by a drain. Always
true between two awaits: index, counts and timers show exactly the committed
rows, less what is reserved for hand-outs that wait or are being written.
Everything that happens to the memory happens in `_applied`, after the commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from foqs.clock import Clock
from foqs.core.batch import Intake, Result, Work
from foqs.core.counts import TopicCounts
from foqs.core.errors import FoqsError, NotOwner, Unavailable
from foqs.core.fence import Owner
from foqs.core.item import SEQUENCE_MAX, Key, NewItem, Row, State, make_number, split_number
from foqs.core.life import Event, Fate, Kind, Policy
from foqs.core.ready import ReadyIndex, TopicName
from foqs.core.rows import RowCache
from foqs.core.shardtime import ShardTime
from foqs.core.timers import Timers
from foqs.shard.facts import Facts
from foqs.shard.writer import Flush, Retry, Writer
from foqs.store.port import Due, Store

log = logging.getLogger(__name__)

_RESERVE: Final = 1_000_000
"""Numbers kept back of an ownership's sequences, so that whatever is queued still gets one."""

_OLDEST_KEYS: Final = 20_000
"""Keys looked at for the age of the oldest, so that a scrape never holds up the queue."""


@dataclass(slots=True, frozen=True)
class ShardSettings:
    """Limits of one shard; see `[shard]` in configs/foqs.toml for units and reasons."""

    flush_items_max: int
    flush_bytes_max: int
    queue_items_max: int
    queue_bytes_max: int
    ready_window_items_max: int
    ready_keys_max: int
    row_cache_bytes_max: int
    timer_page_items: int
    timer_tick_ms_min: int
    sweep_interval_ms: int
    retry_ms_min: int
    retry_ms_max: int


class Shard:
    """A shard that this host owns.

    Args:
        number: its number, the first part of its items' ids.
        store: open; this object closes it.
        policies: by namespace; has an answer for every name.
        on_ready: called with the topics that have newly READY items after a flush.
    """

    def __init__(
        self,
        number: int,
        store: Store,
        settings: ShardSettings,
        policies: Mapping[str, Policy],
        clock: Clock,
        rng: Random,
        facts: Facts,
        on_ready: Callable[[list[TopicName]], None],
    ) -> None:
        self.number = number
        self.serving = False
        self.epoch = 0
        self.index = ReadyIndex(settings.ready_window_items_max, settings.ready_keys_max)
        self.counts = TopicCounts()
        self._store = store
        self._settings = settings
        self._policies = policies
        self._clock = clock
        self._rng = rng
        self._facts = facts
        self._on_ready = on_ready
        self._intake = Intake(
            settings.flush_items_max, settings.flush_bytes_max, settings.queue_items_max, settings.queue_bytes_max
        )
        self._timers = Timers(settings.sweep_interval_ms)
        self._timer_wake = asyncio.Event()
        self._timer_at_ms: int | None = None
        self._refills: dict[TopicName, asyncio.Future[None]] = {}
        self._sequence = 0
        self._owner: Owner
        self._time: ShardTime
        self._writer: Writer

    # ------------------------------------------------------------ life cycle

    async def take_over(self, epoch: int, nonce: str) -> None:
        """Becomes the owner. Raises `Superseded`, `StoreLost`."""
        self._owner = await self._store.take_over(epoch, nonce)
        self.epoch = epoch

    async def recover(self) -> None:
        """Rebuilds the memory from rows; afterwards `run` serves. Raises `StoreLost`."""
        self._time = ShardTime(self._clock.monotonic_ms, await self._store.now_ms(), self._owner.clock_ms)
        for count in await self._store.counts():
            topic = (count.namespace, count.topic)
            self.counts.change(topic, count.state, count.rows)
            if count.state is State.READY:
                self.index.discover(topic)
        self._writer = Writer(
            self.number,
            self._store,
            self._owner,
            self._time,
            self._intake,
            RowCache(self._settings.row_cache_bytes_max),
            self._timers,
            self._policies,
            Retry(self._settings.retry_ms_min, self._settings.retry_ms_max),
            self._rng,
            self._clock.seconds,
            self._facts,
            self._applied,
            self._refused,
            lambda: self._on_ready(self.index.topics()),
        )

    async def run(self) -> None:
        """Serves until `close` has drained it.

        Raises:
            ShardLost: it is fenced.
        """
        self.serving = True
        timer = asyncio.ensure_future(self._run_timer())
        timer.add_done_callback(self._timer_ended)
        try:
            self._on_ready(self.index.topics())
            await self._writer.run()
        finally:
            self.serving = False
            timer.cancel()
            await asyncio.gather(timer, return_exceptions=True)
            await self._store.close()

    def _timer_ended(self, timer: asyncio.Task[None]) -> None:
        """A shard without timers must not go on: no lease would ever end."""
        if not timer.cancelled() and timer.exception() is not None:
            self._writer.give_up(f"its timers failed: {timer.exception()!r}")

    def close(self) -> None:
        """Takes in nothing more; `run` returns when what is queued is written."""
        self.serving = False
        self._writer.close()

    # ------------------------------------------------------------- requests

    @property
    def queued_items(self) -> int:
        return len(self._intake)

    @property
    def trouble(self) -> str | None:
        """Why the store does not answer just now, None when it does."""
        return self._writer.trouble

    def now_ms(self) -> int:
        return self._time.now_ms()

    def oldest_ready_age_ms(self) -> int | None:
        """How long the oldest READY item has been ready, among those in the index; None when there is none."""
        oldest_ms = self.index.oldest_ms(_OLDEST_KEYS)
        return None if oldest_ms is None else max(0, self.now_ms() - oldest_ms)

    def insert(self, items: Sequence[NewItem], finished: Callable[[], None]) -> Work:
        """Queues new items. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        if self._sequence + len(items) > SEQUENCE_MAX - _RESERVE:
            self._writer.give_up("its epoch's ids are used up")
            raise Unavailable(
                f"shard {self.number} has used up its epoch's ids; it is taken over anew", retry_after_ms=1000
            )
        numbers = range(self._sequence + 1, self._sequence + 1 + len(items))
        work = Work(
            finished, inserts=[(make_number(self.epoch, n), item) for n, item in zip(numbers, items, strict=True)]
        )
        self._intake.submit(work)
        self._sequence += len(items)
        self._writer.poke()
        return work

    def apply(self, events: Sequence[Event], finished: Callable[[], None]) -> Work:
        """Queues events on existing items. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        work = Work(finished, events=events)
        self._intake.submit(work)
        self._writer.poke()
        return work

    def hand_out(
        self, keys: Sequence[Key], lease_ms: int | None, item_bytes_max: int, finished: Callable[[], None]
    ) -> Work:
        """Leases reserved items, each of at most `item_bytes_max`. The caller got `keys` from `index.take`."""
        events = [Event(Kind.HAND_OUT, key[2], lease_ms=lease_ms) for key in keys]
        work = Work(finished, events=events, read_bytes=item_bytes_max)
        self._intake.submit(work, internal=True)
        self._writer.poke()
        return work

    def abandon(self, work: Work) -> None:
        """Nobody waits for a hand-out any more: gives back what is not being written; the rest when it is."""
        self.give_back([work.events[index].id for index in work.expire()])

    def give_back(self, numbers: Iterable[int]) -> None:
        """Reserved items are not handed out after all; somebody else may be waiting for them."""
        topics = [self.index.give_back(number) for number in numbers]
        self._on_ready(list(dict.fromkeys(topic for topic in topics if topic)))

    def release(self, leased: Sequence[Row]) -> None:
        """Gives back items whose lease nobody has received."""
        if leased and not self._writer.ended:
            events = [Event(Kind.RELEASE, row.id, token=row.token) for row in leased]
            self._intake.submit(Work(_nobody, events=events), internal=True)
            self._writer.poke()

    def has_issued(self, number: int) -> bool:
        """False when this number is of our epoch and was given to no item yet.

        Of another epoch the table knows: a number of a later one means that we
        were replaced, and the fence will say so.
        """
        epoch, sequence = split_number(number)
        return epoch != self.epoch or sequence <= self._sequence

    def refill(self, topic: TopicName) -> asyncio.Future[None]:
        """Extends the topic's window; callers at the same time share one read, and must not cancel it.

        Its result may be `NotOwner` or `Unavailable`.
        """
        running = self._refills.get(topic)
        if running is None:
            running = self._refills[topic] = asyncio.ensure_future(self._refill(topic))
            running.add_done_callback(
                lambda done: (self._refills.pop(topic, None), done.cancelled() or done.exception())
            )
        return running

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids that exist."""
        self._check_serving()
        return await self._writer.read(lambda store: store.rows(ids))

    async def listed(self, topic: TopicName, state: State, after: Key | None, limit: int) -> list[Row]:
        """A page of a topic's rows in a state, in key order."""
        self._check_serving()
        return await self._writer.read(lambda store: store.listed(*topic, state, after, limit))

    def _check_serving(self) -> None:
        if not self.serving:
            raise Unavailable(f"shard {self.number} is not being served now; try again", retry_after_ms=500)

    # --------------------------------------------------------------- memory

    def _applied(self, flush: Flush) -> None:
        """A flush is committed: brings the memory up to it and tells the callers."""
        ready: dict[TopicName, None] = {}
        orphans: list[Row] = []
        tally = dict.fromkeys(Kind, 0)
        dead = arrived = 0
        for (work, index), verdict in zip(flush.events, flush.decision.verdicts, strict=True):
            event = work.events[index]
            old = flush.found.get(event.id)
            if event.kind is Kind.HAND_OUT:
                self.index.settle(event.id)
            if old is not None and verdict.fate is not Fate.KEPT:
                tally[event.kind] += 1
                arrived += event.kind is Kind.DUE and old.state is State.DEFERRED and verdict.row is not None
                self._moved(old, verdict.row, ready)
                dead += verdict.row is not None and verdict.row.state is State.DEAD
            if event.kind is Kind.HAND_OUT and work.abandoned and verdict.row is not None:
                orphans.append(verdict.row)
            work.settle(index, verdict)
        for (work, index), row in zip(flush.inserts, flush.decision.inserted, strict=True):
            self._entered(row, ready)
            work.settle(index, row)
        self.release(orphans)
        tally[Kind.DUE] -= arrived
        self._report(tally, dead, len(flush.inserts))
        if ready:
            self._on_ready(list(ready))

    def _refused(self, work: Work, index: int) -> None:
        """The database refused a single write; its caller has been told.

        An item that cannot be leased stays reserved for a while: nobody tries it
        again at full speed, and it does not stand before the others.
        """
        if work.events and work.events[index].kind is Kind.HAND_OUT:
            pause_s = self._settings.retry_ms_max / 1000
            asyncio.get_running_loop().call_later(pause_s, self.give_back, [work.events[index].id])

    def _moved(self, old: Row, new: Row | None, ready: dict[TopicName, None]) -> None:
        topic = (old.namespace, old.topic)
        if new is not None:
            self.counts.change(topic, new.state, 1)
        self.counts.change(topic, old.state, -1)
        if old.state is State.READY:
            self.index.discard(topic, old.key)
            if not self.counts.of(topic, State.READY):
                self.index.forget(topic)
        if new is None:
            return
        if new.state is State.READY:
            self.index.add(topic, new.key)
            ready[topic] = None
        self._timed(new)

    def _entered(self, row: Row, ready: dict[TopicName, None]) -> None:
        topic = (row.namespace, row.topic)
        self.counts.change(topic, row.state, 1)
        if row.state is State.READY:
            self.index.add(topic, row.key)
            ready[topic] = None
        self._timed(row)

    def _timed(self, row: Row) -> None:
        if row.due_ms is None:
            return
        self._timers.wrote(row.due_ms)
        if self._timer_at_ms is not None and row.due_ms < self._timer_at_ms:
            self._timer_wake.set()

    def _report(self, tally: Mapping[Kind, int], dead: int, inserted: int) -> None:
        facts = self._facts
        if inserted:
            facts.enqueued(inserted)
        for kind, tell in (
            (Kind.HAND_OUT, facts.handed_out),
            (Kind.ACK, facts.acked),
            (Kind.NACK, facts.nacked),
            (Kind.RELEASE, facts.released),
            (Kind.DUE, facts.expired),
        ):
            if tally[kind]:
                tell(tally[kind])
        if dead:
            facts.dead(dead)

    # --------------------------------------------------------- refill, timer

    async def _refill(self, topic: TopicName) -> None:
        async def read(store: Store) -> None:
            after, limit = self.index.refill_after(topic), self.index.room
            if after is not None:
                keys = await store.ready(*topic, after, limit)
                # Keys given back meanwhile may have lowered the boundary; what lies between was not read.
                if self.index.refill_after(topic) == after:
                    self.index.refill(topic, keys, complete=len(keys) < limit)

        await self._writer.read(read)

    async def _run_timer(self) -> None:
        while True:
            wait_ms = max(self._timers.next_scan_ms() - self._time.now_ms(), self._settings.timer_tick_ms_min)
            self._timer_at_ms = self._time.now_ms() + wait_ms
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    await self._timer_wake.wait()
            except TimeoutError:
                pass
            self._timer_wake.clear()
            self._timer_at_ms = None
            if self._timers.next_scan_ms() <= self._time.now_ms():
                try:
                    await self._scan()
                except (NotOwner, Unavailable):
                    if self._writer.ended:
                        return
                    self._timers.fell_short(self._again_ms(), None, swept=True)

    async def _scan(self) -> None:
        """Applies everything due, page by page; the watermark rises when all of it is committed.

        What the database refuses holds up nothing else; it is tried again after a pause.

        A sweep also writes to the owner row, so that a host without work learns
        that it was replaced.
        """
        now_ms = self._time.now_ms()
        low_ms = self._timers.scan_from(now_ms)
        if low_ms is None:
            self._writer.beat()
        page_items = self._settings.timer_page_items
        after: Due | None = None
        whole = True
        while True:
            page = await self._writer.read(lambda store, after=after: store.due(low_ms, now_ms, after, page_items))  # type: ignore[misc]
            if page:
                results = await self._apply_due(page)
                whole = whole and not any(isinstance(result, FoqsError) for result in results)
                after = page[-1]
            if len(page) < page_items:
                break

        async def finish(store: Store) -> None:
            next_ms = await store.next_due_ms(now_ms)
            if whole:
                self._timers.scanned(now_ms, next_ms, swept=low_ms is None)
            else:
                self._timers.fell_short(self._again_ms(), next_ms, swept=low_ms is None)

        await self._writer.read(finish)

    def _again_ms(self) -> int:
        return self._time.now_ms() + self._settings.retry_ms_max

    async def _apply_due(self, page: Sequence[Due]) -> list[Result | None]:
        done = asyncio.Event()
        work = Work(done.set, events=[Event(Kind.DUE, due.id) for due in page])
        self._intake.submit(work, internal=True)
        self._writer.poke()
        await done.wait()
        return work.results


def _nobody() -> None:
    """The callback of a work that nobody waits for."""
