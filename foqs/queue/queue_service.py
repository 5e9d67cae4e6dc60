"""The queue of one host: what a call means, over the shards this host owns.

Validated calls come in, works go to shards, results come back in order. Always
true: every call has an entry among the deadlines until it is done; who waits
for a topic is served before anything of it is left lying. Speaks no Thrift and
no SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.namespaces import Namespaces
from foqs.core.errors import (
    HANDOVER_RETRY_MS,
    DeadlineExceeded,
    FoqsError,
    NotFound,
    Unavailable,
)
from foqs.core.flush.work import HandOut as HandOutWork
from foqs.core.flush.work import Work
from foqs.core.items.item import (
    NewItem,
    OrderKey,
    State,
    TopicName,
)
from foqs.core.items.item_filter import ItemFilter
from foqs.core.items.life import Event
from foqs.core.memory.best_items import plan_prefetch, reserve_best
from foqs.core.memory.demand import Demand
from foqs.core.memory.ready_index import ReadyIndex
from foqs.core.memory.sorted_names import merge_names
from foqs.options.options import NamespaceOptions
from foqs.options.rpc_options import CallOptions
from foqs.queue.availability import Availability
from foqs.queue.bulk import change_matching, count_matching, list_matching
from foqs.queue.dequeue import Dequeue, KeysByTopic
from foqs.queue.explainer import Explainer
from foqs.queue.listings import ACTIVE_STATES, counts_by_state, format_cursor, parse_cursor, topic_stats
from foqs.queue.payload_pages import ITEM_OVERHEAD_BYTES, count_fitting, load_payloads
from foqs.queue.pending_calls import ApplyCall, EnqueueCall
from foqs.queue.placement import Placement, values_at
from foqs.queue.port import (
    BulkPage,
    Deliveries,
    EnqueueOutcome,
    ItemCount,
    ItemDetails,
    ItemExplanation,
    ItemView,
    Outcome,
    PendingCall,
    TopicStats,
)
from foqs.queue.quota import Quota
from foqs.queue.replay_lookups import ReplayLookups
from foqs.queue.topic_purge import purge_topic
from foqs.queue.waiters import Waiters
from foqs.runtime.deadlines import Deadlines
from foqs.shard.host_shards import HostShards
from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus

_T = TypeVar("_T")

_EMPTY_INDEX: Final = ReadyIndex(1, 1)
"""Stands for the index of a shard that is left out."""


class QueueService:
    """Answers the calls of `api.Queue`.

    Args:
        namespaces: what holds for each, and which topics are paused.
        demand: what is dequeued, for loading ahead.
        stopwatch_s: a stop watch.
    """

    def __init__(
        self,
        shards: HostShards,
        namespaces: Namespaces,
        limits: CallOptions,
        demand: Demand,
        stopwatch_s: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.waiters: Waiters[Dequeue] = Waiters()
        self.is_draining = False
        self.write_replies: Callable[[], None] = _do_nothing
        """Called when callers have their answers, and what they are sent should leave before other work is done."""
        self.placement = Placement(shards.served, shards.statuses, asyncio.get_running_loop().time)
        self._is_suspended = False
        self._shards = shards.served
        self._namespaces = namespaces
        self.delivery_wait_s_max = limits.delivery_wait_ms_max / 1000
        self._delivery_bytes_max = limits.delivery_bytes_max
        self._statuses = shards.statuses
        self._demand = demand
        self._stopwatch_s = stopwatch_s
        self._loop = asyncio.get_running_loop()
        self.deadlines = Deadlines(self._loop)
        self.quota = Quota(shards.served, stopwatch_s)
        self._explainer = Explainer(
            shards,
            namespaces,
            self.waiters,
            demand,
            self.quota,
            stopwatch_s,
            limits.better_items_max,
            self.placement.not_owner_error,
        )
        self.availability = Availability(shards.served, namespaces, self.waiters, lambda: self._is_suspended)
        self._replay_lookups = ReplayLookups(limits.replay_lookup_items_max, self.placement.shards_for_keys)

    def namespace_settings(self, name: str) -> NamespaceSettings:
        return self._namespaces.settings_of(name)

    def drain(self) -> None:
        """The host is stopping: nobody waits for work any more, and who does is answered."""
        self.is_draining = True
        for dequeue in self.waiters.all_waiters():
            dequeue.try_deliver()

    @property
    def is_suspended(self) -> bool:
        """Nothing is handed out, because its shards may be another host's soon; all else goes on."""
        return self._is_suspended

    def suspend(self) -> None:
        """Hands nothing out until `resume`; who waits goes on waiting."""
        self._is_suspended = True

    def resume(self) -> None:
        """Hands out again, to those who waited first."""
        if self._is_suspended:
            self._is_suspended = False
            for dequeue in self.waiters.all_waiters():
                dequeue.try_deliver()

    # -------------------------------------------------------------- enqueue

    def enqueue(
        self, namespace: str, items: Sequence[NewItem], deadline: float, on_done: Callable[[list[EnqueueOutcome]], None]
    ) -> PendingCall:
        call = EnqueueCall(self.deadlines, len(items), on_done)
        if not items:
            on_done([])
            return call
        if self._namespaces.foreign_tiers:
            self._namespaces.check_tier(namespace)
        limits = self._namespaces.limited_settings.get(namespace)
        places: Sequence[int] = range(len(items))
        within = items
        beyond: Mapping[int, FoqsError] = {}
        if limits is not None:
            beyond = self._limit_errors(namespace, limits, items)
            call.in_flight = self.quota.in_flight(namespace, limits)
            call.on_repeats = self.quota.refund_callback(namespace, limits)
            if beyond:
                places = [place for place in places if place not in beyond]
                within = values_at(items, places)
        if within:
            self.placement.place(call, namespace, within, places)
        self.quota.charge(namespace, limits, call.accepted_count)
        if beyond:
            self._replay_lookups.start(call, namespace, items, beyond)
        call.start(deadline)
        return call

    def _limit_errors(
        self, namespace: str, limits: NamespaceOptions, items: Sequence[NewItem]
    ) -> Mapping[int, FoqsError]:
        """Why items cannot be taken, by place. Raises it where that is so of all, and none may turn out to be a repeat."""
        try:
            self.quota.check_limits(namespace, limits, items)
        except FoqsError as error:
            if not self._replay_lookups.can_start(namespace, items):
                raise
            return dict.fromkeys(range(len(items)), error)
        return self.quota.topic_limit_errors(namespace, limits, items)

    # ---------------------------------------------------------------- events

    def ack(
        self,
        namespace: str,
        ids: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        def begin(shard: Shard, numbers: Sequence[int], places: Sequence[int], finished: Callable[[], None]) -> Work:
            return shard.submit_acks(namespace, numbers, values_at(tokens, places), finished)

        return self._submit_by_shard(ids, begin, deadline, on_done)

    def apply(
        self,
        namespace: str,
        events: Sequence[tuple[int, Event]],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        def begin(shard: Shard, numbers: Sequence[int], places: Sequence[int], finished: Callable[[], None]) -> Work:
            return shard.submit_events(namespace, [events[i][1] for i in places], finished)

        return self._submit_by_shard([(shard, event.id) for shard, event in events], begin, deadline, on_done)

    def _submit_by_shard(
        self,
        ids: Sequence[tuple[int, int]],
        submit: Callable[[Shard, Sequence[int], Sequence[int], Callable[[], None]], Work],
        deadline: float,
        done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        """Has `submit` hand their entries, by numbers and places, to each of the shards."""
        call = ApplyCall(self.deadlines, len(ids), done)
        numbers = [number for _, number in ids]
        groups: dict[int, Sequence[int]] = {}
        if len({shard for shard, _ in ids}) > 1:
            lists: dict[int, list[int]] = {}
            for place, (number, _) in enumerate(ids):
                lists.setdefault(number, []).append(place)
            groups.update(lists)
        elif ids:
            groups[ids[0][0]] = range(len(ids))
        for number, places in groups.items():
            own = values_at(numbers, places)
            shard = self._shards.get(number)
            if shard is not None and max(own) > shard.numbers.resolved_up_to:
                settled = [i for i in places if shard.numbers.is_resolved(numbers[i])]
                for i in set(places).difference(settled):
                    call.outcomes[i] = NotFound("no item has this id yet")
                places, own = settled, values_at(numbers, settled)
            if not places:
                continue
            try:
                call.add_work(submit(self._owned_shard(number), own, places, call.on_work_finished), places, number)
            except FoqsError as error:
                call.refuse(places, error)
        call.start(deadline)
        return call

    def _owned_shard(self, shard_number: int) -> Shard:
        shard = self._shards.get(shard_number)
        if shard is not None:
            return shard
        if shard_number in self._statuses:
            raise Unavailable(f"shard {shard_number} is recovering; try again", retry_after_ms=HANDOVER_RETRY_MS)
        raise self.placement.not_owner_error(shard_number)

    def _owned_shards(self, shard_numbers: Collection[int] | None) -> list[Shard]:
        """These shards, or every one that should be here. Raises `NotOwner`, `Unavailable` where one is not served."""
        return [
            self._owned_shard(number)
            for number in sorted(self._statuses if shard_numbers is None else set(shard_numbers))
        ]

    # -------------------------------------------------------------- dequeue

    def dequeue(
        self,
        namespace: str,
        topic_limits: Sequence[tuple[str, int]],
        wait_ms: int,
        lease_ms: int | None,
        deadline: float,
        on_done: Callable[[Deliveries], None],
        items_max: int | None = None,
    ) -> PendingCall:
        item_bytes = self._item_bytes_max(namespace)
        dequeue = Dequeue(
            self,
            {(namespace, topic): count for topic, count in topic_limits},
            lease_ms,
            item_bytes,
            min(items_max or self.limits.items_per_call_max, max(1, self._delivery_bytes_max // item_bytes)),
            min(deadline, self.loop_time() + wait_ms / 1000) if wait_ms else 0.0,
            deadline,
            on_done,
        )
        dequeue.try_deliver()
        return dequeue

    def loop_time(self) -> float:
        """The loop's clock."""
        return self._loop.time()

    def add_waiter(self, dequeue: Dequeue) -> None:
        self.waiters.add(dequeue)

    def remove_waiter(self, dequeue: Dequeue) -> None:
        self.waiters.remove(dequeue)

    def reserve_best(
        self, topics: Mapping[TopicName, int], items_max: int, *, skip_refilling: bool, excluded: Collection[Shard] = ()
    ) -> list[tuple[Shard, KeysByTopic]]:
        """Reserves the best keys that are certain; of each topic at most its count, of all at most `items_max`.

        If it is `skip_refilling`, shards whose better keys are still being read are left out. If there are shards `excluded`,
        they and those that would be late too are left out. Of a paused topic nothing is taken.
        """
        if self._is_suspended:
            return []
        longest = self._namespaces.longest_payloads.payload_bytes_max(next(iter(topics))[0]) if topics else 0
        if longest:
            # More may be known of what is there than when the call came.
            items_max = min(items_max, max(1, self._delivery_bytes_max // (longest + ITEM_OVERHEAD_BYTES)))
        # Of many topics most have nothing: only those that a shard knows are looked at, and only there.
        holding: dict[TopicName, tuple[Shard, ...]] = {}
        rooms: dict[Shard, int] = {}
        for shard in self._delivering_shards():
            if excluded and (shard in excluded or not shard.can_lease_within(self.delivery_wait_s_max)):
                continue
            known = shard.index.filter_known(topics)
            if known and (own := shard.delivery_room(known[0][0])) > 0:
                rooms[shard] = own
                alone = dict.fromkeys(known, (shard,))
                both = holding.keys() & alone.keys()
                holding |= {**alone, **{topic: (*holding[topic], shard) for topic in both}} if both else alone
        if not holding:
            return []
        found: dict[Shard, KeysByTopic] = {}
        paused, demand, now_s = self._namespaces.paused_topics, self._demand, self._stopwatch_s()
        for topic in [topic for topic in topics if topic in holding]:
            if topic in paused:
                continue
            count = min(topics[topic], items_max)
            if count <= 0:
                break
            taken = 0
            shards = holding[topic]
            for shard, keys in self._reserve_of_topic(topic, count, shards, rooms, skip_refilling=skip_refilling):
                rooms[shard] -= len(keys)
                found.setdefault(shard, []).append((topic, keys))
                taken += len(keys)
            if taken:
                items_max -= taken
                if demand.record_dequeue(topic, taken, now_s):
                    self._prefetch(shards, topic, now_s)
        return list(found.items())

    def _reserve_of_topic(
        self, topic: TopicName, count: int, shards: Sequence[Shard], rooms: Mapping[Shard, int], *, skip_refilling: bool
    ) -> Sequence[tuple[Shard, list[OrderKey]]]:
        """The best keys of one topic by shard, of those that gave some; a shard gives no more than it has room for."""
        if len(shards) == 1:
            shard = shards[0]
            if skip_refilling and shard.index.needs_refill(topic):
                return ()
            keys = shard.index.reserve(topic, min(count, rooms[shard]))
            return ((shard, keys),) if keys else ()
        shards = [shard for shard in shards if rooms[shard]]
        indexes = [shard.index for shard in shards]
        sources = (
            [_EMPTY_INDEX if index.needs_refill(topic) else index for index in indexes] if skip_refilling else indexes
        )
        taken = reserve_best(sources, topic, count, [rooms[shard] for shard in shards])
        return [(shard, keys) for shard, keys in zip(shards, taken, strict=True) if keys]

    def _prefetch(self, shards: Sequence[Shard], topic: TopicName, now_s: float) -> None:
        """It is time to see how much of a topic is there for those who will ask: has more of it read before they do."""
        shards = [shard for shard in shards if topic in shard.index]
        if not shards:
            return
        want = self._demand.prefetch_target(topic, now_s)
        for shard in shards:
            if shard.index.is_low(topic, want):
                shard.start_refill(topic)
        if sum([shard.index.prefetched_count(topic) for shard in shards]) * 2 < want:
            for shard, keys in zip(shards, plan_prefetch([shard.index for shard in shards], topic, want), strict=True):
                if keys:
                    shard.start_prefetch(topic, keys)

    def start_refills(self, topics: Collection[TopicName]) -> bool:
        """Some shard is reading for one of these topics, which it begins here where it must, or has too much to lease."""
        paused = self._namespaces.paused_topics
        coming = False
        for shard in self._delivering_shards():
            for topic in shard.index.filter_known(topics):
                if topic in paused:
                    continue
                if shard.index.needs_refill(topic):
                    shard.start_refill(topic)
                    coming = True
                elif shard.delivery_room(topic[0]) <= 0:
                    coming = True
        return coming

    def _serving_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.is_serving]

    def _delivering_shards(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.can_deliver]

    # ----------------------------------------------------- what the shards tell

    def has_waiters(self, namespace: str) -> bool:
        """Somebody waits for some topic of this namespace."""
        return self.waiters.has_waiters(namespace)

    def assign_to_waiters(self, shard: Shard, topic: TopicName, order_keys: Sequence[OrderKey]) -> list[HandOutWork]:
        """Hand-outs of items about to be inserted, or due, for those who wait for a topic that is known to be empty."""
        waiter = self.waiters.first(topic)
        if (
            waiter is None
            or self._is_suspended
            or topic in self._namespaces.paused_topics
            or any(topic in other.index for other in self._serving_shards())
        ):
            return []
        claims: list[HandOutWork] = []
        start = 0
        while waiter is not None and start < len(order_keys):
            count = waiter.topics[topic]
            part = order_keys[start : start + min(count, waiter.items_max)]
            claims.append(waiter.assign(shard, topic, part))
            start += len(part)
            waiter = self.waiters.first(topic)
        return claims

    def on_items_ready(self, topics: Iterable[TopicName]) -> None:
        """These topics have, or may have, items: serves those who wait, while there is something."""
        for topic in topics:
            while (waiter := self.waiters.first(topic)) is not None:
                if not waiter.try_deliver() or not self._is_available(topic):
                    break

    def on_room_freed(self, shard: Shard, namespace: str) -> None:
        """The shard may have room for hand-outs of this namespace, where it had none: serves those who wait, the longest first."""
        for waiter in self.waiters.for_namespace(namespace):
            if shard.index.filter_known(waiter.topics):
                waiter.try_deliver()
                if shard.delivery_room(namespace) <= 0:
                    break

    def on_callers_notified(self) -> None:
        """Callers have their answers, and there is other work to do."""
        self.write_replies()

    def _is_available(self, topic: TopicName) -> bool:
        return any(
            shard.index.best_key(topic) is not None and shard.delivery_room(topic[0]) > 0
            for shard in self._delivering_shards()
        )

    # ---------------------------------------------------------------- looking

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        wanted = tuple(states) if states else ACTIVE_STATES
        begun, partial, lag = self._listed_shards()
        shards = begun
        least, beyond = (prefix, False) if cursor is None or cursor < prefix else (cursor, True)
        page: list[TopicStats] = []
        for name in merge_names((shard.memory.topics(namespace) for shard in begun), least, is_exclusive=beyond):
            if name is None:
                await asyncio.sleep(0)
                shards, partial, lag = self._listed_shards()
                partial = partial or shards != begun
                continue
            if not name.startswith(prefix):
                break
            topic = (namespace, name)
            counts = counts_by_state(topic, shards)
            if not lag and not any(counts[state] for state in wanted):
                continue
            if len(page) == limit:
                return page, page[-1].topic
            page.append(
                topic_stats(
                    topic, shards, counts, is_paused=topic in self._namespaces.paused_topics, is_partial=partial
                )
            )
        return page, None

    def _listed_shards(self) -> tuple[list[Shard], bool, bool]:
        """(the shards whose topics are listed, whether there are others, whether some counts lag). Raises `Unavailable`."""
        shards = self._serving_shards()
        if not shards:
            raise Unavailable("no shard of this host is being served now; try again", retry_after_ms=500)
        return shards, len(shards) < len(self._statuses), any(shard.counts.is_lagging for shard in shards)

    async def peek(
        self,
        namespace: str,
        topic: str,
        state: State,
        cursor: str | None,
        limit: int,
        with_payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[ItemView], str | None]:
        key, last = (None, 0) if cursor is None else parse_cursor(cursor)
        owned = self._owned_shards(shards)
        seen: list[ItemView] = []
        try:
            async with asyncio.timeout_at(deadline):
                for shard in owned:
                    after = key if key is None or shard.number <= last else key - 1
                    rows = await shard.list_rows((namespace, topic), state, after, limit + 1)
                    seen.extend(
                        ItemView(shard.number, row, shard.now_ms(), real_wait_ms=shard.real_ms_until_function())
                        for row in rows
                    )
                seen.sort(key=lambda one: (one.row.order_key, one.shard))
                page = seen[:limit]
                if with_payload:
                    page = page[: count_fitting(page, self._delivery_bytes_max)]
                cursor = format_cursor(page[-1].row.order_key, page[-1].shard) if len(page) < len(seen) else None
                return (await load_payloads(owned, namespace, page) if with_payload else page), cursor
        except TimeoutError:
            raise DeadlineExceeded("the time ran out before every shard had answered; try again") from None

    async def list_matching(
        self,
        namespace: str,
        item_filter: ItemFilter,
        cursor: str | None,
        limit: int,
        with_payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[ItemView], str | None]:
        bytes_max = self._delivery_bytes_max if with_payload else None
        return await list_matching(
            self._owned_shards(shards), namespace, item_filter, cursor, limit, bytes_max, deadline
        )

    def _item_bytes_max(self, namespace: str) -> int:
        """What one item of a namespace may weigh in a reply: what may come now, or what is known to be there."""
        settings = self.namespace_settings(namespace)
        payload_bytes = max(settings.payload_bytes_max, self._namespaces.longest_payloads.payload_bytes_max(namespace))
        return payload_bytes + settings.metadata_bytes_max + ITEM_OVERHEAD_BYTES

    async def count_matching(
        self, namespace: str, item_filter: ItemFilter, deadline: float, shards: Collection[int] | None = None
    ) -> ItemCount:
        return await count_matching(self._owned_shards(shards), namespace, item_filter, deadline)

    async def change_matching(
        self,
        namespace: str,
        change: Event,
        item_filter: ItemFilter,
        cursor: str | None,
        limit: int,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> BulkPage:
        owned = self._owned_shards(shards)
        return await change_matching(owned, self.apply, namespace, change, item_filter, cursor, limit, deadline)

    async def purge_topic(
        self, namespace: str, topic: str, deadline: float, shards: Collection[int] | None = None
    ) -> int:
        return await purge_topic(self._owned_shards(shards), (namespace, topic), deadline)

    async def get_item(self, namespace: str, shard: int, number: int, deadline: float) -> ItemDetails:
        owner = self._owned_shard(shard)
        try:
            async with asyncio.timeout_at(deadline):
                rows = await owner.read_rows(namespace, [number])
                if not rows or rows[0].namespace != namespace:
                    raise NotFound("no such item in this namespace; it may have been acked, cancelled or expired")
                key = await owner.idempotency_key_of(rows[0])
        except TimeoutError:
            raise DeadlineExceeded("the time ran out before the shard had answered; try again") from None
        return ItemDetails(shard, rows[0], owner.now_ms(), key, real_wait_ms=owner.real_ms_until_function())

    async def explain(self, namespace: str, shard: int, number: int, deadline: float) -> ItemExplanation:
        return await self._explainer.explain(
            namespace, shard, number, deadline, is_draining=self.is_draining, is_suspended=self._is_suspended
        )

    def shard_statuses(self) -> list[ShardStatus]:
        statuses = []
        for number, status in sorted(self._statuses.items()):
            shard = self._shards.get(number)
            if shard is not None:
                status = replace(
                    status,
                    queued_items=shard.queued_items,
                    reason=shard.unavailable_reason or shard.dispute_reason or status.reason,
                )
            statuses.append(status)
        return statuses


# ------------------------------------------------------------------- helpers


def _do_nothing() -> None:
    """Nobody asked to be told."""
