"""Returns the core's results as structs of replies, and as the bytes of those that are sent most.

Holds one function for each struct, and the struct of an error. Always true: a text that no reply can
carry is escaped. Knows nothing of calls, connections or the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from foqs.core.items.explanation import dead_reason
from foqs.core.items.item import Row, State
from foqs.queue.port import (
    AlreadyGone,
    CompletedIds,
    CompletionOutcome,
    EnqueueOutcome,
    ItemDetails,
    ItemExplanation,
    LeasedItems,
    Outcome,
    Repeated,
    RowView,
    TopicStats,
)
from foqs.rpc.messages import encode_struct
from foqs.rpc.reply_bytes import dequeue_result_bytes, enqueue_result_bytes
from foqs.rpc.topic_policies import fairness_number
from foqs_contract.errors import FoqsError
from foqs_contract.idl import Foqs, ttypes

ERROR_MESSAGE_BYTES_MAX: Final = 1_024
ERROR_FIELD_BYTES_MAX: Final = 256
"""The longest field of an error: with the other fields, an outcome stays below `RESULT_BYTES_MAX` of `foqs.options.rpc_options`."""


def error_struct(error: FoqsError) -> ttypes.Error:
    """Return the `Error` struct of an error."""
    owner = error.owner
    return ttypes.Error(
        code=ttypes.ErrorCode(error.number),
        message=_error_text(error.message, ERROR_MESSAGE_BYTES_MAX),
        field=None if error.field is None else _error_text(error.field, ERROR_FIELD_BYTES_MAX),
        retry_after_ms=error.retry_after_ms,
        owner=ttypes.HostAddress(owner[0], owner[1]) if owner else None,
    )


def _error_text(text: str, bytes_max: int) -> str:
    """Escape what is not valid text, and shorten it: an error may quote a caller's bytes, and must be sent nevertheless."""
    data = text.encode(errors="backslashreplace")
    return data.decode() if len(data) <= bytes_max else data[: bytes_max - 3].decode(errors="ignore") + "..."


def enqueue_reply(results: Sequence[EnqueueOutcome]) -> ttypes.EnqueueReply:
    """Return the reply with these ids and errors, for `encode_enqueue_reply`. If all are ids, they stay texts."""
    if set(map(type, results)) == {str}:
        ids: Any = results
        return ttypes.EnqueueReply(ids)
    make = ttypes.EnqueueResult
    structs = [
        make(result) if type(result) is str else _enqueue_result(place, result) for place, result in enumerate(results)
    ]
    return ttypes.EnqueueReply(structs)


def encode_enqueue_reply(is_compact: bool, reply: Any) -> bytes:
    """Return the bytes of the result. The entries are those of `enqueue_reply`, or structs."""
    results = reply.results
    if results and type(results[0]) is str:
        encoded = None if is_compact else enqueue_result_bytes(results)
        if encoded is not None:
            return encoded
        reply = ttypes.EnqueueReply([ttypes.EnqueueResult(result) for result in results])
    return encode_struct(is_compact, Foqs.enqueue_result(reply), _ENQUEUE_RESULT_SPEC)


_ENQUEUE_RESULT_SPEC: Final = [Foqs.enqueue_result, Foqs.enqueue_result.thrift_spec]


def _enqueue_result(place: int, result: Any) -> ttypes.EnqueueResult:
    if type(result) is Repeated:
        return ttypes.EnqueueResult(result.id, repeated=True)
    error = error_struct(result)
    if error.field and not error.field.startswith("items"):
        # The queue names only the item's field: it does not know the item's place in the call.
        error.field = f"items[{place}].{error.field}"
    return ttypes.EnqueueResult(None, error)


def outcomes_reply(results: Sequence[Outcome]) -> ttypes.OutcomesReply:
    """Return the reply with these outcomes."""
    if results.count(None) == len(results):
        return _all_done_reply(len(results))
    return ttypes.OutcomesReply([_outcome_struct(result) for result in results])


def move_items_reply(results: Sequence[EnqueueOutcome]) -> ttypes.MoveItemsReply:
    """Return the reply with the ids of these new items, and errors."""
    return ttypes.MoveItemsReply([_move_outcome(result) for result in results])


def complete_reply(results: Sequence[CompletionOutcome]) -> ttypes.CompleteReply:
    """Return the reply with the ids of the items of these completions, and errors."""
    return ttypes.CompleteReply([_completion_outcome(place, result) for place, result in enumerate(results)])


def _completion_outcome(place: int, result: CompletionOutcome) -> ttypes.CompletionOutcome:
    if isinstance(result, CompletedIds):
        return ttypes.CompletionOutcome(None, result.ids, result.is_repeat or None)
    error = error_struct(result)
    if error.field == "items":  # a limit, for all items of the completion
        error.field = f"completions[{place}]"
    return ttypes.CompletionOutcome(error)


def _move_outcome(result: EnqueueOutcome) -> ttypes.MoveOutcome:
    if isinstance(result, FoqsError):
        return ttypes.MoveOutcome(error_struct(result))
    return ttypes.MoveOutcome(None, *((result, None) if isinstance(result, str) else (result.id, True)))


