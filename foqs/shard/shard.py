"""One owned shard: its writer, its reader, its memory, its timers.

Opened by a takeover and a recovery from rows alone; closed by a drain. Takes
requests as works, which its writer writes and its memory then applies
(`memory.ShardMemory`). Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from foqs.core.errors import HANDOVER_RETRY_MS, FoqsError, Overloaded, Unavailable
from foqs.core.flush.fence import Owner
from foqs.core.flush.intake import LANE_SHARES, Intake, IntakeLimits
from foqs.core.flush.item_numbers import ItemNumbers
from foqs.core.flush.pacing import FlushPace, PaceSettings
from foqs.core.flush.purge_markers import SetPurgeMarker
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.flush.work import Acks, Events, HandOut, Inserts
from foqs.core.items.item import KeyedItem, NewItem, OrderKey, Row, State, TopicName, order_key_number
from foqs.core.items.life import Event, EventKind, RetryPolicy
from foqs.core.limits.breaker_window import BreakerSettings
from foqs.core.limits.in_flight import InFlight
from foqs.core.memory.row_cache import RowCache
from foqs.core.memory.topic_counts import TopicCounts
from foqs.core.timing.shard_clock import ShardClock, initial_time_ms
from foqs.options.shard_options import ShardOptions
from foqs.runtime.clock import Clock
from foqs.shard.background_reads import PrefetchJob, RefillJob
from foqs.shard.initial_count import InitialCount
from foqs.shard.key_expiry import run_key_expiry
from foqs.shard.observer import ShardObserver
from foqs.shard.purge_worker import PurgeWorker
from foqs.shard.retry import Backoff
from foqs.shard.shard_breaker import ShardBreaker
from foqs.shard.shard_memory import DeliveryPort, ShardMemory
from foqs.shard.shard_reader import ShardReader
from foqs.shard.snapshot import ShardSnapshot, take_snapshot
from foqs.shard.timer_service import TimerService
from foqs.shard.writer import OwnedStore, Writer
from foqs.store.port import Store

_UNAVAILABLE_RETRY_MS_MAX: Final = 1_000
"""Whose store has long been in trouble is asked no more often by one call."""

_OLDEST_KEYS_MAX: Final = 20_000
"""Keys looked at for the age of the oldest, so that a scrape never holds up the queue."""

_DELIVERY_ROOM_S: Final = 0.5
"""A shard takes no more hand-outs than it leases in this time, so that they commit before their dequeues' deadlines."""
_DELIVERY_ROOM_MAX: Final = 1_000_000
"""More than any call asks for."""

KEYS_PER_ROW: Final = 100
"""So many keys cost a reader what one row does."""
TOPIC_PRIORITIES_MAX: Final = 50
"""Looked at for the age of a topic's oldest: a page of topics is many of them."""


class NamespaceRules(Protocol):
    """What a shard asks about the namespaces of its items."""

    @property
    def retry_policies(self) -> Mapping[str, RetryPolicy]:
        """By namespace; has an answer for every name."""
        ...

    def weight_of(self, name: str) -> int:
        """Its part of what is short, at least 1."""
        ...


