"""How well the order of sending was kept, from anybody's records.

Holds `measure_order` and `OrderMeasures`. The definitions are those of the paper on
BlueDove Queuing Service (BDQS), section V. They need what was sent and what consumers
received, nothing of a host: the order meter of a host measures something else, which
items a delivery passed over.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OrderMeasures:
    """How far what was received is from what was sent.

    Rates are from 0 to 1. The two measures of order count the first receipt of each
    received item, and leave out items that were never received: duplicates and losses
    have numbers of their own.
    """

    received: int
    """Different items that were received."""
    duplicates: int
    """Receipts after the first one of an item."""
    lost: int
    """Sent items that were never received."""
    out_of_order_rate: float
    """The smallest share of the received items that must move to give the order of sending."""
    mean_displacement: float
    """How many places an item is from its place in the order of sending, as a mean over the received items."""


def measure_order(sent: Iterable[Hashable], received: Iterable[Hashable]) -> OrderMeasures:
    """Compare the order of receipts with the order of sending.

    Args:
        sent: the items in their right order, each once: their ids, payloads or numbers.
        received: the same values in the order in which consumers received them, as often as they did.

    Raises:
        ValueError: a value was sent twice, or received and never sent.
    """
    place_of: dict[Hashable, int] = {}
    for place, item in enumerate(sent):
        if place_of.setdefault(item, place) != place:
            raise ValueError(f"sent: {item!r} is there twice; give each item a value of its own")
    receipts = 0
    places: dict[int, None] = {}
    for item in received:
        if item not in place_of:
            raise ValueError(f"received: {item!r} is not in sent; give all items that were sent")
        receipts += 1
        places.setdefault(place_of[item])
    order = list(places)
    right_place = {place: rank for rank, place in enumerate(sorted(order))}
    """Where each would be if the lost ones were left out."""
    moved = sum(abs(right_place[place] - received_as) for received_as, place in enumerate(order))
    count = len(order)
    return OrderMeasures(
        received=count,
        duplicates=receipts - count,
        lost=len(place_of) - count,
        out_of_order_rate=(count - _longest_increasing(order)) / count if count else 0.0,
        mean_displacement=moved / count if count else 0.0,
    )


def _longest_increasing(order: list[int]) -> int:
    """Return the length of the longest increasing subsequence: these items need not move."""
    ends: list[int] = []
    """At n, the smallest end of an increasing subsequence of n + 1 places."""
    for place in order:
        length = bisect_left(ends, place)
        ends[length : length + 1] = [place]
    return len(ends)
