"""The distance of a received sequence from the correct one, as the BDQS paper measures it.

Holds `measure_order`. Pure.

Source: Chen, Ye, Kim, Lei, "A Scalable Cloud-based Queuing Service with Improved Consistency
Levels" (BDQS), the section on consistency metrics.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple


class DeliveryOrder(NamedTuple):
    """Two sums over a received sequence. Divide them by its length to have the measures of the paper.

    Attributes:
        out_of_order: the least number of items that must move to give the correct sequence.
        displacement: by how many places the items are away from their correct place, in all.
    """

    out_of_order: int
    displacement: int


def measure_order(places: Iterable[int]) -> DeliveryOrder:
    """Measure a received sequence without duplicates.

    Args:
        places: the place in the correct sequence, from 1, of each item in the order of receipt.

    Takes O(n log n) steps for n items, and memory for the items that are in order.
    """
    ends: list[int] = []  # ends[n]: the least place that ends a rising sequence of n + 1 items
    received = displacement = 0
    for received, place in enumerate(places, 1):
        displacement += abs(received - place)
        at = bisect_right(ends, place)
        ends[at : at + 1] = [place]
    return DeliveryOrder(received - len(ends), displacement)
