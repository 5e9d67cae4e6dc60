"""The calls about items and topics: from a decoded request to the queue, and back to a reply.

Holds one method for each call. Always true: the queue gets validated values
only; a bad entry fails alone, except in an atomic call; a reply has one entry for each
entry of its request. Knows nothing of connections, frames or how the queue works.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.core.groups.group import RUN_MAX
from foqs.core.items import validation
from foqs.core.items.atomic_items import check_atomic_items
from foqs.core.items.item import SHARD_MAX, TIME_MS_MAX, NewItem, State
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.queue.outage import NothingDeliverable
from foqs.queue.port import EnqueueOutcome, LeasedItems, PendingCall, Queue, ShardListing, TopicStats
from foqs.queue.reads.filter_walk import cursor_after
from foqs.queue.reads.listings import format_cursor
from foqs.rpc import filters, reply_structs, request_structs
from foqs.rpc.bulk_structs import parse_bulk
from foqs.rpc.call import Call, Handler
from foqs.rpc.filters import parse_page, requested_shards
from foqs.rpc.group_list_structs import group_list, parse_wanted_groups
from foqs.rpc.methods import task_handler
from foqs.rpc.restored_items import parse_restored_items
from foqs_contract.errors import FoqsError, InvalidArgument
from foqs_contract.idl import ttypes
from foqs_contract.request import Request, RequestOfIds, RequestOfNamespace

_T = TypeVar("_T")
_R = TypeVar("_R")


class TopicLists(Protocol):
    """The topics of some shards; `foqs.queue.port.QueueReads` is one."""

    async def list_topics(
        self, namespace: str, prefix: str, states: Sequence[State] | None, cursor: str | None, limit: int
    ) -> tuple[list[TopicStats], str | None]:
        """See `QueueReads.list_topics`."""
        ...

    def unavailable_shards(self) -> int:
        """Return how many of the shards are not served or cannot deliver. Raises Unavailable."""
        ...


class QueueHandlers:
    """Serves the contract's calls from one queue.

    Args:
        topics: the topics of the whole tier; those of the queue for a host alone.
        rng: draws the jitter of backoffs.
    """

    def __init__(self, queue: Queue, topics: TopicLists, rng: random.Random) -> None:
        self._queue = queue
        self._topics = topics
        self._rng = rng

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers by the names of their calls."""
        return {
            "enqueue": self.enqueue,
            "dequeue": self.dequeue,
            "ack": self.ack,
            "complete": self.complete,
            "nack": self.nack,
            "extendLease": self.extend_lease,
            "release": self.release,
            "cancel": self.cancel,
            "redrive": self.redrive,
            "update": self.update,
            "extendHeldLeases": self.extend_held_leases,
            "moveItems": self.move_items,
            "restoreItems": self.restore_items,
            "getActiveTopics": task_handler(self.get_active_topics),
            "listGroups": task_handler(self.list_groups),
            "peek": task_handler(self.peek),
            "getItem": task_handler(self.get_item),
            "explain": task_handler(self.explain),
            "listDead": task_handler(self.list_dead),
            "countItems": task_handler(self.count_items),
            "listItems": task_handler(self.list_items),
            "bulk": task_handler(self.bulk),
            "purgeTopic": task_handler(self.purge_topic),
        }

    def timeout_s(self, request: Request) -> float:
        """Return the call's timeout in seconds: the requested one, at most the host's limit. Raises InvalidArgument."""
        limits = self._queue.limits
        timeout_ms = request.timeout_ms
        if timeout_ms is None:
            timeout_ms = limits.timeout_ms_default
        elif timeout_ms < 1:
            raise InvalidArgument(f"{timeout_ms} ms is too short; give at least 1", field="timeout_ms")
        elif timeout_ms > limits.timeout_ms_max:
            timeout_ms = limits.timeout_ms_max
        return timeout_ms / 1_000

    # ------------------------------------------------------- the life of an item

    def enqueue(self, call: Call) -> PendingCall | None:
        request: ttypes.EnqueueRequest = call.request
        namespace, settings = self._namespace(request)
        raws = self._checked_entries(request.items, "items")
        items, errors = request_structs.parse_new_items(raws, namespace, settings, self._queue.topic_keys(namespace))
        if request.atomic:
            return self._enqueue_atomically(call, namespace, items, errors)
        done = _on_done(reply_structs.enqueue_reply, errors, call)
        return self._queue.enqueue(namespace, items, call.deadline, done) if items else done([])

    def _enqueue_atomically(
        self, call: Call, namespace: str, items: Sequence[NewItem], errors: Mapping[int, FoqsError]
    ) -> PendingCall:
        """Enqueue all items or none. Raises the error of the first bad item."""
        for error in errors.values():
            raise error
        limits = self._queue.limits
        check_atomic_items(items, limits.atomic_items_max, limits.atomic_bytes_max)

        def done(outcomes: list[EnqueueOutcome]) -> None:
            if isinstance(outcomes[0], FoqsError):
                call.fail(outcomes[0])
            else:
                call.reply(reply_structs.enqueue_reply, outcomes)

        return self._queue.enqueue(namespace, items, call.deadline, done, is_atomic=True)

    def dequeue(self, call: Call) -> PendingCall | None:
        request: ttypes.DequeueRequest = call.request
        namespace, settings = self._namespace(request)
        limits = self._queue.limits
        raws = request.topics
        validation.check_entry_count(None if raws is None else len(raws), limits.topics_per_call_max, "topics")
        wants = request_structs.parse_topic_counts(raws or (), limits.items_per_call_max)
        lease_ms = request.lease_ms
        if lease_ms is not None:
            validation.check_number(lease_ms, 1, settings.lease_ms_max, "lease_ms")
        items_max = request.items_max
        if items_max is not None:
            validation.check_number(items_max, 1, limits.items_per_call_max, "items_max")
        run_max = request.run_max
        if run_max is not None:
            validation.check_number(run_max, 1, RUN_MAX, "run_max")
        wait_ms = request.wait_ms or 0
        if wait_ms < 0:
            raise InvalidArgument(f"{wait_ms} ms is negative; give 0 or more", field="wait_ms")
        if wait_ms:
            wait_ms = min(wait_ms, limits.wait_ms_max, int(self.timeout_s(request) * 1_000))

        def to_struct(deliveries: LeasedItems) -> ttypes.DequeueReply:
            return reply_structs.dequeue_reply(deliveries, settings.incarnation_number)

        def done(deliveries: LeasedItems) -> None:
            if deliveries.outage is not None and deliveries.outage.is_whole:
                call.fail(NothingDeliverable(deliveries.outage))
            else:
                call.reply(to_struct, deliveries, deliveries.give_back)

        return self._queue.dequeue(
            namespace, list(wants.items()), wait_ms, lease_ms, call.deadline, done, items_max, run_max or 1
        )

    def ack(self, call: Call) -> PendingCall | None:
        request: ttypes.AckRequest = call.request
        namespace, _ = self._namespace(request)
        raws = self._checked_entries(request.leases, "leases")
        columns = request_structs.parse_lease_columns(raws)
        errors: dict[int, FoqsError] = {}
        if columns is None:
            leases, errors = _parse_entries(raws, "leases", request_structs.parse_lease)
            columns = [identity for identity, _ in leases], [token for _, token in leases]
        done = _on_done(reply_structs.outcomes_reply, errors, call)
        return self._queue.ack(namespace, *columns, call.deadline, done) if columns[0] else done([])

    def complete(self, call: Call) -> PendingCall | None:
        request: ttypes.CompleteRequest = call.request
        namespace, settings = self._namespace(request)
        limits = self._queue.limits
        raws = self._checked_entries(request.completions, "completions")
        raw_items = self._checked_entries(request.items, "items")
        entries, errors = request_structs.parse_completions(
            raws,
            raw_items,
            namespace,
            settings,
            self._queue.topic_keys(namespace),
            limits.atomic_items_max,
            limits.atomic_bytes_max,
        )
        done = _on_done(reply_structs.complete_reply, errors, call)
        return self._queue.complete(namespace, entries, call.deadline, done) if entries else done([])

    def nack(self, call: Call) -> PendingCall | None:
        request: ttypes.NackRequest = call.request
        namespace, settings = self._namespace(request)
        read = request_structs.nack_event_parser(namespace, settings, self._rng.random)
        return self._apply(call, namespace, request.nacks, "nacks", read)

    def extend_lease(self, call: Call) -> PendingCall | None:
        request: ttypes.ExtendLeaseRequest = call.request
        namespace, settings = self._namespace(request)
        read = request_structs.extension_event_parser(namespace, settings)
        return self._apply(call, namespace, request.extensions, "extensions", read)

    def release(self, call: Call) -> PendingCall | None:
        request: ttypes.ReleaseRequest = call.request
        namespace, _ = self._namespace(request)
        read = request_structs.lease_event_parser(EventKind.RELEASE, namespace)
        return self._apply(call, namespace, request.leases, "leases", read)

    def cancel(self, call: Call) -> PendingCall | None:
        return self._apply_by_ids(call, Event(EventKind.CANCEL, 0))

    def redrive(self, call: Call) -> PendingCall | None:
        return self._apply_by_ids(call, Event(EventKind.REDRIVE, 0))

    def update(self, call: Call) -> PendingCall | None:
        request: ttypes.UpdateRequest = call.request
        _, settings = self._namespace(request)
        return self._apply_by_ids(call, filters.parse_change(request.change, settings))

    def extend_held_leases(self, call: Call) -> PendingCall | None:
        request: ttypes.ExtendHeldLeasesRequest = call.request
        _, settings = self._namespace(request)
        lease_ms = request_structs.parse_extension_ms(request.lease_ms, settings)
        return self._apply_by_ids(call, Event(EventKind.EXTEND, 0, token=None, lease_ms=lease_ms))

    def move_items(self, call: Call) -> PendingCall | None:
        request: ttypes.MoveItemsRequest = call.request
        topic, ttl_ms = request_structs.parse_name(request.topic, "topic"), request.ttl_remaining_ms
        if ttl_ms is not None:
            validation.check_number(ttl_ms, 1, TIME_MS_MAX, "ttl_remaining_ms")
        move = Event(EventKind.MOVE, 0, topic=topic, ttl_remaining_ms=ttl_ms)
        return self._apply_by_ids(call, move, reply_structs.move_items_reply)

    def restore_items(self, call: Call) -> PendingCall | None:
        request: ttypes.RestoreItemsRequest = call.request
        namespace, settings = self._namespace(request)
        raws = self._checked_entries(request.items, "items")
        items, errors = parse_restored_items(raws, namespace, settings, self._queue.topic_keys(namespace))
        done = _on_done(reply_structs.enqueue_reply, errors, call)
        return self._queue.enqueue(namespace, items, call.deadline, done) if items else done([])

    def _apply_by_ids(
        self, call: Call, event: Event, to_struct: Callable[[Sequence[Any]], Any] = reply_structs.outcomes_reply
    ) -> PendingCall | None:
        """Apply an event to each id of a request."""
        request: RequestOfIds = call.request
        namespace, _ = self._namespace(request)
        read = request_structs.id_event_parser(replace(event, namespace=namespace))
        return self._apply(call, namespace, request.ids, "ids", read, to_struct)

    def _apply(
        self,
        call: Call,
        namespace: str,
        raws: Sequence[Any] | None,
        field: str,
        parse: Callable[[Any], tuple[int, Event]],
        to_struct: Callable[[Sequence[Any]], Any] = reply_structs.outcomes_reply,
    ) -> PendingCall | None:
        """Apply one event for each entry of a request."""
        events, errors = _parse_entries(self._checked_entries(raws, field), field, parse)
        done = _on_done(to_struct, errors, call)
        return self._queue.apply(namespace, events, call.deadline, done) if events else done([])

    def _checked_entries(self, raws: Sequence[Any] | None, field: str) -> Sequence[Any]:
        """Return a request's list. Raises FoqsError if it is missing, empty or too long."""
        items_max = self._queue.limits.items_per_call_max
        if not raws or len(raws) > items_max:
            validation.check_entry_count(None if raws is None else len(raws), items_max, field)
        return raws or ()

    # -------------------------------------------------------------------- reading

    async def get_active_topics(self, call: Call) -> ttypes.GetActiveTopicsReply:
        request: ttypes.GetActiveTopicsRequest = call.request
        topics = self._topics
        namespace, _ = self._namespace(request)
        prefix, states = "", None
        if request.filter is not None:
            if request.filter.prefix:
                prefix = validation.decode_text(request.filter.prefix, validation.NAME_BYTES_MAX, "filter.prefix")
            states = request_structs.parse_states(request.filter.states, "filter.states")
            if request.filter.local_only:
                topics = self._queue.reads
        limit, cursor = parse_page(request.page)
        page, next_cursor = await topics.list_topics(namespace, prefix, states, cursor, limit)
        rows = [reply_structs.topic_stats(stats) for stats in page]
        return ttypes.GetActiveTopicsReply(rows, next_cursor, topics.unavailable_shards() or None)

    async def list_groups(self, call: Call) -> ttypes.ListGroupsReply:
        request: ttypes.ListGroupsRequest = call.request
        namespace, _ = self._namespace(request)
        wanted = parse_wanted_groups(request, namespace)
        return group_list(await self._queue.reads.list_groups(wanted, requested_shards(request)))

    async def peek(self, call: Call) -> ttypes.ItemsReply:
        request: ttypes.PeekRequest = call.request
        namespace, _ = self._namespace(request)
        topic = validation.decode_name(request.topic, "topic")
        state = State.READY if request.state is None else request_structs.parse_state(request.state, "state")
        limit, cursor = parse_page(request.page)
        with_payload = bool(request.with_payload)
        shards = requested_shards(request)
        items, next_cursor = await self._queue.reads.peek(
            namespace, topic, state, cursor, limit, with_payload, call.deadline, shards
        )
        cursors = [format_cursor(item.row.order_key, item.shard) for item in items] if request.forwarded else None
        return ttypes.ItemsReply([reply_structs.item_view(item, with_payload) for item in items], next_cursor, cursors)

    async def get_item(self, call: Call) -> ttypes.ItemView:
        request: ttypes.GetItemRequest = call.request
        namespace, _ = self._namespace(request)
        shard, number = request_structs.parse_item_id(request.id)
        item = await self._queue.reads.get_item(namespace, shard, number, call.deadline)
        return reply_structs.item_view(item, bool(request.with_payload))

    async def explain(self, call: Call) -> ttypes.ExplainReply:
        request: ttypes.GetItemRequest = call.request
        namespace, _ = self._namespace(request)
        shard, number = request_structs.parse_item_id(request.id)
        explanation = await self._queue.reads.explain(namespace, shard, number, call.deadline)
        return reply_structs.explain_reply(explanation, bool(request.with_payload))

    # ------------------------------------------------------------------ by filter

    async def list_dead(self, call: Call) -> ttypes.ItemsReply:
        request: ttypes.ListDeadRequest = call.request
        namespace, _ = self._namespace(request)
        topic = None if request.topic is None else validation.decode_name(request.topic, "topic")
        limit, cursor = parse_page(request.page)
        with_payload = bool(request.with_payload)
        item_filter = RowFilter(topic, (State.DEAD,))
        shards = requested_shards(request)
        items, next_cursor = await self._queue.reads.list_matching(
            namespace, item_filter, cursor, limit, with_payload, call.deadline, shards
        )
        cursors = [cursor_after(item) for item in items] if request.forwarded else None
        return ttypes.ItemsReply([reply_structs.item_view(item, with_payload) for item in items], next_cursor, cursors)

    async def list_items(self, call: Call) -> ttypes.ListItemsReply:
        request: ttypes.ListItemsRequest = call.request
        namespace, _ = self._namespace(request)
        only = RowFilter() if request.filter is None else filters.parse_filter(request.filter)
        shard = validation.check_number(request.shard, 0, SHARD_MAX, "shard")
        limit, cursor = parse_page(request.page)
        with_payload = bool(request.with_payload)
        listing = ShardListing(namespace, only, shard, cursor, limit, with_payload, bool(request.with_key))
        page = await self._queue.reads.list_shard(listing, call.deadline)
        views = [reply_structs.item_view(item, with_payload) for item in page.items]
        return ttypes.ListItemsReply(views, page.next_cursor, page.now_ms)

    async def count_items(self, call: Call) -> ttypes.CountItemsReply:
        request: ttypes.CountItemsRequest = call.request
        namespace, _ = self._namespace(request)
        item_filter = filters.parse_filter(request.filter)
        count = await self._queue.reads.count_matching(namespace, item_filter, call.deadline, requested_shards(request))
        return ttypes.CountItemsReply(count.items, count.payload_bytes)

    async def bulk(self, call: Call) -> ttypes.BulkReply:
        request: ttypes.BulkRequest = call.request
        namespace, settings = self._namespace(request)
        change, item_filter = parse_bulk(request.filter, request, settings)
        limit, cursor = parse_page(request.page, limit_min=0)
        shards = requested_shards(request)
        if change.action.changes_items:
            page = await self._queue.bulk.change_matching(
                namespace, change.event(namespace), item_filter, cursor, limit, call.deadline, shards
            )
        else:
            page = await self._queue.reads.count_page(namespace, item_filter, cursor, limit, call.deadline, shards)
        refusal = None if page.refusal is None else reply_structs.error_struct(page.refusal)
        return ttypes.BulkReply(page.changed, page.next_cursor, page.refused, refusal, page.matched)

    async def purge_topic(self, call: Call) -> ttypes.PurgeReply:
        request: ttypes.TopicRequest = call.request
        namespace, _ = self._namespace(request)
        topic = validation.decode_name(request.topic, "topic")
        return ttypes.PurgeReply(
            await self._queue.bulk.purge_topic(namespace, topic, call.deadline, requested_shards(request))
        )

    def _namespace(self, request: RequestOfNamespace) -> tuple[str, NamespaceSettings]:
        name = request_structs.parse_name(request.namespace_name, "namespace_name")
        return name, self._queue.namespace_settings(name)


