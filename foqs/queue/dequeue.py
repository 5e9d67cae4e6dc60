"""One dequeue, from its call to its answer.

It looks for keys, has their shards lease them, and answers with what committed;
where there is nothing it waits in the queues of its topics until it is served,
claimed for items about to be inserted, or out of time. Always true: between
looking and reserving, and between finding nothing and standing in the queues,
lies nothing; it is in one of four states, and `done` is called once at most;
whatever is leased for it after it has ended is released.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from typing import Protocol

from foqs.core.flush.work import HandOut as HandOutWork
from foqs.core.items.item import OrderKey, Row, TopicName
from foqs.queue.port import Deliveries, ItemView
from foqs.runtime.deadlines import Deadlines
from foqs.shard.shard import Shard

KeysByTopic = list[tuple[TopicName, list[OrderKey]]]


class ItemSource(Protocol):
    """What a dequeue needs of its host."""

    delivery_wait_s_max: float
    """How long a dequeue waits for shards that read, and, once some items are committed, for shards that still lease."""

    @property
    def deadlines(self) -> Deadlines: ...

    def loop_time(self) -> float:
        """The loop's clock."""
        ...

    def reserve_best(
        self, topics: Mapping[TopicName, int], items_max: int, *, skip_refilling: bool, excluded: Collection[Shard] = ()
    ) -> list[tuple[Shard, KeysByTopic]]:
        """Reserves the best keys that are certain; if it is late, without those shards that still read.

        If there are shards `excluded` which it looks, it takes only from others that commit quickly.
        """
        ...

    def start_refills(self, topics: Collection[TopicName]) -> bool:
        """Some shard is reading for one of these topics, which it begins here where it must, or has too much to lease."""
        ...

    def add_waiter(self, dequeue: Dequeue) -> None: ...
    def remove_waiter(self, dequeue: Dequeue) -> None: ...

    @property
    def is_draining(self) -> bool: ...


class _Phase(enum.Enum):
    SEARCHING = enum.auto()
    WAITING = enum.auto()
    LEASING = enum.auto()
    ENDED = enum.auto()


