"""The method `dequeue`, whose replies with many deliveries are read in runs of equal sizes.

Thrift's decoder sets the fields of a delivery one by one. Always true: the deliveries
are those that Thrift's decoder reads. It reads a reply of another form, and says what
is wrong with it. Knows nothing of connections.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from foqs_client.types import Delivery
from foqs_contract.idl import ttypes
from foqs_contract.method_table import SUCCESS_HEAD
from foqs_contract.struct_bytes import (
    ENTRIES_MIN,
    I32,
    I32_BYTES,
    I32_FIELD_BYTES,
    I64_FIELD_BYTES,
    RUN_MIN,
    STOP,
    STRING_HEAD,
    STRING_HEAD_BYTES,
    field_head,
    list_head,
)
from foqs_contract.thrift_method import ThriftMethod

_ITEMS: Final = SUCCESS_HEAD + list_head(ttypes.DequeueReply, "items")
_ID: Final = field_head(ttypes.Delivery, "id")
_TOKEN: Final = field_head(ttypes.Delivery, "token")
_TOPIC: Final = field_head(ttypes.Delivery, "topic")
_PRIORITY: Final = field_head(ttypes.Delivery, "priority")
_PAYLOAD: Final = field_head(ttypes.Delivery, "payload")
_METADATA: Final = field_head(ttypes.Delivery, "metadata")
_NUMBERS: Final = tuple(
    field_head(ttypes.Delivery, name)
    for name in ("attempt", "lease_remaining_ms", "age_ms", "attempts_max", "first_delivery_age_ms")
)


class DequeueMethod(ThriftMethod):
    """The method `dequeue`. Its replies have objects of `Delivery`."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("dequeue", element_class=Delivery)

    def decode(self, body: bytes) -> Any:
        """Return the result struct of a reply's body. Raises Unreadable."""
        result = self._decode(body)
        reply = result.success
        if reply is not None and reply.incarnation is not None:
            for delivery in reply.items or ():
                delivery.incarnation = reply.incarnation
        return result

    def _decode(self, body: bytes) -> Any:
        if body.startswith(_ITEMS):
            items: list[Delivery] = []
            try:
                end = _read_deliveries(body, items)
            except (struct.error, ValueError):
                end = 0  # Thrift's decoder says what is wrong
            if end:
                result = super().decode(SUCCESS_HEAD + body[end:])
                result.success.items = items
                return result
        return super().decode(body)


def _read_deliveries(body: bytes, items: list[Delivery]) -> int:
    """Append the deliveries of a reply, and return their end; 0 if one of them has another form."""
    position = len(_ITEMS) + I32_BYTES
    [count] = I32.unpack_from(body, len(_ITEMS))
    if count < ENTRIES_MIN:
        return 0
    while len(items) < count:
        begun = len(items)
        position = _read_run(body, position, count - begun, items)
        if len(items) < count and len(items) - begun < RUN_MIN:
            return 0
    return position


def _read_run(body: bytes, position: int, count: int, items: list[Delivery]) -> int:
    """Append the delivery at `position`, and all after it whose strings have the same sizes. Return their end.

    Raises ValueError or struct.error if it finds another form.
    """
    id_size = _string_size(body, position, _ID)
    at = position + STRING_HEAD_BYTES + id_size + I64_FIELD_BYTES
    topic_size = _string_size(body, at, _TOPIC)
    at += STRING_HEAD_BYTES + topic_size + I32_FIELD_BYTES
    payload_size = _string_size(body, at, _PAYLOAD)
    at += STRING_HEAD_BYTES + payload_size
    metadata_size = _string_size(body, at, _METADATA)
    before = struct.Struct(f">3sq3si{topic_size}s3si3si")
    after = struct.Struct(f">3si{metadata_size}s3si3sq3sq3si3sqc")
    whole = struct.Struct(f">{STRING_HEAD_BYTES}s{id_size}s{before.size}s{payload_size}s{after.size}s")
    run_max = min(count, (len(body) - position) // whole.size)
    id_head = STRING_HEAD.pack(_ID, id_size)
    begun = len(items)
    append = items.append
    last_before = last_after = b""
    token = priority = attempt = lease_remaining_ms = age_ms = attempts_max = first_delivery_age_ms = 0
    topic, metadata = "", b""
    for head, id, fields_before, payload, fields_after in whole.iter_unpack(
        memoryview(body)[position : position + run_max * whole.size]
    ):
        if head != id_head:
            break
        if fields_before != last_before:
            one, token, two, size, name, three, priority, four, size_2 = before.unpack(fields_before)
            if (one, two, three, four, size, size_2) != (_TOKEN, _TOPIC, _PRIORITY, _PAYLOAD, topic_size, payload_size):
                break
            topic = name.decode()
            last_before = fields_before
        if fields_after != last_after:
            one, size, metadata, *numbers, stop = after.unpack(fields_after)
            attempt, lease_remaining_ms, age_ms, attempts_max, first_delivery_age_ms = numbers[1::2]
            if (one, size, stop) != (_METADATA, metadata_size, STOP) or tuple(numbers[::2]) != _NUMBERS:
                break
            last_after = fields_after
        append(
            Delivery(
                id.decode(),
                token,
                topic,
                priority,
                payload,
                metadata,
                attempt,
                attempts_max,
                lease_remaining_ms,
                age_ms,
                first_delivery_age_ms,
            )
        )
    return position + whole.size * (len(items) - begun)


def _string_size(body: bytes, position: int, head: bytes) -> int:
    found, size = STRING_HEAD.unpack_from(body, position)
    if found != head or not 0 <= size <= len(body):
        raise ValueError(found)
    return int(size)
