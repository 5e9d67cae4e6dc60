"""The calls: from a decoded request to the queue, and back to a reply.

Holds one method for each call that is served. Always true: the queue sees
validated values only; an item's error is its own and its neighbours go on; an
answer has one entry for each entry of its request. Knows nothing of
connections, frames or how the queue works.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from foqs.core import validate
from foqs.core.errors import FoqsError, InvalidArgument
from foqs.core.filter import ItemFilter
from foqs.core.item import State
from foqs.core.life import Event, Kind
from foqs.service.api import HandOut, NamespaceSettings, Pending, Queue, Topics
from foqs.service.cluster import Alone
from foqs.service.cluster import Identity as Identity
from foqs.service.listed import cursor_of
from foqs.service.walk import cursor_after
from foqs.wire import codec, selection
from foqs.wire.cluster import cluster_calls
from foqs.wire.methods import Caller, Serve, contract, in_task
from foqs.wire.page import page_of, part_of
from foqs.wire.visitor import authenticate
from foqs_client.idl import ttypes

_T = TypeVar("_T")
_R = TypeVar("_R")


class Handlers:
    """Serves the contract's calls from one queue.

    Args:
        rng: draws the jitter of backoffs.
        identity: of a host that is alone; in a cluster, `more` has the calls about hosts and shards.
        more: calls that are served elsewhere, by name.
    """

    def __init__(
        self, queue: Queue, identity: Identity, rng: random.Random, more: Mapping[str, Serve] = MappingProxyType({})
    ) -> None:
        self._queue = queue
        self._rng = rng
        self.methods = contract(
            {
                "authenticate": authenticate,
                "enqueue": self.enqueue,
                "dequeue": self.dequeue,
                "ack": self.ack,
                "nack": self.nack,
                "extendLease": self.extend_lease,
                "release": self.release,
                "cancel": self.cancel,
                "redrive": self.redrive,
                "update": self.update,
                "getActiveTopics": in_task(self.get_active_topics),
                "peek": in_task(self.peek),
                "getItem": in_task(self.get_item),
                "explain": in_task(self.explain),
                "listDead": in_task(self.list_dead),
                "countItems": in_task(self.count_items),
                "bulk": in_task(self.bulk),
                "purgeTopic": in_task(self.purge_topic),
                **cluster_calls(Alone(identity, queue.shards)),
                **more,
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
        elif timeout_ms > limits.timeout_ms_max:
            timeout_ms = limits.timeout_ms_max
        return timeout_ms / 1_000  # type: ignore[no-any-return]

    # ---------------------------------------------------------- the way of items

    def enqueue(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        namespace, settings = self._namespace(request)
        raws = self._entries(request.items, "items")
        items, errors = codec.new_items(raws, namespace, settings)
        done = _done(codec.enqueue_reply, errors, caller)
        return self._queue.enqueue(namespace, items, deadline, done) if items else done([])

    def dequeue(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        namespace, settings = self._namespace(request)
        limits = self._queue.limits
        raws = request.topics
        validate.batch(None if raws is None else len(raws), limits.topics_per_call_max, "topics")
        wants = codec.wants(raws, limits.items_per_call_max)
        lease_ms = request.lease_ms
        if lease_ms is not None:
            validate.number(lease_ms, 1, settings.lease_ms_max, "lease_ms")
        items_max = request.items_max
        if items_max is not None:
            validate.number(items_max, 1, limits.items_per_call_max, "items_max")
        wait_ms = request.wait_ms or 0
        if wait_ms < 0:
            raise InvalidArgument(f"{wait_ms} ms cannot be waited; give 0 or more", field="wait_ms")
        if wait_ms:
            wait_ms = min(wait_ms, limits.wait_ms_max, int(self.timeout_s(request) * 1_000))

        def done(hand_out: HandOut) -> None:
            caller.answer(codec.dequeue_reply, hand_out.items, hand_out.give_back)

        return self._queue.dequeue(namespace, list(wants.items()), wait_ms, lease_ms, deadline, done, items_max)

    def ack(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        namespace, _ = self._namespace(request)
        raws = self._entries(request.leases, "leases")
        columns = codec.lease_columns(raws)
        errors: dict[int, FoqsError] = {}
        if columns is None:
            leases, errors = _sifted(raws, "leases", codec.lease)
            columns = [identity for identity, _ in leases], [token for _, token in leases]
        done = _done(codec.outcomes_reply, errors, caller)
        return self._queue.ack(namespace, *columns, deadline, done) if columns[0] else done([])

    def nack(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        namespace, settings = self._namespace(request)
        read = codec.nack_event(namespace, settings, self._rng.random)
        return self._apply(namespace, request.nacks, "nacks", read, deadline, caller)

    def extend_lease(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        namespace, settings = self._namespace(request)
        read = codec.extension_event(namespace, settings)
        return self._apply(namespace, request.extensions, "extensions", read, deadline, caller)

    def release(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        namespace, _ = self._namespace(request)
        read = codec.lease_event(Kind.RELEASE, namespace)
        return self._apply(namespace, request.leases, "leases", read, deadline, caller)

    def cancel(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        return self._apply_by_ids(request, Event(Kind.CANCEL, 0), deadline, caller)

    def redrive(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        return self._apply_by_ids(request, Event(Kind.REDRIVE, 0), deadline, caller)

    def update(self, request: Any, deadline: float, caller: Caller) -> Pending | None:
        _, settings = self._namespace(request)
        return self._apply_by_ids(request, selection.change(request.change, settings), deadline, caller)

    def _apply_by_ids(self, request: Any, event: Event, deadline: float, caller: Caller) -> Pending | None:
        """Runs an event on each id of a request."""
        namespace, _ = self._namespace(request)
        read = codec.id_event(replace(event, namespace=namespace))
        return self._apply(namespace, request.ids, "ids", read, deadline, caller)

    def _apply(
        self,
        namespace: str,
        raws: Sequence[Any] | None,
        field: str,
        read: Callable[[Any], tuple[int, Event]],
        deadline: float,
        caller: Caller,
    ) -> Pending | None:
        """Runs one event for each entry of a request."""
        events, errors = _sifted(self._entries(raws, field), field, read)
        done = _done(codec.outcomes_reply, errors, caller)
        return self._queue.apply(namespace, events, deadline, done) if events else done([])

    def _entries(self, raws: Sequence[Any] | None, field: str) -> Sequence[Any]:
        """A request's list. Raises FoqsError for a missing, an empty and a long one."""
        most = self._queue.limits.items_per_call_max
        if not raws or len(raws) > most:
            validate.batch(None if raws is None else len(raws), most, field)
        return raws or ()

    # -------------------------------------------------------------------- looking

    async def get_active_topics(self, request: Any, deadline: float) -> Any:
        return await self.list_topics(request, self._queue.topics)

    async def list_topics(self, request: Any, topics: Topics) -> Any:
        """Answers getActiveTopics by `topics`."""
        namespace, _ = self._namespace(request)
        prefix, states = "", None
        if request.filter is not None:
            if request.filter.prefix:
                prefix = validate.text(request.filter.prefix, validate.NAME_BYTES_MAX, "filter.prefix")
            states = codec.states(request.filter.states, "filter.states")
        limit, cursor = page_of(request.page)
        page, next_cursor = await topics(namespace, prefix, states, cursor, limit)
        return ttypes.GetActiveTopicsReply([codec.topic_stats(stats) for stats in page], next_cursor)

    async def peek(self, request: Any, deadline: float) -> Any:
        namespace, _ = self._namespace(request)
        topic = validate.name(request.topic, "topic")
        state = State.READY if request.state is None else codec.state(request.state, "state")
        limit, cursor = page_of(request.page)
        with_payload = bool(request.with_payload)
        shards = part_of(request)
        items, next_cursor = await self._queue.peek(
            namespace, topic, state, cursor, limit, with_payload, deadline, shards
        )
        cursors = [cursor_of(seen.row.key, seen.shard) for seen in items] if request.forwarded else None
        return ttypes.ItemsReply([codec.item_view(seen, with_payload) for seen in items], next_cursor, cursors)

    async def get_item(self, request: Any, deadline: float) -> Any:
        namespace, _ = self._namespace(request)
        shard, number = codec.item_id(request.id)
        seen = await self._queue.item(namespace, shard, number, deadline)
        return codec.item_view(seen, bool(request.with_payload))

    async def explain(self, request: Any, deadline: float) -> Any:
        namespace, _ = self._namespace(request)
        shard, number = codec.item_id(request.id)
        explained = await self._queue.explain(namespace, shard, number, deadline)
        return codec.explain_reply(explained, bool(request.with_payload))

    # ------------------------------------------------------------------ by filter

    async def list_dead(self, request: Any, deadline: float) -> Any:
        namespace, _ = self._namespace(request)
        topic = None if request.topic is None else validate.name(request.topic, "topic")
        limit, cursor = page_of(request.page)
        with_payload = bool(request.with_payload)
        only = ItemFilter(topic, (State.DEAD,))
        shards = part_of(request)
        items, next_cursor = await self._queue.matching(namespace, only, cursor, limit, with_payload, deadline, shards)
        cursors = [cursor_after(seen) for seen in items] if request.forwarded else None
        return ttypes.ItemsReply([codec.item_view(seen, with_payload) for seen in items], next_cursor, cursors)

    async def count_items(self, request: Any, deadline: float) -> Any:
        namespace, _ = self._namespace(request)
        only = selection.item_filter(request.filter)
        count = await self._queue.count(namespace, only, deadline, part_of(request))
        return ttypes.CountItemsReply(count.items, count.payload_bytes)

    async def bulk(self, request: Any, deadline: float) -> Any:
        namespace, settings = self._namespace(request)
        change, only = selection.bulk(request, namespace, settings)
        limit, cursor = page_of(request.page, least=0 if request.forwarded else 1)
        page = await self._queue.bulk(namespace, change, only, cursor, limit, deadline, part_of(request))
        refusal = None if page.refusal is None else codec.error(page.refusal)
        return ttypes.BulkReply(page.changed, page.next_cursor, page.refused, refusal)

    async def purge_topic(self, request: Any, deadline: float) -> Any:
        namespace, _ = self._namespace(request)
        topic = validate.name(request.topic, "topic")
        return ttypes.PurgeReply(await self._queue.purge(namespace, topic, deadline, part_of(request)))

    def _namespace(self, request: Any) -> tuple[str, NamespaceSettings]:
        name = codec.name(request.namespace_name, "namespace_name")
        return name, self._queue.namespace(name)


