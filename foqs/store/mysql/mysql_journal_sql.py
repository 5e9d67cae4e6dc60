"""The SQL of a shard's journal on MySQL: one row a flush, and more parts if its bytes do not fit one statement.

Always true: a part that is not negative begins at that byte of the payloads, so the length of new parts
may change. Events that do not fit part 0 are in parts -1, -2, ... before it. Every range has a lower
bound, so no statement walks over deleted rows that it does not need. Knows nothing of connections,
events or fences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.core.flush.fence import Fence, Position
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
RESERVE_PART_BYTES: Final = 1 << 19
JOINED_BYTES_MAX: Final = 64 << 10
"""Payloads with at most this between them are read at once: each read of a part costs the server the whole part."""
_PART_OVERHEAD_BYTES: Final = 128
"""The most bytes of a part's statement besides those of its events and payloads."""


class JournalStatements:
    """The statements of one shard's journal."""

    def __init__(self, shard: int) -> None:
        journal = f"foqs_{shard}_journal"
        self._insert = (
            f"INSERT INTO {journal} (position, part, floor, events, payloads) VALUES (?, ?, ?, ?, ?)".encode()
        )
        # Parts that are there stay.
        self._add_reserve = f"INSERT IGNORE INTO {journal} (position, part, floor, events, payloads) VALUES ".encode()
        self._trim = f"DELETE {journal} FROM {journal} FORCE INDEX (PRIMARY) WHERE".encode()
        self._empty = f"UPDATE {journal} FORCE INDEX (PRIMARY) SET payloads = '' WHERE position IN".encode()
        self._shrink = (
            f"DELETE {journal} FROM {journal} FORCE INDEX (PRIMARY) JOIN foqs_{shard}_owner AS owner ON owner.one = 1 "
            "WHERE position = 0 AND part >= ? AND owner.epoch = ? AND owner.nonce = ?"
        ).encode()
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

    def empty_rows(self, positions: Sequence[Position]) -> Iterator[bytes]:
        """Delete the payloads of rows. Parts without events go, and the others stay."""
        numbers = b"(%b)" % b", ".join([b"%d" % pack_position(position) for position in positions])
        yield b"%b position IN %b AND part > 0" % (self._trim, numbers)
        yield b"%b %b AND part = 0" % (self._empty, numbers)

    def set_reserve(self, size: int, packet_bytes: int) -> Iterator[bytes]:
        """Give the reserve this length, in whole parts. One that becomes shorter needs no room: its last parts go.

        The server makes its bytes.
        """
        yield b"%b position = 0 AND part >= %d" % (self._trim, size)
        part_bytes = min(RESERVE_PART_BYTES, packet_bytes)
        parts = [(at, min(part_bytes, size - at)) for at in range(0, size, part_bytes)]
        if parts:
            yield self._add_reserve + b", ".join([b"(0, %d, 0, '', REPEAT('0', %d))" % part for part in parts])

    def shrink_reserve(self, fence: Fence, size: int) -> BoundStatement:
        """Delete the last parts of the reserve, so that this length stays, if the owner is still the one of the fence."""
        return bind(self._shrink, (size, fence.epoch, fence.nonce.encode()))

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

    def payload_parts(self, wanted: PayloadRange) -> bytes:
        """Read the bytes of a range of a flush's payloads, a row for each part that has some, and the part's place."""
        position, first, end = pack_position(wanted.position), wanted.first, wanted.end
        found = f"{self._from} WHERE position = {position} AND part"
        return (
            f"SELECT part, SUBSTRING(payloads, GREATEST({first} - part, 0) + 1, {end} - GREATEST(part, {first})) "
            f"{found} >= (SELECT MAX(part) {found} BETWEEN 0 AND {first}) "
            f"AND part < {max(end, first + 1)} ORDER BY part"
        ).encode()


@dataclass(slots=True)
class PayloadRange:
    """The bytes of a flush's payloads from `first` up to `end`, which is not among them, and the places in them."""

    position: Position
    first: int
    end: int
    places: list[PayloadPlace]


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


def payload_ranges(places: Sequence[PayloadPlace]) -> list[PayloadRange]:
    """Return the bytes to read: places of a flush that are near each other are read as one."""
    ranges: list[PayloadRange] = []
    for place in sorted(places):
        end = place.offset + place.payload_bytes
        last = ranges[-1] if ranges else None
        if last is None or last.position != place.position or place.offset - last.end > JOINED_BYTES_MAX:
            ranges.append(PayloadRange(place.position, place.offset, end, [place]))
        else:
            last.end = max(last.end, end)
            last.places.append(place)
    return ranges


def decode_payloads(ranges: Sequence[PayloadRange], results: Sequence[Result]) -> dict[PayloadPlace, bytes]:
    """Decode payloads from the results of `payload_parts` of each range. One of which bytes are missing is left out."""
    payloads: dict[PayloadPlace, bytes] = {}
    for wanted, found in zip(ranges, results, strict=True):
        pieces = [(max(part, wanted.first), content) for part, content in found.rows]
        for place in wanted.places if pieces else ():
            payload = payload_at(place, pieces)
            if payload is not None:
                payloads[place] = payload
    return payloads


def _split(content: bytes, length: int) -> list[bytes]:
    """Return the content in pieces, at least one."""
    return [content[at : at + length] for at in range(0, len(content), length)] or [b""]
