"""Converts the client's types to Thrift structs and back.

Always true: a missing field becomes None or the type's default. Knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from foqs_client import errors
from foqs_client.types import (
    DONE,
    BulkPage,
    Change,
    Completed,
    Delivery,
    Enqueued,
    Explanation,
    Host,
    Item,
    ItemFilter,
    ItemView,
    Nack,
    Outcome,
    RestoredItem,
    Routing,
    Shard,
    Topic,
)
from foqs_contract.errors import error_from_struct
from foqs_contract.idl import ttypes
from foqs_contract.method_table import SUCCESS_HEAD
from foqs_contract.struct_bytes import I32, I32_BYTES, STOP, list_head

STATE_NAMES: Final = {1: "deferred", 2: "ready", 3: "leased", 4: "dead"}
_STATE_NUMBERS: Final = {name: number for number, name in STATE_NAMES.items()}
_FAIRNESS_NAMES: Final = {1: "items", 2: "time"}
_FAIRNESS_NUMBERS: Final = {name: number for number, name in _FAIRNESS_NAMES.items()}
_ORDER_NAMES: Final = {1: "relaxed"}
_ORDER_NUMBERS: Final = {name: number for number, name in _ORDER_NAMES.items()}


def state_number(state: str) -> int:
    """Return the number of a state. Raises InvalidArgument."""
    try:
        return _STATE_NUMBERS[state]
    except KeyError:
        raise errors.InvalidArgument(
            f"{state!r} is not a state; use one of {', '.join(_STATE_NUMBERS)}", field="state"
        ) from None


def error(failed: ttypes.Error | None) -> errors.FoqsError:
    """Return the error of an `Error` struct. An unknown code is an `UnknownOutcome`."""
    if failed is None:
        return errors.UnknownOutcome(
            "the host's error is empty; the call may have taken effect, so check before you repeat it"
        )
    return error_from_struct(failed, "the host gave no reason")


def require_bytes(data: object, field: str) -> bytes:
    """Return bytes-like data as bytes. Raises InvalidArgument."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise errors.InvalidArgument(
            f"this must be bytes, not {type(data).__name__}; encode a text with text.encode()", field=field
        )
    return bytes(data)


def items(given: Sequence[Item]) -> list[Item]:
    """Return the items with payload, metadata and trace context as bytes. Raises InvalidArgument."""
    items = list(given)
    for item in items:
        trace_context = item.trace_context
        if not (type(item.payload) is bytes is type(item.metadata)) or (
            trace_context is not None and type(trace_context) is not bytes
        ):
            return [_with_bytes(item) for item in items]
    return items


def _with_bytes(item: Item) -> Item:
    trace_context = item.trace_context
    return replace(
        item,
        payload=require_bytes(item.payload, "payload"),
        metadata=require_bytes(item.metadata, "metadata"),
        trace_context=None if trace_context is None else require_bytes(trace_context, "trace_context"),
    )


def enqueued(results: Sequence[Any] | None) -> list[Enqueued]:
    """Return the results of an enqueue, whose errors are still structs."""
    return [
        result if result.error is None and result.id is not None else Enqueued(result.id, error(result.error))
        for result in results or ()
    ]


def leases(held: Sequence[Delivery | tuple[str, int]]) -> list[Any]:
    """Return deliveries and (id, token) pairs as objects with an `id` and a `token`."""
    return [ttypes.Lease(*lease) if isinstance(lease, tuple) else lease for lease in held]


def nacks(given: Sequence[Nack | Delivery | tuple[str, int]]) -> list[Any]:
    """Return nacks, deliveries and (id, token) pairs as objects with the fields of a nack. Raises InvalidArgument."""
    return [_nack(nack) for nack in given]


def _nack(given: Nack | Delivery | tuple[str, int]) -> Any:
    if isinstance(given, tuple):
        return ttypes.Nack(*given)
    if not isinstance(given, Nack):
        return ttypes.Nack(given.id, given.token)
    if given.metadata is None or type(given.metadata) is bytes:
        return given
    return replace(given, metadata=require_bytes(given.metadata, "metadata"))


