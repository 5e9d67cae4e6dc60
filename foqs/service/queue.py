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

from foqs.core.batch import HandOut as HandOutWork
from foqs.core.batch import Work
from foqs.core.demand import Demand
from foqs.core.errors import (
    HANDOVER_MS,
    DeadlineExceeded,
    FoqsError,
    NotFound,
    Unavailable,
)
from foqs.core.filter import ItemFilter
from foqs.core.item import (
    Key,
    NewItem,
    State,
    TopicName,
)
from foqs.core.life import Event
from foqs.core.merge import plan_loads, take_best
from foqs.core.names import in_order
from foqs.core.ready import ReadyIndex
from foqs.deadlines import Deadlines
from foqs.service.api import (
    BulkPage,
    CallLimits,
    Enqueued,
    Explained,
    HandOut,
    ItemCount,
    Looked,
    NamespaceSettings,
    Outcome,
    Pending,
    Seen,
    TopicStats,
)
from foqs.service.bulk import change_matching, count_matching, list_matching
from foqs.service.calls import Apply, Enqueue
from foqs.service.dequeue import Dequeue, Spans
from foqs.service.explain import Explainer
from foqs.service.listed import ACTIVE, counts_of, cursor_of, place_of_cursor, stats_of
from foqs.service.namespaces import Namespaces
from foqs.service.payloads import ITEM_OVERHEAD_BYTES, fitting, with_payloads
from foqs.service.placement import Placement, at
from foqs.service.purge import purge_topic
from foqs.service.quota import Quota
from foqs.service.recalls import Recalls
from foqs.service.stock import Stock
from foqs.service.waiters import Waiters
from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus

_T = TypeVar("_T")

_NOTHING: Final = ReadyIndex(1, 1)
"""Stands for the index of a shard that is left out."""


