"""How values are written into MySQL's statements.

Always true: a literal holds any bytes, and no value can end it. Text and bytes
stand in quotes, with each quote and backslash escaped: a third of what hex costs
the host, and less for the server too. The session must have an sql_mode with
neither NO_BACKSLASH_ESCAPES nor ANSI_QUOTES, and the charset binary, in which every
byte is a character (`sql_mysql.session` sets both). With utf8mb4 no value could end
its literal either, but the server would look for characters, refuse bytes that are
none, and take twice as long for 1 KiB of them. With binary a literal needs no
`_binary` before it, which cost the server 0.5 us each, four times a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from foqs.core.item import Row, TopicName
from foqs.core.keys import KeyRow


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


def updated(row: Row) -> bytes:
    """A row's id and mutable columns, as one more SELECT of constants."""
    return b" UNION ALL SELECT %d,%d,%d,%b,'%b',%d,%b,%d,%d" % (
        row.id,
        row.priority,
        row.deliver_after_ms,
        _number(row.expires_at_ms),
        escaped(row.metadata),
        row.state,
        _number(row.due_ms),
        row.token,
        row.attempt,
    )


def inserted(rows: Sequence[Row]) -> list[bytes]:
    """The values of rows, with one piece of work for each topic, not for each row."""
    names: dict[TopicName, bytes] = {}
    namespaces: dict[str, str] = {}
    values: list[bytes] = []
    for row in rows:
        topic = (row.namespace, row.topic)
        name = names.get(topic)
        if name is None:
            namespace = namespaces.get(row.namespace)
            if namespace is None:
                namespace = namespaces[row.namespace] = text(row.namespace)
            name = names[topic] = f"{namespace},{text(row.topic)}".encode()
        values.append(
            b"(%d,%b,%d,%d,%d,%d,%b,%b,%d,%d,%d,'%b','%b',%d,%b,%d,%d)"
            % (
                row.id,
                name,
                row.priority,
                row.deliver_after_ms,
                row.enqueued_at_ms,
                row.lease_ms,
                _number(row.ttl_ms),
                _number(row.expires_at_ms),
                row.policy,
                row.attempts_max,
                row.payload_bytes,
                escaped(row.payload),
                escaped(row.metadata),
                row.state,
                _number(row.due_ms),
                row.token,
                row.attempt,
            )
        )
    return values


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
