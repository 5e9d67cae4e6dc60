"""Large requests of the usual form, read from their bytes in the binary protocol.

Thrift's decoder makes a struct for each entry and sets its fields one by one. Here a run
of entries of equal sizes is read in one step. Always true: what is read here is what
Thrift's decoder would read. None means that the request has another form, and nothing
more: Thrift's decoder must read it. The limits of one message hold. Knows nothing of
calls.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

from foqs_contract.idl import ttypes
from foqs_contract.method_table import ARGUMENTS_HEAD
from foqs_contract.struct_bytes import (
    ENTRIES_MIN,
    FIELD_HEAD_BYTES,
    I32,
    I32_BYTES,
    I32_FIELD_BYTES,
    I64,
    I64_FIELD_BYTES,
    RUN_MIN,
    STOP,
    STRING_HEAD_BYTES,
    field_head,
    list_head,
)

_NAMESPACE: Final = ARGUMENTS_HEAD + field_head(ttypes.EnqueueRequest, "namespace_name")
_ENTRIES: Final = list_head(ttypes.EnqueueRequest, "items")
_TIMEOUT: Final = field_head(ttypes.EnqueueRequest, "timeout_ms")
_TOPIC: Final = field_head(ttypes.NewItem, "topic")
_PRIORITY: Final = field_head(ttypes.NewItem, "priority")
_PAYLOAD: Final = field_head(ttypes.NewItem, "payload")
_METADATA: Final = field_head(ttypes.NewItem, "metadata")
_KEY: Final = field_head(ttypes.NewItem, "idempotency_key")
_KEY_UNTIL: Final = field_head(ttypes.NewItem, "key_until_ms")
_ID: Final = field_head(ttypes.Lease, "id")
_TOKEN: Final = field_head(ttypes.Lease, "token")
_END_BYTES: Final = 2
"""The length of the ends of the request and of the arguments."""

_read_i32: Final = I32.unpack_from
_read_i64: Final = I64.unpack_from


class UsualItems:
    """The items of an enqueue, with no fields but these: (topic, priority, payload, metadata, key) in `rows`.

    An item that is read by its place or by iteration is a struct.

    Attributes:
        key_until_ms: the end of the keys, which all items have; None: they have no end.
    """

    def __init__(self, rows: list[tuple[bytes, int, bytes, bytes, bytes | None]], key_until_ms: int | None) -> None:
        self.rows = rows
        self.key_until_ms = key_until_ms

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return len(self.rows) > 0

    def __getitem__(self, place: int) -> Any:
        topic, priority, payload, metadata, key = self.rows[place]
        return ttypes.NewItem(topic, priority, payload, metadata, idempotency_key=key, key_until_ms=self.key_until_ms)

    def __iter__(self) -> Iterator[Any]:
        return iter([self[place] for place in range(len(self.rows))])


class UsualLeases:
    """The leases of an ack, as columns. A lease that is read by its place or by iteration is a struct."""

    def __init__(self, ids: list[bytes], tokens: list[int]) -> None:
        self.ids = ids
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.ids)

    def __bool__(self) -> bool:
        return len(self.ids) > 0

    def __getitem__(self, place: int) -> Any:
        return ttypes.Lease(self.ids[place], self.tokens[place])

    def __iter__(self) -> Iterator[Any]:
        return iter([self[place] for place in range(len(self.ids))])


def read_enqueue(message: bytes, start: int, string_bytes_max: int, entries_max: int) -> ttypes.EnqueueRequest | None:
    """Return the request of an enqueue whose arguments begin at `start`; None if it has another form."""
    try:
        namespace, count, position = _read_beginning(message, start, string_bytes_max)
        if not ENTRIES_MIN <= count <= entries_max:
            return None
        rows: list[tuple[bytes, int, bytes, bytes, bytes | None]] = []
        end: bytes | None = None
        while len(rows) < count:
            before = len(rows)
            position, end_of_run = _read_run_of_items(message, position, count, string_bytes_max, rows)
            if (len(rows) < count and len(rows) - before < RUN_MIN) or end_of_run != (end or end_of_run):
                return None
            end = end_of_run
        items: Any = UsualItems(rows, _read_i64(end, FIELD_HEAD_BYTES)[0] if end and len(end) > len(STOP) else None)
        return ttypes.EnqueueRequest(namespace, items, _read_timeout(message, position))
    except (_OtherForm, struct.error):
        return None


def read_ack(message: bytes, start: int, string_bytes_max: int, entries_max: int) -> ttypes.AckRequest | None:
    """Return the request of an ack whose arguments begin at `start`; None if it has another form."""
    try:
        namespace, count, position = _read_beginning(message, start, string_bytes_max)
        if not ENTRIES_MIN <= count <= entries_max:
            return None
        ids: list[bytes] = []
        tokens: list[int] = []
        while len(ids) < count:
            before = len(ids)
            size = _read_size(message, position, _ID, string_bytes_max)
            stride = STRING_HEAD_BYTES + size + I64_FIELD_BYTES + len(STOP)
            runs = min(count - before, (len(message) - position) // stride)
            head = message[position : position + STRING_HEAD_BYTES]
            run = memoryview(message)[position : position + runs * stride]
            for id_head, id, token_head, token, stop in struct.iter_unpack(f">7s{size}s3sqc", run):
                if id_head != head or token_head != _TOKEN or stop != STOP:
                    break
                ids.append(id)
                tokens.append(token)
            position += stride * (len(ids) - before)
            if len(ids) < count and len(ids) - before < RUN_MIN:
                return None
        leases: Any = UsualLeases(ids, tokens)
        return ttypes.AckRequest(namespace, leases, _read_timeout(message, position))
    except (_OtherForm, struct.error):
        return None


class _OtherForm(Exception):
    """Raised where the bytes are not those of the common request; Thrift's decoder reads it then."""


