"""A store whose flushes write a journal in place of the rows of items, over a store that has one.

The caller sees what it would see of a store that writes every row. Always true: the memory is that of
the last flush known to be committed; a flush whose outcome is unknown is applied by `read_owner`, or
forgotten. Rows are written back when their items have been dirty for long. Knows nothing of shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from foqs.core.flush.fence import Fence, Owner, Position
from foqs.core.flush.journal_rows import JournalRange, PayloadPlace, PositionedEvents
from foqs.core.flush.purge_markers import PurgeMarker, PurgeMarkers
from foqs.core.flush.writes import RowChanges, Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row, TopicName
from foqs.core.journal.flush_journal import plan_journal, write_journal, write_rows
from foqs.core.journal.journal_bytes import ValueNotHeld
from foqs.core.journal.journal_status import JournalStatus
from foqs.core.journal.write_back import FULL_PERCENT
from foqs.store.journaled.extra_writes import ExtraWriter, ExtraWrites, is_end
from foqs.store.journaled.journal_memory import JournalMemory, PlannedFlush
from foqs.store.journaled.journal_recovery import replay_journal
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_reads import JournaledReads
from foqs.store.journaled.merged_rows import MergedRows, due_page
from foqs.store.journaled.young_payloads import young_payloads
from foqs.store.port import (
    Decide,
    DueRow,
    FencedOut,
    IdempotencyKeyExists,
    Reads,
    Store,
    StoreLost,
    StoreUnusable,
    Superseded,
    WriteRefused,
)

_SETTLING_RETRIES_MAX: Final = 20
"""How often a flush is repeated, after refusals such as a deadlock, that empties the journal of a shard."""


class _BeginRefused(WriteRefused):
    """The disk is full, and a flush brings new items, or new leases when room is left for ends only."""


class JournaledStore:
    """One shard with a journal; see `port.Store`. `inner` holds rows and journal.

    With the journal off, or where a host that does not know it may take the shard over, a takeover empties
    the journal; then flushes and reads are those of `inner`.
    """

    def __init__(self, inner: Store, settings: JournalSettings) -> None:
        self.inner = inner
        self._settings = settings
        self._memory: JournalMemory | None = None
        self._is_plain = False
        """Each flush of this ownership writes rows, and the journal is empty."""
        self._ownership: tuple[int, str] | None = None
        self._planned: PlannedFlush | None = None
        """The flush under way, or the last one if its outcome is unknown."""
        self._is_unresolved = False
        """The outcome of the last flush is unknown."""
        self._changes: RowChanges | None = None
        """What the flush under way changes; None: that is not decided yet."""
        self._extra: ExtraWriter | None = None
        """Is there whenever the memory is."""
        self._is_handing_over = False
        self._missing: list[int] = []
        """Young items whose payloads the next flush reads, because the last one needed them."""

    @property
    def memory(self) -> JournalMemory:
        """The memory of the present ownership."""
        if self._memory is None:
            raise StoreLost("the shard was not taken over yet, so its journal is not known")
        return self._memory

    @property
    def extra(self) -> ExtraWriter:
        assert self._extra is not None
        return self._extra

    @property
    def may_journal(self) -> bool:
        return self.inner.may_journal

    @property
    def journal(self) -> JournalStatus | None:
        if self._is_plain or self._memory is None or self._extra is None:
            return None
        status = self._memory.status(self._extra.refused, self._extra.steps)
        pause_ms = self._extra.pause_ms
        return status if pause_ms <= status.next_flush_ms else replace(status, next_flush_ms=pause_ms)

    @property
    def frees_room_late(self) -> bool:
        return self.inner.frees_room_late

    async def shrink_journal_reserve(self, fence: Fence, reserve_bytes: int) -> None:
        await self.inner.shrink_journal_reserve(fence, reserve_bytes)

    @property
    def full_refusals(self) -> tuple[int, str]:
        return (0, "") if self._extra is None else (self._extra.full_refusals, self._extra.full_reason)

    def begin_hand_over(self) -> None:
        self._is_handing_over = True

    async def open(self) -> None:
        await self.inner.open()
        if self._is_unresolved:
            self._resolve(await self.inner.read_owner())

    async def now_ms(self) -> int:
        return await self.inner.now_ms()

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        owner = await self.inner.take_over(epoch, nonce)
        self._forget()  # not before: if the takeover failed, the former ownership may go on
        self._ownership = (epoch, nonce)
        try:
            await self._recover(owner)
            if not self._journals:
                owner = await self._settle(owner)
        except (StoreUnusable, FencedOut):
            # A newer owner may have trimmed the journal meanwhile.
            present = await self.inner.read_owner()
            if (present.epoch, present.nonce) != (epoch, nonce):
                raise Superseded(present.epoch) from None
            raise
        return owner

    @property
    def _journals(self) -> bool:
        """Whether changes of items that are current are journaled, and not written."""
        return self._settings.is_on and self.inner.may_journal and not self._is_handing_over

    def _forget(self) -> None:
        """Forget the former ownership."""
        if self._memory is not None:
            self._memory.release()
        self._memory, self._extra, self._is_plain, self._is_handing_over = None, None, False, False
        self._planned, self._is_unresolved = None, False
        self._missing = []

    async def _recover(self, owner: Owner) -> None:
        begun_ms = self._settings.now_ms()
        markers = PurgeMarkers(await self.inner.purge_markers())
        dirty_items, positions = await replay_journal(self.inner)
        replay_ms = self._settings.now_ms() - begun_ms
        position = (owner.epoch, owner.flush)
        self._memory = JournalMemory(dirty_items, positions, markers, position, self._settings, replay_ms)
        self._extra = ExtraWriter(self._memory, self._settings, frees_room_late=self.inner.frees_room_late)

    async def _settle(self, owner: Owner) -> Owner:
        """Write all rows back and empty the journal, in flushes of this owner. Returns its owner row after them.

        An item whose row the database refuses, or whose payload the journal lacks, stays in the journal, and the memory
        with it.

        Raises:
            FencedOut, StoreLost: the shard must be taken over again.
        """
        memory, extra = self.memory, self.extra
        flushes_max = _SETTLING_RETRIES_MAX + 3 * len(memory.dirty_items)  # one that is refused is divided
        while len(memory.dirty_items) > len(extra.refused) + len(memory.dirty_items.unreadable):
            flushes_max -= 1
            if flushes_max < 0:
                raise StoreLost("the journal cannot be emptied: its rows are neither written nor refused")
            owner = await self._settle_once(owner, partial(self._flush, fullness_percent=FULL_PERCENT), Writes())
            if extra.pause_ms:
                raise StoreLost("the database has no room for the rows of the journal; make room")
        if memory.dirty_items:
            return owner
        if len(memory.positions):
            everything = JournalRange((0, 0), (owner.epoch, owner.flush + 1))
            owner = await self._settle_once(owner, self.inner.flush, Writes(journal_trimmed=everything))
        memory.release()
        self._memory, self._extra, self._is_plain = None, None, True
        return owner

    async def _settle_once(self, owner: Owner, flush: Callable[..., Awaitable[None]], writes: Writes) -> Owner:
        """Write one flush. Returns the owner row after it."""
        owner = replace(owner, flush=owner.flush + 1)
        for _ in range(_SETTLING_RETRIES_MAX):
            try:
                await flush(_fence_of(owner), [], {}, [], lambda _rows, _keys: replace(writes))
            except WriteRefused as refused:
                if not refused.is_retryable:
                    raise StoreLost(f"the journal cannot be emptied: {refused}") from refused
            else:
                return owner
        raise StoreLost("the journal was not emptied, because the database refused that again and again")

    async def read_owner(self) -> Owner:
        owner = await self.inner.read_owner()
        self._resolve(owner)
        return owner

    def _resolve(self, owner: Owner) -> None:
        """Apply the flush whose outcome was unknown if the owner row shows it."""
        planned, self._planned, self._is_unresolved = self._planned, None, False
        if (
            planned is not None
            and (owner.epoch, owner.nonce) == self._ownership
            and (owner.epoch, owner.flush) == planned.journal.position
        ):
            self._apply(planned)

    def _apply(self, planned: PlannedFlush) -> None:
        self.memory.apply(planned)
        self.extra.on_committed(planned)

    # ------------------------------------------------------------------- flush

    async def flush(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        if self._is_plain:
            await self.inner.flush(fence, row_ids, payload_limits, key_names, decide)
            return
        if self._memory is None:
            raise FencedOut("this host has not taken the shard over")
        if self._is_unresolved:
            raise StoreLost("the outcome of the last flush is unknown; read the owner row first")
        fullness_percent = self.memory.fullness_percent if self._journals else FULL_PERCENT
        await self._flush(fence, row_ids, payload_limits, key_names, decide, fullness_percent)

    async def _flush(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
        fullness_percent: int,
    ) -> None:
        extra: ExtraWrites | None = self.extra.choose(fullness_percent, journals=self._journals)
        writes_through = fullness_percent >= FULL_PERCENT or self.extra.writes_through
        while extra is not None:
            self._changes = None
            try:
                await self._flush_once(fence, row_ids, payload_limits, key_names, decide, extra, writes_through)
            except WriteRefused as refused:
                if refused.is_retryable or isinstance(refused, IdempotencyKeyExists):
                    raise
                if isinstance(refused, _BeginRefused):
                    if extra.reserve_bytes is None or self.extra.pause_ms:
                        raise
                    # Perhaps the disk has room again: if only producers call, no other flush finds that out.
                    extra = self.extra.with_whole_reserve
                    continue
                extra = self.extra.after_refusal(extra, refused, self._changes)
                if extra is None:
                    if refused.is_full and await self._frees_room(fence):
                        raise WriteRefused(str(refused), is_retryable=True, is_full=True) from refused
                    raise
            else:
                self.extra.on_written(extra)
                return

    async def _frees_room(self, fence: Fence) -> bool:
        """Shorten the reserve, if a flush cannot use the room that it frees itself. Returns whether there will be room."""
        if self.extra.awaits_room:
            return True
        reserve_bytes = self.extra.on_no_room(self._changes)
        if reserve_bytes is None:
            return False
        try:
            await self.inner.shrink_journal_reserve(fence, reserve_bytes)
        except WriteRefused:
            return False
        except (StoreLost, asyncio.CancelledError):
            self.extra.on_reserve_shrunk(None)
            self._planned, self._is_unresolved = None, True
            raise
        self.extra.on_reserve_shrunk(reserve_bytes)
        return True

    async def _flush_once(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
        extra: ExtraWrites,
        writes_through: bool,
    ) -> None:
        memory = self.memory
        limits = {**dict.fromkeys(row_ids, -1), **payload_limits}
        self._planned = None
        young = {number: item.row for number in limits if (item := memory.dirty_items.get(number)) and item.row}
        needed = [number for number, row in young.items() if row.payload_bytes <= limits[number]]
        others = [*extra.written_back, *extra.carried, *self._missing, *memory.take_suspects()]
        payloads = await young_payloads(self.inner, memory, [*needed, *others])
        self.extra.on_lacking(payloads.lacking)
        written_back = [number for number in extra.written_back if number not in payloads.lacking]
        carried = [number for number in extra.carried if number not in payloads.lacking]

        def decide_with_journal(rows: Mapping[int, Row], keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
            found = {
                number: row for number, each in rows.items() if (row := memory.dirty_items.overlay(each)) is not None
            }
            payloads.check(needed)
            writes = decide(found | {n: payloads.row(row, limits[n]) for n, row in young.items()}, keys)
            self._changes = writes.changes
            missing = [old.id for old, _ in writes.changes.moved if self._lacks_payload(old.id, payloads.found)]
            payloads.check(missing)
            self._missing = missing
            if missing:
                raise WriteRefused("the payloads of moved items are read first", is_retryable=True)
            _check_new(writes, memory, extra)
            journal = plan_journal(
                writes.changes,
                memory.dirty_items,
                fence.position,
                written_back,
                carried,
                payloads.found,
                writes_through=writes_through or extra.is_full,
            )
            write_rows(journal, memory.dirty_items, writes)
            if journal.events or not extra.is_full or extra.writes_events:
                try:
                    write_journal(journal, memory.positions, writes)
                except ValueNotHeld as error:
                    raise WriteRefused(str(error), is_bad_value=True) from error
            writes.journal_emptied = [
                place for place in extra.emptied if not memory.dirty_items.unreadable.has_first(place)
            ]
            if extra.is_full or writes.journal_row is not None or len(memory.positions):
                writes.journal_reserve_bytes = extra.reserve_bytes
            self._planned = PlannedFlush(journal, writes, len(written_back))
            return writes

        try:
            await self.inner.flush(
                fence,
                # If a payload is missing, one row is read: then the fence is known when that is judged.
                [number for number in row_ids if number not in young] or [*payloads.lacking][:1],
                {number: limit for number, limit in payload_limits.items() if number not in young},
                key_names,
                decide_with_journal,
            )
        except (StoreLost, asyncio.CancelledError):
            self._is_unresolved = True
            raise
        assert self._planned is not None
        planned, self._planned = self._planned, None
        self._apply(planned)

    def _lacks_payload(self, number: int, payloads: Mapping[int, bytes]) -> bool:
        row = self.memory.young_row(number)
        return row is not None and row.payload is None and number not in payloads

    # ------------------------------------------------------------------- reads

    async def topics(self) -> list[TopicName]:
        return await self.inner.topics()

    async def key_slots(self) -> list[int]:
        return await self.inner.key_slots()

    async def purge_markers(self) -> list[PurgeMarker]:
        return await self.inner.purge_markers()

    async def journal_floor(self) -> Position | None:
        return await self.inner.journal_floor()

    async def journal_events(self, first: Position, bytes_max: int) -> list[PositionedEvents]:
        return await self.inner.journal_events(first, bytes_max)

    async def journal_payloads(self, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        return await self.inner.journal_payloads(places)

    async def next_key_expiry_ms(self, from_ms: int = 0) -> int | None:
        return await self.inner.next_key_expiry_ms(from_ms)

    def reads(self) -> Reads:
        return self.inner.reads() if self._is_plain else JournaledReads(self.inner.reads(), lambda: self.memory)

    async def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        if self._is_plain:
            return await self.inner.due_rows(low_ms, high_ms, after, limit)
        return await due_page(
            self.memory,
            low_ms,
            high_ms,
            after,
            limit,
            lambda start, read_limit: self.inner.due_rows(low_ms, high_ms, start, read_limit),
        )

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        if self._is_plain:
            return await self.inner.rows(ids)
        limits = dict.fromkeys(ids, -1)
        merged = MergedRows(self.memory, lambda wanted: self.inner.rows(list(wanted)), self.inner.journal_payloads)
        with merged:
            await merged.read(ids, limits)  # also if the memory has them all: the connection must be alive
            return await merged.of_numbers(limits)

    async def next_due_ms(self, above_ms: int, below_ms: int) -> int | None:
        of_rows = await self.inner.next_due_ms(above_ms, below_ms)
        if self._is_plain:
            return of_rows
        of_items = self.memory.dirty_items.next_due_ms(above_ms)
        known = [due_ms for due_ms in (of_rows, of_items) if due_ms is not None and due_ms < below_ms]
        return min(known, default=None)

    async def close(self) -> None:
        if self._memory is not None:
            self._memory.release()
        await self.inner.close()


def _fence_of(owner: Owner) -> Fence:
    """Return the fence of the flush that leaves this owner row."""
    return Fence(owner.epoch, owner.nonce, owner.flush, owner.clock_ms, owner.offset_ms, owner.arrival_ms)


def _check_new(writes: Writes, memory: JournalMemory, extra: ExtraWrites) -> None:
    """Raise `WriteRefused` if a new item has the number of one that the journal knows, or something begins on a full disk."""
    changes = writes.changes
    if extra.full_reason is not None and (
        changes.inserted or changes.moved or (extra.only_ends and changes.numbers() and not is_end(changes))
    ):
        raise _BeginRefused(extra.full_reason, is_full=True)
    for row in (*changes.inserted, *[new for _, new in changes.moved]):
        if row.id in memory.dirty_items:
            raise WriteRefused(f"an inserted id exists already: {row.id}")
