"""Helpers to use a store in tests: a row, an ownership that counts its flushes, all contents of a shard."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from foqs.core.flush.fence import Fence
from foqs.core.flush.writes import LeaseUpdate, RowChanges, Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row, TopicName
from foqs.store.port import Reads, Store, WriteRefused
from foqs.store.row_columns import MUTABLE_COLUMNS
from foqs.store.sql_rows import lease_columns
from tests.support.builders import row

NONCE = "nonce-a"
OTHER = "nonce-b"
TOPIC: TopicName = ("default", "t")
"""The topic of `make_row`."""


def make_row(number: int, **changes: Any) -> Row:
    """A READY row of topic `t`; `payload_bytes` follows the payload."""
    values: dict[str, Any] = {"payload": b"payload", "lease_ms": 30_000, **changes}
    return row(number, payload_bytes=len(values["payload"]), **values)


@dataclass(slots=True)
class Ownership:
    """An epoch and nonce on a store, and the number of its next flush."""

    store: Store
    epoch: int = 1
    nonce: str = NONCE
    number: int = 1
    clock_ms: int = 0
    offset_ms: int = 0
    arrival_ms: int = 0

    @property
    def fence(self) -> Fence:
        return Fence(self.epoch, self.nonce, self.number, self.clock_ms, self.offset_ms, self.arrival_ms)

    @property
    def past(self) -> Fence:
        """The last flush known to be committed, for reads."""
        return Fence(self.epoch, self.nonce, self.number - 1, 0)

    async def write(
        self,
        inserts: Sequence[Row] = (),
        updates: Sequence[Row] = (),
        deletes: Sequence[int] = (),
        leases: Sequence[LeaseUpdate] = (),
        topics_added: Sequence[TopicName] = (),
        topics_removed: Sequence[TopicName] = (),
        moves: Sequence[tuple[int, Row]] = (),
        **keys_and_slots: Any,
    ) -> Mapping[int, Row]:
        """Write these in one flush, and return the rows that it read."""
        found: dict[int, Row] = {}

        def decide(rows: Mapping[int, Row], keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
            found.update(rows)
            return with_changes(
                rows,
                Writes(
                    deletes=list(deletes),
                    updates=list(updates),
                    moves=list(moves),
                    inserts=list(inserts),
                    leases=list(leases),
                    topics_added=list(topics_added),
                    topics_removed=list(topics_removed),
                    **keys_and_slots,
                ),
            )

        touched = [*deletes, *(row.id for row in updates), *(number for lease in leases for number in lease.ids)]
        touched += [old_id for old_id, _ in moves]
        await self.store.flush(self.fence, touched, {}, [], decide)
        self.number += 1
        return found


def with_changes(rows: Mapping[int, Row], writes: Writes) -> Writes:
    """Add the rows before and after to writes, as `FlushPlan.writes` does. `rows` are those before."""
    leased = [
        (rows[number], replace(rows[number], **{name: getattr(lease, name) for name in lease_columns(lease)}))
        for lease in writes.leases
        for number in lease.ids
        if number in rows
    ]
    changed = [(None, rows[row.id], _mutated(rows[row.id], row)) for row in writes.updates if row.id in rows]
    moved = [
        (rows[old_id], _mutated(replace(rows[old_id], id=row.id, topic=row.topic), row))
        for old_id, row in writes.moves
        if old_id in rows
    ]
    deleted = {None: [rows[number] for number in writes.deletes if number in rows]}
    writes.changes = RowChanges(
        ([old for old, _ in leased], [new for _, new in leased]), changed, deleted, writes.inserts, moved
    )
    return writes


def _mutated(old: Row, new: Row) -> Row:
    return replace(old, **{name: getattr(new, name) for name in MUTABLE_COLUMNS})


async def write_again(owned: Ownership, **writes: Any) -> None:
    """Write, and repeat a flush that was the victim of a deadlock, as a writer does.

    A flush that has read a table and then writes it deadlocks with a change of the table that came in between.
    """
    while True:
        try:
            await owned.write(**writes)
            return
        except WriteRefused as refused:
            assert refused.is_retryable, refused


async def keys_of(owned: Ownership, *names: KeyName) -> dict[KeyName, IdempotencyKey]:
    """The rows of these keys, as a flush that writes nothing finds them."""
    found: dict[KeyName, IdempotencyKey] = {}

    def decide(rows: Mapping[int, Row], keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
        found.update(keys)
        return Writes()

    await owned.store.flush(owned.fence, [], {}, names, decide)
    owned.number += 1
    return found


async def opened(store: Store, epoch: int = 1, nonce: str = NONCE) -> Ownership:
    """The store, opened and taken over."""
    await store.open()
    await store.take_over(epoch, nonce)
    return Ownership(store, epoch, nonce)


@asynccontextmanager
async def reading(store: Store) -> AsyncIterator[Reads]:
    """Reads of the store, closed at the end."""
    reads = store.reads()
    try:
        yield reads
    finally:
        await reads.close()


async def contents(owned: Ownership) -> dict[int, Row]:
    """Every row of the shard, found through its topics."""
    async with reading(owned.store) as reads:
        await reads.begin_snapshot(owned.past)
        counts = await reads.counts()
    rows: dict[int, Row] = {}
    async with reading(owned.store) as reads:
        for count in counts:
            topic = (count.namespace, count.topic)
            listed = await reads.list_rows(owned.past, topic, count.state, None, count.rows + 1, with_payload=True)
            assert len(listed) == count.rows
            rows |= {row.id: row for row in listed}
    return rows


def without_payload(row: Row) -> Row:
    """The row as `touched` gives it."""
    return replace(row, payload=None)
