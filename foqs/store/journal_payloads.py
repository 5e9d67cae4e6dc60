"""Payloads of a journal row, cut at their places, and the errors of a journal that lacks a part.

Always true: a place that is not within its row is damage, in every store. Pure.
"""

from __future__ import annotations

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import PayloadPlace
from foqs.store.port import StoreUnusable


def payload_at(place: PayloadPlace, content: bytes, start: int = 0) -> bytes:
    """Return the payload at a place. `content` has the payloads of its row from the byte `start` on.

    Raises:
        StoreUnusable: the place is not within `content`.
    """
    first, end = place.offset - start, place.offset - start + place.payload_bytes
    if first < 0 or end > len(content):
        raise lacks_a_part(place.position)
    return content[first:end]


def lacks_a_part(position: Position) -> StoreUnusable:
    """Return the error of a journal row of which a part is missing."""
    epoch, flush = position
    return StoreUnusable(
        f"the journal row of epoch {epoch}, flush {flush} lacks a part; restore the shard's tables from a backup"
    )
