"""The method `enqueue`, whose calls are joined from the payloads and the bytes between them.

Thrift's encoder copies a payload byte by byte. Always true: the bytes, and the errors,
are those of Thrift's encoder. It encodes a call with an item that has a time, an
attempt limit or a policy of its own, or a value of a wrong type. Knows nothing of
connections.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final, Protocol

from foqs_client.types import Item
from foqs_contract.contract_version import NewerPart
from foqs_contract.idl import ttypes
from foqs_contract.request import Request
from foqs_contract.struct_bytes import I32, I64, STOP, field_head, list_head
from foqs_contract.thrift_method import ThriftMethod

_NAMESPACE: Final = field_head(ttypes.EnqueueRequest, "namespace_name")
_ITEMS: Final = list_head(ttypes.EnqueueRequest, "items")
_TIMEOUT: Final = field_head(ttypes.EnqueueRequest, "timeout_ms")
_TOPIC: Final = field_head(ttypes.NewItem, "topic")
_PRIORITY: Final = field_head(ttypes.NewItem, "priority")
_PAYLOAD: Final = field_head(ttypes.NewItem, "payload")
_METADATA: Final = field_head(ttypes.NewItem, "metadata")
_KEY: Final = field_head(ttypes.NewItem, "idempotency_key")
_GROUP: Final = field_head(ttypes.NewItem, "group")
_TRACE_CONTEXT: Final = field_head(ttypes.NewItem, "trace_context")
_KEY_UNTIL: Final = field_head(ttypes.NewItem, "key_until_ms")
_pack_length: Final = I32.pack
_NO_METADATA: Final = _METADATA + _pack_length(0)
_END: Final = _NO_METADATA + STOP
_PRIORITY_AND_SIZE: Final = struct.Struct(f">{len(_PRIORITY)}si{len(_PAYLOAD)}si")


class _Enqueue(Protocol):
    """A request of `enqueue` as a client writes it."""

    namespace_name: str
    items: Sequence[Item]
    timeout_ms: int


class EnqueueMethod(ThriftMethod):
    """The method `enqueue`. Its requests may hold objects of `Item`."""

    __slots__ = ()

    def encode(self, request: Request) -> bytes:
        """Return the body of a request, for `frame`. Raises Unencodable."""
        enqueue: Any = request
        try:
            parts = None if enqueue.forwarded is not None or enqueue.atomic is not None else _joined_parts(enqueue)
        except (AttributeError, TypeError, UnicodeError, struct.error):
            parts = None  # Thrift's encoder says what is wrong
        return super().encode(request) if parts is None else b"".join(parts)

    def newest_part(self, request: Request) -> NewerPart | None:
        """See `ThriftMethod`. Most calls have no such item, so one pass finds out whether there is any."""
        enqueue: Any = request
        if enqueue.atomic is None and not [
            1
            for item in enqueue.items
            if type(item) is not Item
            or item.trace_context is not None
            or item.key_until_ms is not None
            or item.group is not None
        ]:
            return None
        return super().newest_part(request)


def _joined_parts(request: _Enqueue) -> list[bytes] | None:
    """Return the bytes of a request in parts; None if an item is not one of the usual ones."""
    namespace = request.namespace_name.encode()
    items = request.items
    parts = [_NAMESPACE, _pack_length(len(namespace)), namespace, _ITEMS, _pack_length(len(items))]
    append = parts.append
    topic: str | None = None
    priority: int | None = None
    size = -1
    start = b""
    for item in items:
        if not (
            type(item) is Item
            and item.delay_ms is item.deliver_after_ms is item.lease_ms is item.ttl_ms is item.attempts_max is None
            and item.at_most_once is False
        ):
            return None
        payload, metadata, key, trace = item.payload, item.metadata, item.idempotency_key, item.trace_context
        until_ms, group = item.key_until_ms, item.group
        if not (type(payload) is bytes is type(metadata)) or (trace is not None and type(trace) is not bytes):
            return None
        if item.topic is not topic or item.priority is not priority or len(payload) != size:
            topic, priority, size = item.topic, item.priority, len(payload)
            name = topic.encode()
            start = b"".join(
                (_TOPIC, _pack_length(len(name)), name, _PRIORITY_AND_SIZE.pack(_PRIORITY, priority, _PAYLOAD, size))
            )
        append(start)
        append(payload)
        if key is None is trace and until_ms is None is group and not metadata:
            append(_END)
            continue
        append(b"".join((_METADATA, _pack_length(len(metadata)), metadata)) if metadata else _NO_METADATA)
        if key is not None:
            name = key.encode()
            append(_KEY)
            append(_pack_length(len(name)))
            append(name)
        if group is not None:
            name = group.encode()
            append(_GROUP)
            append(_pack_length(len(name)))
            append(name)
        if trace is not None:
            append(_TRACE_CONTEXT)
            append(_pack_length(len(trace)))
            append(trace)
        if until_ms is not None:
            append(_KEY_UNTIL)
            append(I64.pack(until_ms))
        append(STOP)
    parts += (_TIMEOUT, I64.pack(request.timeout_ms), STOP)
    return parts
