"""The SQL of a shard's journal on MySQL: events and payloads of flushes, in parts.

Always true: a part's key says at which byte of its row it begins, so the length of new parts may
change. Rows are ordered by kind first, so reading events passes no payload. Every range has both of
its bounds, so no statement walks over deleted rows that it does not need. Knows nothing of
connections, events or fences.
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
from foqs.store.mysql.mysql_driver import Result
from foqs.store.mysql.mysql_protocol import BoundStatement
from foqs.store.mysql.mysql_values import BOUND_OVERHEAD_BYTES, bind, bind_in_bulk
from foqs.store.port import StoreUnusable

EVENTS_PART_BYTES: Final = 64 << 10
PAYLOADS_PART_BYTES: Final = 1 << 20
"""The lengths of parts. A server with a smaller max_allowed_packet gets shorter ones."""
_PART_OVERHEAD_BYTES: Final = 64
"""The most bytes of a part's statement besides those of the part and of its types."""
_EVENTS, _PAYLOADS = 0, 1
"""The kinds."""


class JournalStatements:
    """The statements of one shard's journal."""

    def __init__(self, shard: int) -> None:
        self._journal = journal = f"foqs_{shard}_journal"
        self._insert = f"INSERT INTO {journal} (kind, position, part, floor, bytes) VALUES (?, ?, ?, ?, ?)".encode()
        self._trim = f"DELETE {journal} FROM {journal} FORCE INDEX (PRIMARY)".encode()

    def add_row(
        self, position: Position, row: JournalRow, packet_bytes: int, *, can_bulk: bool
    ) -> Iterator[BoundStatement]:
        """Add the row of a flush. A position that exists is an error."""
        number, floor = pack_position(position), pack_position(row.floor)
        room = packet_bytes - BOUND_OVERHEAD_BYTES - _PART_OVERHEAD_BYTES
        parts = [
            (kind, number, at, floor, content[at : at + length])
            for kind, content, length in (
                (_EVENTS, row.events, min(EVENTS_PART_BYTES, room)),
                (_PAYLOADS, b"".join(row.payloads), min(PAYLOADS_PART_BYTES, room)),
            )
            for at in range(0, len(content), length)
        ]
        if can_bulk:
            yield from bind_in_bulk(self._insert, parts, packet_bytes)
        else:
            yield from [bind(self._insert, part) for part in parts]

    def trim_rows(self, trimmed: JournalRange) -> Iterator[bytes]:
        """Delete the rows of a range of positions."""
        first, end = pack_position(trimmed.first), pack_position(trimmed.end)
        for kind in (_EVENTS, _PAYLOADS):
            yield b"%b WHERE kind = %d AND position >= %d AND position < %d" % (self._trim, kind, first, end)

    @property
    def floor(self) -> bytes:
        """Reads the floor of the newest row."""
        return (
            f"SELECT floor FROM {self._journal} FORCE INDEX (PRIMARY) WHERE kind = {_EVENTS} "
            "ORDER BY kind DESC, position DESC, part DESC LIMIT 1"
        ).encode()

    def events(self, first: Position, parts_max: int) -> bytes:
        """Read the next parts of events at or above a position."""
        return (
            f"SELECT position, part, bytes FROM {self._journal} FORCE INDEX (PRIMARY) "
            f"WHERE kind = {_EVENTS} AND position >= {pack_position(first)} "
            f"ORDER BY kind, position, part LIMIT {parts_max}"
        ).encode()

    def events_of(self, position: Position) -> bytes:
        """Read all parts of the events of one flush."""
        return (
            f"SELECT position, part, bytes FROM {self._journal} FORCE INDEX (PRIMARY) "
            f"WHERE kind = {_EVENTS} AND position = {pack_position(position)} ORDER BY part"
        ).encode()

    def payload_parts(self, position: Position, first: int, end: int) -> bytes:
        """Read the parts of a flush's payloads that hold the bytes from `first` up to `end`, which is not among them."""
        condition = f"kind = {_PAYLOADS} AND position = {pack_position(position)}"
        return (
            f"SELECT part, bytes FROM {self._journal} FORCE INDEX (PRIMARY) WHERE {condition} "
            f"AND part >= (SELECT MAX(part) FROM {self._journal} FORCE INDEX (PRIMARY) WHERE {condition} AND part <= {first}) "
            f"AND part < {end} ORDER BY part"
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
        del rows[last]  # the next page begins with it
        if not rows:
            return [], unpack_position(last)
    return [PositionedEvents(unpack_position(number), _joined(number, parts)) for number, parts in rows.items()], None


def payload_ranges(places: Sequence[PayloadPlace]) -> dict[Position, tuple[int, int]]:
    """Return the bytes to read of each flush: from the first payload to the last."""
    ranges: dict[Position, tuple[int, int]] = {}
    for position, offset, size in places:
        first, end = ranges.get(position, (offset, offset))
        ranges[position] = (min(first, offset), max(end, offset + size))
    return ranges


def decode_payloads(places: Sequence[PayloadPlace], results: Sequence[Result]) -> dict[PayloadPlace, bytes]:
    """Decode payloads from the results of `payload_parts` of each range of `payload_ranges`, in its order."""
    contents: dict[Position, tuple[int, bytes]] = {}
    for position, found in zip(payload_ranges(places), results, strict=True):
        if found.rows:
            start = found.rows[0][0]
            parts = [(part - start, content) for part, content in found.rows]
            contents[position] = (start, _joined(pack_position(position), parts))
    payloads: dict[PayloadPlace, bytes] = {}
    for place in places:
        if place.position in contents:
            start, content = contents[place.position]
            payloads[place] = content[place.offset - start : place.offset - start + place.payload_bytes]
    return payloads


def _joined(number: int, parts: Sequence[tuple[int, bytes]]) -> bytes:
    content = b"".join([part for _, part in parts])
    at = 0
    for part, piece in parts:
        if part != at:
            raise StoreUnusable(
                f"the journal row of epoch and flush {unpack_position(number)} lacks a part; restore the shard's tables "
                "from a backup"
            )
        at += len(piece)
    return content
