"""One dequeue, from its call to its reply.

A dequeue reserves keys, has their shards lease them, and replies with the items
that committed. If there are no items, it waits in the queues of its topics
until it is served, gets a direct delivery, or runs out of time. Always true:
looking and reserving are one step of the event loop, as are finding nothing and
joining the queues; the dequeue is in one of four phases; `on_done` is called at
most once; items that are leased for it after its end are released; it reports a whole
outage only if no lease was or will be written for it. It waits only as long as its
namespace has the settings with which it came.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from math import inf
from typing import NamedTuple, Protocol

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.core.flush.operation import Leases, Operation
from foqs.core.items.item import ORDER_KEY_BITS, OrderKey, Row, TopicName, arrival_ranks
from foqs.queue.outage import Outage, with_given_up_lease
from foqs.queue.port import LeasedItems, RowView
from foqs.runtime.deadlines import Deadlines
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import UnknownOutcome

KeysByTopic = list[tuple[TopicName, list[OrderKey]]]


class ReservedKeys(NamedTuple):
    """Keys of one shard that are reserved for a dequeue, by topic. A run of a strict group is apart from all others."""

    shard: OwnedShard
    spans: KeysByTopic
    is_run: bool = False


class ItemSource(Protocol):
    """The host, as a dequeue uses it."""

    delivery_wait_s_max: float
    """How long a dequeue waits for shards that read, and, once some items are committed, for shards that still lease."""

    @property
    def deadlines(self) -> Deadlines: ...

    def loop_time(self) -> float:
        """Return the time of the event loop's clock."""
        ...

    def reserve_best(
        self,
        topics: Mapping[TopicName, int],
        items_max: int,
        *,
        skip_refilling: bool,
        excluded: Collection[OwnedShard] = (),
        run_max: int = 1,
    ) -> list[ReservedKeys]:
        """Reserve the best keys that are certain.

        Of a strict group, up to `run_max` are reserved together. `skip_refilling` skips shards that are still reading. If shards are `excluded`, only other shards that commit
        quickly are used.
        """
        ...

    def start_refills(self, topics: Collection[TopicName]) -> bool:
        """Start the refills that these topics need. Returns whether items may come: from a refill, or once a shard has room."""
        ...

    def add_waiter(self, dequeue: Dequeue) -> None: ...
    def remove_waiter(self, dequeue: Dequeue) -> None: ...

    def may_wait(self, dequeue: Dequeue) -> bool:
        """Return whether it may wait: the host does not stop, and the namespace is as it was when the dequeue came."""
        ...

    def outage(self, topics: Collection[TopicName], late_shards: Collection[OwnedShard] = ()) -> Outage | None:
        """Return the shards that may hold items of these topics and cannot deliver; `late_shards` did not lease in time."""
        ...


class _Phase(enum.Enum):
    SEARCHING = enum.auto()
    WAITING = enum.auto()
    LEASING = enum.auto()
    ENDED = enum.auto()


