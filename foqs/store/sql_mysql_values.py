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

from foqs.core.item import Row, TopicName
from foqs.core.keys import KeyRow
from foqs.store.mysql_wire import Bound, Statement, length_encoded

_INTEGER: Final = b"\x08\0"
"""The type of 8 bytes with a sign."""
_BYTES: Final = b"\xfc\0"
_EIGHT: Final = Struct("<q")
_NUMBERS: Final = Struct("<12q")

NEVER_MS: Final = (1 << 63) - 1
"""The `due_ms` of a row that nothing is scheduled for; rows of earlier versions may have NULL."""

_BOUND_NUMBERS: Final = (
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
_BOUND_NULLS: Final = ("ttl_ms", "expires_at_ms")
BOUND: Final = (*_BOUND_NUMBERS, *_BOUND_NULLS, "namespace", "topic", "payload", "metadata")
"""The columns of a new row in the order in which they are bound: those of fixed length first."""
_NO_TTL, _NO_EXPIRY = (1 << BOUND.index(name) for name in _BOUND_NULLS)
_BOUND_TYPES: Final = _INTEGER * (len(BOUND) - 4) + _BYTES * 4
BOUND_BYTES: Final = 11
"""So many bytes at most a statement with bound rows has beside those of its rows."""


def text(value: str) -> str:
    """A name as a literal; few statements are made of text, so one spelling does for all."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def escaped(value: bytes | None) -> bytes:
    """What stands between the quotes of a literal."""
    if value is None:
        raise TypeError("a row is written whole, with its payload and metadata")
    return value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")


def data(value: bytes) -> bytes:
    """Bytes as a literal."""
    return b"'%b'" % escaped(value)


def _number(value: int | None) -> bytes:
    return b"NULL" if value is None else b"%d" % value


def due_or_never(due_ms: int | None) -> int:
    """What stands in the column for it."""
    return NEVER_MS if due_ms is None else due_ms


def updated(row: Row) -> bytes:
    """A row's id and mutable columns, as one more SELECT of constants."""
    return b" UNION ALL SELECT %d,%d,%d,%b,'%b',%d,%d,%d,%d" % (
        row.id,
        row.priority,
        row.deliver_after_ms,
        _number(row.expires_at_ms),
        escaped(row.metadata),
        row.state,
        due_or_never(row.due_ms),
        row.token,
        row.attempt,
    )


def bound(sql: bytes, values: Sequence[int | bytes]) -> Bound:
    """A statement with its values, of which none is NULL."""
    types = b"".join([_INTEGER if type(value) is int else _BYTES for value in values])
    told = [_EIGHT.pack(value) if isinstance(value, int) else _counted(value) for value in values]
    return Bound(sql, b"".join((bytes(-(-len(values) // 8)), b"\1", types, *told)))


class BoundRow:
    """A new row's values, and which of them are NULL, as bits."""

    __slots__ = ("nulls", "values")

    def __init__(self, nulls: int, values: bytes) -> None:
        self.nulls = nulls
        self.values = values

    def __len__(self) -> int:
        """Bytes, with the types."""
        return len(self.values) + len(_BOUND_TYPES) + 3


def bound_rows(sql: bytes, rows: Sequence[BoundRow]) -> Bound:
    """A statement that has so many rows of question marks."""
    width, nulls = len(BOUND), 0
    for place, row in enumerate(rows):
        nulls |= row.nulls << place * width
    told = nulls.to_bytes(-(-len(rows) * width // 8), "little")
    return Bound(sql, b"".join((told, b"\1", _BOUND_TYPES * len(rows), *[row.values for row in rows])))


def in_text(statement: Statement) -> bytes:
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
        elif values[types_at + 2 * place] == _INTEGER[0]:
            (number,) = _EIGHT.unpack_from(values, at)
            found.append(b"%d" % number)
            at += _EIGHT.size
        else:
            size, at = length_encoded(values, at)
            found.append(data(values[at : at + size]))
            at += size
        found.append(after)
    return b"".join(found)


def inserted(rows: Sequence[Row]) -> list[BoundRow]:
    """The values of rows, with one piece of work for each topic, not for each row."""
    namespaces: dict[str, bytes] = {}
    names: dict[TopicName, bytes] = {}
    values: list[BoundRow] = []
    eight, numbers = _EIGHT.pack, _NUMBERS.pack
    for row in rows:
        topic = (row.namespace, row.topic)
        name = names.get(topic)
        if name is None:
            namespace = namespaces.get(row.namespace)
            if namespace is None:
                namespace = namespaces[row.namespace] = _counted(row.namespace.encode())
            name = names[topic] = namespace + _counted(row.topic.encode())
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
        told = (fixed, ttl, expires, name, _length(len(payload)), payload, _length(len(metadata)), metadata)
        values.append(BoundRow(nulls, b"".join(told)))
    return values


def _counted(value: bytes) -> bytes:
    return _length(len(value)) + value


_SHORT: Final = tuple(bytes([size]) for size in range(251))
"""Lengths that are one byte."""


def _length(size: int) -> bytes:
    if size < 251:
        return _SHORT[size]
    if size < 1 << 16:
        return b"\xfc" + size.to_bytes(2, "little")
    if size < 1 << 24:
        return b"\xfd" + size.to_bytes(3, "little")
    return b"\xfe" + size.to_bytes(8, "little")


def key_values(rows: Sequence[KeyRow]) -> list[bytes]:
    """The values of keys' rows."""
    names = {namespace: text(namespace).encode() for namespace in {row.namespace for row in rows}}
    return [
        b"(%b,'%b',%d,'%b',%d)" % (names[namespace], escaped(key), number, escaped(digest), until_ms)
        for namespace, key, number, digest, until_ms in rows
    ]


def cut(parts: list[bytes], bytes_max: int, count_max: int) -> Iterator[list[bytes]]:
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
