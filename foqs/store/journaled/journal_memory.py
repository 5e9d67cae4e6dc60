"""What the owner of a shard with a journal remembers: dirty items, the rows of the journal, and reads under way.

Always true between two flushes: rows and journal of the store, read together, are the items that this
memory lays over the rows. Changes only when a flush is known to be committed. Knows no statements.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.flush.writes import Writes
from foqs.core.items.item import OrderKey, Row, State, TopicName
from foqs.core.journal.dirty_items import DirtyItem, DirtyItems
from foqs.core.journal.journal_plan import JournalPlan
from foqs.core.journal.journal_positions import JournalPositions
from foqs.core.journal.journal_status import JournalStatus
from foqs.core.journal.touched_numbers import ReadsUnderWay, TouchedNumbers
from foqs.core.journal.write_back import URGENT_PERCENT, WriteBackChoice
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.refused_rows import RefusedRows
from foqs.store.port import DueRow

_TOUCHED_NUMBERS_MAX: Final = 1_000_000


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
            row_bytes = len(writes.journal_row.events) + sum(map(len, writes.journal_row.payloads))
            self.positions.add_row(journal.position, row_bytes)
        if writes.journal_trimmed is not None:
            self.positions.on_trimmed(writes.journal_trimmed)
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
        self._settings.budget.set_use(self, len(self.dirty_items), self.dirty_items.young_count.payload_bytes)

    def release(self) -> None:
        """Give the memory back to the host: this ownership has ended."""
        self._settings.budget.release(self)

    @property
    def fullness_percent(self) -> int:
        """The largest part of a bound that is used: of the memory of the host, or of the journal's bytes."""
        live_percent = 100 * self.positions.live_bytes // self._settings.live_bytes_max
        return max(live_percent, self._settings.budget.fullness_percent(self))

    def status(self, refused: RefusedRows) -> JournalStatus:
        """Return the figures of this moment."""
        dirty_items, positions, after_ms = self.dirty_items, self.positions, self._settings.write_back_after_ms
        due_ms = self.choice.next_due_ms(dirty_items)
        wait_ms = after_ms if due_ms is None else due_ms - self._now_ms()
        can_trim = (
            len(positions) > 1 and positions.range_to_trim(dirty_items.floor((), self._last_position)) is not None
        )
        return JournalStatus(
            dirty_items=len(dirty_items),
            young_bytes=dirty_items.young_count.payload_bytes,
            rows=len(positions),
            live_bytes=positions.live_bytes,
            written_back=self._written_back,
            lag_ms=max(0, -wait_ms),
            replay_ms=self._replay_ms,
            refused=len(refused),
            given_up=tuple(refused.given_up(dirty_items)),
            may_be_handed_over=len(dirty_items) <= self._settings.handover_items_max,
            next_flush_ms=0 if can_trim or self.fullness_percent >= URGENT_PERCENT else max(0, wait_ms),
        )

    def is_known(self, number: int, touched: TouchedNumbers) -> bool:
        """Return whether the memory knows better than a row that was read under this record."""
        return number in self.dirty_items or number in touched.numbers

    def items_of(self, topic: TopicName, state: State, touched: TouchedNumbers) -> Iterator[tuple[int, DirtyItem]]:
        """Yield the items of a topic in a state that a page read under this record may lack, as they are now."""
        for number, item in self.dirty_items.in_topic(topic):
            if item.state is state:
                yield number, item
        for number, touched_item in touched.numbers.items():
            if (
                touched_item is not None
                and touched_item.state is state
                and touched_item.topic == topic
                and number not in self.dirty_items
            ):
                yield number, touched_item

    def ready_keys(
        self, topic: TopicName, after: OrderKey | None, keys_max: int, purged_up_to: int, touched: TouchedNumbers
    ) -> list[OrderKey]:
        """Return the keys above `after` of READY items that a page read under this record may lack.

        Of dirty items only the first `keys_max`: a page has no more.
        """
        keys = self.dirty_items.ready_keys(topic, after, keys_max, purged_up_to)
        for number, item in touched.numbers.items():
            if (
                item is not None
                and item.state is State.READY
                and item.topic == topic
                and number not in self.dirty_items
                and number > purged_up_to
                and (after is None or item.order_key(number) > after)
            ):
                keys.append(item.order_key(number))
        return keys

    def order_keys(
        self,
        topic: TopicName,
        state: State,
        after: OrderKey | None,
        keys_max: int,
        purged_up_to: int,
        touched: TouchedNumbers,
    ) -> list[OrderKey]:
        """Return the keys of items in a state that a page read under this record may lack; see `ready_keys`."""
        if state is State.READY:
            return self.ready_keys(topic, after, keys_max, purged_up_to, touched)
        found = self.items_of(topic, state, touched)
        return [item.order_key(number) for number, item in found if number > purged_up_to]

    def copied(self, topic: TopicName, touched: TouchedNumbers) -> tuple[list[int], list[DirtyItem]]:
        """Return the numbers and items of a topic that a page read under this record may lack, as of now."""
        numbers, items = self.dirty_items.copied(topic)
        for number, item in touched.numbers.items():
            if item is not None and item.topic == topic and number not in self.dirty_items:
                numbers.append(number)
                items.append(item)
        return numbers, items

    def may_be_in(self, state: State, number: int, touched: TouchedNumbers) -> bool:
        """Return whether the item of a row that was read in a state is not known to be in another one now."""
        if not self.is_known(number, touched):
            return True
        item = self.now(number, touched)
        return item is not None and item.state is state

    def dues(self, low_ms: int | None, high_ms: int, touched: TouchedNumbers) -> list[DueRow]:
        """Return the dues between two moments of items that a page read under this record may lack."""
        dues = [DueRow(due_ms, number) for due_ms, number in self.dirty_items.dues_up_to(high_ms)]
        dues += [
            DueRow(item.timer_due_ms, number)
            for number, item in touched.numbers.items()
            if item is not None and item.timer_due_ms is not None and number not in self.dirty_items
        ]
        return [due for due in dues if due.due_ms <= high_ms and (low_ms is None or due.due_ms >= low_ms)]

    def now(self, number: int, touched: TouchedNumbers) -> DirtyItem | None:
        """Return the item of a known number as it is now; None: it is gone."""
        item = self.dirty_items.get(number) or touched.numbers.get(number)
        return None if item is None or item.is_ended else item

    def young_row(self, number: int) -> Row | None:
        """Return a young item. Its payload may be missing."""
        item = self.dirty_items.get(number)
        return None if item is None else item.row
