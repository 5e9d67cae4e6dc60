"""Whether a change surely held for a time, by its stamps and those of others that may have undone it.

Always true: it says yes only where every order of events within the stamps says
yes. A change that ended unknown may take effect at any later moment until the
history is healed, and never afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.support.history import Call, CallEnd, Stamp

SPREAD_MS: Final = 50.0
"""A change of the catalog holds on every host so much later, where all of them reach it."""


def certainly_held(
    change: Call,
    others: Iterable[Call],
    since: Stamp,
    until: Stamp,
    healed: Stamp | None = None,
    spread_ms: float = SPREAD_MS,
) -> bool:
    """It held all the time from `since` to `until`: none of the others may have undone it."""
    if change.end is not CallEnd.OK or change.returned is None or since.at_ms < change.returned.at_ms + spread_ms:
        return False
    return not any(_may_follow(other, change, healed) and not until.before(other.invoked) for other in others)


def _may_follow(other: Call, change: Call, healed: Stamp | None) -> bool:
    """It may take effect after the change did."""
    if other is change or other.end is CallEnd.FAILED:
        return False
    if other.end is CallEnd.UNKNOWN:
        return healed is None or not (other.invoked.before(healed) and healed.before(change.invoked))
    return other.returned is None or not other.returned.before(change.invoked)
