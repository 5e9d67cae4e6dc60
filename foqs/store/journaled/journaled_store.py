"""A store whose flushes write a journal in place of the rows of items, over a store that has one.

The caller sees what it would see of a store that writes every row. Always true: the memory is that of
the last flush known to be committed; a flush whose outcome is unknown is applied by `read_owner`, or
forgotten. Rows are written back when their items have been dirty for long. Knows nothing of shards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from foqs.core.flush.fence import Fence, Owner, Position
from foqs.core.flush.journal_rows import PayloadPlace, PositionedEvents
from foqs.core.flush.purge_markers import PurgeMarker, PurgeMarkers
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row, TopicName
from foqs.core.journal.flush_journal import plan_journal, write_journal, write_rows
from foqs.store.journaled.journal_memory import JournalMemory, PlannedFlush
from foqs.store.journaled.journal_recovery import replay_journal
from foqs.store.journaled.journaled_reads import JournaledReads
from foqs.store.journaled.merged_rows import MergedRows, due_page
from foqs.store.journaled.refused_rows import RefusedRows
from foqs.store.port import (
    Decide,
    DueRow,
    IdempotencyKeyExists,
    Store,
    StoreLost,
    StoreUnusable,
    Superseded,
    WriteRefused,
)

log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class JournalSettings:
    """How a store journals.

    Attributes:
        write_back_after_ms: how long an item is dirty before its row is written.
        flush_items_max: the entries of a flush, of which write-backs have a part.
        now_ms: returns a time that never goes back.
    """

    write_back_after_ms: int
    flush_items_max: int
    now_ms: Callable[[], int]


class JournaledStore:
    """One shard with a journal; see `port.Store`. `inner` holds rows and journal."""

    def __init__(self, inner: Store, settings: JournalSettings) -> None:
        self.inner = inner
        self._settings = settings
        self._memory: JournalMemory | None = None
        self._ownership: tuple[int, str] | None = None
        self._planned: PlannedFlush | None = None
        """The flush under way, or the last one if its outcome is unknown."""
        self._is_unresolved = False
        """The outcome of the last flush is unknown."""
        self._refused = RefusedRows()
        self._missing: list[int] = []
        """Young items whose payloads the next flush reads, because the last one needed them."""

    @property
    def memory(self) -> JournalMemory:
        """The memory of the present ownership."""
        if self._memory is None:
            raise StoreLost("the shard was not taken over yet, so its journal is not known")
        return self._memory

    async def open(self) -> None:
        await self.inner.open()
        if self._is_unresolved:
            self._resolve(await self.inner.read_owner())

    async def now_ms(self) -> int:
        return await self.inner.now_ms()

    async def take_over(self, epoch: int, nonce: str) -> Owner:
        owner = await self.inner.take_over(epoch, nonce)
        markers = PurgeMarkers(await self.inner.purge_markers())
        try:
            dirty_items, positions = await replay_journal(self.inner)
        except StoreUnusable:
            # A newer owner may have trimmed the journal meanwhile.
            present = await self.inner.read_owner()
            if (present.epoch, present.nonce) != (epoch, nonce):
                raise Superseded(present.epoch) from None
            raise
        settings = self._settings
        self._memory = JournalMemory(
            dirty_items, positions, markers, (epoch, 0), settings.write_back_after_ms, settings.now_ms
        )
        self._ownership = (epoch, nonce)
        self._planned, self._is_unresolved = None, False
        self._refused, self._missing = RefusedRows(), []
        return owner

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
            self.memory.apply(planned)

    # ------------------------------------------------------------------- flush

    async def flush(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
    ) -> None:
        if self._is_unresolved:
            raise StoreLost("the outcome of the last flush is unknown; read the owner row first")
        dirty_items, settings = self.memory.dirty_items, self._settings
        chosen = self.memory.choice.numbers(dirty_items, settings.now_ms(), settings.flush_items_max, 0)
        written_back = self._refused.choose(chosen)
        carried = self._refused.to_carry(dirty_items, chosen)
        try:
            await self._flush_once(fence, row_ids, payload_limits, key_names, decide, written_back, carried)
        except WriteRefused as refused:
            if not written_back or refused.is_retryable or refused.is_full or isinstance(refused, IdempotencyKeyExists):
                raise
            await self._flush_once(fence, row_ids, payload_limits, key_names, decide, [], carried)
            for number in self._refused.on_refused(written_back):
                log.warning("the database refuses the row of item %d of the journal: %s", number, refused)
        else:
            self._refused.on_written(written_back)

    async def _flush_once(
        self,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Sequence[KeyName],
        decide: Decide,
        written_back: Sequence[int],
        carried: Sequence[int],
    ) -> None:
        memory = self.memory
        limits = {**dict.fromkeys(row_ids, -1), **payload_limits}
        self._planned = None
        young = {number: item.row for number in limits if (item := memory.dirty_items.get(number)) and item.row}
        needed = [number for number, row in young.items() if row.payload_bytes <= limits[number]]
        payloads = await self._payloads(fence, [*needed, *written_back, *carried, *self._missing])
        for number, row in young.items():
            limit = limits[number]
            young[number] = _with_payload(
                row, payloads.get(number, row.payload) if row.payload_bytes <= limit else None
            )

        def decide_with_journal(rows: Mapping[int, Row], keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
            found = {
                number: row for number, each in rows.items() if (row := memory.dirty_items.overlay(each)) is not None
            }
            writes = decide(found | young, keys)
            self._missing = [old.id for old, _ in writes.changes.moved if self._lacks_payload(old.id, payloads)]
            if self._missing:
                raise WriteRefused("the payloads of moved items are read first", is_retryable=True)
            _check_new(writes, memory)
            journal = plan_journal(writes.changes, memory.dirty_items, fence.position, written_back, carried, payloads)
            write_rows(journal, memory.dirty_items, writes)
            write_journal(journal, memory.positions, writes)
            self._planned = PlannedFlush(journal, writes)
            return writes

        try:
            await self.inner.flush(
                fence,
                [number for number in row_ids if number not in young],
                {number: limit for number, limit in payload_limits.items() if number not in young},
                key_names,
                decide_with_journal,
            )
        except (StoreLost, asyncio.CancelledError):
            self._is_unresolved = True
            raise
        assert self._planned is not None
        planned, self._planned = self._planned, None
        memory.apply(planned)

    def _lacks_payload(self, number: int, payloads: Mapping[int, bytes]) -> bool:
        row = self.memory.young_row(number)
        return row is not None and row.payload is None and number not in payloads

    async def _payloads(self, fence: Fence, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return the payloads of young items that the memory has left in the journal."""
        places: dict[int, PayloadPlace] = {}
        for number in numbers:
            item = self.memory.dirty_items.get(number)
            if item is not None and item.row is not None and item.row.payload is None:
                places[number] = PayloadPlace(item.first, item.payload_offset, item.row.payload_bytes)
        if not places:
            return {}
        found = await self.inner.journal_payloads([*places.values()])
        for number, place in places.items():
            if place not in found:
                await self._judge_missing_payload(fence, number, place)
        return {number: found[place] for number, place in places.items()}

    async def _judge_missing_payload(self, fence: Fence, number: int, place: PayloadPlace) -> None:
        """Raise `FencedOut` if another owner has trimmed the journal; else it is damaged. The fence says which."""

        def give_up(rows: Mapping[int, Row], keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
            epoch, flush = place.position
            raise StoreUnusable(
                f"the journal row of epoch {epoch}, flush {flush} is missing, and item {number} needs its payload; "
                "restore the shard's tables from a backup"
            )

        await self.inner.flush(fence, [number], {}, [], give_up)

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

    def reads(self) -> JournaledReads:
        return JournaledReads(self.inner.reads(), lambda: self.memory)

    async def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        return await due_page(
            self.memory,
            low_ms,
            high_ms,
            after,
            limit,
            lambda start: self.inner.due_rows(low_ms, high_ms, start, limit),
        )

    async def rows(self, ids: Sequence[int]) -> list[Row]:
        limits = dict.fromkeys(ids, -1)
        merged = MergedRows(self.memory, lambda wanted: self.inner.rows(list(wanted)), self.inner.journal_payloads)
        with merged:
            await merged.read(ids, limits)  # also if the memory has them all: the connection must be alive
            return await merged.of_numbers(limits)

    async def next_due_ms(self, above_ms: int, below_ms: int) -> int | None:
        of_rows = await self.inner.next_due_ms(above_ms, below_ms)
        of_items = self.memory.dirty_items.next_due_ms(above_ms)
        known = [due_ms for due_ms in (of_rows, of_items) if due_ms is not None and due_ms < below_ms]
        return min(known, default=None)

    def next_write_back_ms(self) -> int | None:
        """Return when a flush is needed to write rows back; None if nothing is dirty."""
        return None if self._memory is None else self._memory.choice.next_due_ms(self._memory.dirty_items)

    async def close(self) -> None:
        await self.inner.close()


def _with_payload(row: Row, payload: bytes | None) -> Row:
    """Return a copy of a young item with this payload."""
    row = row.copy()
    row.payload = payload
    return row


def _check_new(writes: Writes, memory: JournalMemory) -> None:
    """Raise `WriteRefused` if a new item has the number of one that the journal knows."""
    for row in (*writes.changes.inserted, *[new for _, new in writes.changes.moved]):
        if row.id in memory.dirty_items:
            raise WriteRefused(f"an inserted id exists already: {row.id}")
