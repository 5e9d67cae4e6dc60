"""How values are written into MySQL's statements, and beside those that are prepared.

Always true: a literal holds any bytes, and no value can end it. Text and bytes
stand in quotes, with each quote and backslash escaped: a third of what hex costs
the host, and less for the server too. The session must have an sql_mode with
neither NO_BACKSLASH_ESCAPES nor ANSI_QUOTES, and the charset binary, in which every
byte is a character (`sql_mysql.session` sets both). With utf8mb4 no value could end
its literal either, but the server would look for characters, refuse bytes that are
none, and take twice as long for 1 KiB of them. With binary a literal needs no
`_binary` before it, which cost the server 0.5 us each, four times a row.

What every flush has, its fence and its new rows, is prepared: of a row of 1 KiB the
server takes 10 us where text takes 14.

What is not scheduled is due `NEVER_MS`, not NULL: a NULL takes no room, so a lease
would change the row's length, and InnoDB would take it out and put it in anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import Row, TopicName
from foqs.store.mysql.mysql_protocol import BoundStatement, Statement, read_length

_INT64_TYPE: Final = b"\x08\0"
"""The type of 8 bytes with a sign."""
_BYTES_TYPE: Final = b"\xfc\0"
_INT64: Final = Struct("<q")
_TWELVE_INT64: Final = Struct("<12q")

NEVER_MS: Final = (1 << 63) - 1
"""The `due_ms` of a row that nothing is scheduled for; rows of earlier versions may have NULL."""

_BOUND_INTEGERS: Final = (
    "id",
    "priority",
    "deliver_after_ms",
    "enqueued_at_ms",
    "lease_ms",
    "policy",
    "attempts_max",
    "payload_bytes",
    "state",
    "token",
    "attempt",
    "due_ms",
)
_BOUND_NULLABLE: Final = ("ttl_ms", "expires_at_ms")
BOUND_COLUMNS: Final = (*_BOUND_INTEGERS, *_BOUND_NULLABLE, "namespace", "topic", "payload", "metadata")
"""The columns of a new row in the order in which they are bound: those of fixed length first."""
_NO_TTL, _NO_EXPIRY = (1 << BOUND_COLUMNS.index(name) for name in _BOUND_NULLABLE)
_BOUND_TYPES: Final = _INT64_TYPE * (len(BOUND_COLUMNS) - 4) + _BYTES_TYPE * 4
BOUND_OVERHEAD_BYTES: Final = 11
"""So many bytes at most a statement with bound rows has beside those of its rows."""


def name_literal(value: str) -> str:
    """A name as a literal; few statements are made of text, so one spelling does for all."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def escape(value: bytes | None) -> bytes:
    """What stands between the quotes of a literal."""
    if value is None:
        raise TypeError("a row is written whole, with its payload and metadata")
    return value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def bytes_literal(value: bytes) -> bytes:
    """Bytes as a literal."""
    return b"'%b'" % escape(value)


def _integer_literal(value: int | None) -> bytes:
    return b"NULL" if value is None else b"%d" % value


def due_or_never(due_ms: int | None) -> int:
    """What stands in the column for it."""
    return NEVER_MS if due_ms is None else due_ms


def update_select(row: Row) -> bytes:
    """A row's id and mutable columns, as one more SELECT of constants."""
    return b" UNION ALL SELECT %d,%d,%d,%b,'%b',%d,%d,%d,%d" % (
        row.id,
        row.priority,
        row.deliver_after_ms,
        _integer_literal(row.expires_at_ms),
        escape(row.metadata),
        row.state,
        due_or_never(row.due_ms),
        row.token,
        row.attempt,
    )