def _parse_entries(
    raws: Sequence[Any], field: str, parse: Callable[[Any], _T]
) -> tuple[list[_T], dict[int, FoqsError]]:
    """Parse a request's entries; return the good ones, and the errors of the others by place. An id may occur once."""
    good: list[_T] = []
    errors: dict[int, FoqsError] = {}
    seen: set[bytes] = set()
    for place, raw in enumerate(raws):
        try:
            value = parse(raw)
            identity = raw if field == "ids" else raw.id
            if identity in seen:
                inner = "" if field == "ids" else "id"
                raise InvalidArgument("this id occurs twice in the call; name it once", field=inner)
            seen.add(identity)
            good.append(value)
        except FoqsError as error:
            errors[place] = request_structs.with_path(f"{field}[{place}]", error)
    return good, errors


def _on_done(
    to_struct: Callable[[Sequence[_R | FoqsError]], Any], errors: Mapping[int, FoqsError], call: Call
) -> Callable[[list[_R | FoqsError]], None]:
    """Return a callback that replies with the queue's results and inserts each error at its place."""
    if not errors:
        return partial(call.reply, to_struct)
    for error in errors.values():
        if isinstance(error, validation.MalformedRequest):
            call.log_malformed(f"{error.field}: {error.message}")
            break

    def with_errors(good_results: list[_R | FoqsError]) -> Any:
        results = list(good_results)
        for place, error in errors.items():
            results.insert(place, error)
        return to_struct(results)

    return partial(call.reply, with_errors)