class Dequeue:
    """One dequeue call.

    Args:
        settings: the settings of the namespace.
        topics: the number of items wanted of each.
        wait_deadline: the moment at which it stops waiting for items; at most `deadline`.
        run_max: how many items of a strict group it gets together.
    """

    __slots__ = (
        "_deadline",
        "_deadline_bucket",
        "_has_switched_shards",
        "_lease_operations",
        "_may_have_leased",
        "_on_done",
        "_phase",
        "_refill_deadline",
        "_source",
        "_wait_deadline",
        "_wakes_at",
        "item_bytes_max",
        "items_max",
        "lease_ms",
        "run_max",
        "settings",
        "topics",
    )

    def __init__(
        self,
        source: ItemSource,
        settings: NamespaceSettings,
        topics: Mapping[TopicName, int],
        lease_ms: int | None,
        item_bytes_max: int,
        items_max: int,
        wait_deadline: float,
        deadline: float,
        on_done: Callable[[LeasedItems], None],
        run_max: int = 1,
    ) -> None:
        self.settings = settings
        self.run_max = run_max
        self.topics = topics
        self.lease_ms = lease_ms
        self.item_bytes_max = item_bytes_max
        self._source = source
        self.items_max = items_max
        self._wait_deadline = wait_deadline
        self._refill_deadline = inf
        """When it stops waiting for refills; infinite if none is running."""
        self._wakes_at = 0.0
        self._deadline = deadline
        self._on_done: Callable[[LeasedItems], None] | None = on_done
        self._phase = _Phase.SEARCHING
        self._lease_operations: list[tuple[OwnedShard, Leases]] = []
        self._may_have_leased = False
        """Whether a lease that it gave up or lost was written, or may be."""
        self._has_switched_shards = False
        """Whether it gave up leases for items of a faster shard. It does so once."""
        self._deadline_bucket = 0

    # ---------------------------------------------------------------- searching

    def try_deliver(self, now: float | None = None) -> bool:
        """Lease items if there are any, or reply without items if it may not wait, and return True.

        Else join the queues of the topics, or keep the place there, and return False.

        A refill that is running is waited for even by a dequeue that does not
        wait, but not without limit: shards that are late are skipped.
        """
        source = self._source
        if now is None:
            now = source.loop_time()
        reserved = source.reserve_best(
            self.topics, self.items_max, skip_refilling=self._refill_deadline <= now, run_max=self.run_max
        )
        if reserved:
            self._stop_waiting()
            self._submit_leases(reserved, now)
            return True
        if not source.start_refills(self.topics):
            self._refill_deadline = inf
        elif self._refill_deadline == inf:
            self._refill_deadline = min(self._deadline, now + self._source.delivery_wait_s_max)
        wake = self._refill_deadline if now < self._refill_deadline < inf else self._wait_deadline
        if wake <= now or not source.may_wait(self):
            self._stop_waiting()
            self._complete([])
            return True
        if self._phase is not _Phase.WAITING:
            self._phase = _Phase.WAITING
            source.add_waiter(self)
        elif wake == self._wakes_at:
            return False
        else:
            source.deadlines.remove(self._deadline_bucket, self)
        self._wakes_at = wake
        self._deadline_bucket = source.deadlines.add(wake, self)
        return False

    def end_wait(self) -> None:
        """Reply without items; the dequeue must be waiting."""
        self._stop_waiting()
        self._complete([])

    def _stop_waiting(self) -> None:
        if self._phase is _Phase.WAITING:
            self._source.remove_waiter(self)
            self._source.deadlines.remove(self._deadline_bucket, self)
        self._phase = _Phase.SEARCHING

    # ------------------------------------------------------------------ leasing

    def _submit_leases(self, reserved: Sequence[ReservedKeys], now: float) -> None:
        self._phase = _Phase.LEASING
        self._set_lease_timer(now)
        self._lease_operations = []
        for shard, spans, is_run in reserved:
            namespace = spans[0][0][0]
            self._lease_operations.append(
                (
                    shard,
                    shard.submit_lease(namespace, spans, self.lease_ms, self.item_bytes_max, self, is_run=is_run),
                )
            )

    def assign(self, shard: OwnedShard, topic: TopicName, order_keys: Sequence[OrderKey]) -> Leases:
        """Make a direct delivery of items that the shard is about to insert or found due. The dequeue must be waiting."""
        self._stop_waiting()
        self._phase = _Phase.LEASING
        self._set_lease_timer(self._source.loop_time())
        operation = Leases(topic[0], [(topic, order_keys)], self.lease_ms, 0, self)
        operation.seal(0, len(order_keys))
        self._lease_operations = [(shard, operation)]
        return operation

    def _set_lease_timer(self, now: float) -> None:
        self._wakes_at = min(self._deadline, now + self._source.delivery_wait_s_max)
        self._deadline_bucket = self._source.deadlines.add(self._wakes_at, self)

    def on_operation_finished(self, operation: Operation) -> None:
        """Reply once all lease operations have their results."""
        if self._phase is not _Phase.LEASING:
            return
        for _, other in self._lease_operations:
            if other.is_open:
                return
        self._reply_with_leased()

    def _reply_with_leased(self, *, is_expired: bool = False, late_shards: Collection[OwnedShard] = ()) -> None:
        """Reply with the items that committed. Items that commit later are released by their shards."""
        parts: list[list[RowView]] = []
        operations: list[Leases] = []
        for shard, operation in self._lease_operations:
            if shard.is_dropped:
                continue
            now_ms, number, real_wait_ms = shard.now_ms(), shard.number, shard.real_ms_until_function()
            operations.append(operation)
            parts.append(
                [
                    RowView(number, row, now_ms, real_wait_ms=real_wait_ms)
                    for row in operation.results
                    if type(row) is Row
                ]
            )
        found = parts[0] if len(parts) == 1 else self._merged(parts, operations)
        if not found:
            self._record_lost_leases()
            if not is_expired:
                self._source.deadlines.remove(self._deadline_bucket, self)
                self.try_deliver()
                return
        self._complete(found, late_shards)

    def _merged(self, parts: Sequence[list[RowView]], operations: Sequence[Leases]) -> list[RowView]:
        """Return the items of several shards in order of topics and delivery. Those of one shard are in this order already."""
        found = list(chain.from_iterable(parts))
        ranks = list(chain.from_iterable(map(self._ranks, operations)))
        return [found[place] for place in sorted(range(len(found)), key=ranks.__getitem__)]

    def _ranks(self, operation: Leases) -> list[int]:
        """Return numbers that sort the items that one shard has leased among those of others.

        They follow from the reserved keys, not from those of the rows: in a fair topic only these have the turns.
        """
        position = {topic: i for i, topic in enumerate(self.topics)}
        ranks: list[int] = []
        start = 0
        for topic, order_keys in operation.spans:
            first, results = position[topic] << ORDER_KEY_BITS, operation.results[start:]
            leased = [key for key, result in zip(order_keys, results, strict=False) if type(result) is Row]
            if operation.is_whole:
                leased = [order_keys[0]] * len(leased)  # a run has the place of its head
            ranks += [first | rank for rank in arrival_ranks(leased)]
            start += len(order_keys)
        return ranks

    # ------------------------------------------------------------------ the end

    def expire(self) -> None:
        """End a wait: search a last time. If leases are late, switch to other shards or wait on; at the end reply without them."""
        # The loop's timer may fire slightly early by the loop's own clock.
        now = max(self._source.loop_time(), self._wakes_at)
        if self._phase is _Phase.WAITING:
            self.try_deliver(now)
        elif self._phase is _Phase.LEASING:
            if now < self._deadline and not self._has_leased_items():
                self._switch_shards(now)
            else:
                late_shards = [shard for shard, operation in self._lease_operations if operation.is_open]
                self._cancel_open_leases()
                self._reply_with_leased(is_expired=True, late_shards=late_shards)

    def _has_leased_items(self) -> bool:
        return any(
            type(row) is Row
            for shard, operation in self._lease_operations
            if not shard.is_dropped
            for row in operation.results
        )

    def _switch_shards(self, now: float) -> None:
        """Give up the leases, none of which is committed, for items of a faster shard; else wait on.

        Leases that commit after they were given up are released. A dequeue switches
        once, and only to items that it reserved: else slow databases would never deliver.
        """
        reserved: Sequence[ReservedKeys] = ()
        late = [shard for shard, operation in self._lease_operations if operation.is_open]
        if late and not self._has_switched_shards:
            reserved = self._source.reserve_best(
                self.topics, self.items_max, skip_refilling=True, excluded=late, run_max=self.run_max
            )
        if reserved:
            self._has_switched_shards = True
            self._cancel_open_leases()
            self._record_lost_leases()
            self._submit_leases(reserved, now)
        else:
            self._set_lease_timer(now)

    def abandon(self) -> None:
        """End without a reply, and release all items."""
        self._on_done = None
        self._source.deadlines.remove(self._deadline_bucket, self)
        if self._phase is _Phase.WAITING:
            self._source.remove_waiter(self)
        elif self._phase is _Phase.LEASING:
            self._cancel_open_leases()
            self._give_back()
        self._phase = _Phase.ENDED

    def _cancel_open_leases(self) -> None:
        """Cancel the leases that are not committed. Their shards release the items, now or after the commit."""
        self._phase = _Phase.ENDED
        for shard, operation in self._lease_operations:
            if operation.is_open:
                shard.cancel_lease(operation)

    def _record_lost_leases(self) -> None:
        """Remember whether one of the leases, none of which it delivers, was written or may be."""
        if not self._may_have_leased:
            self._may_have_leased = any(
                type(result) in (Row, UnknownOutcome)
                for _, operation in self._lease_operations
                for result in operation.results
            )

    def _give_back(self) -> None:
        for shard, operation in self._lease_operations:
            shard.release([row for row in operation.results if type(row) is Row])

    def _complete(self, items: list[RowView], late_shards: Collection[OwnedShard] = ()) -> None:
        self._phase = _Phase.ENDED
        self._source.deadlines.remove(self._deadline_bucket, self)
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            outage = None if items else self._source.outage(self.topics, late_shards)
            if self._may_have_leased and not items:
                outage = with_given_up_lease(outage)
            on_done(LeasedItems(items, self._give_back, outage))
