"""One owned shard: its writer, its readers, its memory, its timers.

A takeover opens it (`shard_takeover`); `close` ends it. Requests
enter as operations: the writer writes them, then the memory applies them
(`shard_memory.ShardMemory`). Knows nothing of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from foqs.core.flush.completions import CompletionEntry, Completions
from foqs.core.flush.intake import LANE_SHARES, Intake, IntakeLimits
from foqs.core.flush.item_numbers import ItemNumbers
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import Events, Inserts, Leases, Operation, OperationCaller
from foqs.core.flush.pacing import FlushPace, PaceSettings
from foqs.core.flush.purge_markers import SetPurgeMarker
from foqs.core.items.item import NewItem, OrderKey, Row, State, TopicName, order_key_number
from foqs.core.items.life import Event, EventKind
from foqs.core.limits.breaker_window import BreakerSettings
from foqs.core.limits.in_flight import InFlight
from foqs.core.limits.shard_positions import ShardPositions
from foqs.core.memory.row_cache import RowCache
from foqs.core.memory.topic_counts import TopicCounts
from foqs.core.timing.shard_clock import ShardClock
from foqs.options.shard_options import ShardOptions
from foqs.shard.flush_planner import FlushPlanner
from foqs.shard.flush_report import FlushReport
from foqs.shard.host_services import HostDatabase, HostServices
from foqs.shard.idle_write_back import run_write_back, write_back_before_hand_over
from foqs.shard.initial_count import InitialCount
from foqs.shard.key_expiry import run_key_expiry
from foqs.shard.owned_store import OwnedStore
from foqs.shard.purge_worker import PurgeWorker
from foqs.shard.row_queries import RowQueries
from foqs.shard.shard_breaker import ShardBreaker
from foqs.shard.shard_constants import ShardConstants
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.shard_reader import ShardReader
from foqs.shard.snapshot import ShardSnapshot, take_snapshot
from foqs.shard.timer_service import TimerService
from foqs.shard.topic_loader import TopicLoader
from foqs.shard.topic_removal import TopicRemoval
from foqs.shard.writer import STALLED_S, Writer
from foqs.store.port import Store
from foqs_contract.errors import HANDOVER_RETRY_MS, Overloaded, Unavailable

_UNAVAILABLE_RETRY_MS_MAX: Final = 1_000
"""The longest pause that a call is asked for, however long the store has been in trouble."""

_OLDEST_KEYS_MAX: Final = 20_000
"""Keys inspected for the age of the oldest item, so that a metrics scrape never delays the queue."""

_OLDEST_GROUPS_MAX: Final = 1_000
"""Groups inspected for it. Those that are in memory longest come first."""

_DELIVERY_ROOM_S: Final = 0.5
"""A shard accepts only as many deliveries as it can lease in this time, so that they commit before their dequeues' deadlines."""
_DELIVERY_ROOM_MAX: Final = 1_000_000
"""More than any call requests."""

_REFUSED_RUN_ITEMS_MAX: Final = 1_000
"""Items of refused runs that are remembered. With more of them, all are forgotten, and refused again."""

TOPIC_PRIORITIES_MAX: Final = 50
"""Priorities inspected for the age of a topic's oldest item: a page lists many topics."""


