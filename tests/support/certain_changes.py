"""Decides whether a change was certainly in effect for a time, from its stamps and those of other changes.

Always true: the answer is yes only if it is yes in every order of events that
the stamps allow. A change of unknown outcome may take effect at any later moment
until `healed`, and not afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tests.support.history import Call, CallEnd, Stamp

SPREAD_MS: Final = 50.0
"""The time until a change of the catalog is in effect on every host, if all of them reach it."""


def certainly_held(
    change: Call,
    others: Iterable[Call],
    since: Stamp,
    until: Stamp,
    healed: Stamp | None = None,
    spread_ms: float = SPREAD_MS,
) -> bool:
    """Whether the change was in effect all the time from `since` to `until`, and none of the others can have undone it."""
    if change.end is not CallEnd.OK or change.returned is None or since.at_ms < change.returned.at_ms + spread_ms:
        return False
    return not any(_may_follow(other, change, healed) and not until.before(other.invoked) for other in others)


def _may_follow(other: Call, change: Call, healed: Stamp | None) -> bool:
    """Whether the other change may have taken effect after this one."""
    if other is change or other.end is CallEnd.FAILED:
        return False
    if other.end is CallEnd.UNKNOWN:
        return healed is None or not (other.invoked.before(healed) and healed.before(change.invoked))
    return other.returned is None or not other.returned.before(change.invoked)
