"""The bytes of replies with many entries, in the binary protocol.

Thrift's encoder copies a payload byte by byte, and reads a struct for each entry.
Always true: the bytes are those of Thrift's encoder. What many entries of one reply
share is made once. Knows nothing of calls.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

from foqs.queue.port import RowView
from foqs_contract.idl import ttypes
from foqs_contract.method_table import SUCCESS_HEAD
from foqs_contract.struct_bytes import I32, STOP, encode_binary, field_head, list_head

_ENQUEUED: Final = SUCCESS_HEAD + list_head(ttypes.EnqueueReply, "results")
_ENQUEUED_ID: Final = field_head(ttypes.EnqueueResult, "id")
_ITEMS: Final = SUCCESS_HEAD + list_head(ttypes.DequeueReply, "items")
_ID: Final = field_head(ttypes.Delivery, "id")
_TOKEN: Final = field_head(ttypes.Delivery, "token")
_TOPIC: Final = field_head(ttypes.Delivery, "topic")
_PRIORITY: Final = field_head(ttypes.Delivery, "priority")
_PAYLOAD: Final = field_head(ttypes.Delivery, "payload")
_METADATA: Final = field_head(ttypes.Delivery, "metadata")
_ATTEMPT: Final = field_head(ttypes.Delivery, "attempt")
_LEASE_REMAINING: Final = field_head(ttypes.Delivery, "lease_remaining_ms")
_AGE: Final = field_head(ttypes.Delivery, "age_ms")
_ATTEMPTS_MAX: Final = field_head(ttypes.Delivery, "attempts_max")
_FIRST_DELIVERY_AGE: Final = field_head(ttypes.Delivery, "first_delivery_age_ms")
_TRACE_CONTEXT: Final = field_head(ttypes.Delivery, "trace_context")
_GROUP: Final = field_head(ttypes.Delivery, "group")
_REPLY_SPEC: Final = [ttypes.DequeueReply, ttypes.DequeueReply.thrift_spec]

_pack_length: Final = I32.pack
_pack_start: Final = struct.Struct(f">{len(_TOKEN)}sq{len(_TOPIC)}si").pack
_pack_priority_and_size: Final = struct.Struct(f">{len(_PRIORITY)}si{len(_PAYLOAD)}si").pack
_pack_numbers: Final = struct.Struct(
    f">{len(_ATTEMPT)}si{len(_LEASE_REMAINING)}sq{len(_AGE)}sq{len(_ATTEMPTS_MAX)}si{len(_FIRST_DELIVERY_AGE)}sq"
).pack
_join: Final = b"".join


def dequeue_result_bytes(items: Sequence[RowView], availability: Any, incarnation: int | None = None) -> bytes | None:
    """Return the result of `dequeue` with these deliveries; None if a row lacks its payload or its first delivery."""
    parts = [_ITEMS, _pack_length(len(items))]
    id_size = priority = token = size = enqueued_at_ms = now_ms = attempt = attempts_max = -1
    due_ms: int | None = None
    topic = ""
    metadata = id_start = start = end = b""  # the first item changes them
    trace_context: bytes | None = None
    item_group: bytes | None = None
    first_ms = -1
    for item in items:
        row = item.row
        payload, delivered_first_ms = row.payload, row.first_delivered_at_ms
        if payload is None or delivered_first_ms is None:
            return None
        id_bytes = f"{item.shard}-{row.id}".encode()
        if len(id_bytes) != id_size:
            id_size = len(id_bytes)
            id_start = _ID + _pack_length(id_size)
        if row.token != token or row.topic is not topic or row.priority != priority or len(payload) != size:
            token, topic, priority, size = row.token, row.topic, row.priority, len(payload)
            name = topic.encode()
            start = _join(
                (
                    _pack_start(_TOKEN, token, _TOPIC, len(name)),
                    name,
                    _pack_priority_and_size(_PRIORITY, priority, _PAYLOAD, size),
                )
            )
        if (
            row.due_ms != due_ms
            or row.enqueued_at_ms != enqueued_at_ms
            or item.now_ms != now_ms
            or row.attempt != attempt
            or row.attempts_max != attempts_max
            or row.metadata != metadata
            or delivered_first_ms != first_ms
            or row.trace_context != trace_context
            or row.item_group != item_group
            or item.real_wait_ms is not None
        ):
            due_ms, enqueued_at_ms, now_ms = row.due_ms, row.enqueued_at_ms, item.now_ms
            attempt, attempts_max, metadata = row.attempt, row.attempts_max, row.metadata
            first_ms, trace_context, item_group = delivered_first_ms, row.trace_context, row.item_group
            left_ms, age_ms = item.lease_left_ms, max(0, now_ms - enqueued_at_ms)
            trace = b"" if trace_context is None else _TRACE_CONTEXT + _pack_length(len(trace_context)) + trace_context
            group = b"" if item_group is None else _GROUP + _pack_length(len(item_group)) + item_group
            end = _join(
                (
                    _METADATA,
                    _pack_length(len(metadata)),
                    metadata,
                    _pack_numbers(
                        _ATTEMPT,
                        attempt,
                        _LEASE_REMAINING,
                        left_ms,
                        _AGE,
                        age_ms,
                        _ATTEMPTS_MAX,
                        attempts_max,
                        _FIRST_DELIVERY_AGE,
                        max(0, now_ms - first_ms),
                    ),
                    trace,
                    group,
                    STOP,
                )
            )
            if item.real_wait_ms is not None:
                now_ms = -1  # the time left is this item's own
        parts += (id_start, id_bytes, start, payload, end)
    parts += (encode_binary(ttypes.DequeueReply(None, availability, incarnation=incarnation), _REPLY_SPEC), STOP)
    return _join(parts)


def enqueue_result_bytes(ids: Sequence[str]) -> bytes | None:
    """Return the result of `enqueue` with these ids, at least one; None if their lengths differ."""
    size = len(ids[0])
    if len(ids) > 1 and set(map(len, ids)) != {size}:
        return None
    start = _ENQUEUED_ID + _pack_length(size)
    # The text between two ids has only characters of one byte, as ids have.
    text = (STOP + start).decode().join(ids)
    return _join((_ENQUEUED, _pack_length(len(ids)), start, text.encode(), STOP * 3))