class OwnedShard:
    """A shard that this host owns. `ShardTakeover` makes it.

    Args:
        owned: the store of the shard, which was taken over.
        shard_clock: the clock of the shard, started at the takeover.
        cache: the row cache of this shard, within the host's limits.
        database: the `HostDatabase` that the shards of this host in the same database share.
        disconnect: closes the store and ends the clock.
        term: that of its database's entry, so its positions are published; None: the database has no entry.
    """

    def __init__(
        self,
        owned: OwnedStore,
        shard_clock: ShardClock,
        cache: RowCache,
        host: HostServices,
        database: HostDatabase,
        disconnect: Callable[[], Awaitable[None]],
        *,
        term: int | None = None,
    ) -> None:
        options, constants, store = host.options, host.constants, owned.store
        self.number = owned.shard
        self.epoch = owned.owner.epoch
        self.is_dropped = False
        """Whether another host owns it, or may: its results must not be reported any more."""
        self.dispute_reason: str | None = None
        """Why it does not serve some of its key slots."""
        self.disconnect = disconnect
        self._is_open = False
        self._boot_ms = host.clock.monotonic_ms
        self.term = term
        self.positions = None if term is None else ShardPositions(owned.shard, self._boot_ms())
        """What it publishes; None if its database has no entry."""
        self._constants = constants
        self._weight = host.namespaces.weight_of
        self._delivery_port = host.delivery_port
        self._database_clock = database.clock
        self._shard_clock = shard_clock
        self._store = store
        self._namespaces: Final = host.namespaces
        self._disputed_key_slots: frozenset[int] = frozenset()
        self._background_tasks: list[asyncio.Task[None]] = []
        self._intake = Intake(_intake_limits(options, constants), self._weight)
        self.numbers = ItemNumbers(self.epoch, host.arrivals, lambda call: self._writer.is_writing(call))
        self.memory = memory = ShardMemory(self, cache, host)
        self.index = memory.index
        self._refused_run_items: set[int] = set()
        """Items of runs that the database has refused to lease. None of them follows another one in a run."""
        self._breaker = ShardBreaker(
            self.number,
            _breaker_settings(options, constants),
            host.clock.stopwatch_s,
            host.observer,
            lambda error: self._writer.refuse_inserts(error),
        )
        self._report = FlushReport(self.number, host.observer)
        self._writer = Writer(
            owned,
            shard_clock,
            database.clock,
            self._intake,
            memory,
            FlushPlanner(
                self.number,
                memory,
                self.numbers,
                host,
                shard_clock.now_ms,
                database.clock.arrival_ms,
                self._intake.is_free,
            ),
            self._report,
            FlushPace(_pace_settings(constants)),
            self._breaker,
            host,
        )
        self._timer_service = TimerService(
            self._writer, self._intake, memory, shard_clock, database.sample_clock, store.reads, constants
        )
        self._reader = self._new_reader(store, host)
        self._query_reader = self._new_reader(store, host)  # its reads delay no refill and no prefetch
        self.loader = TopicLoader(
            memory, self._reader, self._query_reader, self._writer.run_between_flushes, host, lambda: self.is_serving
        )
        self.queries = RowQueries(
            self._check_serving, memory, self._query_reader, host.namespaces.retry_policies, self.now_ms
        )
        retry_s = constants.retry_ms_max / 1000
        self._purge_worker = PurgeWorker(
            self._writer, self._reader, memory.purge_markers, constants.purge_page_items, retry_s
        )
        self._topic_removal = TopicRemoval(self._writer, memory, shard_clock, constants.empty_topic_linger_ms)
        self._initial_count = InitialCount(self._writer, store, memory, retry_s, database.count_lock)

    def _new_reader(self, store: Store, host: HostServices) -> ShardReader:
        return ShardReader(self.number, store.reads(), lambda: self._writer.last_committed, self._weight, host.backoff)

    @property
    def is_serving(self) -> bool:
        """Whether it accepts requests."""
        return self._is_open and not self._writer.is_ended

    @property
    def is_answering(self) -> bool:
        """Whether it accepts requests and its store writes them."""
        return self._is_open and self._writer.unavailable_reason is None and not self._writer.is_ended

    @property
    def can_deliver(self) -> bool:
        """Whether it may lease items soon: its store answers, and is not slow at the moment."""
        writer = self._writer if self._is_open else None
        return (
            writer is not None and writer.unavailable_reason is None and not writer.is_ended and not writer.is_stalled
        )

    def can_lease_within(self, seconds: float) -> bool:
        """Whether a lease submitted now is committed in this time, if flushes stay as fast as the last one."""
        # One flush may be under way, and the lease is in the next.
        return 2 * self._writer.last_flush_s <= seconds

    def delivery_room(self, namespace: str) -> int:
        """Return how many more items of the namespace it can lease in time; 0 if too many leases wait already.

        Items that are leased after the dequeue's deadline must be released again. When
        there is no room, the delivery port is notified after the next flush was sealed.
        """
        waiting, part = self._intake.lease_backlog(namespace)
        lease_s = self._writer.lease_cost.each_s
        if waiting * lease_s < _DELIVERY_ROOM_S * part:
            return max(1, int(_DELIVERY_ROOM_S * part / lease_s) - waiting) if lease_s else _DELIVERY_ROOM_MAX
        self.memory.notify_when_room(namespace)
        return 0

    @property
    def accepts_items(self) -> bool:
        """Whether its circuit breaker lets new items pass, and a loss of its region would be within the bound."""
        positions = self.positions
        return (
            self.is_answering
            and not self._breaker.is_open
            and (positions is None or positions.accepts_items(self._boot_ms()))
        )

    @property
    def counts(self) -> TopicCounts:
        return self.memory.counts

    @property
    def key_slots(self) -> frozenset[int]:
        """The key slots that are committed here and not disputed."""
        return self.memory.key_slots - self._disputed_key_slots if self._disputed_key_slots else self.memory.key_slots

    @property
    def assigned_key_slots(self) -> frozenset[int]:
        """The key slots that are committed here or still to be committed."""
        return self.memory.key_slots.union(self._writer.pending_key_slots)

    @property
    def has_pending_key_slots(self) -> bool:
        """Whether some of its key slots are not committed yet."""
        return bool(self._writer.pending_key_slots)

    def assign_key_slots(self, key_slots: Sequence[int], on_assigned: Callable[[], None]) -> None:
        """Assign these slots to it. Calls `on_assigned` when they are committed."""
        self._writer.assign_key_slots(key_slots, on_assigned)

    def dispute_key_slots(self, key_slots: frozenset[int], reason: str | None) -> None:
        """Stop serving these slots; `reason` is for people."""
        self._disputed_key_slots, self.dispute_reason = key_slots, reason

    # ------------------------------------------------------------ life cycle

    async def run(self) -> None:
        """Serve until `close` was called and all waiting operations are written.

        Raises:
            ShardLost: it is fenced.
            OwnershipGivenUp: it must be taken over again.
        """
        self._is_open = True
        services = (
            self._timer_service.run_scans(),
            self._timer_service.run_clock_sync(),
            self._timer_service.run_looks(),
            self._timer_service.run_lease_walks(),
            self._timer_service.run_sweeps(),
            self._timer_service.run_ownership_checks(),
            run_key_expiry(self._writer, self._shard_clock, self._constants.sweep_interval_ms),
            self._topic_removal.run(),
            self._purge_worker.run(),
            self._count_and_read_first_keys(),
            run_write_back(self._writer, self._store),
        )
        self._background_tasks = [asyncio.ensure_future(service) for service in services]
        readers = self._reader, self._query_reader
        reader_tasks = [asyncio.ensure_future(reader.run()) for reader in readers]
        for task in (*reader_tasks, *self._background_tasks):
            task.add_done_callback(self._on_task_ended)
        try:
            self._delivery_port.on_items_ready(self.index.topics())
            await self._writer.run()
        finally:
            self._is_open = False
            self._breaker.close()
            tasks = [*reader_tasks, *self._background_tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.memory.cache.clear()
            await self.disconnect()

    def _on_task_ended(self, task: asyncio.Task[None]) -> None:
        """Give the shard up if a task failed: without its timers, no lease would ever end."""
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._writer.give_up(f"one of its tasks failed: {fault!r}", fault)

    def begin_hand_over(self, close: Callable[[], None]) -> None:
        """Serve until the journal owes few rows, which may be now, and then call `close`."""
        journal = self._store.journal
        if journal is None or journal.may_be_handed_over or not self._is_open:
            close()
            return
        task = asyncio.ensure_future(write_back_before_hand_over(self._writer, self._store, close))
        task.add_done_callback(self._on_task_ended)
        self._background_tasks.append(task)

    def close(self) -> None:
        """Accept nothing more; `run` returns when all queued operations are written. The next owner does the background work."""
        self._is_open = False
        for task in self._background_tasks:
            task.cancel()
        self._writer.close()

    def drop(self) -> None:
        """End at once: another host owns the shard, or may. All calls fail now; the caller cancels `run`, which writes nothing more."""
        self.is_dropped = True
        self._is_open = False
        self._writer.drop()

    # ------------------------------------------------------------- requests

    @property
    def queued_items(self) -> int:
        return len(self._intake)

    @property
    def unavailable_reason(self) -> str | None:
        """Why the store does not answer or refuses this owner's writes; None when it works."""
        return self._writer.unavailable_reason

    @property
    def write_refusal(self) -> str | None:
        """Why the store answers reads but refuses writes, which is that it has no room; None when it has room."""
        return self._writer.refused_writes.full_reason

    @property
    def undeliverable_reason(self) -> str | None:
        """Why it cannot lease items now; None if it can."""
        if not self.is_serving:
            return "it is not served now"
        if self._writer.unavailable_reason is None and self._writer.is_stalled:
            return f"its database has not answered for more than {STALLED_S:g} s"
        return self._writer.unavailable_reason or self._writer.refused_writes.full_reason

    def may_deliver(self, topic: TopicName) -> bool:
        """Whether it has an item of the topic that is READY, or may become READY."""
        if self.counts.is_lagging:
            return self.memory.has_topic(topic)
        counts = self.counts.counts_by_state(*topic)
        return bool(counts and (counts[State.READY] or counts[State.DEFERRED] or counts[State.LEASED]))

    def unavailable_error(self) -> Unavailable:
        """Return the error for calls while the store is in trouble. Its retry pause grows with the duration of the trouble."""
        text = f"shard {self.number} cannot write at the moment: {self.unavailable_reason}; try again"
        return Unavailable(text, retry_after_ms=self.retry_after_ms)

    @property
    def retry_after_ms(self) -> int:
        """When to repeat a call that failed because of its store. It grows with the duration of the trouble."""
        return min(max(HANDOVER_RETRY_MS, self._writer.unavailable_ms), _UNAVAILABLE_RETRY_MS_MAX)

    @property
    def breaker_state(self) -> str:
        """The state of its circuit breaker: closed, open or half-open."""
        return self._breaker.state

    def snapshot(self) -> ShardSnapshot:
        journal = self._store.journal
        return take_snapshot(
            self._intake,
            self._writer,
            self._reader,
            self.memory,
            self.loader.groups,
            self._report,
            journal,
            self.now_ms(),
        )

    def now_ms(self) -> int:
        return self._shard_clock.now_ms()

    def real_ms_until_function(self) -> Callable[[int], int] | None:
        """Return the function from a moment of the shard clock to the real wait in ms; None unless the clock is catching up."""
        return self._shard_clock.wait_ms if self._shard_clock.is_catching_up else None

    def oldest_ready_age_ms(self, topic: TopicName | None = None) -> int | None:
        """Return for how long the oldest item in the ready index has been READY; None when there is none.

        For a topic, only items of its `TOPIC_PRIORITIES_MAX` best priorities count. If its best item is unknown,
        because nobody has dequeued the topic, it is read soon. Items that their group holds back count, too.
        """
        limit = _OLDEST_KEYS_MAX if topic is None else TOPIC_PRIORITIES_MAX - 1
        oldest_ms = self.index.oldest_ms(limit, topic)
        if self.memory.limited_topics:
            held_ms = self.memory.oldest_in_groups_ms(_OLDEST_GROUPS_MAX, topic)
            oldest_ms = min((each for each in (oldest_ms, held_ms) if each is not None), default=None)
        if oldest_ms is None and topic is not None and self.index.needs_refill(topic):
            self.loader.request_first_key(topic)
        return None if oldest_ms is None else max(0, self.now_ms() - oldest_ms)

    def submit_inserts(
        self,
        namespace: str,
        items: Sequence[NewItem],
        caller: OperationCaller,
        *,
        keyed: bool = False,
        is_whole: bool = False,
        in_flight: InFlight | None = None,
    ) -> Inserts:
        """Queue new items, and return their operation.

        Args:
            keyed: all of them have idempotency keys; else none has.
            is_whole: one flush inserts all of them, or none.
            in_flight: counts them until they have results.

        Raises `TemporaryRefusal`: nothing was queued.
        """
        self._check_serving()
        self._check_new_items(len(items))
        numbers = self.numbers
        self._check_numbers_left(len(items))
        accepted_ms = self._database_clock.arrival_ms()
        operation = Inserts(
            namespace,
            items,
            numbers.next_number,
            accepted_ms,
            caller,
            has_idempotency_keys=keyed,
            is_whole=is_whole,
        )
        self._writer.submit(operation)
        if self.positions is not None:
            self.positions.on_accepted(len(items))
        numbers.assign(operation)
        if in_flight is not None:
            operation.in_flight = in_flight
            in_flight.add(items)
        return operation

    def submit_completions(
        self,
        namespace: str,
        entries: Sequence[CompletionEntry],
        caller: OperationCaller,
        in_flight: InFlight | None = None,
    ) -> Completions:
        """Queue completions of items of this shard, and return their operation.

        Args:
            in_flight: counts what they add to the backlog until they have results.

        Raises `TemporaryRefusal`: nothing was queued.
        """
        self._check_serving()
        new_items = sum([len(entry.items) for entry in entries])
        self._check_new_items(new_items)
        operation = Completions(namespace, entries, self._database_clock.arrival_ms(), caller)
        self._check_numbers_left(operation.number_count(0, len(operation)))
        self._writer.submit(operation)
        if self.positions is not None:
            self.positions.on_accepted(new_items)
        if in_flight is not None:
            sizes = [self.cached_payload_bytes(namespace, entry.number) for entry in entries]
            operation.count_in_flight(in_flight, sizes)
        return operation

    def cached_payload_bytes(self, namespace: str, number: int) -> int:
        """Return the payload bytes of a namespace's item whose row is cached, as one just delivered mostly is; 0 for others."""
        row = self.memory.cache.get(number)
        return 0 if row is None or row.namespace != namespace else row.payload_bytes

    def submit(self, operation: Operation) -> None:
        """Queue an operation on existing items. Raises `TemporaryRefusal`: nothing was queued."""
        self._check_serving()
        if isinstance(operation, Moves):
            self._check_numbers_left(len(operation))
        self._writer.submit(operation)

    def _check_new_items(self, count: int) -> None:
        """Raise `TemporaryRefusal` if new items are not accepted now."""
        self._breaker.check()
        if self.positions is not None and count:
            self.positions.check(count, self._boot_ms())

    def sample_positions(self, now_ms: int) -> None:
        """Record the present position. Only if it has `positions`."""
        assert self.positions is not None
        self.positions.sample(now_ms, self._writer.flush_number, self._writer.inserted_items)

    def publication(self, now_ms: int, servers: Collection[str]) -> tuple[Sequence[tuple[int, int]], int]:
        """Return what is to be published now; see `ShardPositions.publication`. Only if it has `positions`."""
        self.sample_positions(now_ms)
        assert self.positions is not None
        return self.positions.publication(now_ms, self._writer.new_items_max, servers)

    def _check_numbers_left(self, count: int) -> None:
        """Give the shard up and raise `Unavailable` if its epoch has no more ids."""
        if not self.numbers.can_assign(count):
            self._writer.give_up("the item ids of its epoch are used up")
            raise Unavailable(
                f"shard {self.number} has used up the item ids of its epoch and starts a new one; try again",
                retry_after_ms=1000,
            )

    def may_have_items(self, topic: TopicName) -> bool:
        """Whether the topic has an item or a purge marker. True also while the counts lag."""
        return self.counts.is_lagging or topic in self.counts or bool(self.memory.purge_markers.last_number(topic))

    def submit_purge(self, topic: TopicName, caller: OperationCaller) -> SetPurgeMarker:
        """Queue a purge marker, and return its operation. Once it is committed, all items that the topic had are gone.

        Raises `TemporaryRefusal`: nothing was queued.
        """
        self._check_serving()
        markers, constants = self.memory.purge_markers, self._constants
        if not markers.last_number(topic) and (
            len(markers) >= constants.purge_topics_max
            or markers.topic_count(topic[0]) >= constants.purge_topics_per_namespace_max
        ):
            raise Overloaded(
                f"shard {self.number} still deletes the rows of too many purged topics; try again later",
                retry_after_ms=1_000,
            )
        operation = SetPurgeMarker(topic, caller)
        self._writer.submit(operation, is_internal=True)
        return operation

    def submit_lease(
        self,
        namespace: str,
        spans: Sequence[tuple[TopicName, Sequence[OrderKey]]],
        lease_ms: int | None,
        item_bytes_max: int,
        caller: OperationCaller,
        *,
        is_run: bool = False,
    ) -> Leases:
        """Queue the leases of reserved items, and return their operation. The caller got the keys from the index.

        Those of a run are in one flush, so that all or the first ones are leased.

        The operation's `read_bytes` bounds the payload that must be read per item: the length known from a
        cached row, and for other rows the larger of `item_bytes_max` and the longest known of the namespace.
        """
        operation = Leases(namespace, spans, lease_ms, 0, caller)
        operation.is_whole = is_run
        cache = self.memory.cache
        rows = list(map(cache.get, operation.numbers))
        lengths = [row.payload_bytes for row in rows if row is not None and row.payload is None]
        if None in rows:
            lengths += (item_bytes_max, cache.longest_payloads.payload_bytes_max(namespace))
        if lengths:
            operation.read_bytes = max(lengths)
        self._writer.submit(operation, is_internal=True)
        return operation

    def cancel_lease(self, operation: Leases) -> None:
        """Cancel a lease that its dequeue no longer waits for. Items that are being written are released afterwards."""
        self.release_reservation(operation.order_keys_at(operation.abandon()))

    def release_reservation(self, spans: Iterable[tuple[TopicName, Sequence[OrderKey]]]) -> None:
        """Release reserved items that are not delivered, and notify the delivery port: others may wait for them."""
        if self.memory.purge_markers:
            spans = [(topic, self._not_purged(topic, order_keys)) for topic, order_keys in spans]
        topics = [topic for topic, order_keys in spans if self.index.release_reservations(topic, order_keys)]
        if self.memory.limited_topics:
            topics += self.memory.settle_touched_groups()
        if topics:
            self.counts.mark_changed(topics)
            self._delivery_port.on_items_ready(topics)

    def _not_purged(self, topic: TopicName, order_keys: Sequence[OrderKey]) -> Sequence[OrderKey]:
        """Return the keys that are not purged, and end the reservations of the others."""
        last = self.memory.purge_markers.last_number(topic)
        self.index.confirm_reservations([number for key in order_keys if (number := order_key_number(key)) <= last])
        return [key for key in order_keys if order_key_number(key) > last]

    def release(self, leased: Sequence[Row]) -> None:
        """Release leased items that no consumer received."""
        if leased and not self._writer.is_ended:
            events = [Event(EventKind.RELEASE, row.id, token=row.token) for row in leased]
            self._writer.submit(Events("", events, None), is_internal=True)

    def supersede(self, events: Sequence[Event]) -> None:
        """End the leases of items behind one of their run that has ended early, by events SUPERSEDE."""
        if not self._writer.is_ended:
            self._writer.submit(Events("", events, None), is_internal=True)

    def on_dues_written(self, dues: Collection[int], lease_ends: Mapping[int, list[int]], deleted: list[int]) -> None:
        """Record that a flush wrote timer entries with these dues and leases, by their ends, and deleted these rows."""
        self._timer_service.on_dues_written(dues, lease_ends, deleted)

    def on_purge_marked(self) -> None:
        """Wake the purge worker, because there are rows of a purged topic to delete."""
        self._purge_worker.on_purge_marked()

    def on_topic_emptied(self) -> None:
        """Wake the topic removal, because a topic has become empty and will be removed some time later."""
        self._topic_removal.on_topic_emptied()

    def on_leases_refused(self, spans: list[tuple[TopicName, list[OrderKey]]]) -> None:
        """Release the keys of a delivery that the database refused, after a pause: it must not be repeated at full speed.

        Items of a run are leased one by one from then on, so that those before the refused one are delivered.
        """
        numbers = [order_key_number(key) for _, order_keys in spans for key in order_keys]
        if len(numbers) > 1:
            if len(self._refused_run_items) + len(numbers) > _REFUSED_RUN_ITEMS_MAX:
                self._refused_run_items.clear()
            self._refused_run_items.update(numbers)
        pause_s = self._constants.retry_ms_max / 1000
        asyncio.get_running_loop().call_later(pause_s, self.release_reservation, spans)

    def may_follow_in_run(self, number: int) -> bool:
        """Return whether an item may follow another one in a run: nothing of it waits, and it was not refused in one."""
        return number not in self._refused_run_items and self._intake.is_free(number)

    def on_groups_wanted(self, topic: TopicName) -> None:
        """Read the next page of a topic with a limit."""
        self.loader.groups.start(topic)

    def follow_group_rules(self) -> None:
        """Follow the rules for groups and the weights of namespaces, which may have changed."""
        self.memory.group_shares.follow_weights()
        self.memory.set_group_rules(self._namespaces.group_rules)

    async def _count_and_read_first_keys(self) -> None:
        await self._initial_count.run()  # afterwards only topics with READY items have a window
        await self.loader.run()

    async def wait_for_queued_inserts(self) -> None:
        """Wait until every item that was queued before is in the counts or was refused. Raises `NotOwner`, `Unavailable`."""
        self._check_serving()
        last = self.numbers.next_number - 1
        while self.numbers.resolved_up_to < last:
            await self._writer.read(_read_nothing)

    async def confirm_ownership(self) -> None:
        """Wait until a flush that began after this call is committed: then no other host owned the shard at the call.

        Raises:
            NotOwner, Unavailable: the shard was lost or closed first.
        """
        self._check_serving()
        last = self._writer.flush_number + 2  # one may be under way
        while self._writer.flush_number < last:
            self._writer.request_flush()
            await self._writer.read(_read_nothing)

    def check(self) -> None:
        """Assert what is always true of its parts after a flush, without a look at its tables.

        It inspects all of its memory. So only tests and the simulation call it, after each flush, by
        `tests/support/checked_shards.py`, which also has the memory compared with the tables.
        """
        self._writer.check()
        self.memory.check()
        self._timer_service.check()

    def _check_serving(self) -> None:
        if not self._is_open or self._writer.is_ended:
            raise Unavailable(
                f"shard {self.number} is not served at the moment; try again", retry_after_ms=HANDOVER_RETRY_MS
            )


def _intake_limits(options: ShardOptions, constants: ShardConstants) -> IntakeLimits:
    return IntakeLimits(
        constants.flush_items_max,
        constants.flush_bytes_max,
        constants.small_flush_items_max,
        options.queue_items_max,
        options.queue_bytes_max,
        LANE_SHARES,
    )


def _breaker_settings(options: ShardOptions, constants: ShardConstants) -> BreakerSettings:
    return BreakerSettings(
        window_s=constants.breaker_window_ms / 1000,
        latency_s_max=options.breaker_latency_ms_max / 1000,
        error_percent=constants.breaker_error_percent,
        flushes_min=constants.breaker_flushes_min,
        reset_s=constants.breaker_reset_ms / 1000,
    )


def _pace_settings(constants: ShardConstants) -> PaceSettings:
    return PaceSettings(
        constants.flush_items_min,
        constants.flush_items_max,
        constants.flush_ms_target / 1000,
        constants.flush_contended_ms_target / 1000,
    )


async def _read_nothing(store: Store) -> None:
    """Read nothing: the call returns between two flushes."""
