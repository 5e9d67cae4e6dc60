"""Payloads of journal rows, cut at their places, and the error of a journal that lacks a part of its events.

Always true: a place that is not within its row has no payload, in every store. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import PayloadPlace
from foqs.store.port import StoreUnusable


def payload_at(place: PayloadPlace, pieces: Iterable[tuple[int, bytes]]) -> bytes | None:
    """Return the payload at a place; None: the pieces do not have all of it.

    Args:
        pieces: (start, bytes) of the payloads of its row, in order.
    """
    at, end = place.offset, place.offset + place.payload_bytes
    found: list[bytes] = []
    for start, content in pieces:
        if start <= at < start + len(content):
            found.append(content[at - start : end - start])
            at += len(found[-1])
    return b"".join(found) if at == end else None


def lacks_a_part(position: Position) -> StoreUnusable:
    """Return the error of a journal row of which a part of the events is missing."""
    epoch, flush = position
    return StoreUnusable(
        f"the journal row of epoch {epoch}, flush {flush} lacks a part; restore the shard's tables from a backup"
    )