class QueueService:
    """Answers the calls of `api.Queue`.

    Args:
        shards: the shards of this host, by number; changes as they come and go.
        namespaces: what holds for each, and which topics are paused.
        statuses: how each shard that should be here is doing.
        handout_wait_s_max: how long a dequeue that has some items committed waits
            for those of other shards.
        handout_bytes_max: what one dequeue may carry, reckoned by its namespace's
            largest payload that it may have, or is known to have.
        demand: what is dequeued, for loading ahead.
        seconds: a stop watch.
    """

    def __init__(
        self,
        shards: Mapping[int, Shard],
        namespaces: Namespaces,
        limits: CallLimits,
        handout_wait_s_max: float,
        handout_bytes_max: int,
        statuses: Mapping[int, ShardStatus],
        demand: Demand,
        seconds: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.waiters: Waiters[Dequeue] = Waiters()
        self.draining = False
        self.on_told: Callable[[], None] = _nothing
        """Called when callers have their answers, and what they are sent should leave before other work is done."""
        self.placement = Placement(shards, statuses, asyncio.get_running_loop().time)
        self._suspended = False
        self._shards = shards
        self._namespaces = namespaces
        self._handout_wait_s_max = handout_wait_s_max
        self._handout_bytes_max = handout_bytes_max
        self._statuses = statuses
        self._demand = demand
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self.deadlines = Deadlines(self._loop)
        self.quota = Quota(shards, seconds)
        self._explainer = Explainer(
            shards,
            statuses,
            namespaces,
            self.waiters,
            demand,
            self.quota,
            seconds,
            limits.better_items_max,
            self.placement.not_owner,
        )
        self.stock = Stock(shards, namespaces, self.waiters, lambda: self._suspended)
        self._recalls = Recalls(limits.recall_items_max, self.placement.holders_of)

    def namespace(self, name: str) -> NamespaceSettings:
        return self._namespaces.of(name)

    def drain(self) -> None:
        """The host is stopping: nobody waits for work any more, and who does is answered."""
        self.draining = True
        for dequeue in self.waiters.everybody():
            dequeue.look()

    @property
    def suspended(self) -> bool:
        """Nothing is handed out, because its shards may be another host's soon; all else goes on."""
        return self._suspended

    def suspend(self) -> None:
        """Hands nothing out until `resume`; who waits goes on waiting."""
        self._suspended = True

    def resume(self) -> None:
        """Hands out again, to those who waited first."""
        if self._suspended:
            self._suspended = False
            for dequeue in self.waiters.everybody():
                dequeue.look()

    # -------------------------------------------------------------- enqueue

    def enqueue(
        self, namespace: str, items: Sequence[NewItem], deadline: float, done: Callable[[list[Enqueued]], None]
    ) -> Pending:
        call = Enqueue(self.deadlines, len(items), done)
        if not items:
            done([])
            return call
        if self._namespaces.elsewhere:
            self._namespaces.check_tier(namespace)
        limits = self._namespaces.limited.get(namespace)
        places: Sequence[int] = range(len(items))
        within = items
        beyond: Mapping[int, FoqsError] = {}
        if limits is not None:
            beyond = self._beyond(namespace, limits, items)
            call.under_way = self.quota.under_way(namespace, limits)
            call.repeated = self.quota.refund(namespace, limits)
            if beyond:
                places = [place for place in places if place not in beyond]
                within = at(items, places)
        if within:
            self.placement.place(call, namespace, within, places)
        self.quota.charge(namespace, limits, call.taken)
        if beyond:
            self._recalls.begin(call, namespace, items, beyond)
        call.begin(deadline)
        return call

    def _beyond(self, namespace: str, limits: NamespaceSettings, items: Sequence[NewItem]) -> Mapping[int, FoqsError]:
        """Why items cannot be taken, by place. Raises it where that is so of all, and none may turn out to be a repeat."""
        try:
            self.quota.check(namespace, limits, items)
        except FoqsError as error:
            if not self._recalls.may_begin(namespace, items):
                raise
            return dict.fromkeys(range(len(items)), error)
        return self.quota.topics_beyond(namespace, limits, items)

    # ---------------------------------------------------------------- events

    def ack(
        self,
        namespace: str,
        ids: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        deadline: float,
        done: Callable[[list[Outcome]], None],
    ) -> Pending:
        def begin(shard: Shard, numbers: Sequence[int], places: Sequence[int], finished: Callable[[], None]) -> Work:
            return shard.ack(namespace, numbers, at(tokens, places), finished)

        return self._begin(ids, begin, deadline, done)

    def apply(
        self,
        namespace: str,
        events: Sequence[tuple[int, Event]],
        deadline: float,
        done: Callable[[list[Outcome]], None],
    ) -> Pending:
        def begin(shard: Shard, numbers: Sequence[int], places: Sequence[int], finished: Callable[[], None]) -> Work:
            return shard.apply(namespace, [events[i][1] for i in places], finished)

        return self._begin([(shard, event.id) for shard, event in events], begin, deadline, done)

    def _begin(
        self,
        ids: Sequence[tuple[int, int]],
        begin: Callable[[Shard, Sequence[int], Sequence[int], Callable[[], None]], Work],
        deadline: float,
        done: Callable[[list[Outcome]], None],
    ) -> Pending:
        """Has `begin` hand their entries, by numbers and places, to each of the shards."""
        call = Apply(self.deadlines, len(ids), done)
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
            own = at(numbers, places)
            shard = self._shards.get(number)
            if shard is not None and max(own) > shard.numbers.settled:
                settled = [i for i in places if shard.numbers.is_settled(numbers[i])]
                for i in set(places).difference(settled):
                    call.outcomes[i] = NotFound("no item has this id yet")
                places, own = settled, at(numbers, settled)
            if not places:
                continue
            try:
                call.add(begin(self._owned(number), own, places, call.finished), places, number)
            except FoqsError as error:
                call.refuse(places, error)
        call.begin(deadline)
        return call

    def _owned(self, number: int) -> Shard:
        shard = self._shards.get(number)
        if shard is not None:
            return shard
        if number in self._statuses:
            raise Unavailable(f"shard {number} is recovering; try again", retry_after_ms=HANDOVER_MS)
        raise self.placement.not_owner(number)

    def _all_owned(self, numbers: Collection[int] | None) -> list[Shard]:
        """These shards, or every one that should be here. Raises `NotOwner`, `Unavailable` where one is not served."""
        return [self._owned(number) for number in sorted(self._statuses if numbers is None else set(numbers))]

    # -------------------------------------------------------------- dequeue

    def dequeue(
        self,
        namespace: str,
        wants: Sequence[tuple[str, int]],
        wait_ms: int,
        lease_ms: int | None,
        deadline: float,
        done: Callable[[HandOut], None],
        items_max: int | None = None,
    ) -> Pending:
        item_bytes = self._item_bytes_max(namespace)
        dequeue = Dequeue(
            self,
            {(namespace, topic): count for topic, count in wants},
            lease_ms,
            item_bytes,
            min(items_max or self.limits.items_per_call_max, max(1, self._handout_bytes_max // item_bytes)),
            min(deadline, self.now() + wait_ms / 1000) if wait_ms else 0.0,
            deadline,
            self._handout_wait_s_max,
            done,
        )
        dequeue.look()
        return dequeue

    def now(self) -> float:
        """The loop's clock."""
        return self._loop.time()

    def join(self, dequeue: Dequeue) -> None:
        self.waiters.join(dequeue)

    def leave(self, dequeue: Dequeue) -> None:
        self.waiters.leave(dequeue)

    def take(
        self, topics: Mapping[TopicName, int], items_max: int, *, late: bool, beside: Collection[Shard] = ()
    ) -> list[tuple[Shard, Spans]]:
        """Reserves the best keys that are certain; of each topic at most its count, of all at most `items_max`.

        If it is `late`, shards whose better keys are still being read are left out. If there are shards `beside`,
        they and those that would be late too are left out. Of a paused topic nothing is taken.
        """
        if self._suspended:
            return []
        longest = self._namespaces.longest.of(next(iter(topics))[0]) if topics else 0
        if longest:
            # More may be known of what is there than when the call came.
            items_max = min(items_max, max(1, self._handout_bytes_max // (longest + ITEM_OVERHEAD_BYTES)))
        # Of many topics most have nothing: only those that a shard knows are looked at, and only there.
        holding: dict[TopicName, tuple[Shard, ...]] = {}
        rooms: dict[Shard, int] = {}
        for shard in self._handing_out():
            if beside and (shard in beside or not shard.leases_within(self._handout_wait_s_max)):
                continue
            known = shard.index.among(topics)
            if known and (own := shard.room(known[0][0])) > 0:
                rooms[shard] = own
                alone = dict.fromkeys(known, (shard,))
                both = holding.keys() & alone.keys()
                holding |= {**alone, **{topic: (*holding[topic], shard) for topic in both}} if both else alone
        if not holding:
            return []
        found: dict[Shard, Spans] = {}
        paused, demand, now_s = self._namespaces.paused, self._demand, self._seconds()
        for topic in [topic for topic in topics if topic in holding]:
            if topic in paused:
                continue
            count = min(topics[topic], items_max)
            if count <= 0:
                break
            taken = 0
            shards = holding[topic]
            for shard, keys in self._take_of(topic, count, shards, rooms, late=late):
                rooms[shard] -= len(keys)
                found.setdefault(shard, []).append((topic, keys))
                taken += len(keys)
            if taken:
                items_max -= taken
                if demand.took(topic, taken, now_s):
                    self._look_ahead(shards, topic, now_s)
        return list(found.items())

    def _take_of(
        self, topic: TopicName, count: int, shards: Sequence[Shard], rooms: Mapping[Shard, int], *, late: bool
    ) -> Sequence[tuple[Shard, list[Key]]]:
        """The best keys of one topic by shard, of those that gave some; a shard gives no more than it has room for."""
        if len(shards) == 1:
            shard = shards[0]
            if late and shard.index.needs_refill(topic):
                return ()
            keys = shard.index.take(topic, min(count, rooms[shard]))
            return ((shard, keys),) if keys else ()
        shards = [shard for shard in shards if rooms[shard]]
        indexes = [shard.index for shard in shards]
        sources = [_NOTHING if index.needs_refill(topic) else index for index in indexes] if late else indexes
        taken = take_best(sources, topic, count, [rooms[shard] for shard in shards])
        return [(shard, keys) for shard, keys in zip(shards, taken, strict=True) if keys]

    def _look_ahead(self, shards: Sequence[Shard], topic: TopicName, now_s: float) -> None:
        """It is time to see how much of a topic is there for those who will ask: has more of it read before they do."""
        shards = [shard for shard in shards if topic in shard.index]
        if not shards:
            return
        want = self._demand.want(topic, now_s)
        for shard in shards:
            if shard.index.wants_refill(topic, want):
                shard.refill(topic)
        if sum([shard.index.ahead(topic) for shard in shards]) * 2 < want:
            for shard, keys in zip(shards, plan_loads([shard.index for shard in shards], topic, want), strict=True):
                if keys:
                    shard.load(topic, keys)

    def may_come(self, topics: Collection[TopicName]) -> bool:
        """Some shard is reading for one of these topics, which it begins here where it must, or has too much to lease."""
        paused = self._namespaces.paused
        coming = False
        for shard in self._handing_out():
            for topic in shard.index.among(topics):
                if topic in paused:
                    continue
                if shard.index.needs_refill(topic):
                    shard.refill(topic)
                    coming = True
                elif shard.room(topic[0]) <= 0:
                    coming = True
        return coming

    def _serving(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.serving]

    def _handing_out(self) -> list[Shard]:
        return [shard for shard in self._shards.values() if shard.hands_out]

    # ----------------------------------------------------- what the shards tell

    def waits(self, namespace: str) -> bool:
        """Somebody waits for some topic of this namespace."""
        return self.waiters.waits(namespace)

    def claim(self, shard: Shard, topic: TopicName, keys: Sequence[Key]) -> list[HandOutWork]:
        """Hand-outs of items about to be inserted, or due, for those who wait for a topic that is known to be empty."""
        waiter = self.waiters.first(topic)
        if (
            waiter is None
            or self._suspended
            or topic in self._namespaces.paused
            or any(topic in other.index for other in self._serving())
        ):
            return []
        claims: list[HandOutWork] = []
        start = 0
        while waiter is not None and start < len(keys):
            count = waiter.topics[topic]
            part = keys[start : start + min(count, waiter.items_max)]
            claims.append(waiter.claim(shard, topic, part))
            start += len(part)
            waiter = self.waiters.first(topic)
        return claims

    def ready(self, topics: Iterable[TopicName]) -> None:
        """These topics have, or may have, items: serves those who wait, while there is something."""
        for topic in topics:
            while (waiter := self.waiters.first(topic)) is not None:
                if not waiter.look() or not self._available(topic):
                    break

    def look_again(self, shard: Shard, namespace: str) -> None:
        """The shard may have room for hand-outs of this namespace, where it had none: serves those who wait, the longest first."""
        for waiter in self.waiters.within(namespace):
            if shard.index.among(waiter.topics):
                waiter.look()
                if shard.room(namespace) <= 0:
                    break

    def told(self) -> None:
        """Callers have their answers, and there is other work to do."""
        self.on_told()

    def _available(self, topic: TopicName) -> bool:
        return any(shard.index.head(topic) is not None and shard.room(topic[0]) > 0 for shard in self._handing_out())

    # ---------------------------------------------------------------- looking

    async def topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        wanted = tuple(states) if states else ACTIVE
        begun, partial, lag = self._listed()
        shards = begun
        least, beyond = (prefix, False) if cursor is None or cursor < prefix else (cursor, True)
        page: list[TopicStats] = []
        for name in in_order((shard.memory.topics(namespace) for shard in begun), least, beyond=beyond):
            if name is None:
                await asyncio.sleep(0)
                shards, partial, lag = self._listed()
                partial = partial or shards != begun
                continue
            if not name.startswith(prefix):
                break
            topic = (namespace, name)
            counts = counts_of(topic, shards)
            if not lag and not any(counts[state] for state in wanted):
                continue
            if len(page) == limit:
                return page, page[-1].topic
            page.append(stats_of(topic, shards, counts, paused=topic in self._namespaces.paused, partial=partial))
        return page, None

    def _listed(self) -> tuple[list[Shard], bool, bool]:
        """(the shards whose topics are listed, whether there are others, whether some counts lag). Raises `Unavailable`."""
        shards = self._serving()
        if not shards:
            raise Unavailable("no shard of this host is being served now; try again", retry_after_ms=500)
        return shards, len(shards) < len(self._statuses), any(shard.counts.lag for shard in shards)

    async def peek(
        self,
        namespace: str,
        topic: str,
        state: State,
        cursor: str | None,
        limit: int,
        payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[Seen], str | None]:
        key, last = (None, 0) if cursor is None else place_of_cursor(cursor)
        owned = self._all_owned(shards)
        seen: list[Seen] = []
        try:
            async with asyncio.timeout_at(deadline):
                for shard in owned:
                    after = key if key is None or shard.number <= last else key - 1
                    rows = await shard.listed((namespace, topic), state, after, limit + 1)
                    seen.extend(Seen(shard.number, row, shard.now_ms(), lasts=shard.lasts()) for row in rows)
                seen.sort(key=lambda one: (one.row.key, one.shard))
                page = seen[:limit]
                if payload:
                    page = page[: fitting(page, self._handout_bytes_max)]
                cursor = cursor_of(page[-1].row.key, page[-1].shard) if len(page) < len(seen) else None
                return (await with_payloads(owned, namespace, page) if payload else page), cursor
        except TimeoutError:
            raise DeadlineExceeded("the time ran out before every shard had answered; try again") from None

    async def matching(
        self,
        namespace: str,
        only: ItemFilter,
        cursor: str | None,
        limit: int,
        payload: bool,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> tuple[list[Seen], str | None]:
        bytes_max = self._handout_bytes_max if payload else None
        return await list_matching(self._all_owned(shards), namespace, only, cursor, limit, bytes_max, deadline)

    def _item_bytes_max(self, namespace: str) -> int:
        """What one item of a namespace may weigh in a reply: what may come now, or what is known to be there."""
        settings = self.namespace(namespace)
        payload_bytes = max(settings.payload_bytes_max, self._namespaces.longest.of(namespace))
        return payload_bytes + settings.metadata_bytes_max + ITEM_OVERHEAD_BYTES

    async def count(
        self, namespace: str, only: ItemFilter, deadline: float, shards: Collection[int] | None = None
    ) -> ItemCount:
        return await count_matching(self._all_owned(shards), namespace, only, deadline)

    async def bulk(
        self,
        namespace: str,
        change: Event,
        only: ItemFilter,
        cursor: str | None,
        limit: int,
        deadline: float,
        shards: Collection[int] | None = None,
    ) -> BulkPage:
        owned = self._all_owned(shards)
        return await change_matching(owned, self.apply, namespace, change, only, cursor, limit, deadline)

    async def purge(self, namespace: str, topic: str, deadline: float, shards: Collection[int] | None = None) -> int:
        return await purge_topic(self._all_owned(shards), (namespace, topic), deadline)

    async def item(self, namespace: str, shard: int, number: int, deadline: float) -> Looked:
        owner = self._owned(shard)
        try:
            async with asyncio.timeout_at(deadline):
                rows = await owner.rows(namespace, [number])
                if not rows or rows[0].namespace != namespace:
                    raise NotFound("no such item in this namespace; it may have been acked, cancelled or expired")
                key = await owner.key_of(rows[0])
        except TimeoutError:
            raise DeadlineExceeded("the time ran out before the shard had answered; try again") from None
        return Looked(shard, rows[0], owner.now_ms(), key, lasts=owner.lasts())

    async def explain(self, namespace: str, shard: int, number: int, deadline: float) -> Explained:
        return await self._explainer.explain(
            namespace, shard, number, deadline, draining=self.draining, suspended=self._suspended
        )

    def shards(self) -> list[ShardStatus]:
        statuses = []
        for number, status in sorted(self._statuses.items()):
            shard = self._shards.get(number)
            if shard is not None:
                status = replace(
                    status,
                    queued_items=shard.queued_items,
                    reason=shard.trouble or shard.disputed or status.reason,
                )
            statuses.append(status)
        return statuses


# ------------------------------------------------------------------- helpers


def _nothing() -> None:
    """Nobody asked to be told."""
