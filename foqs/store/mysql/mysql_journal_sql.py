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
RESERVE_PART_BYTES: Final = 1 << 20
"""An extent of InnoDB, so that a part that is deleted leaves one that is free as a whole, or nearly."""
JOINED_BYTES_MAX: Final = 128
"""Payloads with at most this between them are one range: it is about what a range costs in the text of a statement."""
RANGES_OF_A_READ_MAX: Final = 256
"""The most ranges that one statement reads, which bounds its text to 25 KB."""
BYTES_OF_A_READ_MAX: Final = 512 << 10
"""The most bytes that one statement brings of several ranges. The server joins them: max_allowed_packet bounds this."""
READS_AT_ONCE: Final = 16
"""The most statements that read payloads in one packet."""
_PART_OVERHEAD_BYTES: Final = 128
"""The most bytes of a part's statement besides those of its events and payloads."""


class JournalStatements:
    """The statements of one shard's journal."""

    def __init__(self, shard: int) -> None:
        journal = f"foqs_{shard}_journal"
        self._insert = (
            f"INSERT INTO {journal} (position, part, floor, events, payloads) VALUES (?, ?, ?, ?, ?)".encode()
        )
        # Parts that are there stay, and their bytes are not made.
        self._add_reserve = (
            f"INSERT IGNORE INTO {journal} (position, part, floor, events, payloads) "
            "SELECT 0, wanted.part, 0, '', REPEAT('0', wanted.size) FROM (%b) AS wanted "
            f"LEFT JOIN {journal} AS reserve FORCE INDEX (PRIMARY) ON reserve.position = 0 AND reserve.part = wanted.part "
            "WHERE reserve.part IS NULL"
        ).encode()
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
            yield self._add_reserve % b" UNION ALL ".join([b"SELECT %d AS part, %d AS size" % part for part in parts])

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

    def payload_parts(self, wanted: PayloadRead) -> bytes:
        """Read ranges of a flush's payloads: a row for each part, with its place, its length, and what it has of them."""
        first, end = wanted.ranges[0].first, wanted.ranges[-1].end
        pieces = [
            f"SUBSTRING(payloads, GREATEST({each.first} - part, 0) + 1, "
            f"GREATEST({each.end} - GREATEST(part, {each.first}), 0))"
            for each in wanted.ranges
        ]
        joined = pieces[0] if len(pieces) == 1 else f"CONCAT({', '.join(pieces)})"
        found = f"{self._from} WHERE position = {pack_position(wanted.position)} AND part"
        return (
            f"SELECT part, LENGTH(payloads), {joined} "
            f"{found} >= (SELECT MAX(part) {found} BETWEEN 0 AND {first}) "
            f"AND part < {max(end, first + 1)} ORDER BY part"
        ).encode()


def journal_size(shard: int) -> tuple[bytes, bytes, bytes]:
    """Read how many flushes the shard's journal has, without their bytes, and about how many bytes its table takes.

    The second result has the number of flushes, and the third one the bytes. The first statement has MySQL read fresh
    statistics, which it else keeps for a day. To MariaDB the option in it is a comment.
    """
    table = f"foqs_{shard}_journal"
    return (
        b"SET @foqs_unused = 0 /*!80000 , SESSION information_schema_stats_expiry = 0 */",
        f"SELECT COUNT(DISTINCT position) FROM {table} FORCE INDEX (PRIMARY) WHERE position > 0".encode(),
        (
            "SELECT CAST(COALESCE(MAX(DATA_LENGTH), 0) AS SIGNED) FROM information_schema.TABLES "
            f"WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{table}'"
        ).encode(),
    )


@dataclass(slots=True)
class PayloadRange:
    """The bytes of a flush's payloads from `first` up to `end`, which is not among them, and the places in them."""

    first: int
    end: int
    places: list[PayloadPlace]


@dataclass(slots=True)
class PayloadRead:
    """What one statement reads of a flush's payloads: at least one range, in order, and no two of them touch."""

    position: Position
    ranges: list[PayloadRange]


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


def payload_reads(places: Sequence[PayloadPlace]) -> list[PayloadRead]:
    """Return what to read, a statement each.

    The ranges of a flush are one read, within the bounds of a read, unless they are so far from each other that
    the server would read a part of which nothing is wanted.
    """
    reads: list[PayloadRead] = []
    wanted_bytes = 0
    for position, following in _payload_ranges(places):
        read = reads[-1] if reads and reads[-1].position == position else None
        size = following.end - following.first
        if (
            read is None
            or len(read.ranges) == RANGES_OF_A_READ_MAX
            or wanted_bytes + size > BYTES_OF_A_READ_MAX
            or following.first - read.ranges[-1].end > PAYLOADS_PART_BYTES
        ):
            reads.append(PayloadRead(position, [following]))
            wanted_bytes = size
        else:
            read.ranges.append(following)
            wanted_bytes += size
    return reads


def in_packets(reads: Sequence[PayloadRead]) -> Iterator[Sequence[PayloadRead]]:
    """Yield the reads in groups whose statements fit one packet of any server."""
    for at in range(0, len(reads), READS_AT_ONCE):
        yield reads[at : at + READS_AT_ONCE]


def _payload_ranges(places: Sequence[PayloadPlace]) -> Iterator[tuple[Position, PayloadRange]]:
    """Yield the ranges to read in order, with the position of their flush. Places near each other are one range."""
    position: Position | None = None
    current: PayloadRange | None = None
    for place in sorted(places):
        end = place.offset + place.payload_bytes
        if current is not None and place.position == position and place.offset - current.end <= JOINED_BYTES_MAX:
            current.end = max(current.end, end)
            current.places.append(place)
            continue
        if current is not None and position is not None:
            yield position, current
        position, current = place.position, PayloadRange(place.offset, end, [place])
    if current is not None and position is not None:
        yield position, current


def decode_payloads(reads: Sequence[PayloadRead], results: Sequence[Result]) -> dict[PayloadPlace, bytes]:
    """Decode payloads from the results of `payload_parts` of each read. One of which bytes are missing is left out."""
    payloads: dict[PayloadPlace, bytes] = {}
    for wanted, found in zip(reads, results, strict=True):
        if not found.rows:
            continue
        for each, pieces in zip(wanted.ranges, _pieces_of(wanted, found), strict=True):
            for place in each.places:
                payload = payload_at(place, pieces)
                if payload is not None:
                    payloads[place] = payload
    return payloads


def _pieces_of(wanted: PayloadRead, found: Result) -> list[list[tuple[int, bytes]]]:
    """Return (start, bytes) of what each range has in the parts, in order."""
    pieces: list[list[tuple[int, bytes]]] = [[] for _ in wanted.ranges]
    for part, length, content in found.rows:
        at = 0
        for each, own in zip(wanted.ranges, pieces, strict=True):
            first = max(part, each.first)
            size = min(part + length, each.end) - first
            if size > 0:
                own.append((first, content[at : at + size]))
                at += size
    return pieces


def _split(content: bytes, length: int) -> list[bytes]:
    """Return the content in pieces, at least one."""
    return [content[at : at + length] for at in range(0, len(content), length)] or [b""]
