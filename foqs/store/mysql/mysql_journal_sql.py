"""The SQL of a shard's journal on MySQL: one row a flush, and more parts if its bytes do not fit one statement.

Always true: a part that is not negative begins at that byte of the payloads, so the length of new parts
may change. Events that do not fit part 0 are in parts -1, -2, ... before it. Every range has a lower
bound, so no statement walks over deleted rows that it does not need. Knows nothing of connections,
events or fences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import (
    JournalRange,
    JournalRow,
    PayloadPlace,
    PositionedEvents,
    pack_position,
    unpack_position,
)
from foqs.store.journal_payloads import lacks_a_part, payload_at
from foqs.store.mysql.mysql_driver import Result
from foqs.store.mysql.mysql_protocol import BoundStatement
from foqs.store.mysql.mysql_values import bind

EVENTS_PART_BYTES: Final = 64 << 10
PAYLOADS_PART_BYTES: Final = 1 << 20
"""The lengths of parts. A server with a smaller max_allowed_packet gets shorter ones."""
_PART_OVERHEAD_BYTES: Final = 128
"""The most bytes of a part's statement besides those of its events and payloads."""


class JournalStatements:
    """The statements of one shard's journal."""

    def __init__(self, shard: int) -> None:
        journal = f"foqs_{shard}_journal"
        self._insert = (
            f"INSERT INTO {journal} (position, part, floor, events, payloads) VALUES (?, ?, ?, ?, ?)".encode()
        )
        self._add_reserve = f"INSERT INTO {journal} (position, part, floor, events, payloads) VALUES ".encode()
        self._trim = f"DELETE {journal} FROM {journal} FORCE INDEX (PRIMARY) WHERE".encode()
        self._from = f"FROM {journal} FORCE INDEX (PRIMARY)"

    def add_row(self, position: Position, row: JournalRow, packet_bytes: int) -> Iterator[BoundStatement]:
        """Add the row of a flush. A position that exists is an error."""
        number, floor = pack_position(position), pack_position(row.floor)
        room = (packet_bytes - _PART_OVERHEAD_BYTES) // 2
        payloads = b"".join(row.payloads)
        events, *others = _split(row.events, min(EVENTS_PART_BYTES, room))[::-1]
        for part, piece in enumerate(others[::-1], -len(others)):
            yield bind(self._insert, (number, part, floor, piece, b""))
        at = 0
        for piece in _split(payloads, min(PAYLOADS_PART_BYTES, room)):
            yield bind(self._insert, (number, at, floor, b"" if at else events, piece))
            at += len(piece)

    def trim_rows(self, trimmed: JournalRange) -> bytes:
        """Delete the rows of a range of positions."""
        first, end = map(pack_position, trimmed)
        return b"%b position >= %d AND position < %d" % (self._trim, first, end)

    def set_reserve(self, size: int, packet_bytes: int) -> Iterator[bytes]:
        """Delete the reserve, and add one of this length, if it is not 0. The server makes its bytes."""
        yield self._trim + b" position = 0"
        part_bytes = min(PAYLOADS_PART_BYTES, packet_bytes)
        parts = [(at, min(part_bytes, size - at)) for at in range(0, size, part_bytes)]
        if parts:
            yield self._add_reserve + b", ".join([b"(0, %d, 0, '', REPEAT('0', %d))" % part for part in parts])

    @property
    def floor(self) -> bytes:
        """Reads the floor of the newest row."""
        return f"SELECT floor {self._from} WHERE position > 0 ORDER BY position DESC, part DESC LIMIT 1".encode()

    def events(self, first: Position, parts_max: int) -> bytes:
        """Read the next parts of events at or above a position, but not the reserve, which is at 0."""
        number = max(pack_position(first), 1)
        return (
            f"SELECT position, part, events {self._from} WHERE position >= {number} AND part <= 0 "
            f"ORDER BY position, part LIMIT {parts_max}"
        ).encode()

    def events_of(self, position: Position) -> bytes:
        """Read all parts of the events of one flush."""
        return (
            f"SELECT position, part, events {self._from} WHERE position = {pack_position(position)} AND part <= 0 "
            "ORDER BY part"
        ).encode()

    def payload_parts(self, position: Position, first: int, end: int) -> bytes:
        """Read the parts of a flush's payloads that hold the bytes from `first` up to `end`, which is not among them."""
        found = f"{self._from} WHERE position = {pack_position(position)} AND part"
        return (
            f"SELECT part, payloads {found} >= (SELECT MAX(part) {found} BETWEEN 0 AND {first}) "
            f"AND part < {max(end, first + 1)} ORDER BY part"
        ).encode()


def parts_of_a_page(bytes_max: int) -> int:
    """Return the most parts that a page of events reads."""
    return max(2, bytes_max // EVENTS_PART_BYTES)


def decode_events(found: Result, parts_max: int) -> tuple[list[PositionedEvents], Position | None]:
    """Decode a page of events.

    Returns the whole rows, and the position of a row whose parts must be read by themselves:
    the page ends within it, and holds no other.
    """
    rows: dict[int, list[tuple[int, bytes]]] = {}
    for number, part, content in found.rows:
        rows.setdefault(number, []).append((part, content))
    if len(found.rows) == parts_max:
        last = next(reversed(rows))
        if rows[last][-1][0] < 0:  # part 0 is in the next page
            del rows[last]
            if not rows:
                return [], unpack_position(last)
    return [
        PositionedEvents(unpack_position(number), _events_of(number, parts)) for number, parts in rows.items()
    ], None


def _events_of(number: int, parts: Sequence[tuple[int, bytes]]) -> bytes:
    if [part for part, _ in parts] != [*range(1 - len(parts), 1)]:
        raise lacks_a_part(unpack_position(number))
    return b"".join([content for _, content in parts])


def payload_ranges(places: Sequence[PayloadPlace]) -> dict[Position, tuple[int, int]]:
    """Return the bytes to read of each flush: from the first payload to the last."""
    ranges: dict[Position, tuple[int, int]] = {}
    for position, offset, size in places:
        first, end = ranges.get(position, (offset, offset))
        ranges[position] = (min(first, offset), max(end, offset + size))
    return ranges


def decode_payloads(places: Sequence[PayloadPlace], results: Sequence[Result]) -> dict[PayloadPlace, bytes]:
    """Decode payloads from the results of `payload_parts` of each range of `payload_ranges`, in its order.

    Raises:
        StoreUnusable: a part of a row is missing, or a place is beyond its row.
    """
    contents: dict[Position, tuple[int, bytes]] = {}
    for position, found in zip(payload_ranges(places), results, strict=True):
        if found.rows:
            start = at = found.rows[0][0]
            for part, content in found.rows:
                if part != at:
                    raise lacks_a_part(position)
                at += len(content)
            contents[position] = (start, b"".join([content for _, content in found.rows]))
    return {
        place: payload_at(place, content, start)
        for place in places
        if place.position in contents
        for start, content in [contents[place.position]]
    }


def _split(content: bytes, length: int) -> list[bytes]:
    """Return the content in pieces, at least one."""
    return [content[at : at + length] for at in range(0, len(content), length)] or [b""]