def _outcome_struct(result: Outcome) -> ttypes.Outcome:
    if result is None:
        return _DONE
    if isinstance(result, AlreadyGone):
        return _ALREADY_GONE
    assert isinstance(result, FoqsError)
    return ttypes.Outcome(error_struct(result))


@lru_cache(maxsize=1_024)
def _all_done_reply(count: int) -> ttypes.OutcomesReply:
    return ttypes.OutcomesReply([_DONE] * count)


_DONE: Final = ttypes.Outcome()
_ALREADY_GONE: Final = ttypes.Outcome(already_gone=True)


def dequeue_reply(deliveries: LeasedItems, incarnation: int | None = None) -> ttypes.DequeueReply:
    """Return the reply with these deliveries, for `encode_dequeue_reply`. `incarnation`: the number of their namespace's."""
    outage = deliveries.outage
    items: Any = deliveries.items
    shards = None if outage is None else outage.shards
    return ttypes.DequeueReply(items, unavailable_shards=shards, incarnation=incarnation if items else None)


def encode_dequeue_reply(is_compact: bool, reply: Any) -> bytes:
    """Return the bytes of the result. The deliveries are those of `dequeue_reply`, or structs."""
    items = reply.items
    if items and isinstance(items[0], RowView):
        encoded = None if is_compact else dequeue_result_bytes(items, reply.availability, reply.incarnation)
        if encoded is not None:
            return encoded
        structs = [delivery_struct(item) for item in items]
        reply = ttypes.DequeueReply(structs, reply.availability, incarnation=reply.incarnation)
    return encode_struct(is_compact, Foqs.dequeue_result(reply), _DEQUEUE_RESULT_SPEC)


_DEQUEUE_RESULT_SPEC: Final = [Foqs.dequeue_result, Foqs.dequeue_result.thrift_spec]


def delivery_struct(item: RowView) -> ttypes.Delivery:
    row, now_ms = item.row, item.now_ms
    age_ms = now_ms - row.enqueued_at_ms
    first_ms = row.first_delivered_at_ms
    first_age_ms = None if first_ms is None else now_ms - first_ms if now_ms > first_ms else 0
    return ttypes.Delivery(
        f"{item.shard}-{row.id}",
        row.token,
        row.topic,
        row.priority,
        row.payload,
        row.metadata,
        row.attempt,
        item.lease_left_ms,
        age_ms if age_ms > 0 else 0,
        row.attempts_max,
        first_age_ms,
        row.trace_context,
        _group_name(row),
    )


def item_view(item: RowView, with_payload: bool) -> ttypes.ItemView:
    row = item.row
    now_ms = item.now_ms
    view = ttypes.ItemView(
        id=f"{item.shard}-{row.id}",
        topic=row.topic,
        state=ttypes.ItemState(int(row.state)),
        priority=row.priority,
        payload=row.payload if with_payload else None,
        metadata=row.metadata,
        delivery_policy=ttypes.DeliveryPolicy(int(row.policy)),
        attempt=row.attempt,
        attempts_max=row.attempts_max,
        lease_ms=row.lease_ms,
        age_ms=max(0, now_ms - row.enqueued_at_ms),
        payload_bytes=row.payload_bytes,
        trace_context=row.trace_context,
        group=_group_name(row),
    )
    if row.first_delivered_at_ms is not None:
        view.first_delivery_age_ms = max(0, now_ms - row.first_delivered_at_ms)
    if row.state is State.DEFERRED:
        view.due_in_ms = max(0, row.ready_at_ms - now_ms)
    elif row.state is State.LEASED and row.due_ms is not None:
        view.lease_remaining_ms = item.lease_left_ms
    if row.expires_at_ms is not None:
        view.ttl_remaining_ms = max(0, row.expires_at_ms - now_ms)
    view.dead_reason = dead_reason(row)
    if type(item) is ItemDetails and item.idempotency_key is not None:
        view.idempotency_key = item.idempotency_key.decode()
    return view


def _group_name(row: Row) -> str | None:
    return None if row.item_group is None else row.item_group.decode()


def explain_reply(explanation: ItemExplanation, with_payload: bool) -> ttypes.ExplainReply:
    item = explanation.item
    return ttypes.ExplainReply(
        item=None if item is None else item_view(item, with_payload),
        reasons=list(explanation.reasons),
        remedies=list(explanation.remedies),
        better_items=explanation.better_items,
        better_items_more=explanation.better_items_more or None,
        absent=explanation.absent or None,
        blockers=list(explanation.blockers) or None,
        group_items_before=explanation.group_items_before,
        groups_before=explanation.groups_before,
    )


def topic_stats(stats: TopicStats) -> ttypes.TopicStats:
    return ttypes.TopicStats(
        topic=stats.topic,
        ready=stats.ready,
        deferred=stats.deferred,
        leased=stats.leased,
        dead=stats.dead,
        best_priority=stats.best_priority,
        oldest_ready_age_ms=stats.oldest_ready_age_ms,
        next_due_in_ms=stats.next_due_in_ms,
        paused=stats.paused,
        counts_lag=stats.counts_lag,
        group_leases_max=stats.group_leases_max,
        fair=fairness_number(stats.fair),
    )
