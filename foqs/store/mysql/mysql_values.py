"""Encodes values for MySQL: as literals in a statement's text, or bound to a prepared statement.

Always true: a literal can hold any bytes, and no value can end it. Text and bytes
are quoted, with each quote and backslash escaped, which is cheaper than hex for
host and server. The session must have an sql_mode with neither
NO_BACKSLASH_ESCAPES nor ANSI_QUOTES, and the charset binary, in which every byte
is a character (`mysql_session_sql.session_settings` sets both). With utf8mb4 a value could
not end its literal either, but the server would check the characters, refuse
invalid ones, and take twice as long. With binary a literal needs no `_binary`.

The statements of every flush, its fence and its new rows, are prepared: the server
reads bound values faster than text.

A row without a due moment has `NEVER_MS`, not NULL, and a row that was never
delivered has `NOT_DELIVERED_MS`. A NULL takes no room, so a lease would change the
row's length, and InnoDB would delete and insert the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from struct import Struct
from typing import Final, TypeVar

from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import Row, TopicName
from foqs.store.mysql.mysql_protocol import BoundStatement, Statement, read_length
from foqs.store.row_columns import NEVER_MS, NOT_DELIVERED_MS, ROW_COLUMNS

_Part = TypeVar("_Part", bound=Sized)

_INT64_TYPE: Final = b"\x08\0"
"""The type of a signed integer of 8 bytes."""
_BYTES_TYPE: Final = b"\xfc\0"
_INT64: Final = Struct("<q")
_PRESENT: Final = b"\0"
"""The byte before a value in bulk execution."""
_ABSENT: Final = b"\1"
"""In place of a value that is NULL, in bulk execution."""


def _bound(*, is_number: bool, can_be_null: bool) -> tuple[str, ...]:
    return tuple(
        column.name for column in ROW_COLUMNS if column.is_number is is_number and column.can_be_null is can_be_null
    )


_FIXED: Final = _bound(is_number=True, can_be_null=False)
_BOUND_INTEGERS: Final = (*_FIXED, *_bound(is_number=True, can_be_null=True))
_BOUND_BYTES: Final = (*_bound(is_number=False, can_be_null=False), *_bound(is_number=False, can_be_null=True))
BOUND_COLUMNS: Final = (*_BOUND_INTEGERS, *_BOUND_BYTES)
"""The columns of a new row in the order of binding: those of fixed length first."""
_FIXED_INT64: Final = Struct(f"<{len(_FIXED)}q")
_FIXED_INT64_IN_BULK: Final = Struct("<" + "xq" * len(_FIXED))
# columns: begin null bits
_NULL_TTL_MS: Final = 1 << BOUND_COLUMNS.index("ttl_ms")
_NULL_EXPIRES_AT_MS: Final = 1 << BOUND_COLUMNS.index("expires_at_ms")
_NULL_TRACE_CONTEXT: Final = 1 << BOUND_COLUMNS.index("trace_context")
_NULL_ITEM_GROUP: Final = 1 << BOUND_COLUMNS.index("item_group")
# columns: end
_BOUND_TYPES: Final = _INT64_TYPE * len(_BOUND_INTEGERS) + _BYTES_TYPE * len(_BOUND_BYTES)
BOUND_OVERHEAD_BYTES: Final = 11
"""The most bytes of a statement with bound rows, besides those of its rows."""
BOUND_ROW_BYTES: Final = len(_BOUND_TYPES) + 3
"""The bytes of a bound row besides its values: its types and its bits of NULL. In bulk, those of all rows together."""


def name_literal(value: str) -> str:
    """Return a name as a literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def escape(value: bytes | None) -> bytes:
    """Escape a value for use between the quotes of a literal."""
    if value is None:
        raise TypeError("a row without payload or metadata cannot be written")
    return value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def bytes_literal(value: bytes) -> bytes:
    """Return bytes as a literal."""
    return b"'%b'" % escape(value)


def _integer_literal(value: int | None) -> bytes:
    return b"NULL" if value is None else b"%d" % value