class Dequeue:
    """One call.

    Args:
        topics: each with how many items are wanted.
        wait_deadline: when it stops waiting for items; at most `deadline`.
    """

    __slots__ = (
        "_deadline",
        "_deadline_bucket",
        "_has_switched_shards",
        "_on_done",
        "_phase",
        "_refill_deadline",
        "_source",
        "_wait_deadline",
        "_wakes_at",
        "_works",
        "item_bytes_max",
        "items_max",
        "lease_ms",
        "topics",
    )

    def __init__(
        self,
        source: ItemSource,
        topics: Mapping[TopicName, int],
        lease_ms: int | None,
        item_bytes_max: int,
        items_max: int,
        wait_deadline: float,
        deadline: float,
        on_done: Callable[[Deliveries], None],
    ) -> None:
        self.topics = topics
        self.lease_ms = lease_ms
        self.item_bytes_max = item_bytes_max
        self._source = source
        self.items_max = items_max
        self._wait_deadline = wait_deadline
        self._refill_deadline = inf
        """Until when it waits for a read that is under way; infinite when there is none."""
        self._wakes_at = 0.0
        self._deadline = deadline
        self._on_done: Callable[[Deliveries], None] | None = on_done
        self._phase = _Phase.SEARCHING
        self._works: list[tuple[Shard, HandOutWork]] = []
        self._has_switched_shards = False
        """It has given up leases for those of a quicker shard, which it does once."""
        self._deadline_bucket = 0

    # ------------------------------------------------------------------ looking

    def try_deliver(self) -> bool:
        """Takes what there is; else stands in the queues of its topics, where it keeps its place, and returns False.

        While something is being read for it, it waits for that even if it has
        no other time to wait, but not for ever: shards that are late are left out.
        """
        return self._try_deliver_at(self._source.loop_time())

    def _try_deliver_at(self, now: float) -> bool:
        counter = self._source
        taken = counter.reserve_best(self.topics, self.items_max, skip_refilling=self._refill_deadline <= now)
        if taken:
            self._stop_waiting()
            self._submit_leases(taken)
            return True
        if not counter.start_refills(self.topics):
            self._refill_deadline = inf
        elif self._refill_deadline == inf:
            self._refill_deadline = min(self._deadline, now + self._source.delivery_wait_s_max)
        wake = self._refill_deadline if now < self._refill_deadline < inf else self._wait_deadline
        if counter.is_draining or wake <= now:
            self._stop_waiting()
            self._complete([])
            return True
        if self._phase is not _Phase.WAITING:
            self._phase = _Phase.WAITING
            counter.add_waiter(self)
        elif wake == self._wakes_at:
            return False
        else:
            counter.deadlines.remove(self._deadline_bucket, self)
        self._wakes_at = wake
        self._deadline_bucket = counter.deadlines.add(wake, self)
        return False

    def _stop_waiting(self) -> None:
        if self._phase is _Phase.WAITING:
            self._source.remove_waiter(self)
            self._source.deadlines.remove(self._deadline_bucket, self)
        self._phase = _Phase.SEARCHING

    # ------------------------------------------------------------------ leasing

    def _submit_leases(self, reserved: Sequence[tuple[Shard, KeysByTopic]]) -> None:
        self._phase = _Phase.LEASING
        self._set_lease_timer(self._source.loop_time())
        self._works = []
        for shard, spans in reserved:
            namespace = spans[0][0][0]
            self._works.append(
                (
                    shard,
                    shard.submit_lease(namespace, spans, self.lease_ms, self.item_bytes_max, self._on_work_finished),
                )
            )

    def assign(self, shard: Shard, topic: TopicName, order_keys: Sequence[OrderKey]) -> HandOutWork:
        """It gets these, which the shard is about to insert, or finds due; it must be waiting."""
        self._stop_waiting()
        self._phase = _Phase.LEASING
        self._set_lease_timer(self._source.loop_time())
        work = HandOutWork(topic[0], [(topic, order_keys)], self.lease_ms, 0, self._on_work_finished)
        work.seal(0, len(order_keys))
        self._works = [(shard, work)]
        return work

    def _set_lease_timer(self, now: float) -> None:
        self._wakes_at = min(self._deadline, now + self._source.delivery_wait_s_max)
        self._deadline_bucket = self._source.deadlines.add(self._wakes_at, self)

    def _on_work_finished(self) -> None:
        """One of the works has all its results, or one that was given up had them just before."""
        if self._phase is _Phase.LEASING and not any(work.is_open for _, work in self._works):
            self._reply_with_leased()

    def _reply_with_leased(self, *, is_expired: bool = False) -> None:
        """Answers with what committed; what commits later is given back by its shard."""
        found: list[ItemView] = []
        for shard, work in self._works:
            if shard.is_dropped:
                continue
            now_ms, number, lasts = shard.now_ms(), shard.number, shard.real_ms_until_function()
            found += [ItemView(number, row, now_ms, real_wait_ms=lasts) for row in work.results if type(row) is Row]
        if not found and not is_expired:
            self._source.deadlines.remove(self._deadline_bucket, self)
            self.try_deliver()
            return
        # What one shard hands out is in order.
        if len(self._works) > 1:
            if len(self.topics) > 1:
                order = {topic: place for place, topic in enumerate(self.topics)}
                found.sort(key=lambda seen: (order[seen.row.namespace, seen.row.topic], seen.row.order_key))
            else:
                found.sort(key=_order_key)
        self._complete(found)

    # ------------------------------------------------------------------ the end

    def expire(self) -> None:
        """It is time to look for the last time, or to leave out the shards that are late."""
        # The loop may ring a hair's breadth too early, by its own clock.
        now = max(self._source.loop_time(), self._wakes_at)
        if self._phase is _Phase.WAITING:
            self._try_deliver_at(now)
        elif self._phase is _Phase.LEASING:
            if now < self._deadline and not self._has_leased_items():
                self._switch_shards(now)
            else:
                self._cancel_open_leases()
                self._reply_with_leased(is_expired=True)

    def _has_leased_items(self) -> bool:
        """Some item is committed."""
        return any(type(row) is Row for shard, work in self._works if not shard.is_dropped for row in work.results)

    def _switch_shards(self, now: float) -> None:
        """Nothing is committed yet: gives up its leases for items of a quicker shard, once, or waits on.

        What commits after it was given up is released. If a dequeue gave up again and
        again, or for nothing, slow databases would never deliver anything.
        """
        taken: Sequence[tuple[Shard, KeysByTopic]] = ()
        late = [shard for shard, work in self._works if work.is_open]
        if late and not self._has_switched_shards:
            taken = self._source.reserve_best(self.topics, self.items_max, skip_refilling=True, excluded=late)
        if taken:
            self._has_switched_shards = True
            self._cancel_open_leases()
            self._submit_leases(taken)
        else:
            self._set_lease_timer(now)

    def abandon(self) -> None:
        """Nobody waits any more: gives everything back."""
        self._on_done = None
        self._source.deadlines.remove(self._deadline_bucket, self)
        if self._phase is _Phase.WAITING:
            self._source.remove_waiter(self)
        elif self._phase is _Phase.LEASING:
            self._cancel_open_leases()
            self._release_leased()
        self._phase = _Phase.ENDED

    def _cancel_open_leases(self) -> None:
        """The hand-outs that are not committed: their shards give them back, now or when they are."""
        self._phase = _Phase.ENDED
        for shard, work in self._works:
            if work.is_open:
                shard.cancel_lease(work)

    def _release_leased(self) -> None:
        for shard, work in self._works:
            shard.release([row for row in work.results if type(row) is Row])

    def _complete(self, items: list[ItemView]) -> None:
        self._phase = _Phase.ENDED
        self._source.deadlines.remove(self._deadline_bucket, self)
        done, self._on_done = self._on_done, None
        if done is not None:
            done(Deliveries(items, self._release_leased))


def _order_key(seen: ItemView) -> OrderKey:
    return seen.row.order_key
