"""What the flushes of one ownership write beside their own changes: rows, carried events, and the reserve of the journal.

The reserve is room for events. Always true: a row or an item is new only in a flush after which the reserve is in
the table; so on a full disk, which has taken the reserve out, consumers still have its room. What its last half
has room for is only what ends leases and items. Knows no statements.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.core.flush.fence import Position
from foqs.core.flush.writes import RowChanges
from foqs.core.items.item import State
from foqs.core.journal.compaction import GAIN_PERCENT_MIN, NEEDED_GAIN_PERCENT_MIN, compaction, rows_in_place
from foqs.core.journal.write_back import WRITE_BACK_BYTES_MAX
from foqs.store.journaled.journal_memory import JournalMemory, PlannedFlush
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.refused_rows import RefusedRows
from foqs.store.port import WriteRefused

log = logging.getLogger(__name__)

_FULL_PAUSE_MS: Final = 1_000
"""How long the disk counts as full after it had no room."""
_PURGE_MS: Final = 3_000
"""How long a flush is repeated after the reserve was shortened, where room is free only some time after the commit."""
_LATE_FULL_PAUSE_MS: Final = 5_000
_LATE_SHRUNK_PAUSE_MS: Final = 15_000
"""How long the disk counts as full where room is free late: after a refusal, and after the reserve was shortened, because
that is much to write again."""
_LATE_RESERVE_FACTOR: Final = 16
_LATE_RESERVE_STEP_FACTOR: Final = 4
_LATE_RESERVE_PERCENT: Final = 4
"""The reserve where room is free late: its length as a multiple of the usual one, and the part of the journal by which it is
longer, in steps of the second multiple. InnoDB refuses a new page while 5 extents of 1 MiB and 1 % of the file are not free as a whole, and payloads take even the last one. Each half of the
reserve is more than that."""
_LATE_CARRY_BYTES_MAX: Final = 64 << 10
"""The most that a flush carries there, because it takes room of the reserve before it frees any."""
_CARRY_BYTES_MIN: Final = 16 << 10
_RESERVE_PAUSE_MS: Final = 60_000
"""How long flushes go on without a reserve that the database refuses, and not for want of room."""


@dataclass(slots=True, frozen=True)
class ExtraWrites:
    """What one flush writes beside its own changes.

    Attributes:
        written_back: items whose rows are written or deleted.
        carried: items whose events are written again.
        emptied: rows of the journal that lose their payloads.
        reserve_bytes: the new length of the reserve; None: it stays.
        full_reason: why the disk is held to be full; None: it is not. If it is, no row and no item is new, and rows
            that are current are changed in place.
        only_ends: no lease is new either.
        refused: a write-back that the database has refused, if this flush is the repetition without it, and the reason;
            no rows: it has refused the reserve.
    """

    written_back: Sequence[int] = ()
    carried: Sequence[int] = ()
    emptied: Sequence[Position] = ()
    reserve_bytes: int | None = None
    only_ends: bool = False
    full_reason: str | None = None
    refused: tuple[Sequence[int], WriteRefused] | None = None

    @property
    def is_full(self) -> bool:
        return self.full_reason is not None

    @property
    def writes_events(self) -> bool:
        """Whether it has events of its own, even if no item changes."""
        return bool(self.written_back or self.carried)


class ExtraWriter:
    """Chooses the extra writes of each flush, and what is repeated without them when the database refuses them.

    Args:
        frees_room_late: see `Store.frees_room_late`.
    """

    def __init__(self, memory: JournalMemory, settings: JournalSettings, *, frees_room_late: bool) -> None:
        self._frees_room_late = frees_room_late
        self.refused: Final = RefusedRows()
        self._memory = memory
        self._settings = settings
        self.steps = 0
        """See `JournalStatus.steps`."""
        self._reserve_bytes: int | None = None
        """What the table has of the reserve; None: that is not known."""
        self._whole_bytes = 0
        """The length of the whole reserve: a longer one is written when the journal is longer."""
        self._whole_bytes = self._wanted_bytes
        self._carry_bytes_max = self._carry_limit
        """About the most bytes that a flush carries on a full disk: what the last ones had room for."""
        self._next_reserve_ms = 0
        self._room_until_ms = 0
        self.full_reason = ""
        """What the database said last when it had no room."""
        self.full_refusals = 0
        """How often it had no room."""
        self._full_until_ms = 0
        self.writes_through = False
        """Whether flushes write rows and journal nothing, because the database refuses too many rows."""
        self._ends_lack_room = False
        """Whether ends had no room when the whole reserve was given up, and none was written since."""

    @property
    def pause_ms(self) -> int:
        """For how long nothing is written back, because the disk is full."""
        return max(0, self._full_until_ms - self._settings.now_ms())

    def choose(self, fullness_percent: int, *, journals: bool) -> ExtraWrites:
        """Return the extra writes of the next flush. `journals`: this owner goes on to journal."""
        self._limit_refused()
        if self.pause_ms:
            return self._on_full_disk()
        memory, now_ms = self._memory, self._settings.now_ms()
        if journals and self._reserve_bytes != self._wanted_bytes and now_ms >= self._next_reserve_ms:
            if self._reserve_bytes is not None and self._reserve_bytes < self._half_bytes and not self._frees_room_late:
                # The disk counts as full until the whole is there, but leases go on with the first half.
                return ExtraWrites(reserve_bytes=self._half_bytes, full_reason=self.full_reason)
            return self.with_whole_reserve
        numbers = memory.choice.numbers(
            memory.dirty_items, now_ms, self._settings.flush_items_max, fullness_percent, self.refused.alone
        )
        carried = self.refused.to_carry(memory.dirty_items, memory.choice)
        return ExtraWrites(self.refused.choose(numbers), carried)

    def _limit_refused(self) -> None:
        """Begin or end to write through, and log that."""
        count = len(self.refused)
        if self.writes_through == (count >= self._settings.refused_items_max):
            return
        self.writes_through = not self.writes_through
        if self.writes_through:
            log.error("the database refuses the rows of %d items of the journal: new items get rows at once now", count)
        else:
            log.info("the database refuses the rows of %d items of the journal: new items are journaled again", count)

    def _on_full_disk(self) -> ExtraWrites:
        memory, alone = self._memory, self.refused.alone
        gain_percent_min = GAIN_PERCENT_MIN if self._reserve_bytes == self._whole_bytes else NEEDED_GAIN_PERCENT_MIN
        compacted = compaction(memory.dirty_items, memory.positions, self._carry_bytes_max, alone, gain_percent_min)
        return ExtraWrites(
            rows_in_place(memory.dirty_items, self._settings.flush_items_max, alone),
            compacted.carried,
            compacted.emptied,
            only_ends=self._only_ends,
            full_reason=self.full_reason,
        )

    @property
    def _only_ends(self) -> bool:
        """Whether no lease is new: what room there is, acks need.

        Where room is free late, one half may need more of it than all events, so leases go on when ends do.
        """
        if self._reserve_bytes is None or self._reserve_bytes >= self._half_bytes:
            return False
        return self._ends_lack_room or not self._frees_room_late

    @property
    def with_whole_reserve(self) -> ExtraWrites:
        """What a flush writes that may bring new items although the reserve may not be whole."""
        return ExtraWrites(reserve_bytes=self._wanted_bytes)

    @property
    def _wanted_bytes(self) -> int:
        """The length that the reserve should have. It rises only."""
        unit = self._settings.reserve_bytes
        if not self._frees_room_late:
            return unit
        step_bytes = _LATE_RESERVE_STEP_FACTOR * unit
        steps = _LATE_RESERVE_PERCENT * self._memory.positions.live_bytes // (100 * step_bytes)
        return max(self._whole_bytes, _LATE_RESERVE_FACTOR * unit + steps * step_bytes)

    @property
    def _carry_limit(self) -> int:
        """The most bytes that a flush carries, if the last ones had room."""
        return _LATE_CARRY_BYTES_MAX if self._frees_room_late else WRITE_BACK_BYTES_MAX

    @property
    def has_half(self) -> bool:
        """Whether the table may have more of the reserve than its last half."""
        return self._reserve_bytes is None or self._reserve_bytes > self._half_bytes

    @property
    def _half_bytes(self) -> int:
        return self._whole_bytes // 2

    def _bare(self, extra: ExtraWrites, changes: RowChanges | None) -> ExtraWrites | None:
        """Return with what a refused flush is repeated on a full disk: its own changes alone, then also room of the reserve.

        It takes half of the reserve; then, if it only ends leases and items, the rest. One without changes takes none.
        Where room is free late, this room would not be free for the flush itself; see `on_no_room`.
        """
        if extra.writes_events or extra.emptied:
            return ExtraWrites(only_ends=extra.only_ends, full_reason=extra.full_reason)
        known = self._reserve_bytes if extra.reserve_bytes is None else extra.reserve_bytes
        if self._frees_room_late or known == 0 or changes is None or not changes.numbers():
            return None
        if known is None or known > self._half_bytes:
            return ExtraWrites(reserve_bytes=self._half_bytes, full_reason=extra.full_reason)
        return ExtraWrites(reserve_bytes=0, full_reason=extra.full_reason) if is_end(changes) else None

    def after_refusal(
        self, extra: ExtraWrites, refusal: WriteRefused, changes: RowChanges | None
    ) -> ExtraWrites | None:
        """Return with what a refused flush is repeated; None: its own changes are refused.

        Args:
            changes: what the flush changes; None: it did not come to that.
        """
        former = self._reserve_bytes
        if extra.is_full and extra.reserve_bytes and former is not None and extra.reserve_bytes > former:
            self._note_full(refusal)
            return self._on_full_disk()
        if extra.is_full:
            if extra.carried:
                self._carry_bytes_max = max(self._carry_bytes_max // 4, _CARRY_BYTES_MIN)
            return self._bare(extra, changes)
        if refusal.is_full:
            self._note_full(refusal)
            return self._on_full_disk()
        if extra.written_back:
            return ExtraWrites(carried=extra.carried, refused=(extra.written_back, refusal))
        return ExtraWrites(refused=((), refusal)) if extra.reserve_bytes else None

    def _note_full(self, refusal: WriteRefused) -> None:
        self.full_reason = str(refusal)
        self.full_refusals += 1
        pause_ms = _LATE_FULL_PAUSE_MS if self._frees_room_late else _FULL_PAUSE_MS
        self._full_until_ms = max(self._full_until_ms, self._settings.now_ms() + pause_ms)

    def on_no_room(self, changes: RowChanges | None) -> int | None:
        """Note that a flush was refused with nothing but its own changes.

        Returns the length that the reserve gets in a transaction of its own; None: it is not shortened any more.
        """
        if not self._frees_room_late or (changes is not None and not changes.numbers()):
            return None
        if self.has_half:
            return self._half_bytes
        # No changes: the first statement was refused already, so that of an end would be, too.
        is_for_end = changes is None or is_end(changes)
        self._ends_lack_room = self._ends_lack_room or is_for_end
        if self._reserve_bytes == 0:
            return None
        return 0 if is_for_end or not self._memory.dirty_items.has_leased else None

    @property
    def awaits_room(self) -> bool:
        """Whether the reserve was shortened just now, so that its room will be free."""
        return self._settings.now_ms() < self._room_until_ms

    def on_reserve_shrunk(self, reserve_bytes: int | None) -> None:
        """Note that the reserve has this length, in a transaction of its own; None: perhaps."""
        now_ms, self._reserve_bytes = self._settings.now_ms(), reserve_bytes
        self._room_until_ms = now_ms + _PURGE_MS
        self._full_until_ms = now_ms + _LATE_SHRUNK_PAUSE_MS

    def on_lacking(self, lacking: Mapping[int, str]) -> None:
        """Note items whose payloads the journal lacks: their rows cannot be written, and their events not be carried."""
        for number, sentence in lacking.items():
            self.refused.forget(number)
            if self._memory.dirty_items.set_unreadable(number):
                log.warning("%s", sentence)

    def on_written(self, extra: ExtraWrites) -> None:
        """Note that a flush was written with these."""
        if extra.is_full and extra.carried:
            self._carry_bytes_max = min(2 * self._carry_bytes_max, self._carry_limit)
        if extra.refused is None:
            self.refused.on_written(extra.written_back)
            return
        numbers, refusal = extra.refused
        self.steps += 1
        if not numbers:
            self._next_reserve_ms = self._settings.now_ms() + _RESERVE_PAUSE_MS
            log.warning("the database refuses the reserve of the journal: %s", refusal)
            return
        for number in self.refused.on_refused(
            numbers, self._memory.dirty_items, extra.carried, is_bad_value=refusal.is_bad_value
        ):
            log.warning("the database refuses the row of item %d of the journal: %s", number, refusal)

    def on_committed(self, planned: PlannedFlush) -> None:
        """Note that a flush is committed, also one whose outcome was unknown at first."""
        self.steps += planned.written_back > 0 or planned.writes.journal_trimmed is not None
        changes = planned.writes.changes
        if self._ends_lack_room and changes.numbers() and is_end(changes):
            self._ends_lack_room = False
        if planned.writes.journal_reserve_bytes is not None:
            self._reserve_bytes = planned.writes.journal_reserve_bytes
            self._whole_bytes = max(self._whole_bytes, self._reserve_bytes)


def is_end(changes: RowChanges) -> bool:
    """Return whether a flush only ends leases, delays and items."""
    return not (changes.inserted or changes.moved) and all(
        new.state is not State.LEASED and new.state is not old.state and old.state is not State.DEAD
        for old, new in (*zip(*changes.leased, strict=True), *((old, new) for _, old, new in changes.changed))
    )
