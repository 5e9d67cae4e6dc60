"""The queue of one host, over the shards that the host owns.

Takes validated calls, submits operations to shards, and replies in the order of the
call. Always true: a call has an entry in `deadlines` until it is done; no item
of a topic stays undelivered while a dequeue waits for that topic. Knows no
Thrift and no SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice
from typing import Final, TypeVar

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.core.flush.moves import Moves
from foqs.core.flush.operation import Acks, Events, Leases, Operation, OperationCaller
from foqs.core.items.atomic_items import error_of_item
from foqs.core.items.item import TRACE_CONTEXT_BYTES_MAX, NewItem, OrderKey, TopicName
from foqs.core.items.life import Event, EventKind
from foqs.core.memory.best_items import plan_prefetch, reserve_best, reserve_runs
from foqs.core.memory.demand import Demand
from foqs.core.memory.ready_index import ReadyIndex
from foqs.options.options import NamespaceOptions
from foqs.queue.bulk_changes import HostBulkChanges
from foqs.queue.call_limits import CallLimits
from foqs.queue.completing import Completing
from foqs.queue.dequeue import Dequeue, KeysByTopic, ReservedKeys
from foqs.queue.host_state import HostState
from foqs.queue.order_meter import OrderMeter
from foqs.queue.owned_shards import OwnedShards
from foqs.queue.pending_calls import EnqueueCall, FanOutCall
from foqs.queue.placement import Placement, values_at
from foqs.queue.port import (
    ITEM_OVERHEAD_BYTES,
    BulkChanges,
    CompletionOutcome,
    EnqueueOutcome,
    LeasedItems,
    Outcome,
    PendingCall,
    QueueReads,
    ShardCompletion,
)
from foqs.queue.quota import Quota
from foqs.queue.reads.host_reads import HostReads
from foqs.queue.replay_lookups import ReplayLookups
from foqs.queue.suspension import SuspensionCause
from foqs.queue.tier import Tier
from foqs.runtime.deadlines import Deadlines
from foqs.runtime.unwritten_replies import UnwrittenReplies
from foqs.shard.host_shards import ShardStatus
from foqs.shard.shard import OwnedShard
from foqs_contract.errors import FoqsError, NotFound

_T = TypeVar("_T")

_EMPTY_INDEX: Final = ReadyIndex(1, 1)
"""Stands in for the index of a shard that is skipped."""
_PLANNED_MAX: Final = 1_000
"""Items of a fair topic whose turns are planned at once: some milliseconds."""


class QueueService:
    """Implements `port.Queue`.

    Args:
        demand: decides how much to prefetch.
        replies: the replies that were made and not written yet; written when shards have notified callers.
    """

    def __init__(
        self, state: HostState, tier: Tier, limits: CallLimits, demand: Demand, replies: UnwrittenReplies
    ) -> None:
        shards, namespaces, stopwatch_s = state.shards, state.namespaces, state.stopwatch_s
        self.limits = limits
        self.waiters = state.waiters
        self.is_stopping = False
        self._state = state
        self._write_replies = replies.write
        self._suspension = state.suspension
        self._shards = shards.served
        self._namespaces = namespaces
        self.delivery_wait_s_max = limits.delivery_wait_ms_max / 1000
        self._delivery_bytes_max = limits.delivery_bytes_max
        self._statuses = shards.statuses
        self._demand = demand
        self._stopwatch_s = stopwatch_s
        loop = asyncio.get_running_loop()
        self.loop_time = loop.time
        """Returns the time of the event loop's clock."""
        self.namespace_settings = namespaces.settings_of
        """Returns the settings of a namespace. Raises `NamespaceNotFound`."""
        self.topic_keys = namespaces.topic_keys_of
        """Returns what the queues of a namespace say of the idempotency keys of their topics."""
        self.deadlines = Deadlines(loop)
        self._owned = OwnedShards(shards, tier)
        self.placement = Placement(self._owned, state.slots, tier, loop.time)
        self.quota = Quota(shards.served, state.backlogs, tier.limits, stopwatch_s)
        self._backlogs = state.backlogs
        self._completing = Completing(
            self._owned, self.placement, namespaces, self.quota, state.backlogs, self.deadlines
        )
        self.reads: QueueReads = HostReads(state, self._owned, demand, self.quota, limits, lambda: self.is_stopping)
        self.bulk: BulkChanges = HostBulkChanges(self._owned, self.apply)
        self.order_meter = OrderMeter(state.ranking, state.order_samples, tier.order_sink)
        self.availability = state.availability
        self.outage = state.availability.outage
        """Returns the shards that cannot deliver; see `Availability.outage`."""
        self._replay_lookups = ReplayLookups(limits.replay_lookup_items_max, self.placement.shards_for_idempotency_keys)

    def stop_long_polls(self) -> None:
        """Reply to the long polls that wait, because the host is stopping, and let no other wait."""
        self.is_stopping = True
        for dequeue in self.waiters.all_waiters():
            dequeue.try_deliver()

    def suspend(self, cause: SuspensionCause) -> None:
        """Deliver nothing until `resume`. Dequeues that wait keep waiting."""
        self._suspension.cause = cause

    def resume(self) -> None:
        """Deliver again, first to dequeues that wait."""
        if self._suspension.is_on:
            self._suspension.cause = None
            for dequeue in self.waiters.all_waiters():
                dequeue.try_deliver()

    # -------------------------------------------------------------- enqueue

    def enqueue(
        self,
        namespace: str,
        items: Sequence[NewItem],
        deadline: float,
        on_done: Callable[[list[EnqueueOutcome]], None],
        *,
        is_atomic: bool = False,
    ) -> PendingCall:
        call = EnqueueCall(self.deadlines, len(items), on_done, is_atomic=is_atomic)
        if not items:
            on_done([])
            return call
        if self._namespaces.foreign_tiers:
            self._namespaces.check_tier(namespace)
        limits = self._namespaces.limited_settings.get(namespace)
        positions: Sequence[int] = range(len(items))
        accepted = items
        limit_errors: Mapping[int, FoqsError] = {}
        if limits is not None:
            limit_errors = self._limit_errors(namespace, limits, items, is_atomic=is_atomic)
            call.in_flight = self._backlogs.in_flight(namespace, limits)
            call.on_repeats = self.quota.refund_callback(namespace, limits)
            if limit_errors:
                positions = [position for position in positions if position not in limit_errors]
                accepted = values_at(items, positions)
        if accepted:
            self.placement.place(call, namespace, accepted, positions)
        self.quota.charge(namespace, limits, call.accepted_count)
        if limit_errors:
            self._replay_lookups.start(call, namespace, items, limit_errors)
        call.start(deadline)
        return call

    def _limit_errors(
        self, namespace: str, limits: NamespaceOptions, items: Sequence[NewItem], *, is_atomic: bool
    ) -> Mapping[int, FoqsError]:
        """Return an error for each item over a limit, by position; of an atomic call, the first one for all items.

        Raises the error if it holds for the whole call and no item may be a repeat.
        """
        try:
            self.quota.check_limits(namespace, limits, items)
        except FoqsError as error:
            if not self._replay_lookups.can_start(namespace, items):
                raise
            return dict.fromkeys(range(len(items)), error)
        errors = self.quota.topic_limit_errors(namespace, limits, [item.topic for item in items])
        if errors and is_atomic:
            place = min(errors)
            return dict.fromkeys(range(len(items)), error_of_item(place, errors[place]))
        return errors

    # ---------------------------------------------------------------- events

    def ack(
        self,
        namespace: str,
        ids: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        def make(numbers: Sequence[int], positions: Sequence[int], caller: OperationCaller) -> Operation:
            return Acks(namespace, numbers, values_at(tokens, positions), caller)

        return self._submit_by_shard(ids, make, deadline, on_done)

    def complete(
        self,
        namespace: str,
        entries: Sequence[ShardCompletion],
        deadline: float,
        on_done: Callable[[list[CompletionOutcome]], None],
    ) -> PendingCall:
        return self._completing.complete(namespace, entries, deadline, on_done)

    def apply(
        self,
        namespace: str,
        events: Sequence[tuple[int, Event]],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        is_move = bool(events) and events[0][1].kind is EventKind.MOVE
        if is_move:
            self._check_topic_limit(namespace, events[0][1].topic)

        def make(numbers: Sequence[int], positions: Sequence[int], caller: OperationCaller) -> Operation:
            chosen = [events[i][1] for i in positions]
            if is_move:
                return Moves(
                    namespace, chosen, self._item_bytes_max(namespace, self.namespace_settings(namespace)), caller
                )
            return Events(namespace, chosen, caller)

        return self._submit_by_shard([(shard, event.id) for shard, event in events], make, deadline, on_done)

    def _check_topic_limit(self, namespace: str, topic: str) -> None:
        """Raise LimitExceeded if the topic is new and the namespace may have no more."""
        limits = self._namespaces.limited_settings.get(namespace)
        if limits is not None:
            for error in self.quota.topic_limit_errors(namespace, limits, [topic]).values():
                raise error

    def _submit_by_shard(
        self,
        ids: Sequence[tuple[int, int]],
        make: Callable[[Sequence[int], Sequence[int], OperationCaller], Operation],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        """Submit an operation to each shard of these ids. `make` gets its numbers and their positions in the call."""
        call = FanOutCall(self.deadlines, len(ids), on_done)
        numbers = [number for _, number in ids]
        groups: dict[int, Sequence[int]] = {}
        if len({shard for shard, _ in ids}) > 1:
            lists: dict[int, list[int]] = {}
            for position, (shard_number, _) in enumerate(ids):
                lists.setdefault(shard_number, []).append(position)
            groups.update(lists)
        elif ids:
            groups[ids[0][0]] = range(len(ids))
        for shard_number, positions in groups.items():
            own = values_at(numbers, positions)
            shard = self._shards.get(shard_number)
            if shard is not None and (unresolved := set(shard.numbers.unresolved(own))):
                for i in positions:
                    if numbers[i] in unresolved:
                        call.outcomes[i] = NotFound("no item has this id yet; use one that enqueue returned")
                positions = [i for i in positions if numbers[i] not in unresolved]
                own = values_at(numbers, positions)
            if not positions:
                continue
            try:
                operation = make(own, positions, call)
                self._owned.get(shard_number).submit(operation)
                call.add_operation(operation, positions, shard_number)
            except FoqsError as error:
                call.refuse(positions, error)
        call.start(deadline)
        return call

    # -------------------------------------------------------------- dequeue

    def dequeue(
        self,
        namespace: str,
        topic_limits: Sequence[tuple[str, int]],
        wait_ms: int,
        lease_ms: int | None,
        deadline: float,
        on_done: Callable[[LeasedItems], None],
        items_max: int | None = None,
        run_max: int = 1,
    ) -> PendingCall:
        settings = self.namespace_settings(namespace)
        item_bytes = self._item_bytes_max(namespace, settings)
        dequeue = Dequeue(
            self,
            settings,
            {(namespace, topic): count for topic, count in topic_limits},
            lease_ms,
            item_bytes,
            min(items_max or self.limits.items_per_call_max, max(1, self._delivery_bytes_max // item_bytes)),
            min(deadline, self.loop_time() + wait_ms / 1000) if wait_ms else 0.0,
            deadline,
            on_done,
            run_max,
        )
        dequeue.try_deliver()
        return dequeue

    def _item_bytes_max(self, namespace: str, settings: NamespaceSettings) -> int:
        """Return the most bytes of one item of a namespace in a reply, by its settings or by the longest known payload."""
        payload_bytes = max(settings.payload_bytes_max, self._namespaces.longest_payloads.payload_bytes_max(namespace))
        return payload_bytes + settings.metadata_bytes_max + TRACE_CONTEXT_BYTES_MAX + ITEM_OVERHEAD_BYTES

    def may_wait(self, dequeue: Dequeue) -> bool:
        namespace = next(iter(dequeue.topics))[0]
        return not self.is_stopping and self._namespaces.is_current(namespace, dequeue.settings)

    def end_outdated_waits(self, changed: Collection[str]) -> None:
        """End the dequeues that wait for a namespace that was deleted or has other settings. Their callers ask again."""
        for namespace in changed:
            for dequeue in self.waiters.for_namespace(namespace):
                if not self.may_wait(dequeue):
                    dequeue.end_wait()

    def add_waiter(self, dequeue: Dequeue) -> None:
        self.waiters.add(dequeue)

    def remove_waiter(self, dequeue: Dequeue) -> None:
        self.waiters.remove(dequeue)

    def reserve_best(
        self,
        topics: Mapping[TopicName, int],
        items_max: int,
        *,
        skip_refilling: bool,
        excluded: Collection[OwnedShard] = (),
        run_max: int = 1,
    ) -> list[ReservedKeys]:
        """Reserve the best keys that are certain: up to the count of each topic, and up to `items_max` in all.

        Of a strict group, up to `run_max` are reserved together. `skip_refilling` skips shards that are still reading better keys. A dequeue that has `excluded` shards also skips
        shards that would be late. Paused topics are skipped.
        """
        if self._suspension.is_on:
            return []
        longest_bytes = self._namespaces.longest_payloads.payload_bytes_max(next(iter(topics))[0]) if topics else 0
        if longest_bytes:
            # A longer payload may have become known since the call came.
            items_max = min(items_max, max(1, self._delivery_bytes_max // (longest_bytes + ITEM_OVERHEAD_BYTES)))
        # Most topics of a long list are empty. So ask each shard once for the topics that it knows.
        shards_by_topic: dict[TopicName, tuple[OwnedShard, ...]] = {}
        rooms: dict[OwnedShard, int] = {}
        for shard in self._delivering_shards():
            if excluded and (shard in excluded or not shard.can_lease_within(self.delivery_wait_s_max)):
                continue
            known = shard.index.filter_known(topics)
            if known and (room := shard.delivery_room(known[0][0])) > 0:
                rooms[shard] = room
                added = dict.fromkeys(known, (shard,))
                shared = shards_by_topic.keys() & added.keys()
                shards_by_topic |= (
                    {**added, **{topic: (*shards_by_topic[topic], shard) for topic in shared}} if shared else added
                )
        if not shards_by_topic:
            return []
        reserved: dict[OwnedShard, KeysByTopic] = {}
        runs: list[ReservedKeys] = []
        parts: Sequence[tuple[OwnedShard, list[OrderKey]]]
        heads: Sequence[tuple[OwnedShard, list[OrderKey]]]
        paused, demand, now_s = self._namespaces.paused_topics, self._demand, self._stopwatch_s()
        for topic in [topic for topic in topics if topic in shards_by_topic]:
            if topic in paused:
                continue
            count = min(topics[topic], items_max)
            if count <= 0:
                break
            shards = shards_by_topic[topic]
            if run_max > 1 and shards[0].index.gives_runs(topic):
                found = self._reserve_runs(topic, count, shards, rooms, run_max, skip_refilling=skip_refilling)
                runs += [ReservedKeys(shard, [(topic, run)], is_run=True) for shard, run in found if len(run) > 1]
                parts = _single_keys(found)
                heads = [(shard, run[:1]) for shard, run in found]
                reserved_count = sum([len(run) for _, run in found])
            else:
                heads = parts = self._reserve_of_topic(topic, count, shards, rooms, skip_refilling=skip_refilling)
                reserved_count = sum([len(order_keys) for _, order_keys in parts])
                for shard, order_keys in parts:
                    rooms[shard] -= len(order_keys)
            for shard, order_keys in parts:
                reserved.setdefault(shard, []).append((topic, order_keys))
            if reserved_count:
                items_max -= reserved_count
                self.order_meter.record(topic, heads, reserved_count, now_s)
                if demand.record_dequeue(topic, reserved_count, now_s):
                    self._prefetch(shards, topic, now_s)
        return [*[ReservedKeys(shard, spans) for shard, spans in reserved.items()], *runs]

    def _reserve_of_topic(
        self,
        topic: TopicName,
        count: int,
        shards: Sequence[OwnedShard],
        rooms: Mapping[OwnedShard, int],
        *,
        skip_refilling: bool,
    ) -> Sequence[tuple[OwnedShard, list[OrderKey]]]:
        """Reserve the best keys of one topic. Returns them by shard; a shard gives at most what it has room for."""
        if len(shards) == 1:
            shard = shards[0]
            if skip_refilling and shard.index.needs_refill(topic):
                return ()
            order_keys = shard.index.reserve(topic, min(count, rooms[shard]))
            return ((shard, order_keys),) if order_keys else ()
        shards = [shard for shard in shards if rooms[shard]]
        sources = _indexes(shards, topic, skip_refilling=skip_refilling)
        order_keys_by_shard = reserve_best(sources, topic, count, [rooms[shard] for shard in shards])
        return [
            (shard, order_keys) for shard, order_keys in zip(shards, order_keys_by_shard, strict=True) if order_keys
        ]

    def _reserve_runs(
        self,
        topic: TopicName,
        count: int,
        shards: Sequence[OwnedShard],
        rooms: dict[OwnedShard, int],
        run_max: int,
        *,
        skip_refilling: bool,
    ) -> list[tuple[OwnedShard, list[OrderKey]]]:
        """Reserve the best heads of a topic with strict groups, each with its run. Returns the runs, and takes their room."""
        shards = [shard for shard in shards if rooms[shard]]
        sources = _indexes(shards, topic, skip_refilling=skip_refilling)
        found = reserve_runs(sources, topic, count, [rooms[shard] for shard in shards], run_max)
        for shard, runs in zip(shards, found, strict=True):
            rooms[shard] -= sum(map(len, runs))
        return [(shard, run) for shard, runs in zip(shards, found, strict=True) for run in runs]

    def _prefetch(self, shards: Sequence[OwnedShard], topic: TopicName, now_s: float) -> None:
        """Read more of a topic if less is in memory than its demand needs."""
        shards = [shard for shard in shards if topic in shard.index]
        if not shards:
            return
        target = self._demand.prefetch_target(topic, now_s)
        in_turn = [shard for shard in shards if shard.index.takes_turns(topic)]
        if in_turn:
            _prefetch_in_turn(in_turn, topic, target)
            return
        for shard in shards:
            if shard.index.is_low(topic, target):
                shard.loader.start_refill(topic)
        if sum([shard.index.prefetched_count(topic) for shard in shards]) * 2 < target:
            plan = plan_prefetch([shard.index for shard in shards], topic, target)
            for shard, order_keys in zip(shards, plan, strict=True):
                if order_keys:
                    shard.loader.start_prefetch(topic, order_keys)

    def start_refills(self, topics: Collection[TopicName]) -> bool:
        """Start the refills that these topics need. Returns whether items may come: from a refill, or once a shard has room."""
        paused = self._namespaces.paused_topics
        may_come = False
        for shard in self._delivering_shards():
            for topic in shard.index.filter_known(topics):
                if topic in paused:
                    continue
                if shard.index.needs_refill(topic):
                    shard.loader.start_refill(topic)
                    may_come = True
                elif shard.delivery_room(topic[0]) <= 0:
                    may_come = True
        return may_come

    def _delivering_shards(self) -> list[OwnedShard]:
        return [shard for shard in self._shards.values() if shard.can_deliver]

    # ------------------------------------------------- callbacks of the shards

    def has_waiters(self, namespace: str) -> bool:
        """Return whether a dequeue waits for a topic of this namespace."""
        return self.waiters.has_waiters(namespace)

    def assign_to_waiters(self, shard: int, topic: TopicName, order_keys: Sequence[OrderKey]) -> list[Leases]:
        """Return direct deliveries of items that are about to be inserted or due.

        Returns none unless the topic is known to be empty everywhere on this host.
        """
        waiter = self.waiters.first(topic)
        owned = self._shards.get(shard)
        if (
            waiter is None
            or owned is None
            or self._suspension.is_on
            or topic in self._namespaces.paused_topics
            or any(topic in other.index for other in self._owned.serving())
        ):
            return []
        deliveries: list[Leases] = []
        start = 0
        while waiter is not None and start < len(order_keys):
            count = waiter.topics[topic]
            part = order_keys[start : start + min(count, waiter.items_max)]
            deliveries.append(waiter.assign(owned, topic, part))
            start += len(part)
            waiter = self.waiters.first(topic)
        if deliveries:
            self.order_meter.record(topic, [(owned, order_keys[:start])], start, self._stopwatch_s())
        return deliveries

    def on_items_ready(self, topics: Iterable[TopicName]) -> None:
        """Serve the dequeues that wait for these topics, as long as there are items."""
        for topic in topics:
            while (waiter := self.waiters.first(topic)) is not None:
                if not waiter.try_deliver() or not self._is_available(topic):
                    break

    def on_room_freed(self, shard: int, namespace: str) -> None:
        """Serve the dequeues of this namespace that wait, oldest first, because the shard may have room again."""
        owned = self._shards.get(shard)
        if owned is None:
            return
        for waiter in self.waiters.for_namespace(namespace):
            if owned.index.filter_known(waiter.topics):
                waiter.try_deliver()
                if owned.delivery_room(namespace) <= 0:
                    break

    def on_callers_notified(self) -> None:
        """Send the replies that were made, before other work is done."""
        self._write_replies()

    def _is_available(self, topic: TopicName) -> bool:
        return any(
            shard.index.best_key(topic) is not None and shard.delivery_room(topic[0]) > 0
            for shard in self._delivering_shards()
        )

    def shard_statuses(self) -> list[ShardStatus]:
        return self._state.shard_statuses()


def _indexes(shards: Sequence[OwnedShard], topic: TopicName, *, skip_refilling: bool) -> list[ReadyIndex]:
    """Return the indexes of shards; with `skip_refilling`, empty ones for those that may still read better keys."""
    indexes = [shard.index for shard in shards]
    return [_EMPTY_INDEX if index.needs_refill(topic) else index for index in indexes] if skip_refilling else indexes


def _single_keys(runs: Sequence[tuple[OwnedShard, list[OrderKey]]]) -> list[tuple[OwnedShard, list[OrderKey]]]:
    """Return, by shard, the keys that have no others of their group with them."""
    keys: dict[OwnedShard, list[OrderKey]] = {}
    for shard, run in runs:
        if len(run) == 1:
            keys.setdefault(shard, []).append(run[0])
    return [*keys.items()]


def _prefetch_in_turn(shards: Sequence[OwnedShard], topic: TopicName, target: int) -> None:
    """Read the rows of the items of a fair topic that come next, when half of the last ones were reserved.

    More groups are not asked for: the rows of a fair topic are read without demand.
    """
    target = min(target, _PLANNED_MAX)
    heads = [shard.memory.limited_topics[topic].heads for shard in shards]
    if sum([each.prefetched_left for each in heads]) * 2 >= target:
        return
    upcoming = [own.upcoming(shard.index.peek(topic, target)) for own, shard in zip(heads, shards, strict=True)]
    planned: list[list[OrderKey]] = [[] for _ in shards]
    for _, at, order_key in islice(merge(*[_numbered(each, at) for at, each in enumerate(upcoming)]), target):
        planned[at].append(order_key)
    for shard, own, order_keys in zip(shards, heads, planned, strict=True):
        if order_keys and shard.loader.start_prefetch(topic, order_keys):
            own.prefetched_left = len(order_keys)


def _numbered(upcoming: Iterable[tuple[OrderKey, OrderKey]], at: int) -> Iterator[tuple[OrderKey, int, OrderKey]]:
    for head, order_key in upcoming:
        yield head, at, order_key