def completed(results: Sequence[ttypes.CompletionOutcome] | None) -> list[Completed]:
    return [
        Completed(result.ids, repeated=bool(result.repeated))
        if result.error is None and result.ids is not None
        else Completed(error=error(result.error))
        for result in results or ()
    ]


def outcomes(results: Sequence[ttypes.Outcome] | None) -> list[Outcome]:
    return [DONE if result.error is None and not result.already_gone else _outcome(result) for result in results or ()]


def _outcome(result: ttypes.Outcome) -> Outcome:
    return Outcome(error(result.error) if result.error is not None else None, bool(result.already_gone))


def fairness_number(name: str) -> int:
    """Return the number of what groups share. Raises InvalidArgument."""
    try:
        return _FAIRNESS_NUMBERS[name]
    except KeyError:
        raise errors.InvalidArgument(
            f"{name!r} is nothing that groups share; use {' or '.join(_FAIRNESS_NUMBERS)}", field="policy.fair"
        ) from None


def fairness_name(number: int | None) -> str | None:
    """Return the name of what groups share; that of a newer version is its number."""
    return None if number is None else _FAIRNESS_NAMES.get(int(number), str(int(number)))


def order_number(name: str) -> int:
    """Return the number of an order of a topic. Raises InvalidArgument."""
    try:
        return _ORDER_NUMBERS[name]
    except KeyError:
        raise errors.InvalidArgument(
            f"{name!r} is no order; use {' or '.join(_ORDER_NUMBERS)}, or leave it out", field="policy.order"
        ) from None


def order_name(number: int | None) -> str | None:
    """Return the name of an order of a topic; that of a newer version is its number."""
    return None if number is None else _ORDER_NAMES.get(int(number), str(int(number)))


def topic(stats: ttypes.TopicStats) -> Topic:
    return Topic(
        topic=stats.topic or "",
        ready=stats.ready or 0,
        deferred=stats.deferred or 0,
        leased=stats.leased or 0,
        dead=stats.dead or 0,
        best_priority=stats.best_priority,
        oldest_ready_age_ms=stats.oldest_ready_age_ms,
        next_due_in_ms=stats.next_due_in_ms,
        paused=bool(stats.paused),
        counts_lag=bool(stats.counts_lag),
        group_leases_max=stats.group_leases_max,
        fair=fairness_name(stats.fair),
    )


def item_view(view: ttypes.ItemView) -> ItemView:
    return ItemView(
        id=view.id or "",
        topic=view.topic or "",
        state=STATE_NAMES.get(view.state or 0, str(view.state)),
        priority=view.priority or 0,
        payload=view.payload,
        metadata=view.metadata,
        at_most_once=view.delivery_policy == ttypes.DeliveryPolicy.AT_MOST_ONCE,
        attempt=view.attempt or 0,
        attempts_max=view.attempts_max,
        lease_ms=view.lease_ms,
        age_ms=view.age_ms,
        due_in_ms=view.due_in_ms,
        lease_remaining_ms=view.lease_remaining_ms,
        ttl_remaining_ms=view.ttl_remaining_ms,
        payload_bytes=view.payload_bytes,
        idempotency_key=view.idempotency_key,
        dead_reason=view.dead_reason,
        first_delivery_age_ms=view.first_delivery_age_ms,
        trace_context=view.trace_context,
        group=view.group,
    )


def explanation(reply: ttypes.ExplainReply) -> Explanation:
    return Explanation(
        item=None if reply.item is None else item_view(reply.item),
        reasons=tuple(reply.reasons or ()),
        remedies=tuple(reply.remedies or ()),
        better_items=reply.better_items,
        better_items_more=bool(reply.better_items_more),
        absent=bool(reply.absent),
        blockers=tuple(reply.blockers or ()),
        group_items_before=reply.group_items_before,
        groups_before=reply.groups_before,
    )


def change(given: Change) -> ttypes.Change:
    """Return a `Change` struct. Raises InvalidArgument."""
    metadata = None if given.metadata is None else require_bytes(given.metadata, "change.metadata")
    return ttypes.Change(given.priority, given.delay_ms, given.deliver_after_ms, metadata)


