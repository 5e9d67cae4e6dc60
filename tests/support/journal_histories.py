"""Random histories of a shard with a journal, judged after every statement.

A history has callers, an owner and a database. The callers' truth is what a table would
hold that is written through. The owner dies, its database fails over to a copy without
the last flushes, statements arrive late, rows are refused, and reads that began long ago
end. `play` returns the first difference, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple, TypeAlias

from foqs.core.items.item import State
from tests.support.journal_callers import TOPICS, Callers, Truth
from tests.support.journal_scans import TimerScan
from tests.support.plain_journal import PlainOwner, PlainRead, Wanted
from tests.support.plain_journal_tables import Fenced, Flush, OwnerRow, Refused, Tables, Value, timer_entry

EVERYTHING: Final = 1 << 30
"""The boundary of a window if the table has no other READY item of the topic."""
_REFILL_ROWS: Final = 3


class Differs(Exception):
    """Rows, journal, memory and truth differ. The text says where."""


@dataclass(slots=True)
class Window:
    """The best READY keys of a topic: all that are at or below the boundary."""

    boundary: int = -1
    order_keys: set[int] = field(default_factory=set)


class PageRead(NamedTuple):
    """A page of READY keys that was read above a boundary, and is not merged yet."""

    topic: str
    after: int
    read: PlainRead
    page: list[int]
    is_last: bool


Counts: TypeAlias = dict[tuple[str, State], int]
"""Items by topic and state."""


@dataclass(slots=True)
class Count:
    """A count that is under way: the rows of its moment, what they lacked then, and the changes since."""

    rows: Mapping[int, Value]
    markers: Mapping[str, int]
    difference: Counts
    changes: Counts = field(default_factory=dict)


class History:
    """One history: `run` plays it and raises `Differs`."""

    def __init__(self, seed: int, owner_type: type[PlainOwner]) -> None:
        self.random = Random(seed)
        self.owner_type = owner_type
        self.patience = self.random.randint(1, 6)
        self.tables = Tables()
        self.truth = Truth()
        self.copies: list[tuple[Tables, Truth]] = [(self.tables, self.truth)]
        self.late: list[Flush] = []
        self.callers = Callers(self.random)
        self.epoch = 0
        self.scanned_ms = -1
        self.scan: TimerScan | None = None
        self.owner: PlainOwner
        self.windows: dict[str, Window] = {}
        self.page_read: PageRead | None = None
        self.count: Count | None = None
        self.take_over()

    def run(self) -> None:
        for _ in range(self.random.randint(3, 40)):
            self._step()

    def _step(self) -> None:
        chance = self.random.random
        self.callers.now_ms += self.random.randint(0, 3)
        self._read_something()
        self._write(self._wanted())
        self._deliver_late()
        if chance() < 0.06:
            self.fail_over()
        elif chance() < 0.08:
            self.take_over()

    # ------------------------------------------------------------ ownership

    def take_over(self) -> None:
        """The owner dies, or is replaced. The next one finds what is committed."""
        self.epoch += 1
        self.tables = self.tables.copy()
        self.tables.owner = OwnerRow(self.epoch, 0, self.tables.owner.floor, 0)
        self.owner = self.owner_type(self.tables, self.patience)
        self.scanned_ms, self.scan = -1, None
        self.windows = {topic: Window() for topic in TOPICS}
        self.page_read = None
        self.count = None
        self.check()

    def fail_over(self) -> None:
        """The server is replaced by a copy that may lack the last flushes. The owner does not know it."""
        newest = self.tables
        self.tables, truth = self.random.choice(self.copies)
        if self.tables.owner.flush < newest.owner.flush and self._accepts_next():
            raise Differs(f"a copy without flush {self.owner.flush} accepts the next one")
        self.truth = truth
        self.copies = [(self.tables, self.truth)]
        self.late.clear()
        self.take_over()

    def _accepts_next(self) -> bool:
        """Return whether the database accepts the owner's next flush."""
        try:
            return self._execute(self.owner.plan(self._wanted()), is_behind_allowed=True)
        except Refused:
            return False

    # -------------------------------------------------------------- writing

    def _write(self, wanted: Wanted) -> None:
        while True:
            flush = self.owner.plan(wanted)
            if flush.floor < self.tables.owner.floor:
                raise Differs(f"the floor falls to {flush.floor}")
            try:
                is_written = self._attempt(flush, wanted)
            except Refused as refused:
                self.owner.refused[refused.number] = self.owner.refused.get(refused.number, 0)
                continue
            break
        if not is_written:
            self.scan = None  # the next one begins where the last complete one ended
            return
        for number in self.owner.refused:
            self.owner.refused[number] += 1
        self._after_commit(flush)

    def _attempt(self, flush: Flush, wanted: Wanted) -> bool:
        """Run one attempt. Returns whether it is committed; if not, its callers get an error that says so."""
        luck = self.random.random()
        if luck < 0.04:  # the connection is lost before the statements arrive
            self._on_unknown(flush)
            return False
        before = self.tables
        is_written = self._execute(flush)
        if not is_written:
            raise Differs("the owner is fenced, and has no successor")
        if luck < 0.08 and not self.owner.commits_with_statements:  # lost before COMMIT was sent
            self.tables = before
            self._on_unknown(flush)
            return False
        self.truth = self.truth.after(wanted)
        self.copies = [*self.copies[-3:], (self.tables, self.truth)]
        self.owner.apply(flush, self.tables)
        return True

    def _on_unknown(self, flush: Flush) -> None:
        """The owner row says that the flush is not committed. Its statements may still arrive."""
        self.late.append(flush)
        self._resolve()

    def _resolve(self) -> None:
        """Raise the attempt in the owner row if COMMIT travels with the statements."""
        if self.owner.commits_with_statements:
            self.tables = self.tables.copy()
            self.raise_attempt()

    def raise_attempt(self) -> None:
        row = self.tables.owner
        self.tables.owner = OwnerRow(row.epoch, row.flush, row.floor, row.attempt + 1)
        self.owner.attempt = row.attempt + 1

    def _deliver_late(self) -> None:
        """Statements of a lost connection arrive. Without a COMMIT behind them, the server rolls them back."""
        if self.late and self.random.random() < 0.6:
            flush = self.late.pop(0)
            before = self.tables
            try:
                self._execute(flush, is_behind_allowed=True)
            except Refused:
                return
            if not self.owner.commits_with_statements:
                self.tables = before
            if self.tables is not before:
                raise Differs(f"flush {flush.position} was written, although its callers got an error")

    def _execute(self, flush: Flush, *, is_behind_allowed: bool = False) -> bool:
        """Run the statements of a flush, and COMMIT. Returns whether the fence matched.

        The next owner may come after each statement. Before COMMIT it finds what was committed before.
        """
        working = self.tables.copy()
        try:
            for statement in flush.statements(self.owner.fence, self.callers.refused):
                statement(working)
                self.check_found(self.tables, is_behind_allowed=is_behind_allowed)
        except Fenced:
            return False
        self.tables = working
        return True

    def _after_commit(self, flush: Flush) -> None:
        for old, new in flush.changed.values():
            self._change_window(old, new)
            if self.count is not None:
                _add(self.count.changes, old, -1)
                _add(self.count.changes, new, 1)
        for topic in flush.markers_set:
            self.windows[topic] = Window(EVERYTHING)
            if self.page_read is not None and self.page_read.topic == topic:
                self.page_read = None
            self.count = None
        if self.scan is not None and self.scan.is_over:
            self._end_scan(self.scan)
        self.check()

    def _wanted(self) -> Wanted:
        return self.callers.wanted(self.truth, self._due(), self.owner.refused)

    # --------------------------------------------------------------- reads

    def _due(self) -> list[int]:
        """Return what the next flush applies: a page of a scan, and the leases that have ended."""
        now_ms, items = self.callers.now_ms, self.truth.items
        due = {number for number, value in items.items() if value.due_ms is not None and value.due_ms <= now_ms}
        leased = {number for number in due if items[number].state is State.LEASED}
        if self.scan is None:
            self.scan = TimerScan(self.scanned_ms, now_ms)
        found = self.scan.page(self.owner)
        if not found <= due - leased:
            raise Differs(f"a scan finds {sorted(found)}, and due are {sorted(due - leased)}")
        return sorted(found | leased)

    def _end_scan(self, scan: TimerScan) -> None:
        """What a scan found is committed. Nothing may be due that it passed."""
        entries = [entry for number, value in self.truth.items.items() if (entry := timer_entry(number, value))]
        missed = [number for due_ms, number in entries if due_ms <= scan.now_ms]
        if missed:
            raise Differs(f"a scan up to {scan.now_ms} does not find {missed}")
        self.scanned_ms, self.scan = scan.now_ms, None

    def _read_something(self) -> None:
        random = self.random
        if random.random() < 0.2:
            window = self.windows[random.choice(TOPICS)]
            if window.order_keys:
                window.boundary = random.choice(sorted(window.order_keys))
                window.order_keys = {key for key in window.order_keys if key <= window.boundary}
                self.page_read = None  # there is a gap that was not read
        if self.page_read is None and random.random() < 0.5:
            self._begin_page(random.choice(TOPICS))
        elif self.page_read is not None and random.random() < 0.4:
            self._merge_page(self.page_read)
            self.page_read = None
        if self.count is None:
            self._begin_count()
        elif random.random() < 0.3:
            self._end_count(self.count)
            self.count = None

    def _begin_page(self, topic: str) -> None:
        after = self.windows[topic].boundary
        if after == EVERYTHING:
            return
        read = self.owner.begin_read()
        keys = sorted(
            (row.order_key, number)
            for number, row in read.rows.items()
            if row.topic == topic
            and row.state is State.READY
            and row.order_key > after
            and not self.owner.covers(number, topic)
        )
        page = keys[:_REFILL_ROWS]
        read.rows = {number: read.rows[number] for _, number in page}
        self.page_read = PageRead(topic, after, read, [key for key, _ in page], len(page) < _REFILL_ROWS)

    def _merge_page(self, page: PageRead) -> None:
        window = self.windows[page.topic]
        last = EVERYTHING if page.is_last else page.page[-1]
        for value in page.read.merged(self.owner).values():
            if value.topic == page.topic and value.state is State.READY and page.after < value.order_key <= last:
                window.order_keys.add(value.order_key)
        window.boundary = last
        self.owner.reads.remove(page.read)

    def _change_window(self, old: Value | None, new: Value | None) -> None:
        if old is not None and old.state is State.READY:
            self.windows[old.topic].order_keys.discard(old.order_key)
        if new is not None and new.state is State.READY and new.order_key <= self.windows[new.topic].boundary:
            self.windows[new.topic].order_keys.add(new.order_key)

    def _begin_count(self) -> None:
        """Count in a snapshot that begins between two flushes, and note what its rows lack then."""
        self.count = Count(self.tables.rows, dict(self.owner.markers), self.owner.count_difference())

    def _end_count(self, count: Count) -> None:
        counts: Counts = {}
        for number, row in self.rows_to_count(count).items():
            if number > count.markers.get(row.topic, 0):
                _add(counts, row, 1)
        for changes in (count.difference, count.changes):
            for place, times in changes.items():
                counts[place] = counts.get(place, 0) + times
        true: Counts = {}
        for value in self.truth.items.values():
            _add(true, value, 1)
        self._same("the counts", {place: times for place, times in counts.items() if times}, true)

    def rows_to_count(self, count: Count) -> Mapping[int, Value]:
        return count.rows

    # ---------------------------------------------------------------- judge

    def check(self) -> None:
        """Compare the owner's memory and what the next owner would find with the truth."""
        owner = self.owner
        self._same("the owner's memory", owner.items(), self.truth.items)
        self.check_found(self.tables)
        for topic, window in self.windows.items():
            ready = {
                value.order_key
                for value in self.truth.items.values()
                if value.topic == topic and value.state is State.READY and value.order_key <= window.boundary
            }
            self._same(f"the window of {topic}", window.order_keys, ready)
        late = [n for n, each in owner.dirty.items() if each.first < (owner.epoch, owner.flush - owner.patience)]
        if owner.flush and late:
            raise Differs(f"the journal is not trimmed: {late} are dirty for more than {owner.patience} flushes")

    def check_found(self, tables: Tables, *, is_behind_allowed: bool = False) -> None:
        """Compare what an owner finds that comes now with the truth, and with what the present owner remembers."""
        if is_behind_allowed or tables is self.checked:
            return
        found = self.owner_type(tables, self.patience)
        self._same("what the next owner finds", found.items(), self.truth.items)
        self._same("what the next owner remembers as dirty", found.dirty_items(), self.owner.dirty_items())
        self._same("the keys", tables.keys, self.truth.keys)
        true = {entry for number, value in self.truth.items.items() if (entry := timer_entry(number, value))}
        self._same("what the next owner finds due", found.timers(), true)
        entries = {entry for number, row in tables.rows.items() if (entry := timer_entry(number, row))}
        self._same("the timer table", tables.timers, entries)
        self.checked = tables

    checked: Tables | None = None
    """The tables that were compared last: what is committed never changes."""

    def _same(self, what: str, found: object, true: object) -> None:
        if found != true:
            raise Differs(f"{what}: {found}, instead of {true}")


def _add(counts: Counts, value: Value | None, times: int) -> None:
    if value is not None:
        place = value.topic, value.state
        counts[place] = counts.get(place, 0) + times


def play(seed: int, owner_type: type[PlainOwner] = PlainOwner, history_type: type[History] = History) -> str | None:
    """Play one history. Returns the first difference, or None."""
    try:
        history_type(seed, owner_type).run()
    except (Differs, ValueError) as difference:
        return f"seed {seed}: {difference}"
    return None
