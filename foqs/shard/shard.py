"""One owned shard: its writer, its reader, its memory, its timers.

Opened by a takeover and a recovery from rows alone; closed by a drain. Takes
requests as works, which its writer writes and its memory then applies
(`memory.ShardMemory`). Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Final

from foqs.clock import Clock
from foqs.core.batch import Acks, Events, HandOut, Inserts, Recall
from foqs.core.breaker import BreakerSettings
from foqs.core.counts import TopicCounts
from foqs.core.cuts import MakeCut
from foqs.core.errors import HANDOVER_MS, FoqsError, Overloaded, Unavailable
from foqs.core.fence import Owner
from foqs.core.intake import SHARES, Intake, IntakeLimits
from foqs.core.item import Key, KeyedItem, NewItem, Row, State, TopicName, key_number
from foqs.core.life import Event, Kind, Policy
from foqs.core.numbers import Numbers
from foqs.core.pace import Pace, PaceSettings
from foqs.core.ready import ReadyIndex
from foqs.core.rows import RowCache
from foqs.core.shardtime import ShardTime, first_ms
from foqs.core.timers import Timers
from foqs.core.underway import UnderWay
from foqs.shard.breaker import ShardBreaker
from foqs.shard.counting import Counting
from foqs.shard.facts import Facts
from foqs.shard.figures import Figures, figures_of
from foqs.shard.hints import LoadJob, RefillJob
from foqs.shard.keysweep import sweep_keys
from foqs.shard.memory import Consumers, ShardMemory
from foqs.shard.purger import Purger
from foqs.shard.reader import Reader
from foqs.shard.retry import Retry
from foqs.shard.settings import ShardSettings
from foqs.shard.timekeeper import Timekeeper
from foqs.shard.writer import Writer
from foqs.store.port import Store

_AWAY_MS_MAX: Final = 1_000
"""Whose store has long been in trouble is asked no more often by one call."""

_OLDEST_KEYS: Final = 20_000
"""Keys looked at for the age of the oldest, so that a scrape never holds up the queue."""

_CROWDED_S: Final = 0.5
"""A shard takes no more hand-outs than it leases in this time, so that they commit before their dequeues' deadlines."""
_ROOM_MAX: Final = 1_000_000
"""More than any call asks for."""

KEYS_A_ROW: Final = 100
"""So many keys cost a reader what one row does."""
TOPIC_PRIORITIES_MAX: Final = 50
"""Looked at for the age of a topic's oldest: a page of topics is many of them."""


