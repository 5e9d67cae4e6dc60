"""Plans the flushes of one shard: completes a sealed batch, says what its flush reads, and decides what it writes.

Always true: it reads the shard's memory and changes nothing in it. `ShardMemory.apply`
brings the memory up to a plan, after the commit. So a flush may be planned again, and in
another thread, as long as the memory stays as it is. Knows nothing of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.flush_plan import FindRow, FlushPlan
from foqs.core.flush.item_numbers import ItemNumbers
from foqs.core.flush.operation import Leases
from foqs.core.flush.planning import chain_finders, plan_flush
from foqs.core.flush.purge_markers import SetPurgeMarker
from foqs.core.flush.run_ends import NO_RUN_ENDS, RunEnds, find_run_ends
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import OrderKey, Row, TopicName, order_key_number, pack_order_key
from foqs.core.items.life import FlushContext, becomes_ready
from foqs.shard.host_services import HostServices
from foqs.shard.shard_memory import ShardMemory
from foqs.store.port import ANY_LENGTH


@dataclass(slots=True, frozen=True)
class FlushReads:
    """The reads of a flush before it is planned, and the rows that need no read.

    Attributes:
        find: returns a row that is known without a read.
        rows: numbers of rows, without payload.
        payloads: numbers of rows with payload, and the longest payload that is read of each.
        key_names: idempotency keys whose records are read.
        has_own_idempotency_keys: whether the keys of new items are among them.
        run_ends: which items of runs may end early. The rows behind them are read, too.
    """

    find: FindRow
    rows: list[int]
    payloads: dict[int, int]
    key_names: list[KeyName]
    has_own_idempotency_keys: bool
    run_ends: RunEnds = NO_RUN_ENDS


class FlushPlanner:
    """Plans the flushes of one ownership of a shard.

    Args:
        now_ms: returns the time of the shard clock.
        arrival_ms: returns the place of an item that is accepted now.
        is_free: returns whether no event of an item waits, or is in the sealed batch.
    """

    def __init__(
        self,
        shard: int,
        memory: ShardMemory,
        numbers: ItemNumbers,
        host: HostServices,
        now_ms: Callable[[], int],
        arrival_ms: Callable[[], int],
        is_free: Callable[[int], bool],
    ) -> None:
        self._shard = shard
        self._memory = memory
        self._numbers = numbers
        self._delivery_port = host.delivery_port
        self._waiter_payload_bytes_max = host.constants.flush_bytes_max
        """Payloads of due items that one flush may read for waiting dequeues."""
        self._now_ms = now_ms
        self._arrival_ms = arrival_ms
        self._is_free = is_free

    # ----------------------------------------------------------- a sealed batch

    def complete(self, batch: Batch) -> None:
        """Complete a sealed batch: items for waiters, numbers and places of moved items and of completions, last numbers of purge markers."""
        if batch.inserts or batch.dues:
            batch.direct_deliveries = self._assign_to_waiters(batch)
        for moves in batch.moves:
            # Purge markers of this batch and later ones cover them.
            number = self._numbers.assign_sealed(moves.count)
            moves.operation.number(moves.start, moves.stop, number, self._arrival_ms())
        for part in batch.completions:
            completions = part.operation
            numbers = self._numbers.assign_sealed(completions.number_count(part.start, part.stop))
            completions.number(part.start, part.stop, numbers)
        for purge in batch.purges:
            if isinstance(purge.operation, SetPurgeMarker):
                last = self._numbers.next_number - 1  # it covers the whole table
                purge.operation.marker = purge.operation.marker._replace(last_number=last)

    def _assign_to_waiters(self, batch: Batch) -> list[Part[Leases]]:
        """Assign items that this batch inserts or finds due to waiters, and return their direct deliveries.

        The payloads of due items may have to be read: they are limited to `flush_bytes_max`.
        """
        now_ms = self._now_ms()
        found = self._new_order_keys(batch, now_ms)
        due_bytes = self._add_due_order_keys(batch, now_ms, found) if batch.dues else {}
        deliveries: list[Part[Leases]] = []
        bytes_left = self._waiter_payload_bytes_max
        limited = self._memory.limited_topics
        for topic, order_keys in found.items():
            if topic in limited:
                continue  # its items take a permit first
            order_keys.sort()
            assigned = self._delivery_port.assign_to_waiters(
                self._shard, topic, _prefix_within_bytes(order_keys, due_bytes, bytes_left)
            )
            if due_bytes:
                bytes_left -= sum([due_bytes.get(number, 0) for delivery in assigned for number in delivery.numbers])
            deliveries += [Part(delivery, 0, len(delivery)) for delivery in assigned]
        return deliveries

    def _new_order_keys(self, batch: Batch, now_ms: int) -> dict[TopicName, list[OrderKey]]:
        """Return the keys of new items without delay, by topic, where dequeues wait for topics of their namespace."""
        found: dict[TopicName, list[OrderKey]] = {}
        for part in batch.inserts:
            operation = part.operation
            if operation.is_restore or not self._delivery_port.has_waiters(operation.namespace):
                continue
            accepted_ms = operation.accepted_ms
            topic: str | None = None
            order_keys: list[OrderKey] = []
            for number, item in zip(part.numbers, operation.items[part.start : part.stop], strict=True):
                after_ms = item.deliver_after_ms
                if item.delay_ms or (after_ms is not None and after_ms > now_ms):
                    continue
                if item.topic is not topic:  # that of neighbours is mostly the same object
                    topic = item.topic
                    order_keys = found.setdefault((operation.namespace, topic), [])
                if after_ms is None or after_ms < accepted_ms:
                    after_ms = accepted_ms
                order_keys.append(pack_order_key(item.priority, after_ms, number))
        return found

    def _add_due_order_keys(self, batch: Batch, now_ms: int, found: dict[TopicName, list[OrderKey]]) -> dict[int, int]:
        """Add the keys of due items that become READY to `found`. Returns their payload bytes by number.

        Items whose row is unknown are left out: they were changed since the timers read them.
        """
        memory = self._memory
        find = chain_finders(memory.cache.get, *batch.due_rows())
        due_bytes: dict[int, int] = {}
        for part in batch.dues:
            for number in part.numbers:
                row = find(number)
                if (
                    row is None
                    or not self._delivery_port.has_waiters(row.namespace)
                    or memory.purge_markers.covers(row)
                ):
                    continue
                if becomes_ready(row, now_ms):
                    found.setdefault((row.namespace, row.topic), []).append(row.order_key)
                    due_bytes[number] = row.payload_bytes
        return due_bytes

    # -------------------------------------------------------------- its flush

    def reads(self, batch: Batch, *, with_own_idempotency_keys: bool) -> FlushReads:
        """Return what a flush of the batch must read.

        Args:
            with_own_idempotency_keys: it reads the keys of its new items.
        """
        memory = self._memory
        find: FindRow = memory.cache.get
        if batch.dues:
            find = chain_finders(find, *batch.due_rows())
        wanted = batch.dues_with_waiter()
        rows = [number for number in batch.event_numbers if find(number) is None and number not in wanted]
        payloads = {
            number: ANY_LENGTH
            for number in (*batch.lease_numbers, *wanted)
            if (row := find(number)) is None or row.payload is None
        }
        if payloads:
            # A delivery reads at most what it reserved when it was queued, whatever was learned of its rows since.
            for part in batch.leases:
                bytes_max = part.operation.read_bytes
                payloads.update([(number, bytes_max) for number in part.numbers if number in payloads])
        run_ends = NO_RUN_ENDS
        if memory.run_topics and batch.events:
            run_ends = find_run_ends(batch, memory.runs(), self._is_free)
            known = {*rows}
            rows += [n for n in dict.fromkeys(run_ends.numbers_behind()) if n not in known and find(n) is None]
        own = batch.key_names() if with_own_idempotency_keys else []
        # Keys of completions that should not exist are read too if one existed that should not.
        looked_up = batch.lookup_key_names(_find_nothing if with_own_idempotency_keys else find)
        return FlushReads(find, rows, payloads, own + looked_up, bool(own), run_ends)

    def plan(
        self,
        batch: Batch,
        reads: FlushReads,
        rows: Mapping[int, Row],
        idempotency_keys: Mapping[KeyName, IdempotencyKey],
        context: FlushContext,
    ) -> FlushPlan:
        """Return the plan of a flush of the batch. `rows` and `idempotency_keys` are what `reads` has found."""
        memory = self._memory
        find = chain_finders(rows, reads.find) if rows else reads.find
        plan = plan_flush(batch, find, context, memory.timers, idempotency_keys, memory.purge_markers, reads.run_ends)
        table = memory.topic_table
        plan.topics_added = table.to_add(plan.topics)
        if table.has_empty_topics and not memory.counts.is_lagging:
            plan.topics_removed = table.to_remove(plan.topics, len(plan.topics_added), context.now_ms)
        return plan


def _find_nothing(number: int) -> Row | None:
    """Find no row."""
    return None


def _prefix_within_bytes(order_keys: list[OrderKey], sizes: Mapping[int, int], bytes_max: int) -> list[OrderKey]:
    """Return the longest prefix of these keys whose items have at most `bytes_max` bytes; items without a size count 0."""
    if not sizes:
        return order_keys
    for index, key in enumerate(order_keys):
        bytes_max -= sizes.get(order_key_number(key), 0)
        if bytes_max < 0:
            return order_keys[:index]
    return order_keys
