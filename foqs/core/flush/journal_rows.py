"""The journal as a store sees it: rows of bytes, each at the position of its flush.

Always true: a flush has at most one row; positions rise; only a prefix is ever trimmed, and never
the newest row, unless the journal is emptied. So the newest row's floor says where a replay
begins. A store knows positions and bytes, never events. At position (0, 0) there may be a reserve: bytes
without a meaning, which are no row of any flush, and go when the disk is full. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from foqs.core.flush.fence import Position
from foqs.core.items.item import SEQUENCE_BITS, split_number


class JournalRow(NamedTuple):
    """The journal row of one flush.

    Attributes:
        events: the bytes of its events; not empty.
        payloads: the payloads of its new items. They are read as if they were joined.
        floor: no replay needs the rows below it, whether they are trimmed yet or not. At most the flush's own position.
    """

    events: bytes
    payloads: Sequence[bytes]
    floor: Position


class JournalRange(NamedTuple):
    """The positions from `first` up to `end`, which is not among them."""

    first: Position
    end: Position


class PositionedEvents(NamedTuple):
    """The events of a journal row, and its position."""

    position: Position
    events: bytes


class PayloadPlace(NamedTuple):
    """The place of a payload in the journal: an offset among the payloads of a flush."""

    position: Position
    offset: int
    payload_bytes: int


def pack_position(position: Position) -> int:
    """Return a position as one integer, in the same order. It is the token of the leases of that flush."""
    epoch, flush = position
    return epoch << SEQUENCE_BITS | flush


def unpack_position(number: int) -> Position:
    """Return the position of an integer that `pack_position` returned."""
    return split_number(number)


def check_journal_writes(position: Position, row: JournalRow | None, trimmed: JournalRange | None) -> None:
    """Assert what is always true of the journal's part of a flush.

    A flush that trims writes a row, which stays. Without a row it empties the journal: it trims all before itself.
    """
    if row is not None:
        assert row.events, "a journal row has events: without them it looks like a missing one"
        assert row.floor <= position, f"the floor {row.floor} is above the flush {position}"
    if trimmed is not None:
        end = position if row is None else row.floor
        assert trimmed.first <= trimmed.end <= end, f"{trimmed} is trimmed, and the floor is {end}"
        assert row is not None or trimmed.end == end, f"{trimmed} may end below the newest row, and has no row after it"