class Shard:
    """A shard that this host owns.

    Args:
        number: its number, the first part of its items' ids.
        store: open; this object closes it.
        policies: by namespace; has an answer for every name.
        weight: of a namespace.
        cache: rows remembered, for this shard alone, within the host's budgets.
        consumers: told what becomes READY.
        count_turn: held while a shard of the same database is counted.
    """

    def __init__(
        self,
        number: int,
        store: Store,
        settings: ShardSettings,
        policies: Mapping[str, Policy],
        weight: Callable[[str], int],
        cache: RowCache,
        clock: Clock,
        rng: Random,
        facts: Facts,
        consumers: Consumers,
        count_turn: asyncio.Lock,
    ) -> None:
        self.number = number
        self.dropped = False
        """Nothing of it may be told any more."""
        self._open = False
        self.epoch = 0
        self.index = ReadyIndex(settings.ready_window_items_max, settings.ready_keys_max)
        self._store = store
        self._settings = settings
        self._policies = policies
        self._weight = weight
        self._clock = clock
        self._rng = rng
        self._facts = facts
        self._consumers = consumers
        limits = IntakeLimits(
            settings.flush_items_max,
            settings.flush_bytes_max,
            settings.flush_express_items,
            settings.queue_items_max,
            settings.queue_bytes_max,
            SHARES,
        )
        self._intake = Intake(limits, weight)
        self._timers = Timers(settings.sweep_interval_ms)
        self.memory = ShardMemory(
            self,
            self.index,
            cache,
            lambda due_ms: self._timekeeper.wrote(due_ms),
            consumers,
            facts,
            settings.topic_linger_ms,
            settings.flush_bytes_max,
            self.now_ms,
            self.release,
            self._refused,
            lambda: self._purger.wake(),
        )
        self._counting = Counting(number, store, self.memory, settings.retry_ms_max / 1000, count_turn)
        self._refilling: set[TopicName] = set()
        self._loading: set[TopicName] = set()
        self._disputed: frozenset[int] = frozenset()
        self._own_works: Sequence[asyncio.Task[None]] = ()
        """What it does by itself while it runs."""
        self.disputed: str | None = None
        """Why it does not answer for some of the slots that it holds."""
        self.numbers: Numbers
        self._owner: Owner
        self._time: ShardTime
        self._timekeeper: Timekeeper
        self._writer: Writer
        self._breaker: ShardBreaker
        self._reader: Reader
        self._purger: Purger

    @property
    def serving(self) -> bool:
        """Takes requests."""
        return self._open and not self._writer.ended

    @property
    def answering(self) -> bool:
        """Takes requests, and its store writes them."""
        return self._open and self._writer.trouble is None and not self._writer.ended

    @property
    def hands_out(self) -> bool:
        """It may lease items soon: its store answers, and not too slowly just now."""
        return self.answering and not self._writer.is_late

    def leases_within(self, seconds: float) -> bool:
        """It commits what is taken now within this time, if its flushes stay as they are: one may be under way."""
        return 2 * self._writer.flush_s <= seconds

    def room(self, namespace: str) -> int:
        """How many more items of the namespace it leases while somebody waits for them; 0 when it is crowded.

        Of a hand-out that is leased too late nothing is delivered, and it is released:
        all that for nothing. Who finds no room is asked to look again when a flush was sealed.
        """
        waiting, part = self._intake.asked_for(namespace)
        lease_s = self._writer.lease_cost.each_s
        if waiting * lease_s < _CROWDED_S * part:
            return max(1, int(_CROWDED_S * part / lease_s) - waiting) if lease_s else _ROOM_MAX
        self.memory.turn_away(namespace)
        return 0

    @property
    def takes_items(self) -> bool:
        """New items are not refused by its breaker."""
        return self.answering and not self._breaker.is_open

    @property
    def counts(self) -> TopicCounts:
        return self.memory.counts

    @property
    def slots(self) -> frozenset[int]:
        """The slots of idempotency keys that it holds, committed, and that nobody else does."""
        return self.memory.slots - self._disputed if self._disputed else self.memory.slots

    @property
    def slots_claimed(self) -> frozenset[int]:
        """The slots that it holds, or will when they are committed."""
        return self.memory.slots.union(self._writer.taking)

    @property
    def is_taking_slots(self) -> bool:
        """Some of its slots are not committed yet."""
        return bool(self._writer.taking)

    def hold(self, slots: Sequence[int], held: Callable[[], None]) -> None:
        """Gives it these slots, as soon as that is committed; `held` is called then."""
        self._writer.hold(slots, held)

    def dispute(self, slots: frozenset[int], reason: str | None) -> None:
        """From now on it answers for none of these slots; `reason` is for people."""
        self._disputed, self.disputed = slots, reason

    # ------------------------------------------------------------ life cycle

    async def take_over(self, epoch: int, nonce: str) -> None:
        """Becomes the owner. Raises `Superseded`, `StoreLost`."""
        self._owner = await self._store.take_over(epoch, nonce)
        self.epoch = epoch
        self.numbers = Numbers(epoch, lambda call: self._writer.is_writing(call))

    async def recover(self) -> None:
        """Rebuilds the memory from rows; afterwards `run` serves. Raises `StoreLost`."""
        settings, owner = self._settings, self._owner
        asked_ms = self._clock.monotonic_ms()
        database_ms = await self._store.now_ms()
        waited_ms = self._clock.monotonic_ms() - asked_ms
        start_ms = first_ms(database_ms, owner.clock_ms, owner.offset_ms, settings.clock_skew_ms_max)
        # It was read at some moment since. Were it later now than is believed, the next owner would start too far ahead.
        latest_ms = database_ms + waited_ms
        self._time = ShardTime(self._clock.monotonic_ms, start_ms, latest_ms, settings.clock_slew_permille)
        store = self._store
        for _ in self.memory.recovered(await store.topics(), await store.slots(), await store.cuts()):
            await asyncio.sleep(0)
        retry = Retry(self._settings.retry_ms_min, self._settings.retry_ms_max)
        self._breaker = ShardBreaker(
            self.number,
            BreakerSettings(
                window_s=self._settings.breaker_window_ms / 1000,
                latency_s_max=self._settings.breaker_latency_ms_max / 1000,
                error_percent=self._settings.breaker_error_percent,
                flushes_min=self._settings.breaker_flushes_min,
                reset_s=self._settings.breaker_reset_ms / 1000,
            ),
            self._clock.seconds,
            self._facts,
            lambda error: self._writer.refuse_inserts(error),
        )
        self._writer = Writer(
            self.number,
            self._store,
            self._owner,
            self._time,
            self._intake,
            self.memory.cache,
            self._timers,
            self._policies,
            retry,
            self._rng,
            self._clock.seconds,
            self._facts,
            self.memory,
            Pace(
                PaceSettings(
                    self._settings.flush_items_min,
                    self._settings.flush_items_max,
                    self._settings.flush_ms_target / 1000,
                    self._settings.flush_shared_ms_target / 1000,
                )
            ),
            self._breaker,
        )
        self._timekeeper = Timekeeper(
            self._writer, self._intake, self._timers, self._time, self.memory.cache.get, settings
        )
        self._reader = Reader(
            self.number, self._store.reads(), lambda: self._writer.past, self._weight, retry, self._rng
        )
        self._purger = Purger(
            self._writer,
            self._intake,
            self._reader,
            self.memory.cuts,
            settings.purge_page_items,
            settings.retry_ms_max / 1000,
        )

    async def run(self) -> None:
        """Serves until `close` has drained it.

        Raises:
            ShardLost: it is fenced.
            GivenUp: it is to be taken over anew.
        """
        self._open = True
        works = (
            self._timekeeper.run(),
            self._timekeeper.follow(),
            sweep_keys(self._writer, self._time, self._settings.sweep_interval_ms),
            self._purger.run(),
            self._counting.run(self._writer),
        )
        self._own_works = [asyncio.ensure_future(work) for work in works]
        tasks = [asyncio.ensure_future(self._reader.run()), *self._own_works]
        for task in tasks:
            task.add_done_callback(self._task_ended)
        try:
            self._consumers.ready(self.index.topics())
            await self._writer.run()
        finally:
            self._open = False
            self._breaker.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.memory.cache.clear()
            await self.disconnect()

    async def disconnect(self) -> None:
        """Ends its connections, also those of a shard that never ran."""
        await self._store.close()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A shard without timers or reads must not go on: no lease would ever end."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._writer.give_up(f"a task of it failed: {fault!r}", fault)

    def close(self) -> None:
        """Takes in nothing more; `run` returns when what is queued is written. What nobody waits for is the next owner's."""
        self._open = False
        for task in self._own_works:
            task.cancel()
        self._writer.close()

    def drop(self) -> None:
        """It is another's, or may be: answers everybody at once. The caller cancels `run`, which writes nothing more."""
        self.dropped = True
        self._open = False
        self._writer.drop()

    # ------------------------------------------------------------- requests

    @property
    def queued_items(self) -> int:
        return len(self._intake)

    @property
    def trouble(self) -> str | None:
        """Why the store does not answer just now, or writes nothing more for us; None when it does both."""
        return self._writer.trouble

    def refusal(self) -> Unavailable:
        """What is told of it while its store is in trouble: to come again after about as long as that has lasted."""
        wait_ms = min(max(HANDOVER_MS, self._writer.trouble_ms), _AWAY_MS_MAX)
        text = f"shard {self.number} can write nothing just now: {self.trouble}; try again"
        return Unavailable(text, retry_after_ms=wait_ms)

    @property
    def breaker(self) -> str:
        """closed, open or half-open: whether new items are taken."""
        return self._breaker.state

    def figures(self) -> Figures:
        """What it is doing, in numbers."""
        return figures_of(
            self._intake, self._writer, self._reader, self._timers, self.index, self.memory, self.now_ms()
        )

    def now_ms(self) -> int:
        return self._time.now_ms()

    def lasts(self) -> Callable[[int], int] | None:
        """How long it really is until a moment of the shard's time; None while that passes no faster than real time."""
        return self._time.wait_ms if self._time.is_fast else None

    def oldest_ready_age_ms(self, topic: TopicName | None = None) -> int | None:
        """How long the oldest READY item has been ready, among those in the index; None when there is none.

        Of a topic, among those of its `TOPIC_PRIORITIES_MAX` best priorities.
        """
        most = _OLDEST_KEYS if topic is None else TOPIC_PRIORITIES_MAX - 1
        oldest_ms = self.index.oldest_ms(most, topic)
        return None if oldest_ms is None else max(0, self.now_ms() - oldest_ms)

    def insert(
        self,
        namespace: str,
        items: Sequence[NewItem],
        finished: Callable[[], None],
        *,
        keyed: bool = False,
        under_way: UnderWay | None = None,
    ) -> Inserts:
        """Queues new items, of which all have keys, or none; `under_way` counts them until they have their results.

        Raises `Overloaded`, `Unavailable`: nothing was queued.
        """
        self._check_serving()
        self._breaker.check()
        numbers = self.numbers
        if not numbers.has(len(items)):
            self._writer.give_up("its epoch's ids are used up")
            raise Unavailable(
                f"shard {self.number} has used up its epoch's ids; it is taken over anew", retry_after_ms=1000
            )
        work = Inserts(namespace, items, numbers.next, finished, keyed=keyed)
        self._intake.submit(work)
        numbers.gave(work)
        if under_way is not None:
            work.under_way = under_way
            under_way.entered(items)
        self._writer.poke()
        return work

    def recall(
        self, namespace: str, items: Sequence[KeyedItem], refusals: Sequence[FoqsError], finished: Callable[[], None]
    ) -> Recall:
        """Queues a look for what these items repeat; see `core.recall`. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        work = Recall(namespace, items, refusals, finished)
        self._intake.submit(work)
        self._writer.poke()
        return work

    def ack(self, namespace: str, numbers: Sequence[int], tokens: Sequence[int], finished: Callable[[], None]) -> Acks:
        """Queues acks. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        work = Acks(namespace, numbers, tokens, finished)
        self._intake.submit(work)
        self._writer.poke()
        return work

    def apply(self, namespace: str, events: Sequence[Event], finished: Callable[[], None]) -> Events:
        """Queues events of one kind on existing items. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        work = Events(namespace, events, finished)
        self._intake.submit(work)
        self._writer.poke()
        return work

    def may_hold(self, topic: TopicName) -> bool:
        """The topic has an item, or a cut, or it is not known yet."""
        return self.counts.lag or topic in self.counts or bool(self.memory.cuts.last(topic))

    def purge(self, topic: TopicName, finished: Callable[[], None]) -> MakeCut:
        """Queues a cut: all items that the topic has when it is committed are gone. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        cuts, settings = self.memory.cuts, self._settings
        if not cuts.last(topic) and (
            len(cuts) >= settings.purge_topics_max or cuts.count(topic[0]) >= settings.purge_topics_per_namespace_max
        ):
            raise Overloaded("rows of too many purged topics have still to go; try again later", retry_after_ms=1_000)
        work = MakeCut(topic, finished)
        self._intake.submit(work, internal=True)
        self._writer.poke()
        return work

    def hand_out(
        self,
        namespace: str,
        spans: Sequence[tuple[TopicName, Sequence[Key]]],
        lease_ms: int | None,
        item_bytes_max: int,
        finished: Callable[[], None],
    ) -> HandOut:
        """Leases reserved items. The caller got the keys from the index.

        What must be read for them is weighed: a row that is remembered by its length, any
        other as one of `item_bytes_max`, or as the longest that is known of its namespace.
        """
        work = HandOut(namespace, spans, lease_ms, 0, finished)
        cache = self.memory.cache
        rows = list(map(cache.get, work.numbers))
        work.read_bytes = max([row.payload_bytes for row in rows if row is not None and row.payload is None], default=0)
        if None in rows:
            work.read_bytes = max(work.read_bytes, item_bytes_max, cache.longest.of(namespace))
        self._intake.submit(work, internal=True)
        self._writer.poke()
        return work

    def abandon(self, work: HandOut) -> None:
        """Nobody waits for a hand-out any more: gives back what is not being written; the rest when it is."""
        self.give_back(work.keys_at(work.expire()))

    def give_back(self, spans: Iterable[tuple[TopicName, Sequence[Key]]]) -> None:
        """Reserved items are not handed out after all; somebody else may be waiting for them."""
        if self.memory.cuts:
            spans = [(topic, self._not_purged(topic, keys)) for topic, keys in spans]
        topics = [topic for topic, keys in spans if self.index.give_back(topic, keys)]
        if topics:
            self.counts.touch(topics)
            self._consumers.ready(topics)

    def _not_purged(self, topic: TopicName, keys: Sequence[Key]) -> Sequence[Key]:
        """Those that are still items; the others are reserved no more."""
        last = self.memory.cuts.last(topic)
        self.index.settle([number for key in keys if (number := key_number(key)) <= last])
        return [key for key in keys if key_number(key) > last]

    def release(self, leased: Sequence[Row]) -> None:
        """Gives back items whose lease nobody has received."""
        if leased and not self._writer.ended:
            events = [Event(Kind.RELEASE, row.id, token=row.token) for row in leased]
            self._intake.submit(Events("", events, _nobody), internal=True)
            self._writer.poke()

    def _refused(self, spans: list[tuple[TopicName, list[Key]]]) -> None:
        pause_s = self._settings.retry_ms_max / 1000
        asyncio.get_running_loop().call_later(pause_s, self.give_back, spans)

    def refill(self, topic: TopicName) -> None:
        """Extends the topic's window; whoever waits for the topic is told when that is done."""
        if topic not in self._refilling:
            self._refilling.add(topic)

            def ended() -> None:
                self._refilling.discard(topic)
                self.counts.touch([topic])
                self._consumers.ready([topic])

            job = RefillJob(self.memory, topic, self._writer.between, ended)
            self._reader.submit(topic[0], self._settings.ready_window_items_max / KEYS_A_ROW, job)

    def load(self, topic: TopicName, keys: Sequence[Key]) -> None:
        """Loads the rows of READY keys, which are in order, so that handing them out reads nothing."""
        if topic in self._loading:
            return
        rows = map(self.memory.cache.get, map(key_number, keys))
        if any(row is None or row.payload is None for row in rows):
            self._loading.add(topic)
            job = LoadJob(
                self.memory,
                topic,
                keys,
                self._weight(topic[0]),
                self._clock.seconds(),
                self._writer.between,
                lambda: self._loading.discard(topic),
            )
            self._reader.submit(topic[0], len(keys), job)
        else:
            self.index.set_loaded(topic, keys[-1])

    async def rows(self, namespace: str, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids that exist."""
        self._check_serving()
        rows = await self._reader.once(namespace, lambda reads, past: reads.rows(past, ids), len(ids))
        return [row for row in rows if not self.memory.cuts.covers(row)]

    async def listed(self, topic: TopicName, state: State, after: Key | None, limit: int) -> list[Row]:
        """A page of a topic's rows in a state, in key order, without payload."""
        self._check_serving()
        cuts = self.memory.cuts
        return await self._reader.once(
            topic[0],
            lambda reads, past: reads.listed(past, topic, state, after, limit, cuts.last(topic), payload=False),
            limit,
        )

    async def key_of(self, row: Row) -> bytes | None:
        """The idempotency key that names this item; None when none does any more. Raises `Unavailable`.

        Not found either where the namespace's `key_window_ms` has changed since the enqueue.
        """
        self._check_serving()
        until_ms = row.enqueued_at_ms + self._policies[row.namespace].key_window_ms
        if until_ms <= self.now_ms():
            return None
        return await self._reader.once(row.namespace, lambda reads, past: reads.key_of(past, row.id, until_ms))

    async def better(self, topic: TopicName, key: Key, most: int) -> int:
        """READY items of a topic that come before `key`, counted until they are more than `most`. Raises `Unavailable`.

        Those that the window does not cover are read; meanwhile others come and go.
        """
        self._check_serving()
        better, after = self.index.rank(topic, key)
        left = most + 1 - better
        if after is not None and left > 0:
            last_cut = self.memory.cuts.last(topic)
            keys = await self._reader.once(
                topic[0], lambda reads, past: reads.ready(past, topic, after, left, last_cut), left / KEYS_A_ROW
            )
            better += bisect_left(keys, key)
        return min(better, most + 1)

    async def settle(self) -> None:
        """Returns when every item that was queued before is in the counts, or was refused. Raises `NotOwner`, `Unavailable`."""
        self._check_serving()
        last = self.numbers.next - 1
        while self.numbers.settled < last:
            await self._writer.read(_look)

    async def prove(self) -> None:
        """Returns when a flush that began after this call is committed: no other owner can have come before the call.

        Raises:
            NotOwner, Unavailable: the shard was lost or closed first.
        """
        self._check_serving()
        last = self._writer.flush_number + 2  # one may have been under way
        while self._writer.flush_number < last:
            self._writer.beat()
            await self._writer.read(_look)

    def _check_serving(self) -> None:
        if not self._open or self._writer.ended:
            raise Unavailable(f"shard {self.number} is not being served now; try again", retry_after_ms=HANDOVER_MS)


async def _look(store: Store) -> None:
    """A read of nothing: between two flushes something has changed."""


def _nobody() -> None:
    """The callback of a work that nobody waits for."""
