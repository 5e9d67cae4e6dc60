"""What one flush does: pure judgement of its events and inserts.

A flush takes each id once at most. `judge_flush` is run by the
store on the rows it read, together with those that the writer remembers,
possibly in another thread; it touches nothing but its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foqs.core.item import NewItem, Row
from foqs.core.life import Event, Fate, Kind, Moment, Verdict, admit, judge
from foqs.core.timers import Timers


@dataclass(slots=True)
class Decision:
    """What a flush decided: verdicts in the order of its events, rows in the order of its inserts."""

    verdicts: list[Verdict]
    inserted: list[Row]


def rows_to_read(events: Sequence[Event]) -> tuple[list[int], list[int]]:
    """The ids whose rows the events need: (without payload, with payload)."""
    loaded = [event.id for event in events if event.kind is Kind.HAND_OUT]
    touched = [event.id for event in events if event.kind is not Kind.HAND_OUT]
    return touched, loaded


def judge_flush(
    events: Sequence[Event],
    inserts: Sequence[tuple[int, NewItem]],
    rows: Mapping[int, Row],
    moment: Moment,
    timers: Timers,
) -> Decision:
    """Judges every event by the row it finds and admits every (number, item)."""
    verdicts = [judge(event, rows.get(event.id), moment) for event in events]
    inserted = [admit(item, number, moment.now_ms) for number, item in inserts]
    for verdict in verdicts:
        if verdict.fate is Fate.CHANGED and verdict.row is not None and verdict.row.due_ms is not None:
            verdict.row.due_ms = timers.lift(verdict.row.due_ms)
    for row in inserted:
        if row.due_ms is not None:
            row.due_ms = timers.lift(row.due_ms)
    return Decision(verdicts, inserted)
