"""Computes how many consumers a topic needs, so that its items do not wait longer than a target.

Holds `wanted_consumers`. Pure. It sees one moment and keeps no state, so each host gives
the same answer. docs/design/scaling.md derives it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

HOLD_RATE: Final = 1 / 600
"""Items per second above which a topic without items wants one consumer, so that the next item need not wait for it."""


@dataclass(slots=True, frozen=True)
class TopicWork:
    """The work of a topic now.

    Attributes:
        ready, leased: the numbers of its items in these states.
        ready_per_s: its ready rate.
        deliverable: its READY items that no group holds back; None: all.
    """

    ready: int
    leased: int
    ready_per_s: float
    deliverable: int | None = None


@dataclass(slots=True, frozen=True)
class ScaleTarget:
    """The speed of one consumer, and the longest wait of an item to aim for.

    Attributes:
        items_per_s: the items that one consumer finishes in a second.
        age_s: the longest time that an item should wait.
        in_flight: the items that one consumer holds at a time; 0 if unknown.
    """

    items_per_s: float
    age_s: float
    in_flight: int = 0


def wanted_consumers(work: TopicWork, target: ScaleTarget) -> int:
    """Return the number of consumers that the topic needs now."""
    if not work.ready and not work.leased:
        return int(work.ready_per_s > HOLD_RATE)
    # As many as keep up with what comes, and those that bring the backlog to half of what may wait.
    surplus = work.ready - work.ready_per_s * target.age_s / 2
    needed_per_s = work.ready_per_s + surplus / target.age_s
    # A burst looks like a high rate. But a consumer without an item is of no use.
    deliverable = work.ready if work.deliverable is None else work.deliverable
    wanted = min(ceil(needed_per_s / target.items_per_s), deliverable + work.leased)
    busy = ceil(work.leased / target.in_flight) if target.in_flight else 0
    return max(1, wanted, busy)