def _read_size(message: bytes, position: int, head: bytes, string_bytes_max: int) -> int:
    """Return the length of the string with this head. Raises _OtherForm, struct.error."""
    if message[position : position + FIELD_HEAD_BYTES] != head:
        raise _OtherForm
    size: int = _read_i32(message, position + FIELD_HEAD_BYTES)[0]
    if not 0 <= size <= string_bytes_max:
        raise _OtherForm
    return size


def _read_beginning(message: bytes, start: int, string_bytes_max: int) -> tuple[bytes, int, int]:
    """Return the namespace, the number of entries, and where the first of them begins. Raises _OtherForm, struct.error."""
    if message[start : start + FIELD_HEAD_BYTES] != _NAMESPACE[:FIELD_HEAD_BYTES]:
        raise _OtherForm
    position = start + FIELD_HEAD_BYTES
    size = _read_size(message, position, _NAMESPACE[FIELD_HEAD_BYTES:], string_bytes_max)
    position += STRING_HEAD_BYTES
    namespace = message[position : position + size]
    position += size
    if message[position : position + len(_ENTRIES)] != _ENTRIES:
        raise _OtherForm
    position += len(_ENTRIES)
    count: int = _read_i32(message, position)[0]
    return namespace, count, position + I32_BYTES


def _read_timeout(message: bytes, position: int) -> int:
    """Return the timeout, the last field that a usual request has. Raises _OtherForm if the message goes on after it."""
    end = position + I64_FIELD_BYTES
    if message[position : position + FIELD_HEAD_BYTES] != _TIMEOUT or message[end:] != STOP * _END_BYTES:
        raise _OtherForm
    timeout_ms: int = _read_i64(message, position + FIELD_HEAD_BYTES)[0]
    return timeout_ms


def _read_run_of_items(
    message: bytes,
    position: int,
    count: int,
    string_bytes_max: int,
    rows: list[tuple[bytes, int, bytes, bytes, bytes | None]],
) -> tuple[int, bytes]:
    """Append the item at `position`, and all after it whose strings have the same sizes and whose keys the same end.

    Return where they end, and what each has after its strings.
    """
    topic_size = _read_size(message, position, _TOPIC, string_bytes_max)
    end = position + STRING_HEAD_BYTES + topic_size + I32_FIELD_BYTES
    payload_size = _read_size(message, end, _PAYLOAD, string_bytes_max)
    payload_head = message[end : end + STRING_HEAD_BYTES]
    end += STRING_HEAD_BYTES + payload_size
    metadata_size = _read_size(message, end, _METADATA, string_bytes_max)
    metadata_head = message[end : end + STRING_HEAD_BYTES]
    end += STRING_HEAD_BYTES + metadata_size
    form = f">7s{topic_size}s3si7s{payload_size}s7s{metadata_size}s"
    has_key = message[end : end + 1] != STOP
    key_head, last = b"", STOP
    if has_key:
        key_size = _read_size(message, end, _KEY, string_bytes_max)
        key_head = message[end : end + STRING_HEAD_BYTES]
        end += STRING_HEAD_BYTES + key_size
        form += f"7s{key_size}s"
        if message[end : end + FIELD_HEAD_BYTES] == _KEY_UNTIL:
            last = message[end : end + I64_FIELD_BYTES] + STOP
    stride = end + len(last) - position
    topic_head = message[position : position + STRING_HEAD_BYTES]
    begun = len(rows)
    run_max = min(count - begun, (len(message) - position) // stride)
    run = struct.iter_unpack(f"{form}{len(last)}s", memoryview(message)[position : position + run_max * stride])
    if has_key:
        for head_1, topic, head_2, priority, head_3, payload, head_4, metadata, head_11, key, stop in run:
            if (
                stop != last
                or head_1 != topic_head
                or head_2 != _PRIORITY
                or head_3 != payload_head
                or head_4 != metadata_head
                or head_11 != key_head
            ):
                break
            rows.append((topic, priority, payload, metadata, key))
    else:
        for head_1, topic, head_2, priority, head_3, payload, head_4, metadata, stop in run:
            if (
                stop != STOP
                or head_1 != topic_head
                or head_2 != _PRIORITY
                or head_3 != payload_head
                or head_4 != metadata_head
            ):
                break
            rows.append((topic, priority, payload, metadata, None))
    return position + stride * (len(rows) - begun), last