def item_filter(given: ItemFilter) -> ttypes.ItemFilter:
    """Return an `ItemFilter` struct. Raises InvalidArgument."""
    states = None if given.states is None else [state_number(state) for state in given.states]
    topics = None if given.topics is None else list(given.topics)
    return ttypes.ItemFilter(
        given.topic,
        states,
        given.priority_min,
        given.priority_max,
        given.age_min_ms,
        given.age_max_ms,
        topics,
        given.group,
    )


def restored_item(given: RestoredItem) -> ttypes.RestoredItem:
    """Return a `RestoredItem` struct. Raises InvalidArgument."""
    trace_context = given.trace_context
    return ttypes.RestoredItem(
        topic=given.topic,
        priority=given.priority,
        payload=require_bytes(given.payload, "payload"),
        metadata=require_bytes(given.metadata, "metadata"),
        deliver_after_ms=given.deliver_after_ms,
        lease_ms=given.lease_ms,
        ttl_ms=given.ttl_ms,
        ttl_remaining_ms=given.ttl_remaining_ms,
        delivery_policy=2 if given.at_most_once else None,
        attempts_max=given.attempts_max,
        attempt=given.attempt,
        state=state_number(given.state),
        idempotency_key=given.idempotency_key,
        restore_key=given.restore_key,
        group=given.group,
        trace_context=None if trace_context is None else require_bytes(trace_context, "trace_context"),
    )


def bulk_page(reply: ttypes.BulkReply) -> BulkPage:
    refusal = None if reply.refusal is None else error(reply.refusal)
    return BulkPage(reply.items or 0, reply.refused or 0, refusal, reply.next_cursor)


def routing(reply: ttypes.GetRoutingReply) -> Routing:
    return Routing(
        version=reply.version or 0,
        hosts=[host(info) for info in reply.hosts or ()],
        shards=[shard(info) for info in reply.shards or ()],
        tier=reply.tier,
    )


def host(info: ttypes.HostInfo) -> Host:
    address = _address(info.address) or ("", 0)
    return Host(
        host=address[0],
        port=address[1],
        region=info.region,
        tier=info.tier,
        shards=info.shards,
        draining=bool(info.draining),
        load=info.load,
        version=info.version,
        name=info.name,
        nonce=info.nonce,
        capacity=info.capacity,
        leaving=bool(info.leaving),
    )


def shard(info: ttypes.ShardInfo) -> Shard:
    return Shard(
        shard=info.shard or 0,
        tier=info.tier,
        owner=_address(info.owner),
        epoch=info.epoch,
        state=info.state,
        queued_items=info.queued_items,
        region=info.region,
        reason=info.reason,
        owner_name=info.owner_name,
        database=info.database_name,
        weight=info.weight,
        draining=bool(info.draining),
        pinned_to=info.pinned_to,
        key_slots=_key_slots(info.key_slots),
    )


def _key_slots(bits: bytes | None) -> tuple[int, ...]:
    """Return the numbers of the set bits. The lowest bit of the first byte is 0."""
    if not bits:
        return ()
    digits = f"{int.from_bytes(bits, 'little'):b}"
    return tuple([slot for slot, digit in enumerate(reversed(digits)) if digit == "1"])


def _address(address: ttypes.HostAddress | None) -> tuple[str, int] | None:
    return None if address is None else (address.host or "", address.port or 0)


def all_done_count(body: bytes) -> int | None:
    """Return the number of outcomes if all are plain successes, as in nearly every reply; else None.

    The bytes are compared, because decoding them costs more.
    """
    count = len(body) - len(_OUTCOMES) - I32_BYTES - 2
    if count >= 0 and body == b"".join((_OUTCOMES, I32.pack(count), STOP * (count + 2))):
        return count
    return None


_OUTCOMES: Final = SUCCESS_HEAD + list_head(ttypes.OutcomesReply, "outcomes")
"""The first bytes of a result. The number of outcomes follows, then a `STOP` for each of them, for the reply and for the result."""
