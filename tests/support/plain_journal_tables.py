"""What a shard's tables hold beside a journal, and one flush as a list of statements: the specification.

It is plain: an item is a `Value`, a table is a dict. Always true: a timer entry is written with
its row. docs/design/journal.md explains the rules, `plain_journal` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, TypeAlias

from foqs.core.items.item import State

Position: TypeAlias = tuple[int, int]
"""(epoch, flush): the place of a journal row."""

FIRST_POSITION: Position = (0, 0)


class Value(NamedTuple):
    """An item, as its row holds it. `payload` is None in an event that changes an item."""

    topic: str
    order_key: int
    state: State
    due_ms: int | None
    token: int
    payload: str | None


class Added(NamedTuple):
    """The item has no row. The event holds all of it."""

    number: int
    value: Value


class Changed(NamedTuple):
    """The item has this value now; None: it is gone. `base` is its row, if the row was current until this event."""

    number: int
    value: Value | None
    base: Value | None = None


class RowCurrent(NamedTuple):
    """The row was written or deleted in this flush: the events up to here are over."""

    number: int


JournalEvent: TypeAlias = Added | Changed | RowCurrent


class Fenced(Exception):
    """The owner row shows another owner or another flush. Nothing was written."""


class Refused(Exception):
    """The database does not accept the row of this number. Nothing was written."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass(slots=True)
class OwnerRow:
    """`floor`: journal rows below it are over. `attempt` is used only if COMMIT travels with the statements."""

    epoch: int = 0
    flush: int = 0
    floor: Position = FIRST_POSITION
    attempt: int = 0


@dataclass(slots=True)
class Tables:
    """What the database has committed."""

    owner: OwnerRow = field(default_factory=OwnerRow)
    rows: dict[int, Value] = field(default_factory=dict)
    timers: set[tuple[int, int]] = field(default_factory=set)
    journal: dict[Position, list[JournalEvent]] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    markers: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Tables:
        return Tables(
            replace(self.owner),
            dict(self.rows),
            set(self.timers),
            dict(self.journal),
            dict(self.keys),
            dict(self.markers),
        )

    def covers(self, number: int, topic: str) -> bool:
        """Return whether a purge marker covers this item."""
        return number <= self.markers.get(topic, 0)


Statement: TypeAlias = Callable[[Tables], None]


def timer_entry(number: int, value: Value | None) -> tuple[int, int] | None:
    """Return the entry of the timer table for a row; None if it has none."""
    if value is None or value.due_ms is None or value.state is State.LEASED:
        return None
    return value.due_ms, number


@dataclass(slots=True)
class Dirty:
    """An item whose row is not current: young (`base` None: there is no row) or changed.

    `first` is the place of its first event since the row was current. `value` None: the item is gone.
    """

    first: Position
    base: Value | None
    value: Value | None


@dataclass(slots=True)
class Flush:
    """One transaction."""

    position: Position
    attempt: int
    floor: Position = FIRST_POSITION
    events: list[JournalEvent] = field(default_factory=list)
    row_changes: dict[int, tuple[Value | None, Value | None]] = field(default_factory=dict)
    """The row before and after, of each row that is written or deleted."""
    keys: dict[str, int] = field(default_factory=dict)
    markers_set: dict[str, int] = field(default_factory=dict)
    markers_cleared: list[str] = field(default_factory=list)
    trimmed: list[Position] = field(default_factory=list)
    dirty_after: dict[int, Dirty] = field(default_factory=dict)
    changed: dict[int, tuple[Value | None, Value | None]] = field(default_factory=dict)
    """The item before and after, of each item that a caller or the time changed."""

    def statements(self, fence: Callable[[Flush, Tables], None], refused: Collection[int]) -> Iterator[Statement]:
        """Yield the statements in their order. COMMIT is not one of them."""
        yield lambda tables: fence(self, tables)
        yield lambda tables: tables.journal.update({self.position: self.events})
        for number, (old, new) in self.row_changes.items():
            yield partial(_write_row, number=number, old=old, new=new, refused=refused)
        yield lambda tables: tables.keys.update(self.keys)
        yield self._write_markers
        yield self._trim

    def _write_markers(self, tables: Tables) -> None:
        for topic in self.markers_cleared:
            tables.markers.pop(topic, None)
        tables.markers.update(self.markers_set)

    def _trim(self, tables: Tables) -> None:
        for position in self.trimmed:
            tables.journal.pop(position, None)


def _write_row(tables: Tables, number: int, old: Value | None, new: Value | None, refused: Collection[int]) -> None:
    if new is not None and number in refused:
        raise Refused(number)
    if new is None:
        tables.rows.pop(number, None)
    else:
        tables.rows[number] = new
    former = timer_entry(number, old)
    if former is not None:
        tables.timers.discard(former)
    entry = timer_entry(number, new)
    if entry is not None:
        tables.timers.add(entry)
