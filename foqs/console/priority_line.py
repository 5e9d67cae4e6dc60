"""The priority line of a topic: its ready items by priority, and by how long they have been waiting.

Always true: a topic with few ready items is read whole; of a larger one the best items
are read, and the counts say so. An item waits from its deliver-after time; the pages of
items say only when it was enqueued, so the wait of an item that was deferred or delivered
before is shown as its age. Makes no call by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from foqs.console.due_calendar import Count

SCANNED_ITEMS_MAX: Final = 2_000
PAGE_ITEMS: Final = 1_000
PRIORITIES_SHOWN_MAX: Final = 20
AGES: Final = (
    (1_000, "less than 1s"),
    (10_000, "1s to 10s"),
    (60_000, "10s to 1m"),
    (600_000, "1m to 10m"),
    (3_600_000, "10m to 1h"),
    (86_400_000, "1h to 1d"),
)
"""The upper bounds of the ages in milliseconds, and their names."""
OLDEST: Final = "more than 1d"


class ReadyItem(NamedTuple):
    """A ready item: its priority, and the time for which it has been waiting."""

    priority: int
    age_ms: int


ReadPage: TypeAlias = Callable[[str | None, int], Awaitable[tuple[list[ReadyItem], str | None]]]
"""Returns at most this number of ready items after a cursor, best first, and the cursor after them."""


@dataclass(slots=True, frozen=True)
class PriorityLine:
    """The ready items of a topic.

    Attributes:
        priorities: each of the best priorities with its items.
        rest: the items of all other priorities.
        ages: the items by age.
        is_whole: all were read; else only the best ones.
    """

    priorities: Sequence[tuple[int, Count]]
    rest: Count
    ages: Sequence[tuple[str, Count]]
    is_whole: bool


async def read_priority_line(read: ReadPage, ready: int) -> PriorityLine:
    """Read the priority line of a topic.

    Args:
        ready: the ready items, as they are counted.
    """
    items: list[ReadyItem] = []
    cursor: str | None = None
    while True:
        found, cursor = await read(cursor, PAGE_ITEMS)
        items += found
        if cursor is None or len(items) >= SCANNED_ITEMS_MAX:
            return make_priority_line(items, ready, is_whole=cursor is None)


def make_priority_line(items: Sequence[ReadyItem], ready: int, *, is_whole: bool) -> PriorityLine:
    """Return the priority line of these items, the best ones of `ready`."""
    by_priority: dict[int, int] = {}
    by_age = dict.fromkeys([*(name for _, name in AGES), OLDEST], 0)
    for item in items:
        by_priority[item.priority] = by_priority.get(item.priority, 0) + 1
        by_age[next((name for bound, name in AGES if item.age_ms < bound), OLDEST)] += 1
    sign = "" if is_whole else "≥"
    shown = sorted(by_priority.items())[:PRIORITIES_SHOWN_MAX]
    # Items come by priority, so only the last of them may have more.
    counts = [(priority, Count(count)) for priority, count in shown]
    if not is_whole and counts and len(shown) == len(by_priority):
        counts[-1] = (counts[-1][0], Count(counts[-1][1].items, "≥"))
    rest = sum(by_priority.values()) - sum(count for _, count in shown)
    if not is_whole:
        rest = max(rest, ready - sum(count for _, count in shown))
    return PriorityLine(
        counts,
        Count(rest, "" if is_whole else "~"),
        [(name, Count(count, sign)) for name, count in by_age.items()],
        is_whole,
    )
