"""What the owner of a shard with a journal remembers: dirty items, the rows of the journal, and reads under way.

Always true between two flushes: rows and journal of the store, read together, are the items that this
memory lays over the rows. Changes only when a flush is known to be committed. Knows no statements.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.flush.writes import Writes
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.journal_plan import JournalPlan
from foqs.core.journal.journal_positions import JournalPositions
from foqs.core.journal.journal_status import JournalStatus
from foqs.core.journal.touched_numbers import ReadsUnderWay, TouchedNumbers, TouchedRow
from foqs.core.journal.write_back import URGENT_PERCENT, WriteBackChoice
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.refused_rows import RefusedRows
from foqs.store.port import DueRow, LeaseEnd

_GIVEN_UP_MAX: Final = 1_000
"""How many unreadable items are given up at once."""
_SUSPECTS_MAX: Final = 100
"""How many missing payloads one flush looks for."""
_TOUCHED_NUMBERS_MAX: Final = 100_000
"""The numbers that the records of all reads of a shard have together: some seconds of write-backs."""


class PlannedFlush:
    """A flush as it was planned last. It counts only when it is committed."""

    def __init__(self, journal: JournalPlan, writes: Writes, written_back: int) -> None:
        self.journal = journal
        self.writes = writes
        self.written_back = written_back
        """The number of rows that are written back."""


class JournalMemory:
    """The memory of one ownership.

    Args:
        replay_ms: the duration of the replay that made `dirty_items` and `positions`.
    """

    def __init__(
        self,
        dirty_items: DirtyItems,
        positions: JournalPositions,
        purge_markers: PurgeMarkers,
        takeover: Position,
        settings: JournalSettings,
        replay_ms: int,
    ) -> None:
        self.dirty_items = dirty_items
        self.positions = positions
        self.purge_markers = purge_markers
        self.choice = WriteBackChoice(settings.write_back_after_ms, takeover, settings.now_ms())
        self.reads = ReadsUnderWay(_TOUCHED_NUMBERS_MAX)
        self.suspects: dict[int, None] = {}
        """Young items whose payloads a read did not find: the next flush looks for them."""
        self._settings = settings
        self._now_ms = settings.now_ms
        self._last_position = takeover
        self._written_back = 0
        self._replay_ms = replay_ms
        self._note_use()

    def apply(self, planned: PlannedFlush) -> None:
        """Bring the memory up to a committed flush."""
        journal, writes = planned.journal, planned.writes
        if writes.journal_row is not None:
            events, payloads, _ = writes.journal_row
            self.positions.add_row(journal.position, len(events), sum(map(len, payloads)))
        if writes.journal_trimmed is not None:
            self.positions.on_trimmed(writes.journal_trimmed)
        self.positions.on_emptied(writes.journal_emptied)
        journal.apply_to(self.dirty_items)
        self.reads.on_committed(journal.touched)
        self.choice.on_committed(journal.position, self._now_ms())
        self._last_position = journal.position
        self._written_back += planned.written_back
        self._note_use()
        for marker in writes.purge_markers_removed:
            if marker in self.purge_markers:
                self.purge_markers.remove(marker)
        for marker in writes.purge_markers_added:
            self.purge_markers.add(marker)

    def _note_use(self) -> None:
        self._settings.budget.set_use(self, self.dirty_items.memory_bytes)

    def release(self) -> None:
        """Give the memory back to the host: this ownership has ended."""
        self._settings.budget.release(self)

    @property
    def fullness_percent(self) -> int:
        """The largest part of a bound that is used: of the memory of the host, or of the journal's bytes."""
        live_percent = 100 * self.positions.live_bytes // self._settings.live_bytes_max
        return max(live_percent, self._settings.budget.fullness_percent(self))

    def take_suspects(self) -> list[int]:
        """Return some suspects, and forget them."""
        taken = [*islice(self.suspects, _SUSPECTS_MAX)]
        for number in taken:
            del self.suspects[number]
        return taken

    def status(self, refused: RefusedRows, steps: int) -> JournalStatus:
        """Return the figures of this moment."""
        dirty_items, positions, after_ms = self.dirty_items, self.positions, self._settings.write_back_after_ms
        due_ms = self.choice.next_due_ms(dirty_items)
        wait_ms = after_ms if due_ms is None else due_ms - self._now_ms()
        can_trim = (
            len(positions) > 1 and positions.range_to_trim(dirty_items.floor((), self._last_position)) is not None
        )
        return JournalStatus(
            dirty_items=len(dirty_items),
            memory_bytes=dirty_items.memory_bytes,
            rows=len(positions),
            live_bytes=positions.live_bytes,
            written_back=self._written_back,
            lag_ms=max(0, -wait_ms),
            replay_ms=self._replay_ms,
            refused=len(refused) + len(dirty_items.unreadable),
            given_up=(*refused.given_up(dirty_items), *dirty_items.unreadable.ready(_GIVEN_UP_MAX)),
            may_be_handed_over=len(dirty_items) <= self._settings.handover_items_max,
            next_flush_ms=0
            if can_trim or self.suspects or self.fullness_percent >= URGENT_PERCENT
            else max(0, wait_ms),
            steps=steps,
        )

    def is_known(self, number: int, touched: TouchedNumbers) -> bool:
        """Return whether the memory knows better than a row that was read under this record."""
        return number in self.dirty_items or number in touched.numbers

    def order_keys(
        self,
        topic: TopicName,
        state: State,
        after: OrderKey | None,
        keys_max: int,
        purged_up_to: int,
        touched: TouchedNumbers,
    ) -> list[OrderKey]:
        """Return the keys above `after` of a topic's items in a state that a page read under this record may lack.

        Of dirty items only the first `keys_max`: a page has no more.
        """
        dirty_items, begin = self.dirty_items, -1 if after is None else after
        return dirty_items.order_keys(topic, state, after, keys_max, purged_up_to) + [
            row.order_key
            for number, row in touched.in_topic(topic).items()
            if row.state is state and row.order_key > begin and number > purged_up_to and number not in dirty_items
        ]

    def leases(
        self, topic: TopicName, after: OrderKey | None, leases_max: int, touched: TouchedNumbers
    ) -> list[LeaseEnd]:
        """Return the leases above `after` of items that a page read under this record may lack; see `order_keys`."""
        leases: list[LeaseEnd] = []
        for order_key in self.order_keys(topic, State.LEASED, after, leases_max, 0, touched):
            item = self.now(order_key_number(order_key), touched)
            if item is not None and item.due_ms is not None:
                leases.append((order_key, item.due_ms))
        return leases

    def may_be_in(self, state: State, number: int, touched: TouchedNumbers) -> bool:
        """Return whether the item of a row that was read in a state is not known to be in another one now."""
        if not self.is_known(number, touched):
            return True
        item = self.now(number, touched)
        return item is not None and item.state is state

    def dues(self, after: tuple[int, int], last_ms: int, dues_max: int, touched: TouchedNumbers) -> list[DueRow]:
        """Return the dues above `after`, up to `last_ms`, of items that a page read under this record may lack.

        Of dirty items only the first `dues_max`: a page has no more.
        """
        dirty_items = self.dirty_items
        dues = dirty_items.dues_after(after, last_ms, dues_max)
        dues += [
            (due_ms, number)
            for number, row in touched.numbers.items()
            if row is not None and (due_ms := row.timer_due_ms) is not None and number not in dirty_items
        ]
        return [DueRow(*due) for due in dues if due > after and due[0] <= last_ms]

    def now(self, number: int, touched: TouchedNumbers) -> DirtyItem | TouchedRow | None:
        """Return the item of a known number as it is now; None: it is gone."""
        item = self.dirty_items.get(number)
        if item is None:
            return touched.numbers.get(number)
        return None if item.is_ended else item

    def young_row(self, number: int) -> Row | None:
        """Return a young item. Its payload may be missing."""
        item = self.dirty_items.get(number)
        return None if item is None else item.row