# columns: begin updates
def update_select(row: Row) -> bytes:
    """Return a row's id and mutable columns as one more SELECT of constants."""
    return b" UNION ALL SELECT %d,%d,%d,%b,'%b',%d,%d,%d,%d,%d" % (
        row.id,
        row.priority,
        row.deliver_after_ms,
        _integer_literal(row.expires_at_ms),
        escape(row.metadata),
        row.state,
        NEVER_MS if row.due_ms is None else row.due_ms,
        row.token,
        row.attempt,
        NOT_DELIVERED_MS if row.first_delivered_at_ms is None else row.first_delivered_at_ms,
    )


def lease_assignments(lease: LeaseUpdate) -> bytes:
    """Return the assignments of a lease."""
    values = b"state = %d, due_ms = %d, token = %d, attempt = %d" % (
        lease.state,
        NEVER_MS if lease.due_ms is None else lease.due_ms,
        lease.token,
        lease.attempt,
    )
    if lease.first_delivered_at_ms is not None:
        values += b", first_delivered_at_ms = %d" % lease.first_delivered_at_ms
    return values


# columns: end


def bind(sql: bytes, values: Sequence[int | bytes]) -> BoundStatement:
    """Bind values, none of them NULL, to a statement."""
    types = b"".join([_INT64_TYPE if type(value) is int else _BYTES_TYPE for value in values])
    encoded = [_INT64.pack(value) if isinstance(value, int) else _length_prefixed(value) for value in values]
    return BoundStatement(sql, b"".join((bytes(-(-len(values) // 8)), b"\1", types, *encoded)))


class EncodedRows:
    """Encoded new rows: `values` has the bytes of each row's values, `nulls` a bit for each value of it that is NULL."""

    __slots__ = ("nulls", "values")

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.nulls: list[int] = []


def bind_rows(sql: bytes, rows: EncodedRows, start: int, stop: int) -> BoundStatement:
    """Bind the rows from `start` to `stop` to a statement with as many rows of question marks."""
    width, nulls = len(BOUND_COLUMNS), 0
    for index, bits in enumerate(rows.nulls[start:stop]):
        nulls |= bits << index * width
    count = stop - start
    null_bits = nulls.to_bytes(-(-count * width // 8), "little")
    return BoundStatement(sql, b"".join((null_bits, b"\1", _BOUND_TYPES * count, *rows.values[start:stop])))


def bind_rows_in_bulk(sql: bytes, values: list[bytes]) -> BoundStatement:
    """Bind rows, encoded for bulk execution, to the statement of one row."""
    return BoundStatement(sql, _BOUND_TYPES, values)


def as_text(statement: Statement) -> bytes:
    """Return the statement as text, with the values in place of the question marks, for a server that cannot prepare."""
    if isinstance(statement, bytes):
        return statement
    first, *others = statement.sql.split(b"?")
    values, count = statement.values, len(others)
    types_at = -(-count // 8) + 1
    nulls = int.from_bytes(values[: types_at - 1], "little")
    at = types_at + 2 * count
    parts = [first]
    for index, after in enumerate(others):
        if nulls >> index & 1:
            parts.append(b"NULL")
        elif values[types_at + 2 * index] == _INT64_TYPE[0]:
            (number,) = _INT64.unpack_from(values, at)
            parts.append(b"%d" % number)
            at += _INT64.size
        else:
            size, at = read_length(values, at)
            parts.append(bytes_literal(values[at : at + size]))
            at += size
        parts.append(after)
    return b"".join(parts)


def encode_rows(rows: Sequence[Row], *, is_bulk: bool = False) -> EncodedRows:
    """Encode rows. Names are encoded once for each topic, not for each row."""
    # In bulk, a byte before each value says whether it is there.
    present, absent = (_PRESENT, _ABSENT) if is_bulk else (b"", b"")
    names: dict[TopicName, bytes] = {}
    lengths: dict[int, bytes] = {}
    result = EncodedRows()
    all_values, all_nulls = result.values, result.nulls
    eight, numbers = _INT64.pack, (_FIXED_INT64_IN_BULK if is_bulk else _FIXED_INT64).pack
    namespace: str | None = None
    topic: str | None = None
    name = b""
    for row in rows:
        # The names of neighbours are mostly the same objects.
        if row.topic is not topic or row.namespace is not namespace:
            namespace, topic = row.namespace, row.topic
            known = names.get((namespace, topic))
            if known is None:
                known = names[namespace, topic] = _encode_names(present, namespace, topic)
            name = known
        payload, metadata = row.payload, row.metadata
        if payload is None or metadata is None:
            raise TypeError("a row without payload or metadata cannot be written")
        payload_length, metadata_length = lengths.get(len(payload)), lengths.get(len(metadata))
        if payload_length is None:
            payload_length = lengths[len(payload)] = present + _encode_length(len(payload))
        if metadata_length is None:
            metadata_length = lengths[len(metadata)] = present + _encode_length(len(metadata))
        # columns: begin new rows
        nulls = 0
        ttl_ms = expires_at_ms = trace_context = item_group = absent
        if row.ttl_ms is None:
            nulls |= _NULL_TTL_MS
        else:
            ttl_ms = present + eight(row.ttl_ms)
        if row.expires_at_ms is None:
            nulls |= _NULL_EXPIRES_AT_MS
        else:
            expires_at_ms = present + eight(row.expires_at_ms)
        if row.trace_context is None:
            nulls |= _NULL_TRACE_CONTEXT
        else:
            trace_context = present + _length_prefixed(row.trace_context)
        if row.item_group is None:
            nulls |= _NULL_ITEM_GROUP
        else:
            item_group = present + _length_prefixed(row.item_group)
        fixed = numbers(
            row.id,
            row.priority,
            row.deliver_after_ms,
            row.enqueued_at_ms,
            row.lease_ms,
            row.policy,
            row.attempts_max,
            row.payload_bytes,
            row.state,
            NEVER_MS if row.due_ms is None else row.due_ms,
            row.token,
            row.attempt,
            NOT_DELIVERED_MS if row.first_delivered_at_ms is None else row.first_delivered_at_ms,
        )
        encoded = (
            fixed,
            ttl_ms,
            expires_at_ms,
            name,
            payload_length,
            payload,
            metadata_length,
            metadata,
            trace_context,
            item_group,
        )
        # columns: end
        all_values.append(b"".join(encoded))
        all_nulls.append(nulls)
    return result


def _encode_names(present: bytes, namespace: str, topic: str) -> bytes:
    return b"".join((present, _length_prefixed(namespace.encode()), present, _length_prefixed(topic.encode())))


def _length_prefixed(value: bytes) -> bytes:
    return _encode_length(len(value)) + value


_ONE_BYTE_LENGTHS: Final = tuple(bytes([size]) for size in range(251))
"""Encodings of lengths that take one byte."""


def _encode_length(size: int) -> bytes:
    if size < 251:
        return _ONE_BYTE_LENGTHS[size]
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little")
    if size < 1 << 24:
        return b"\xfd" + size.to_bytes(3, "little")
    return b"\xfe" + size.to_bytes(8, "little")


def idempotency_key_values(rows: Sequence[IdempotencyKey]) -> list[bytes]:
    """Encode key rows as literals."""
    names = {namespace: name_literal(namespace).encode() for namespace in {row.namespace for row in rows}}
    return [
        b"(%b,'%b',%d,'%b',%d)" % (names[namespace], escape(key), number, escape(digest), until_ms)
        for namespace, key, number, digest, until_ms in rows
    ]


def chunked(parts: list[_Part], bytes_max: int, count_max: int) -> Iterator[list[_Part]]:
    """Group parts within both limits. A part that is too long is alone in its group."""
    if len(parts) <= count_max and sum(map(len, parts)) + len(parts) <= bytes_max:
        if parts:
            yield parts
        return
    group: list[_Part] = []
    size = 0
    for part in parts:
        if group and (size + len(part) + 1 > bytes_max or len(group) >= count_max):
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part) + 1
    if group:
        yield group
