"""The calls: from a decoded request to the queue, and back to a reply.

Holds one method for each call that is served. Always true: the queue sees
validated values only; an item's error is its own and its neighbours go on; an
answer has one entry for each entry of its request. Knows nothing of
connections, frames or how the queue works.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foqs.core import validate
from foqs.core.errors import FoqsError, InvalidArgument, NotImplementedYet
from foqs.core.item import NewItem, State
from foqs.core.life import Event, Kind
from foqs.service.api import NamespaceSettings, Outcome, Queue
from foqs.wire import codec
from foqs.wire.methods import Answer, contract
from foqs_client.idl import ttypes

PAGE_LIMIT_DEFAULT: Final = 100
PAGE_LIMIT_MAX: Final = 1_000


@dataclass(slots=True, frozen=True)
class Identity:
    """What this host tells clients of itself.

    `routing_version` is constant from start to stop and differs between starts.
    """

    host: str
    port: int
    routing_version: int
    region: str = ""
    tier: str = "default"
    program_version: str = ""


class Handlers:
    """Serves the contract's calls from one queue.

    Args:
        rng: draws the jitter of backoffs.
    """

    def __init__(self, queue: Queue, identity: Identity, rng: random.Random) -> None:
        self._queue = queue
        self._identity = identity
        self._rng = rng
        self.methods = contract(
            {
                "enqueue": self.enqueue,
                "dequeue": self.dequeue,
                "ack": self.ack,
                "nack": self.nack,
                "extendLease": self.extend_lease,
                "release": self.release,
                "cancel": self.cancel,
                "getActiveTopics": self.get_active_topics,
                "peek": self.peek,
                "getItem": self.get_item,
                "listShards": self.list_shards,
                "getRouting": self.get_routing,
            }
        )

    def timeout_s(self, request: Any) -> float:
        """The call's time: what the caller asked for, cut to the host's limit."""
        limits = self._queue.limits
        timeout_ms = request.timeout_ms
        if timeout_ms is None:
            timeout_ms = limits.timeout_ms_default
        elif timeout_ms < 1:
            raise InvalidArgument(f"{timeout_ms} ms is no time at all; give at least 1", field="timeout_ms")
        return float(min(timeout_ms, limits.timeout_ms_max)) / 1_000

    # ---------------------------------------------------------- the way of items

    async def enqueue(self, request: Any, deadline: float) -> Answer:
        namespace, settings = self._namespace(request)
        _not_forwarded(request)
        raws = request.items
        validate.batch(None if raws is None else len(raws), self._queue.limits.items_per_call_max, "items")
        results: list[Any] = [None] * len(raws)
        items: list[NewItem] = []
        places: list[int] = []
        complaint = None
        for place, raw in enumerate(raws):
            try:
                items.append(codec.new_item(raw, namespace, settings))
                places.append(place)
            except FoqsError as error:
                results[place] = codec.enqueue_result(codec.at(f"items[{place}]", error))
                complaint = complaint or _complaint(error)
        if items:
            answers = await self._queue.enqueue(namespace, items, deadline)
            for place, answer in zip(places, answers, strict=True):
                results[place] = codec.enqueue_result(answer)
        return Answer(ttypes.EnqueueReply(results), complaint=complaint)

    async def dequeue(self, request: Any, deadline: float) -> Answer:
        namespace, settings = self._namespace(request)
        _not_forwarded(request)
        limits = self._queue.limits
        raws = request.topics
        validate.batch(None if raws is None else len(raws), limits.topics_per_call_max, "topics")
        wants: dict[str, int] = {}
        for place, raw in enumerate(raws):
            try:
                topic = validate.name(raw.topic, "topic")
                count = validate.number(raw.count, 1, limits.items_per_call_max, "count")
                if topic in wants:
                    raise InvalidArgument("this topic stands in the call twice; name it once", field="topic")
            except FoqsError as error:
                raise codec.at(f"topics[{place}]", error) from None
            wants[topic] = count
        if request.lease_ms is not None:
            validate.number(request.lease_ms, 1, settings.lease_ms_max, "lease_ms")
        wait_ms = request.wait_ms or 0
        if wait_ms < 0:
            raise InvalidArgument(f"{wait_ms} ms cannot be waited; give 0 or more", field="wait_ms")
        wait_ms = min(wait_ms, limits.wait_ms_max, int(self.timeout_s(request) * 1_000))
        hand_out = await self._queue.dequeue(namespace, list(wants.items()), wait_ms, request.lease_ms, deadline)
        try:
            reply = ttypes.DequeueReply([codec.delivery(seen) for seen in hand_out.items])
        except BaseException:
            hand_out.give_back()
            raise
        return Answer(reply, give_back=hand_out.give_back)

    async def ack(self, request: Any, deadline: float) -> Answer:
        namespace, _ = self._namespace(request)
        return await self._apply(
            namespace, request.leases, "leases", codec.lease_event(Kind.ACK, namespace), deadline, _lease_id
        )

    async def nack(self, request: Any, deadline: float) -> Answer:
        namespace, settings = self._namespace(request)
        read = codec.nack_event(namespace, settings, self._rng.random)
        return await self._apply(namespace, request.nacks, "nacks", read, deadline, _lease_id)

    async def extend_lease(self, request: Any, deadline: float) -> Answer:
        namespace, settings = self._namespace(request)
        read = codec.extension_event(namespace, settings)
        return await self._apply(namespace, request.extensions, "extensions", read, deadline, _lease_id)

    async def release(self, request: Any, deadline: float) -> Answer:
        namespace, _ = self._namespace(request)
        read = codec.lease_event(Kind.RELEASE, namespace)
        return await self._apply(namespace, request.leases, "leases", read, deadline, _lease_id)

    async def cancel(self, request: Any, deadline: float) -> Answer:
        namespace, _ = self._namespace(request)
        return await self._apply(
            namespace, request.ids, "ids", codec.cancel_event(namespace), deadline, lambda raw: raw
        )

    async def _apply(
        self,
        namespace: str,
        raws: Sequence[Any] | None,
        field: str,
        read: Callable[[Any], tuple[int, Event]],
        deadline: float,
        id_of: Callable[[Any], bytes | None],
    ) -> Answer:
        """Runs one event for each entry of a request; an id stands in it once."""
        validate.batch(None if raws is None else len(raws), self._queue.limits.items_per_call_max, field)
        assert raws is not None
        outcomes: list[Any] = [None] * len(raws)
        events: list[tuple[int, Event]] = []
        places: list[int] = []
        seen: set[bytes | None] = set()
        complaint = None
        for place, raw in enumerate(raws):
            try:
                event = read(raw)
                if id_of(raw) in seen:
                    inner = "" if field == "ids" else "id"
                    raise InvalidArgument("this id stands in the call twice; name it once", field=inner)
                seen.add(id_of(raw))
                events.append(event)
                places.append(place)
            except FoqsError as error:
                outcomes[place] = codec.outcome(codec.at(f"{field}[{place}]", error))
                complaint = complaint or _complaint(error)
        if events:
            answers: list[Outcome] = await self._queue.apply(namespace, events, deadline)
            for place, answer in zip(places, answers, strict=True):
                outcomes[place] = codec.outcome(answer)
        return Answer(ttypes.OutcomesReply(outcomes), complaint=complaint)

    # -------------------------------------------------------------------- looking

    async def get_active_topics(self, request: Any, deadline: float) -> Answer:
        namespace, _ = self._namespace(request)
        prefix, states = "", None
        if request.filter is not None:
            if request.filter.prefix:
                prefix = validate.text(request.filter.prefix, validate.NAME_BYTES_MAX, "filter.prefix")
            states = codec.states(request.filter.states, "filter.states")
        limit, cursor = _page(request.page)
        topics, next_cursor = await self._queue.topics(namespace, prefix, states, cursor, limit)
        return Answer(ttypes.GetActiveTopicsReply([codec.topic_stats(stats) for stats in topics], next_cursor))

    async def peek(self, request: Any, deadline: float) -> Answer:
        namespace, _ = self._namespace(request)
        topic = validate.name(request.topic, "topic")
        state = State.READY if request.state is None else codec.state(request.state, "state")
        limit, cursor = _page(request.page)
        items, next_cursor = await self._queue.peek(namespace, topic, state, cursor, limit, deadline)
        with_payload = bool(request.with_payload)
        return Answer(ttypes.ItemsReply([codec.item_view(seen, with_payload) for seen in items], next_cursor))

    async def get_item(self, request: Any, deadline: float) -> Answer:
        namespace, _ = self._namespace(request)
        shard, number = codec.item_id(request.id)
        seen = await self._queue.item(namespace, shard, number, deadline)
        return Answer(codec.item_view(seen, bool(request.with_payload)))

    async def list_shards(self, request: Any, deadline: float) -> Answer:
        limit, cursor = _page(request.page)
        after = -1
        if cursor is not None:
            if not cursor.isascii() or not cursor.isdigit():
                raise InvalidArgument("this is not a cursor of listShards", field="page.cursor")
            after = int(cursor)
        shards = [shard for shard in self._shards() if shard.shard > after]
        more = len(shards) > limit
        return Answer(ttypes.ShardsReply(shards[:limit], str(shards[limit - 1].shard) if more else None))

    async def get_routing(self, request: Any, deadline: float) -> Answer:
        me = self._identity
        if request.version == me.routing_version:
            return Answer(ttypes.GetRoutingReply(version=me.routing_version))
        shards = self._shards()
        host = ttypes.HostInfo(
            address=ttypes.HostAddress(me.host, me.port),
            region=me.region or None,
            tier=me.tier,
            shards=len(shards),
            draining=False,
            version=me.program_version or None,
        )
        return Answer(ttypes.GetRoutingReply(version=me.routing_version, hosts=[host], shards=shards))

    def _shards(self) -> list[Any]:
        me = self._identity
        statuses = sorted(self._queue.shards(), key=lambda status: status.shard)
        return [codec.shard_info(status, me.tier, me.region, (me.host, me.port)) for status in statuses]

    def _namespace(self, request: Any) -> tuple[str, NamespaceSettings]:
        name = validate.name(request.namespace_name, "namespace_name")
        return name, self._queue.namespace(name)


def _lease_id(raw: Any) -> bytes | None:
    identity: bytes | None = raw.id
    return identity


def _not_forwarded(request: Any) -> None:
    if request.forwarded:
        raise NotImplementedYet("this version serves no forwarded calls; leave the field out", field="forwarded")


def _complaint(error: FoqsError) -> str | None:
    return f"{error.field}: {error.message}" if isinstance(error, validate.Malformed) else None


def _page(page: Any) -> tuple[int, str | None]:
    """(limit, cursor) of a page that may be missing."""
    if page is None:
        return PAGE_LIMIT_DEFAULT, None
    limit = PAGE_LIMIT_DEFAULT
    if page.limit is not None:
        limit = validate.number(page.limit, 1, PAGE_LIMIT_MAX, "page.limit")
    if page.cursor is None:
        return limit, None
    return limit, validate.text(page.cursor, validate.CURSOR_BYTES_MAX, "page.cursor")
