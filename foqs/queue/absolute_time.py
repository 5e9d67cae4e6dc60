"""Items with an absolute time and a TTL: whether one can be delivered at all depends on what time it is.

Always true: it is judged by the time of the shard that is to take the item in,
so one that is taken in comes due before it expires. Knows nothing of calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from foqs.core.errors import FoqsError, InvalidArgument
from foqs.core.items import validation
from foqs.core.items.item import AbsoluteTimeItem, KeyedAbsoluteTimeItem, NewItem

ABSOLUTE_TIME_TYPES: Final = frozenset((AbsoluteTimeItem, KeyedAbsoluteTimeItem))


def expiry_errors(items: Sequence[NewItem], positions: Sequence[int], now_ms: int) -> dict[int, FoqsError]:
    """Why items cannot be delivered, by their places in the call: each would expire first."""
    beyond: dict[int, FoqsError] = {}
    for place, item in zip(positions, items, strict=True):
        if type(item) in ABSOLUTE_TIME_TYPES:
            assert item.ttl_ms is not None
            assert item.deliver_after_ms is not None
            try:
                validation.check_ttl_outlasts_delivery(item.ttl_ms, item.deliver_after_ms, now_ms)
            except InvalidArgument as error:
                beyond[place] = error
    return beyond
