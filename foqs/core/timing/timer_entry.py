"""The entry of a row in the timer table.

Always true: it is a function of the row alone, so a flush that knows a row before and
after knows what to change. Knows nothing of stores.
"""

from __future__ import annotations

from typing import TypeAlias

from foqs.core.items.item import Row, State

TimerEntry: TypeAlias = tuple[int, int]
"""(due_ms, number)."""


def timer_entry(row: Row) -> TimerEntry | None:
    """Return the entry of this row; None if nothing is due, or if its lease ends: the owner remembers that."""
    due_ms = row.due_ms
    return None if due_ms is None or row.state is State.LEASED else (due_ms, row.id)
