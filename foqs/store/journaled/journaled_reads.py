"""Reads beside the flushes of a shard with a journal: rows, with the memory of the owner laid over them.

Each result is the state of one moment during the call, the end of its last read of the tables, however
often it reads them. A row that a flush wrote meanwhile is not judged by the page that may have missed it: the
record of the call has it. Only a page during which flushes write more than records hold is read in
parts, each of one moment. Knows nothing of flushes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

from foqs.core.flush.fence import Fence
from foqs.core.flush.journal_rows import PayloadPlace
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number
from foqs.core.items.row_filter import RowFilter
from foqs.core.journal.dirty_items import DirtyItem
from foqs.store.journaled.entry_pages import MergedPage, ReadIsVoid, check_room, in_parts, shortened
from foqs.store.journaled.journal_memory import JournalMemory
from foqs.store.journaled.merged_rows import MergedRows, due_page
from foqs.store.port import (
    ANY_LENGTH,
    DueRow,
    IdPage,
    IdRange,
    LeaseEnd,
    Reads,
    TopicCount,
)

_ITEMS_PER_STEP: Final = 10_000
"""How many dirty items are looked at before other tasks run: some milliseconds."""

_Place = TypeVar("_Place")


class JournaledReads:
    """A connection for reading; see `port.Reads`.

    Args:
        memory: returns the memory of the present ownership.
    """

    def __init__(self, inner: Reads, memory: Callable[[], JournalMemory]) -> None:
        self._inner = inner
        self._memory = memory
        self._snapshot: tuple[list[int], list[DirtyItem], PurgeMarkers] = ([], [], PurgeMarkers())
        """What the memory knew beyond the rows when the snapshot began."""

    async def rows(self, committed: Fence, ids: Sequence[int], payload_bytes_max: int = ANY_LENGTH) -> list[Row]:
        limits = dict.fromkeys(ids, payload_bytes_max)
        with self._merged_rows(committed, payload_bytes_max) as merged:
            await merged.read(ids, limits)  # also if the memory has them all: the database must have this flush
            return await merged.of_numbers(limits)

    def _merged_rows(self, committed: Fence, payload_bytes_max: int) -> MergedRows:
        return MergedRows(
            self._memory(),
            lambda limits: self._inner.rows(committed, list(limits), payload_bytes_max),
            lambda places: self._inner.journal_payloads(committed, places),
        )

    async def ready_order_keys(
        self, committed: Fence, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int = 0
    ) -> list[OrderKey]:
        read = partial(self._ready_order_keys, committed, topic, purged_up_to)
        return await in_parts(read, after, limit, _itself)

    async def _ready_order_keys(
        self, committed: Fence, topic: TopicName, purged_up_to: int, after: OrderKey | None, limit: int
    ) -> list[OrderKey]:
        memory = self._memory()
        with memory.reads.record() as touched:
            page = MergedPage(memory, touched, after, limit, _itself, order_key_number)
            while not page.is_complete():
                read_limit = page.read_limit
                keys = await self._inner.ready_order_keys(committed, topic, page.read_after, read_limit, purged_up_to)
                page.add(keys, read_limit)
            return page.merged(memory.order_keys(topic, State.READY, after, limit, purged_up_to, touched))

    async def list_rows(
        self,
        committed: Fence,
        topic: TopicName,
        state: State,
        after: OrderKey | None,
        limit: int,
        purged_up_to: int = 0,
        *,
        with_payload: bool,
    ) -> list[Row]:
        read = partial(self._list_rows, committed, topic, state, purged_up_to, with_payload)
        return await in_parts(read, after, limit, _order_key_of_row)

    async def _list_rows(
        self,
        committed: Fence,
        topic: TopicName,
        state: State,
        purged_up_to: int,
        with_payload: bool,
        after: OrderKey | None,
        limit: int,
    ) -> list[Row]:
        memory, payload_bytes_max = self._memory(), ANY_LENGTH if with_payload else -1
        with self._merged_rows(committed, payload_bytes_max) as merged:
            touched = merged.touched
            page = MergedPage(memory, touched, after, limit, _itself, order_key_number)
            while True:
                while not page.is_complete():
                    begun, read_limit = touched.flushes, page.read_limit
                    # Only the first rows with payload: most of the others are not in the result.
                    found = await self._inner.list_rows(
                        committed,
                        topic,
                        state,
                        page.read_after,
                        read_limit,
                        purged_up_to,
                        with_payload=with_payload and page.read_after == after,
                    )
                    merged.add(begun, (), [row for row in found if memory.may_be_in(state, row.id, touched)])
                    page.add([row.order_key for row in found], read_limit)
                keys = page.merged(memory.order_keys(topic, state, after, limit, purged_up_to, touched))
                rows = await merged.assembled({order_key_number(key): payload_bytes_max for key in keys})
                if rows is not None:
                    return rows

    async def rows_by_id(self, committed: Fence, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        async def read(rows_max: int) -> IdPage:
            return await self._rows_by_id(committed, namespace, only, replace(ids, rows_max=rows_max))

        page, _ = await shortened(read, ids.rows_max)
        return page

    async def _rows_by_id(self, committed: Fence, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        memory = self._memory()
        with self._merged_rows(committed, -1) as merged:
            touched = merged.touched
            page = await self._inner.rows_by_id(committed, namespace, only, ids)
            merged.add(0, (), page.rows)
            last = ids.last if page.last_id is None else page.last_id
            while True:
                numbers = sorted(
                    {
                        *[row.id for row in page.rows if not memory.is_known(row.id, touched)],
                        *memory.dirty_items.numbers_after(ids.after, last, ids.rows_max + 1),
                        *[number for number in touched.numbers if ids.after < number <= last],
                    }
                )
                last_id = page.last_id
                if len(numbers) > ids.rows_max:
                    numbers = numbers[: ids.rows_max]
                    last_id = numbers[-1]
                found = await merged.assembled(dict.fromkeys(numbers, -1))
                if found is not None:
                    rows = [row for row in found if row.namespace == namespace and only.matches(row)]
                    if len(rows) >= ids.limit:
                        return IdPage(rows[: ids.limit], rows[ids.limit - 1].id)
                    return IdPage(rows, last_id)

    async def due_rows(self, committed: Fence, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        async def read_table(start: DueRow | None, read_limit: int) -> Sequence[DueRow]:
            return await self._inner.due_rows(committed, high_ms, start, read_limit)

        async def read(start: DueRow | None, part_limit: int) -> list[DueRow]:
            return await due_page(self._memory(), None, high_ms, start, part_limit, read_table)

        return await in_parts(read, after, limit, _itself)

    async def leases_in(self, committed: Fence, ranges: Sequence[tuple[int, int]], last_ms: int) -> list[DueRow]:
        memory = self._memory()
        with memory.reads.record() as touched:
            found = await self._inner.leases_in(committed, ranges, last_ms)
        check_room(touched)
        leases = [lease for lease in found if not memory.is_known(lease.id, touched)]
        for first, last in ranges:
            for number in range(first, last + 1):
                item = memory.now(number, touched)
                if item is not None and item.state is State.LEASED and (due_ms := item.due_ms) is not None:
                    leases += [DueRow(due_ms, number)] if due_ms <= last_ms else []
        return leases

    async def leases_of(
        self, committed: Fence, topics: Sequence[tuple[TopicName, OrderKey | None]], limit: int
    ) -> list[list[LeaseEnd]]:
        if len(topics) != 1:
            try:
                return await self._leases_of(committed, topics, limit)
            except ReadIsVoid:
                return [(await self.leases_of(committed, [each], limit))[0] for each in topics]
        ((topic, after),) = topics

        async def read(start: OrderKey | None, part_limit: int) -> list[LeaseEnd]:
            return (await self._leases_of(committed, [(topic, start)], part_limit))[0]

        return [await in_parts(read, after, limit, _order_key)]

    async def _leases_of(
        self, committed: Fence, topics: Sequence[tuple[TopicName, OrderKey | None]], limit: int
    ) -> list[list[LeaseEnd]]:
        memory = self._memory()
        with memory.reads.record() as touched:
            pages = [
                (topic, after, MergedPage(memory, touched, after, limit, _order_key, order_key_number))
                for topic, after in topics
            ]
            while unfinished := [(topic, page) for topic, _, page in pages if not page.is_complete()]:
                read_limit = unfinished[0][1].read_limit
                places = [(topic, page.read_after) for topic, page in unfinished]
                found = await self._inner.leases_of(committed, places, read_limit)
                for (_, page), leases in zip(unfinished, found, strict=True):
                    page.add(leases, read_limit)
            return [page.merged(memory.leases(topic, after, limit, touched)) for topic, after, page in pages]

    async def idempotency_keys_of(self, committed: Fence, untils: Mapping[int, int]) -> dict[int, bytes]:
        return await self._inner.idempotency_keys_of(committed, untils)

    async def journal_payloads(self, committed: Fence, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        return await self._inner.journal_payloads(committed, places)

    async def begin_snapshot(self, committed: Fence) -> None:
        """Start a snapshot, between two flushes: the memory is that of the same flush."""
        await self._inner.begin_snapshot(committed)
        memory = self._memory()
        self._snapshot = (*memory.dirty_items.copied(), memory.purge_markers.copy())

    async def counts(self) -> list[TopicCount]:
        groups: dict[tuple[str, str, State], TopicCount] = {}
        for count in (*await self._inner.counts(), *await _difference(*self._snapshot)):
            group = (count.namespace, count.topic, count.state)
            known = groups.get(group)
            groups[group] = count if known is None else _sum(known, count)
        return [count for count in groups.values() if count.rows]

    async def close(self) -> None:
        await self._inner.close()


def _itself(place: _Place) -> _Place:
    return place


def _order_key_of_row(row: Row) -> OrderKey:
    return row.order_key


def _order_key(lease: LeaseEnd) -> OrderKey:
    return lease[0]


def _sum(one: TopicCount, other: TopicCount) -> TopicCount:
    return TopicCount(
        one.namespace,
        one.topic,
        one.state,
        one.rows + other.rows,
        one.payload_bytes + other.payload_bytes,
        one.purged_rows + other.purged_rows,
    )


async def _difference(numbers: Sequence[int], items: Sequence[DirtyItem], markers: PurgeMarkers) -> list[TopicCount]:
    """Return what is to be added to the counts of the rows, in steps: each dirty item's row is taken away, and its item added."""
    groups: dict[tuple[str, str, State], list[int]] = {}

    def add(namespace: str, topic: str, state: State, sign: int, payload_bytes: int, number: int) -> None:
        group = groups.setdefault((namespace, topic, state), [0, 0, 0])
        group[0] += sign
        group[1] += sign * payload_bytes
        group[2] += sign * (number <= markers.last_number((namespace, topic)))

    for place, (number, item) in enumerate(zip(numbers, items, strict=True), 1):
        base, state = item.base, item.state
        known = item.row or base
        assert known is not None
        if base is not None:
            add(base.namespace, base.topic, base.state, -1, base.payload_bytes, number)
        if state is not None:
            add(known.namespace, known.topic, state, 1, known.payload_bytes, number)
        if place % _ITEMS_PER_STEP == 0:
            await asyncio.sleep(0)
    return [TopicCount(*group, *numbers) for group, numbers in groups.items()]
