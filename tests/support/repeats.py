"""The causes of repeated deliveries, and the changes of a shard's owner, from a history.

Always true: a repeated delivery has one cause, the first that fits. An owner is known
by the epoch in its ids. Does not judge; the checker does.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from foqs.core.items.item import parse_id, split_number
from tests.support import clock_bounds
from tests.support.clock_bounds import ClockBounds
from tests.support.history import CallEnd
from tests.support.item_histories import DeliveryReceipt, ItemHistories, ItemHistory

NO_CAUSE = "no cause"


def repeats(book: ItemHistories, bounds: ClockBounds) -> Counter[str]:
    """By cause, how many deliveries were not the first of their item."""
    return Counter(_cause(case, first, second, bounds) for case in book for first, second in pairwise(case.receipts))


def _cause(case: ItemHistory, first: DeliveryReceipt, second: DeliveryReceipt, bounds: ClockBounds) -> str:
    for op in ("nack", "release"):
        if case.possible_operations(op, token=first.token):
            return op
    if second.received.at_ms < clock_bounds.earliest_lease_end_ms(case, first, bounds):
        return NO_CAUSE
    acks = [entry for entry in case.ops["ack"] if entry.requested["token"] == first.token]
    if any(entry.end is CallEnd.UNKNOWN for entry in acks):
        return "lease end, ack unknown"
    return "lease end, ack refused" if acks else "lease end"


def acked_twice(book: ItemHistories) -> list[str]:
    """Return the timelines of items whose ack succeeded for two consumers."""
    return [
        "\n".join(case.timeline())
        for case in book
        if sum(not entry.result.get("already_gone") for entry in case.acknowledged_operations("ack")) > 1
    ]


@dataclass(slots=True, frozen=True)
class OwnerChange:
    """A shard's owner, by epoch, and the next one, as callers of enqueue saw them.

    Attributes:
        gap_ms: from the begin of the last call that the old owner accepted to the first reply of
            the new one; below 0: both accepted calls at once.
    """

    shard: int
    gap_ms: float


def owner_changes(book: ItemHistories) -> list[OwnerChange]:
    """Each change of owner between two acknowledged enqueues of a shard.

    An id names the owner that accepted its item. For the old owner the begin of a call
    counts: its reply may have come from the new owner, which knew the key.
    """
    begun: dict[tuple[int, int], float] = {}
    answered: dict[tuple[int, int], float] = {}
    for case in book:
        shard, number = parse_id(case.id, "id")
        owner = shard, split_number(number)[0]
        for entry in case.enqueued:
            if entry.returned is not None:
                begun[owner] = max(begun.get(owner, 0.0), entry.invoked.at_ms)
                answered[owner] = min(answered.get(owner, float("inf")), entry.returned.at_ms)
    owners = pairwise(sorted(begun))
    return [OwnerChange(old[0], answered[new] - begun[old]) for old, new in owners if old[0] == new[0]]
