"""Reads beside the flushes of a shard with a journal: rows, with the memory of the owner laid over them.

Each page is the state of one moment, the end of its last read of the tables. A row
that a flush wrote meanwhile is not judged by the page that may have missed it: the record of the read
has it. Knows nothing of flushes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from operator import itemgetter
from typing import Final

from foqs.core.flush.fence import Fence
from foqs.core.flush.journal_rows import PayloadPlace
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number
from foqs.core.items.row_filter import RowFilter
from foqs.core.journal.touched_numbers import TouchedNumbers
from foqs.store.journaled.journal_memory import JournalMemory
from foqs.store.journaled.merged_rows import MergedRows, check_room, due_page
from foqs.store.journaled.page_merge import merge_page
from foqs.store.port import (
    ANY_LENGTH,
    DueRow,
    IdPage,
    IdRange,
    LeaseEnd,
    Reads,
    StoreLost,
    TopicCount,
)

_ATTEMPTS_MAX: Final = 20
"""How often a read is repeated because flushes wrote what it reads."""


class JournaledReads:
    """A connection for reading; see `port.Reads`.

    Args:
        memory: returns the memory of the present ownership.
    """

    def __init__(self, inner: Reads, memory: Callable[[], JournalMemory]) -> None:
        self._inner = inner
        self._memory = memory
        self._difference: list[TopicCount] = []
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
        memory = self._memory()

        def added(touched: TouchedNumbers, start: OrderKey | None) -> list[OrderKey]:
            return memory.ready_keys(topic, start, limit, purged_up_to, touched)

        return await self._pages(
            lambda start, count: self._inner.ready_order_keys(committed, topic, start, count, purged_up_to),
            added,
            order_key_number,
            _itself,
            after,
            limit,
        )

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
        memory, payload_bytes_max = self._memory(), ANY_LENGTH if with_payload else -1
        page_keys: dict[int, OrderKey] = {}
        end, is_exhausted = after, False
        with self._merged_rows(committed, payload_bytes_max) as merged:
            for _ in range(_ATTEMPTS_MAX + limit):
                if not is_exhausted:
                    record = merged.begin_read()
                    page = await self._inner.list_rows(
                        committed, topic, state, end, limit, purged_up_to, with_payload=with_payload
                    )
                    merged.add(record, (), page)
                    page_keys |= {row.id: row.order_key for row in page}
                    is_exhausted = len(page) < limit or not page
                    end = page[-1].order_key if page else end
                while True:
                    keys = {number: key for number, key in page_keys.items() if merged.counts(number)}
                    for number, item in memory.items_of(topic, state, merged.touched):
                        key = item.order_key(number)
                        is_in_page = (after is None or key > after) and (
                            is_exhausted or (end is not None and key <= end)
                        )
                        if is_in_page and number > purged_up_to:
                            keys[number] = key
                    if len(keys) < limit and not is_exhausted:
                        break  # read one more page
                    chosen = sorted(keys, key=keys.__getitem__)[:limit]
                    limits = dict.fromkeys(chosen, payload_bytes_max)
                    rows, unread = merged.assembled(limits)
                    if not unread:
                        return rows
                    await merged.read(unread, limits)
        raise StoreLost("rows that flushes change all the time could not be listed; try again")

    async def rows_by_id(self, committed: Fence, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        memory = self._memory()
        with self._merged_rows(committed, -1) as merged:
            record = merged.begin_read()
            page = await self._inner.rows_by_id(committed, namespace, only, ids)
            merged.add(record, (), page.rows)
            last = ids.last if page.last_id is None else page.last_id
            for _ in range(_ATTEMPTS_MAX):
                numbers = sorted(
                    {
                        *[row.id for row in page.rows if merged.counts(row.id)],
                        *memory.dirty_items.between(ids.after + 1, last),
                        *[number for number in record.numbers if ids.after < number <= last],
                    }
                )
                last_id = page.last_id
                if len(numbers) > ids.rows_max:
                    numbers = numbers[: ids.rows_max]
                    last_id = numbers[-1]
                limits = dict.fromkeys(numbers, -1)
                found, unread = merged.assembled(limits)
                if not unread:
                    rows = [row for row in found if row.namespace == namespace and only.matches(row)]
                    if len(rows) >= ids.limit:
                        return IdPage(rows[: ids.limit], rows[ids.limit - 1].id)
                    return IdPage(rows, last_id)
                await merged.read(unread, limits)
        raise StoreLost("rows that flushes change all the time could not be listed; try again")

    async def due_rows(self, committed: Fence, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        memory = self._memory()
        return await due_page(
            memory, None, high_ms, after, limit, lambda start: self._inner.due_rows(committed, high_ms, start, limit)
        )

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
        memory = self._memory()
        with memory.reads.record() as touched:
            pages = await self._inner.leases_of(committed, topics, limit)
        check_room(touched)
        result: list[list[LeaseEnd]] = []
        for (topic, after), page in zip(topics, pages, strict=True):
            added = [
                (item.order_key(number), due_ms)
                for number, item in memory.items_of(topic, State.LEASED, touched)
                if (due_ms := item.due_ms) is not None and (after is None or item.order_key(number) > after)
            ]
            is_full = bool(page) and len(page) >= limit
            merged = merge_page(
                page,
                is_full,
                lambda lease: memory.is_known(order_key_number(lease[0]), touched),
                added,
                itemgetter(0),
            )
            if is_full and len(merged) < limit:
                # Most of the page is known better: the rest of the topic is read by itself.
                (rest,) = await self.leases_of(committed, [(topic, page[-1][0])], limit)
                merged += rest
            result.append(merged[:limit])
        return result

    async def idempotency_keys_of(self, committed: Fence, untils: Mapping[int, int]) -> dict[int, bytes]:
        return await self._inner.idempotency_keys_of(committed, untils)

    async def journal_payloads(self, committed: Fence, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        return await self._inner.journal_payloads(committed, places)

    async def begin_snapshot(self, committed: Fence) -> None:
        """Start a snapshot, between two flushes: the memory is that of the same flush."""
        await self._inner.begin_snapshot(committed)
        self._difference = _difference(self._memory())

    async def counts(self) -> list[TopicCount]:
        groups: dict[tuple[str, str, State], TopicCount] = {}
        for count in (*await self._inner.counts(), *self._difference):
            group = (count.namespace, count.topic, count.state)
            known = groups.get(group)
            groups[group] = count if known is None else _sum(known, count)
        return [count for count in groups.values() if count.rows]

    async def close(self) -> None:
        await self._inner.close()

    async def _pages(
        self,
        read_page: Callable[[OrderKey | None, int], Awaitable[Sequence[OrderKey]]],
        added: Callable[[TouchedNumbers, OrderKey | None], list[OrderKey]],
        number_of: Callable[[OrderKey], int],
        place: Callable[[OrderKey], object],
        after: OrderKey | None,
        limit: int,
    ) -> list[OrderKey]:
        """Read pages of the table until `limit` entries are known, or there are no more."""
        memory = self._memory()
        found: dict[int, OrderKey] = {}
        while True:
            with memory.reads.record() as touched:
                page = await read_page(after, limit)
            check_room(touched)
            is_full = bool(page) and len(page) >= limit
            merged = merge_page(
                page,
                is_full,
                lambda key: memory.is_known(number_of(key), touched),
                added(touched, after),
                place,
            )
            found |= {number_of(key): key for key in merged}
            if not is_full or len(found) >= limit:
                return sorted(found.values())[:limit]
            after = page[-1]


def _itself(key: OrderKey) -> OrderKey:
    return key


def _sum(one: TopicCount, other: TopicCount) -> TopicCount:
    return TopicCount(
        one.namespace,
        one.topic,
        one.state,
        one.rows + other.rows,
        one.payload_bytes + other.payload_bytes,
        one.purged_rows + other.purged_rows,
    )


def _difference(memory: JournalMemory) -> list[TopicCount]:
    """Return what is to be added to the counts of the rows: each dirty item's row is taken away, and its item added."""
    groups: dict[tuple[str, str, State], list[int]] = {}

    def add(namespace: str, topic: str, state: State, sign: int, payload_bytes: int, number: int) -> None:
        group = groups.setdefault((namespace, topic, state), [0, 0, 0])
        group[0] += sign
        group[1] += sign * payload_bytes
        group[2] += sign * (number <= memory.purge_markers.last_number((namespace, topic)))

    for number, item in memory.dirty_items.items():
        base, state = item.base, item.state
        known = item.row or base
        assert known is not None
        if base is not None:
            add(base.namespace, base.topic, base.state, -1, base.payload_bytes, number)
        if state is not None:
            add(known.namespace, known.topic, state, 1, known.payload_bytes, number)
    return [TopicCount(*group, *numbers) for group, numbers in groups.items()]