def bind(sql: bytes, values: Sequence[int | bytes]) -> BoundStatement:
    """A statement with its values, of which none is NULL."""
    types = b"".join([_INT64_TYPE if type(value) is int else _BYTES_TYPE for value in values])
    told = [_INT64.pack(value) if isinstance(value, int) else _length_prefixed(value) for value in values]
    return BoundStatement(sql, b"".join((bytes(-(-len(values) // 8)), b"\1", types, *told)))


class BoundRow:
    """A new row's values, and which of them are NULL, as bits."""

    __slots__ = ("nulls", "values")

    def __init__(self, nulls: int, values: bytes) -> None:
        self.nulls = nulls
        self.values = values

    def __len__(self) -> int:
        """Bytes, with the types."""
        return len(self.values) + len(_BOUND_TYPES) + 3


def bind_rows(sql: bytes, rows: Sequence[BoundRow]) -> BoundStatement:
    """A statement that has so many rows of question marks."""
    width, nulls = len(BOUND_COLUMNS), 0
    for place, row in enumerate(rows):
        nulls |= row.nulls << place * width
    told = nulls.to_bytes(-(-len(rows) * width // 8), "little")
    return BoundStatement(sql, b"".join((told, b"\1", _BOUND_TYPES * len(rows), *[row.values for row in rows])))


def as_text(statement: Statement) -> bytes:
    """The same for a server that prepares no more: every question mark is the value it stands for."""
    if isinstance(statement, bytes):
        return statement
    first, *others = statement.sql.split(b"?")
    values, count = statement.values, len(others)
    types_at = -(-count // 8) + 1
    nulls = int.from_bytes(values[: types_at - 1], "little")
    at = types_at + 2 * count
    found = [first]
    for place, after in enumerate(others):
        if nulls >> place & 1:
            found.append(b"NULL")
        elif values[types_at + 2 * place] == _INT64_TYPE[0]:
            (number,) = _INT64.unpack_from(values, at)
            found.append(b"%d" % number)
            at += _INT64.size
        else:
            size, at = read_length(values, at)
            found.append(bytes_literal(values[at : at + size]))
            at += size
        found.append(after)
    return b"".join(found)


def encode_rows(rows: Sequence[Row]) -> list[BoundRow]:
    """The values of rows, with one piece of work for each topic, not for each row."""
    namespaces: dict[str, bytes] = {}
    names: dict[TopicName, bytes] = {}
    values: list[BoundRow] = []
    eight, numbers = _INT64.pack, _TWELVE_INT64.pack
    for row in rows:
        topic = (row.namespace, row.topic)
        name = names.get(topic)
        if name is None:
            namespace = namespaces.get(row.namespace)
            if namespace is None:
                namespace = namespaces[row.namespace] = _length_prefixed(row.namespace.encode())
            name = names[topic] = namespace + _length_prefixed(row.topic.encode())
        payload, metadata = row.payload, row.metadata
        if payload is None or metadata is None:
            raise TypeError("a row is written whole, with its payload and metadata")
        nulls = 0
        ttl = expires = b""
        if row.ttl_ms is None:
            nulls |= _NO_TTL
        else:
            ttl = eight(row.ttl_ms)
        if row.expires_at_ms is None:
            nulls |= _NO_EXPIRY
        else:
            expires = eight(row.expires_at_ms)
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
            row.token,
            row.attempt,
            NEVER_MS if row.due_ms is None else row.due_ms,
        )
        told = (
            fixed,
            ttl,
            expires,
            name,
            _encode_length(len(payload)),
            payload,
            _encode_length(len(metadata)),
            metadata,
        )
        values.append(BoundRow(nulls, b"".join(told)))
    return values


def _length_prefixed(value: bytes) -> bytes:
    return _encode_length(len(value)) + value


_ONE_BYTE_LENGTHS: Final = tuple(bytes([size]) for size in range(251))
"""Lengths that are one byte."""


def _encode_length(size: int) -> bytes:
    if size < 251:
        return _ONE_BYTE_LENGTHS[size]
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little")
    if size < 1 << 24:
        return b"\xfd" + size.to_bytes(3, "little")
    return b"\xfe" + size.to_bytes(8, "little")


def idempotency_key_values(rows: Sequence[IdempotencyKey]) -> list[bytes]:
    """The values of keys' rows."""
    names = {namespace: name_literal(namespace).encode() for namespace in {row.namespace for row in rows}}
    return [
        b"(%b,'%b',%d,'%b',%d)" % (names[namespace], escape(key), number, escape(digest), until_ms)
        for namespace, key, number, digest, until_ms in rows
    ]


def chunked(parts: list[bytes], bytes_max: int, count_max: int) -> Iterator[list[bytes]]:
    """Groups of parts within both limits; a part that is too long by itself stands alone."""
    if len(parts) <= count_max and sum(map(len, parts)) + len(parts) <= bytes_max:
        if parts:
            yield parts
        return
    group: list[bytes] = []
    size = 0
    for part in parts:
        if group and (size + len(part) + 1 > bytes_max or len(group) >= count_max):
            yield group
            group, size = [], 0
        group.append(part)
        size += len(part) + 1
    if group:
        yield group
