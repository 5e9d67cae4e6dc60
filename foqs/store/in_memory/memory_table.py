"""One shard's tables in memory: rows and their indexes, timers, topics, keys, slots, markers, journal and the owner row.

Always true: `ready` matches the rows, and `key_expiries` the key rows; both and `timers` are
sorted; rows are returned as copies. Each method takes effect at one moment. `memory_store`
knows the connections and their locks.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter

from foqs.core.flush.fence import Fence, Owner, Position
from foqs.core.flush.journal_rows import JournalRange, JournalRow, PayloadPlace, PositionedEvents, check_journal_writes
from foqs.core.flush.purge_markers import PurgeMarker, PurgeMarkers
from foqs.core.flush.writes import LeaseUpdate, Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName, own_key
from foqs.core.items.item import OrderKey, Row, State, TopicName, order_key_number
from foqs.core.items.row_filter import RowFilter
from foqs.core.timing.due_timers import TimerEntry
from foqs.store.journal_payloads import payload_at
from foqs.store.port import DueRow, IdPage, IdRange, LeaseEnd, TopicCount
from foqs.store.row_columns import MUTABLE_COLUMNS
from foqs.store.sql_rows import FENCE_COLUMNS, lease_columns


@dataclass(slots=True)
class ShardTables:
    """The tables of one shard, and the connection that holds its owner row's lock."""

    rows: dict[int, Row] = field(default_factory=dict)
    topics: set[TopicName] = field(default_factory=set)
    timers: list[TimerEntry] = field(default_factory=list)
    """The entries of the timer table. A flush writes them beside the rows."""
    ready: dict[TopicName, list[OrderKey]] = field(default_factory=dict)
    idempotency_keys: dict[KeyName, IdempotencyKey] = field(default_factory=dict)
    key_expiries: list[tuple[int, KeyName]] = field(default_factory=list)
    """(until_ms, name of the key) of each key row."""
    key_slots: set[int] = field(default_factory=set)
    purge_markers: set[PurgeMarker] = field(default_factory=set)
    journal: dict[Position, JournalRow] = field(default_factory=dict)
    """The journal rows, in the order of their positions."""
    journal_reserve_bytes: int = 0
    owner: Owner = field(default_factory=lambda: Owner(0, "", 0, 0, 0))
    locked_by: int | None = None
    unlocked: asyncio.Event = field(default_factory=asyncio.Event)

    # ---------------------------------------------------------------- writing

    def write(self, fence: Fence, writes: Writes) -> None:
        """Apply a whole flush."""
        check_journal_writes(fence.position, writes.journal_row, writes.journal_trimmed)
        if writes.journal_trimmed is not None:
            self.trim_journal(writes.journal_trimmed)
        for position in writes.journal_emptied:
            if position in self.journal:
                self.journal[position] = self.journal[position]._replace(payloads=(b"",))
        if writes.journal_reserve_bytes is not None:
            self.journal_reserve_bytes = writes.journal_reserve_bytes
        for number in writes.deletes:
            self.delete(number)
        for lease in writes.leases:
            self.update_leases(lease)
        for row in writes.updates:
            self.update(row)
        for old_id, row in writes.moves:
            self.move(old_id, row)
        for row in writes.inserts:
            self.put(row.copy())
        for entry in writes.timers_removed:
            self.remove_timer(entry)
        for entry in writes.timers_added:
            self.add_timer(entry)
        self.topics.difference_update(writes.topics_removed)
        self.topics.update(writes.topics_added)
        for key in (*writes.idempotency_keys_added, *writes.idempotency_keys_replaced):
            self.put_idempotency_key(key)
        if writes.idempotency_keys_expired_by_ms is not None:
            self.expire_idempotency_keys(
                writes.idempotency_keys_expired_from_ms,
                writes.idempotency_keys_expired_by_ms,
                writes.idempotency_keys_expired_max,
            )
        self.key_slots.update(writes.key_slots_added)
        self.purge_markers.difference_update(writes.purge_markers_removed)
        for marker in writes.purge_markers_added:
            self.purge_markers = {other for other in self.purge_markers if other[:2] != marker[:2]} | {marker}
        if writes.journal_row is not None:
            payloads = b"".join(writes.journal_row.payloads)
            self.journal[fence.position] = writes.journal_row._replace(payloads=(payloads,))
        self.owner = replace(self.owner, **{name: getattr(fence, name) for name in FENCE_COLUMNS})

    def put(self, row: Row) -> None:
        """Add or replace a row."""
        self.delete(row.id)
        self.rows[row.id] = row
        if row.state is State.READY:
            insort(self.ready.setdefault((row.namespace, row.topic), []), row.order_key)

    def update(self, new: Row) -> None:
        """Write the mutable columns of a row, if it exists."""
        row = self.rows.get(new.id)
        if row is None:
            return
        self.put(replace(row, **{name: getattr(new, name) for name in MUTABLE_COLUMNS}))

    def move(self, old_id: int, new: Row) -> None:
        """Give a row, if it exists, another id and topic, and write its mutable columns."""
        row = self.rows.get(old_id)
        if row is not None:
            self.delete(old_id)
            self.put(replace(row, id=new.id, topic=new.topic))
            self.update(new)

    def update_leases(self, lease: LeaseUpdate) -> None:
        """Write the columns of a lease to those of its rows that exist."""
        for number in lease.ids:
            row = self.rows.get(number)
            if row is not None:
                self.put(replace(row, **{name: getattr(lease, name) for name in lease_columns(lease)}))

    def delete(self, number: int) -> None:
        """Remove a row, if it exists."""
        row = self.rows.pop(number, None)
        if row is None:
            return
        if row.state is State.READY:
            order_keys = self.ready[row.namespace, row.topic]
            del order_keys[bisect_right(order_keys, row.order_key) - 1]

    def add_timer(self, entry: TimerEntry) -> None:
        """Add an entry of the timer table, if it does not exist."""
        at = bisect_left(self.timers, entry)
        if self.timers[at : at + 1] != [entry]:
            self.timers.insert(at, entry)

    def remove_timer(self, entry: TimerEntry) -> None:
        """Remove an entry of the timer table, if it exists."""
        at = bisect_left(self.timers, entry)
        if self.timers[at : at + 1] == [entry]:
            del self.timers[at]

    def put_idempotency_key(self, row: IdempotencyKey) -> None:
        """Add or replace a key row."""
        name = (row.namespace, row.key)
        old = self.idempotency_keys.get(name)
        if old is not None:
            del self.key_expiries[bisect_right(self.key_expiries, (old.until_ms, name)) - 1]
        self.idempotency_keys[name] = row
        insort(self.key_expiries, (row.until_ms, name))

    def expire_idempotency_keys(self, from_ms: int, now_ms: int, limit: int) -> None:
        """Remove the oldest key rows that ended from `from_ms` to `now_ms`, at most `limit`."""
        start = bisect_left(self.key_expiries, from_ms, key=itemgetter(0))
        found = self.key_expiries[start : start + limit]
        page = [name for until_ms, name in found if until_ms <= now_ms]
        del self.key_expiries[start : start + len(page)]
        for name in page:
            del self.idempotency_keys[name]

    def trim_journal(self, trimmed: JournalRange) -> None:
        """Delete the journal rows of a range, and the reserve if it begins there."""
        if trimmed.first == (0, 0):
            self.journal_reserve_bytes = 0
        self.journal = {
            position: row for position, row in self.journal.items() if not trimmed.first <= position < trimmed.end
        }

    # ---------------------------------------------------------------- reading

    def copies(self, ids: Iterable[int], *, with_payload: bool) -> list[Row]:
        """Return copies of the rows of these ids that exist."""
        found = [self.rows[number] for number in dict.fromkeys(ids) if number in self.rows]
        return [row.copy() if with_payload else replace(row, payload=None) for row in found]

    def rows_with_payload(self, payload_limits: Mapping[int, int]) -> list[Row]:
        """Return the rows of these ids that exist. Payloads above the id's limit are left out."""
        return [
            row if row.payload_bytes <= payload_limits[row.id] else replace(row, payload=None)
            for row in self.copies(payload_limits, with_payload=True)
        ]

    def ready_order_keys(
        self, topic: TopicName, after: OrderKey | None, limit: int, purged_up_to: int
    ) -> list[OrderKey]:
        """See `Reads.ready_order_keys`."""
        order_keys = self.ready.get(topic, [])
        start = 0 if after is None else bisect_right(order_keys, after)
        return list(islice((key for key in order_keys[start:] if order_key_number(key) > purged_up_to), limit))

    def list_rows(
        self,
        topic: TopicName,
        state: State,
        after: OrderKey | None,
        limit: int,
        purged_up_to: int,
        *,
        with_payload: bool,
    ) -> list[Row]:
        """See `Reads.list_rows`."""
        rows = [
            row
            for row in self.rows.values()
            if (row.namespace, row.topic) == topic
            and row.state is state
            and (after is None or row.order_key > after)
            and row.id > purged_up_to
        ]
        page = [row.id for row in sorted(rows, key=lambda row: row.order_key)[:limit]]
        return self.copies(page, with_payload=with_payload)

    def rows_by_id(self, namespace: str, only: RowFilter, ids: IdRange) -> IdPage:
        """See `Reads.rows_by_id`."""
        read = sorted(number for number in self.rows if ids.after < number <= ids.last)[: ids.rows_max]
        found = [number for number in read if self.rows[number].namespace == namespace]
        page = [number for number in found if only.matches(self.rows[number])][: ids.limit]
        last_id = page[-1] if len(page) == ids.limit else read[-1] if len(read) == ids.rows_max else None
        return IdPage(self.copies(page, with_payload=False), last_id)

    def idempotency_keys_of(self, untils: Mapping[int, int]) -> dict[int, bytes]:
        """See `Reads.idempotency_keys_of`."""
        return {
            row.item_id: row.key
            for row in self.idempotency_keys.values()
            if untils.get(row.item_id) == row.until_ms and own_key(row.key) is not None
        }

    def due_rows(self, low_ms: int | None, high_ms: int, after: DueRow | None, limit: int) -> list[DueRow]:
        """See `Store.due_rows`."""
        start = 0 if low_ms is None else bisect_right(self.timers, (low_ms, -1))
        if after is not None:
            start = max(start, bisect_right(self.timers, (after.due_ms, after.id)))
        stop = bisect_right(self.timers, (high_ms + 1, -1))
        return [DueRow(at, number) for at, number in self.timers[start : min(stop, start + limit)]]

    def next_due_ms(self, above_ms: int, below_ms: int) -> int | None:
        """See `Store.next_due_ms`."""
        at = bisect_right(self.timers, (above_ms + 1, -1))
        return self.timers[at][0] if at < len(self.timers) and self.timers[at][0] < below_ms else None

    def leases_in(self, ranges: Sequence[tuple[int, int]], last_ms: int) -> list[DueRow]:
        """See `Reads.leases_in`."""
        found = [self.rows.get(number) for first, last in ranges for number in range(first, last + 1)]
        return [
            DueRow(row.due_ms, row.id)
            for row in found
            if row is not None and row.state is State.LEASED and row.due_ms is not None and row.due_ms <= last_ms
        ]

    def leases_of(self, topics: Sequence[tuple[TopicName, OrderKey | None]], limit: int) -> list[list[LeaseEnd]]:
        """See `Reads.leases_of`."""
        leased: dict[TopicName, list[LeaseEnd]] = {}
        for row in self.rows.values():
            if row.state is State.LEASED and row.due_ms is not None:
                leased.setdefault((row.namespace, row.topic), []).append((row.order_key, row.due_ms))
        pages = [
            sorted(each for each in leased.get(topic, ()) if after is None or each[0] > after)
            for topic, after in topics
        ]
        return [page[:limit] for page in pages]

    def journal_floor(self) -> Position | None:
        """See `Store.journal_floor`."""
        return self.journal[max(self.journal)].floor if self.journal else None

    def journal_events(self, first: Position, bytes_max: int) -> list[PositionedEvents]:
        """See `Store.journal_events`."""
        page: list[PositionedEvents] = []
        for position, row in self.journal.items():
            bytes_max -= len(row.events) if position >= first else 0
            if position >= first and (bytes_max >= 0 or not page):
                page.append(PositionedEvents(position, row.events))
        return page

    def journal_payloads(self, places: Sequence[PayloadPlace]) -> dict[PayloadPlace, bytes]:
        """See `Store.journal_payloads`."""
        found = {
            each: payload_at(each, [(0, self.journal[each.position].payloads[0])])
            for each in places
            if each.position in self.journal
        }
        return {place: payload for place, payload in found.items() if payload is not None}

    def next_key_expiry_ms(self, from_ms: int) -> int | None:
        """See `Store.next_key_expiry_ms`."""
        at = bisect_left(self.key_expiries, from_ms, key=itemgetter(0))
        return self.key_expiries[at][0] if at < len(self.key_expiries) else None

    def counts(self) -> list[TopicCount]:
        """See `Reads.counts`."""
        markers = PurgeMarkers(self.purge_markers)
        groups: dict[tuple[str, str, State], list[Row]] = {}
        for row in self.rows.values():
            groups.setdefault((row.namespace, row.topic, row.state), []).append(row)
        return [
            TopicCount(*group, len(rows), sum(row.payload_bytes for row in rows), sum(map(markers.covers, rows)))
            for group, rows in sorted(groups.items())
        ]