def _sifted(raws: Sequence[Any], field: str, read: Callable[[Any], _T]) -> tuple[list[_T], dict[int, FoqsError]]:
    """What `read` makes of a request's entries, and the errors of the others by place; an id stands in it once."""
    good: list[_T] = []
    errors: dict[int, FoqsError] = {}
    seen: set[bytes] = set()
    for place, raw in enumerate(raws):
        try:
            value = read(raw)
            identity = raw if field == "ids" else raw.id
            if identity in seen:
                inner = "" if field == "ids" else "id"
                raise InvalidArgument("this id stands in the call twice; name it once", field=inner)
            seen.add(identity)
            good.append(value)
        except FoqsError as error:
            errors[place] = codec.at(f"{field}[{place}]", error)
    return good, errors


def _done(
    shape: Callable[[Sequence[_R | FoqsError]], Any], errors: Mapping[int, FoqsError], caller: Caller
) -> Callable[[list[_R | FoqsError]], None]:
    """What answers the caller with the queue's answers, each error put in its place among them."""
    if not errors:
        return partial(caller.answer, shape)
    for error in errors.values():
        if isinstance(error, validate.Malformed):
            caller.complain(f"{error.field}: {error.message}")
            break

    def whole(answers: list[_R | FoqsError]) -> Any:
        results = list(answers)
        for place, error in errors.items():
            results.insert(place, error)
        return shape(results)

    return partial(caller.answer, whole)