class Shard:
    """A shard that this host owns.

    Args:
        number: its number, the first part of its items' ids.
        store: fresh, and not open yet; this object opens and closes it.
        cache: rows remembered, for this shard alone, within the host's budgets.
        delivery_port: told what becomes READY.
        count_lock: held while a shard of the same database is counted.
    """

    def __init__(
        self,
        number: int,
        store: Store,
        settings: ShardOptions,
        namespaces: NamespaceRules,
        cache: RowCache,
        clock: Clock,
        backoff: Backoff,
        observer: ShardObserver,
        delivery_port: DeliveryPort,
        count_lock: asyncio.Lock,
    ) -> None:
        self.number = number
        self.is_dropped = False
        """Nothing of it may be told any more."""
        self._is_open = False
        self.epoch = 0
        self._store = store
        self._settings = settings
        self._retry_policies = namespaces.retry_policies
        self._weight = namespaces.weight_of
        self._clock = clock
        self._backoff = backoff
        self._observer = observer
        self._delivery_port = delivery_port
        limits = IntakeLimits(
            settings.flush_items_max,
            settings.flush_bytes_max,
            settings.small_flush_items_max,
            settings.queue_items_max,
            settings.queue_bytes_max,
            LANE_SHARES,
        )
        self._intake = Intake(limits, namespaces.weight_of)
        self.memory = ShardMemory(self, cache, delivery_port, observer, settings)
        self.index = self.memory.index
        self._initial_count = InitialCount(number, store, self.memory, settings.retry_ms_max / 1000, count_lock)
        self._refilling: set[TopicName] = set()
        self._prefetching: set[TopicName] = set()
        self._disputed_key_slots: frozenset[int] = frozenset()
        self._background_tasks: Sequence[asyncio.Task[None]] = ()
        """What it does by itself while it runs."""
        self.dispute_reason: str | None = None
        """Why it does not answer for some of the slots that it holds."""
        self.numbers: ItemNumbers
        self._owner: Owner
        self._shard_clock: ShardClock
        self._timer_service: TimerService
        self._writer: Writer
        self._breaker: ShardBreaker
        self._reader: ShardReader
        self._purge_worker: PurgeWorker

    @property
    def is_serving(self) -> bool:
        """Takes requests."""
        return self._is_open and not self._writer.is_ended

    @property
    def is_answering(self) -> bool:
        """Takes requests, and its store writes them."""
        return self._is_open and self._writer.unavailable_reason is None and not self._writer.is_ended

    @property
    def can_deliver(self) -> bool:
        """It may lease items soon: its store answers, and not too slowly just now."""
        return self.is_answering and not self._writer.is_stalled

    def can_lease_within(self, seconds: float) -> bool:
        """It commits what is taken now within this time, if its flushes stay as they are: one may be under way."""
        return 2 * self._writer.last_flush_s <= seconds

    def delivery_room(self, namespace: str) -> int:
        """How many more items of the namespace it leases while somebody waits for them; 0 when it is crowded.

        Of a hand-out that is leased too late nothing is delivered, and it is released:
        all that for nothing. Who finds no room is asked to look again when a flush was sealed.
        """
        waiting, part = self._intake.lease_backlog(namespace)
        lease_s = self._writer.lease_cost.each_s
        if waiting * lease_s < _DELIVERY_ROOM_S * part:
            return max(1, int(_DELIVERY_ROOM_S * part / lease_s) - waiting) if lease_s else _DELIVERY_ROOM_MAX
        self.memory.notify_when_room(namespace)
        return 0

    @property
    def accepts_items(self) -> bool:
        """New items are not refused by its breaker."""
        return self.is_answering and not self._breaker.is_open

    @property
    def counts(self) -> TopicCounts:
        return self.memory.counts

    @property
    def key_slots(self) -> frozenset[int]:
        """The slots of idempotency keys that it holds, committed, and that nobody else does."""
        return self.memory.key_slots - self._disputed_key_slots if self._disputed_key_slots else self.memory.key_slots

    @property
    def assigned_key_slots(self) -> frozenset[int]:
        """The slots that it holds, or will when they are committed."""
        return self.memory.key_slots.union(self._writer.pending_key_slots)

    @property
    def has_pending_key_slots(self) -> bool:
        """Some of its slots are not committed yet."""
        return bool(self._writer.pending_key_slots)

    def assign_key_slots(self, key_slots: Sequence[int], on_assigned: Callable[[], None]) -> None:
        """Gives it these slots, as soon as that is committed; `on_assigned` is called then."""
        self._writer.assign_key_slots(key_slots, on_assigned)

    def dispute_key_slots(self, key_slots: frozenset[int], reason: str | None) -> None:
        """From now on it answers for none of these slots; `reason` is for people."""
        self._disputed_key_slots, self.dispute_reason = key_slots, reason

    # ------------------------------------------------------------ life cycle

    async def connect(self) -> None:
        """Opens its store. Raises `StoreLost`, `StoreUnusable`."""
        await self._store.open()

    async def read_owner(self) -> Owner:
        """The owner row as it is now. Raises `StoreLost`."""
        return await self._store.read_owner()

    async def take_over(self, epoch: int, nonce: str) -> None:
        """Becomes the owner. Raises `Superseded`, `StoreLost`."""
        self._owner = await self._store.take_over(epoch, nonce)
        self.epoch = epoch
        self.numbers = ItemNumbers(epoch, lambda call: self._writer.is_writing(call))

    async def recover(self) -> None:
        """Rebuilds the memory from rows; afterwards `run` serves. Raises `StoreLost`."""
        settings, owner = self._settings, self._owner
        asked_ms = self._clock.monotonic_ms()
        database_ms = await self._store.now_ms()
        waited_ms = self._clock.monotonic_ms() - asked_ms
        start_ms = initial_time_ms(database_ms, owner.clock_ms, owner.offset_ms, settings.clock_skew_ms_max)
        # It was read at some moment since. Were it later now than is believed, the next owner would start too far ahead.
        latest_ms = database_ms + waited_ms
        self._shard_clock = ShardClock(self._clock.monotonic_ms, start_ms, latest_ms, settings.clock_slew_permille)
        store = self._store
        for _ in self.memory.recover(await store.topics(), await store.key_slots(), await store.purge_markers()):
            await asyncio.sleep(0)
        self._breaker = ShardBreaker(
            self.number,
            BreakerSettings(
                window_s=self._settings.breaker_window_ms / 1000,
                latency_s_max=self._settings.breaker_latency_ms_max / 1000,
                error_percent=self._settings.breaker_error_percent,
                flushes_min=self._settings.breaker_flushes_min,
                reset_s=self._settings.breaker_reset_ms / 1000,
            ),
            self._clock.stopwatch_s,
            self._observer,
            lambda error: self._writer.refuse_inserts(error),
        )
        self._writer = Writer(
            OwnedStore(self.number, self._store, self._owner),
            self._shard_clock,
            self._intake,
            self._retry_policies,
            self._backoff,
            self._clock.stopwatch_s,
            self._observer,
            self.memory,
            FlushPace(
                PaceSettings(
                    self._settings.flush_items_min,
                    self._settings.flush_items_max,
                    self._settings.flush_ms_target / 1000,
                    self._settings.flush_contended_ms_target / 1000,
                )
            ),
            self._breaker,
        )
        self._timer_service = TimerService(
            self._writer, self._intake, self.memory.timers, self._shard_clock, self.memory.cache.get, settings
        )
        self._reader = ShardReader(
            self.number, self._store.reads(), lambda: self._writer.last_committed, self._weight, self._backoff
        )
        self._purge_worker = PurgeWorker(
            self._writer,
            self._intake,
            self._reader,
            self.memory.purge_markers,
            settings.purge_page_items,
            settings.retry_ms_max / 1000,
        )

    async def run(self) -> None:
        """Serves until `close` has drained it.

        Raises:
            ShardLost: it is fenced.
            OwnershipGivenUp: it is to be taken over anew.
        """
        self._is_open = True
        works = (
            self._timer_service.run(),
            self._timer_service.run_clock_sync(),
            run_key_expiry(self._writer, self._shard_clock, self._settings.sweep_interval_ms),
            self._purge_worker.run(),
            self._initial_count.run(self._writer),
        )
        self._background_tasks = [asyncio.ensure_future(work) for work in works]
        tasks = [asyncio.ensure_future(self._reader.run()), *self._background_tasks]
        for task in tasks:
            task.add_done_callback(self._on_task_ended)
        try:
            self._delivery_port.on_items_ready(self.index.topics())
            await self._writer.run()
        finally:
            self._is_open = False
            self._breaker.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.memory.cache.clear()
            await self.disconnect()

    async def disconnect(self) -> None:
        """Ends its connections, also those of a shard that never ran."""
        await self._store.close()

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """A shard without timers or reads must not go on: no lease would ever end."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._writer.give_up(f"a task of it failed: {fault!r}", fault)

    def close(self) -> None:
        """Takes in nothing more; `run` returns when what is queued is written. What nobody waits for is the next owner's."""
        self._is_open = False
        for task in self._background_tasks:
            task.cancel()
        self._writer.close()

    def drop(self) -> None:
        """It is another's, or may be: answers everybody at once. The caller cancels `run`, which writes nothing more."""
        self.is_dropped = True
        self._is_open = False
        self._writer.drop()

    # ------------------------------------------------------------- requests

    @property
    def queued_items(self) -> int:
        return len(self._intake)

    @property
    def unavailable_reason(self) -> str | None:
        """Why the store does not answer just now, or writes nothing more for us; None when it does both."""
        return self._writer.unavailable_reason

    def unavailable_error(self) -> Unavailable:
        """What is told of it while its store is in trouble: to come again after about as long as that has lasted."""
        wait_ms = min(max(HANDOVER_RETRY_MS, self._writer.unavailable_ms), _UNAVAILABLE_RETRY_MS_MAX)
        text = f"shard {self.number} can write nothing just now: {self.unavailable_reason}; try again"
        return Unavailable(text, retry_after_ms=wait_ms)

    @property
    def breaker_state(self) -> str:
        """closed, open or half-open: whether new items are taken."""
        return self._breaker.state

    def snapshot(self) -> ShardSnapshot:
        """What it is doing, in numbers."""
        return take_snapshot(
            self._intake, self._writer, self._reader, self.memory.timers, self.index, self.memory, self.now_ms()
        )

    def now_ms(self) -> int:
        return self._shard_clock.now_ms()

    def real_ms_until_function(self) -> Callable[[int], int] | None:
        """How long it really is until a moment of the shard's time; None while that passes no faster than real time."""
        return self._shard_clock.wait_ms if self._shard_clock.is_catching_up else None

    def oldest_ready_age_ms(self, topic: TopicName | None = None) -> int | None:
        """How long the oldest READY item has been ready, among those in the index; None when there is none.

        Of a topic, among those of its `TOPIC_PRIORITIES_MAX` best priorities.
        """
        most = _OLDEST_KEYS_MAX if topic is None else TOPIC_PRIORITIES_MAX - 1
        oldest_ms = self.index.oldest_ms(most, topic)
        return None if oldest_ms is None else max(0, self.now_ms() - oldest_ms)

    def submit_inserts(
        self,
        namespace: str,
        items: Sequence[NewItem],
        on_finished: Callable[[], None],
        *,
        keyed: bool = False,
        in_flight: InFlight | None = None,
    ) -> Inserts:
        """Queues new items, of which all have keys, or none; `in_flight` counts them until they have their results.

        Raises `Overloaded`, `Unavailable`: nothing was queued.
        """
        self._check_serving()
        self._breaker.check()
        numbers = self.numbers
        if not numbers.can_assign(len(items)):
            self._writer.give_up("its epoch's ids are used up")
            raise Unavailable(
                f"shard {self.number} has used up its epoch's ids; it is taken over anew", retry_after_ms=1000
            )
        work = Inserts(namespace, items, numbers.next_number, on_finished, has_keys=keyed)
        self._intake.submit(work)
        numbers.assign(work)
        if in_flight is not None:
            work.in_flight = in_flight
            in_flight.add(items)
        self._writer.wake()
        return work

    def submit_replay_lookup(
        self, namespace: str, items: Sequence[KeyedItem], refusals: Sequence[FoqsError], on_finished: Callable[[], None]
    ) -> ReplayLookup:
        """Queues a look for what these items repeat; see `core.flush.replay_lookup`. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        work = ReplayLookup(namespace, items, refusals, on_finished)
        self._intake.submit(work)
        self._writer.wake()
        return work

    def submit_acks(
        self, namespace: str, numbers: Sequence[int], tokens: Sequence[int], on_finished: Callable[[], None]
    ) -> Acks:
        """Queues acks. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        work = Acks(namespace, numbers, tokens, on_finished)
        self._intake.submit(work)
        self._writer.wake()
        return work

    def submit_events(self, namespace: str, events: Sequence[Event], on_finished: Callable[[], None]) -> Events:
        """Queues events of one kind on existing items. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        work = Events(namespace, events, on_finished)
        self._intake.submit(work)
        self._writer.wake()
        return work

    def may_have_items(self, topic: TopicName) -> bool:
        """The topic has an item, or a cut, or it is not known yet."""
        return self.counts.is_lagging or topic in self.counts or bool(self.memory.purge_markers.last_number(topic))

    def submit_purge(self, topic: TopicName, on_finished: Callable[[], None]) -> SetPurgeMarker:
        """Queues a cut: all items that the topic has when it is committed are gone. Raises `Overloaded`, `Unavailable`: nothing was queued."""
        self._check_serving()
        cuts, settings = self.memory.purge_markers, self._settings
        if not cuts.last_number(topic) and (
            len(cuts) >= settings.purge_topics_max
            or cuts.topic_count(topic[0]) >= settings.purge_topics_per_namespace_max
        ):
            raise Overloaded("rows of too many purged topics have still to go; try again later", retry_after_ms=1_000)
        work = SetPurgeMarker(topic, on_finished)
        self._intake.submit(work, is_internal=True)
        self._writer.wake()
        return work

    def submit_lease(
        self,
        namespace: str,
        spans: Sequence[tuple[TopicName, Sequence[OrderKey]]],
        lease_ms: int | None,
        item_bytes_max: int,
        on_finished: Callable[[], None],
    ) -> HandOut:
        """Leases reserved items. The caller got the keys from the index.

        What must be read for them is weighed: a row that is remembered by its length, any
        other as one of `item_bytes_max`, or as the longest that is known of its namespace.
        """
        work = HandOut(namespace, spans, lease_ms, 0, on_finished)
        cache = self.memory.cache
        rows = list(map(cache.get, work.numbers))
        work.read_bytes = max([row.payload_bytes for row in rows if row is not None and row.payload is None], default=0)
        if None in rows:
            work.read_bytes = max(work.read_bytes, item_bytes_max, cache.longest_payloads.payload_bytes_max(namespace))
        self._intake.submit(work, is_internal=True)
        self._writer.wake()
        return work

    def cancel_lease(self, work: HandOut) -> None:
        """Nobody waits for a hand-out any more: gives back what is not being written; the rest when it is."""
        self.release_reservation(work.keys_at(work.abandon()))

    def release_reservation(self, spans: Iterable[tuple[TopicName, Sequence[OrderKey]]]) -> None:
        """Reserved items are not handed out after all; somebody else may be waiting for them."""
        if self.memory.purge_markers:
            spans = [(topic, self._not_purged(topic, keys)) for topic, keys in spans]
        topics = [topic for topic, keys in spans if self.index.release_reservations(topic, keys)]
        if topics:
            self.counts.mark_changed(topics)
            self._delivery_port.on_items_ready(topics)

    def _not_purged(self, topic: TopicName, keys: Sequence[OrderKey]) -> Sequence[OrderKey]:
        """Those that are still items; the others are reserved no more."""
        last = self.memory.purge_markers.last_number(topic)
        self.index.confirm_reservations([number for key in keys if (number := order_key_number(key)) <= last])
        return [key for key in keys if order_key_number(key) > last]

    def release(self, leased: Sequence[Row]) -> None:
        """Gives back items whose lease nobody has received."""
        if leased and not self._writer.is_ended:
            events = [Event(EventKind.RELEASE, row.id, token=row.token) for row in leased]
            self._intake.submit(Events("", events, _ignore), is_internal=True)
            self._writer.wake()

    def on_due_written(self, due_ms: int) -> None:
        """A flush has written a row that is due at this moment, and none that is due before."""
        self._timer_service.on_due_written(due_ms)

    def on_purge_marked(self) -> None:
        """There are rows of a purged topic to delete."""
        self._purge_worker.on_purge_marked()

    def on_hand_out_refused(self, spans: list[tuple[TopicName, list[OrderKey]]]) -> None:
        """The database refused a hand-out: its keys stay reserved for a while, so that nobody tries it at full speed."""
        pause_s = self._settings.retry_ms_max / 1000
        asyncio.get_running_loop().call_later(pause_s, self.release_reservation, spans)

    def start_refill(self, topic: TopicName) -> None:
        """Extends the topic's window; whoever waits for the topic is told when that is done."""
        if topic not in self._refilling:
            self._refilling.add(topic)

            def ended() -> None:
                self._refilling.discard(topic)
                self.counts.mark_changed([topic])
                self._delivery_port.on_items_ready([topic])

            job = RefillJob(self.memory, topic, self._writer.run_between_flushes, ended)
            self._reader.submit(topic[0], self._settings.ready_window_items_max / KEYS_PER_ROW, job)

    def start_prefetch(self, topic: TopicName, order_keys: Sequence[OrderKey]) -> None:
        """Loads the rows of READY keys, which are in order, so that handing them out reads nothing."""
        if topic in self._prefetching:
            return
        rows = map(self.memory.cache.get, map(order_key_number, order_keys))
        if any(row is None or row.payload is None for row in rows):
            self._prefetching.add(topic)
            job = PrefetchJob(
                self.memory,
                topic,
                order_keys,
                self._weight(topic[0]),
                self._clock.stopwatch_s(),
                self._writer.run_between_flushes,
                lambda: self._prefetching.discard(topic),
            )
            self._reader.submit(topic[0], len(order_keys), job)
        else:
            self.index.set_prefetched(topic, order_keys[-1])

    async def read_rows(self, namespace: str, ids: Sequence[int]) -> list[Row]:
        """The rows of these ids that exist."""
        self._check_serving()
        rows = await self._reader.read(namespace, lambda reads, past: reads.rows(past, ids), len(ids))
        return [row for row in rows if not self.memory.purge_markers.covers(row)]

    async def list_rows(self, topic: TopicName, state: State, after: OrderKey | None, limit: int) -> list[Row]:
        """A page of a topic's rows in a state, in key order, without payload."""
        self._check_serving()
        cuts = self.memory.purge_markers
        return await self._reader.read(
            topic[0],
            lambda reads, past: reads.list_rows(
                past, topic, state, after, limit, cuts.last_number(topic), with_payload=False
            ),
            limit,
        )

    async def idempotency_key_of(self, row: Row) -> bytes | None:
        """The idempotency key that names this item; None when none does any more. Raises `Unavailable`.

        Not found either where the namespace's `key_window_ms` has changed since the enqueue.
        """
        self._check_serving()
        until_ms = row.enqueued_at_ms + self._retry_policies[row.namespace].key_window_ms
        if until_ms <= self.now_ms():
            return None
        return await self._reader.read(
            row.namespace, lambda reads, past: reads.idempotency_key_of(past, row.id, until_ms)
        )

    async def count_ready_before(self, topic: TopicName, order_key: OrderKey, limit: int) -> int:
        """READY items of a topic that come before `order_key`, counted until they are more than `limit`. Raises `Unavailable`.

        Those that the window does not cover are read; meanwhile others come and go.
        """
        self._check_serving()
        better, after = self.index.rank(topic, order_key)
        left = limit + 1 - better
        if after is not None and left > 0:
            last_cut = self.memory.purge_markers.last_number(topic)
            keys = await self._reader.read(
                topic[0], lambda reads, past: reads.ready_keys(past, topic, after, left, last_cut), left / KEYS_PER_ROW
            )
            better += bisect_left(keys, order_key)
        return min(better, limit + 1)

    async def wait_for_queued_inserts(self) -> None:
        """Returns when every item that was queued before is in the counts, or was refused. Raises `NotOwner`, `Unavailable`."""
        self._check_serving()
        last = self.numbers.next_number - 1
        while self.numbers.resolved_up_to < last:
            await self._writer.read(_read_nothing)

    async def confirm_ownership(self) -> None:
        """Returns when a flush that began after this call is committed: no other owner can have come before the call.

        Raises:
            NotOwner, Unavailable: the shard was lost or closed first.
        """
        self._check_serving()
        last = self._writer.flush_number + 2  # one may have been under way
        while self._writer.flush_number < last:
            self._writer.request_flush()
            await self._writer.read(_read_nothing)

    def _check_serving(self) -> None:
        if not self._is_open or self._writer.is_ended:
            raise Unavailable(
                f"shard {self.number} is not being served now; try again", retry_after_ms=HANDOVER_RETRY_MS
            )


async def _read_nothing(store: Store) -> None:
    """A read of nothing: between two flushes something has changed."""


def _ignore() -> None:
    """The callback of a work that nobody waits for."""
