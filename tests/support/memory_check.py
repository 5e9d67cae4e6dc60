"""Compares the memory of a shard with its tables (invariants 10 and 13).

Call it only at rest. Knows the internals of a shard, so that tests need not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from foqs.core.items.item import Row, State, order_key_number
from foqs.core.timing.due_timers import TimerEntry, timer_entry
from foqs.shard.shard import Shard
from foqs.store.in_memory.memory_table import ShardTables


def is_at_rest(shard: Shard) -> bool:
    """Nothing is queued, being written, being read, reserved or being purged."""
    return is_quiet(shard) and not any(
        (
            shard._intake,
            shard.index.reserved_count,
            shard._refilling,
            shard._prefetching,
            shard.counts.is_lagging,
            shard.memory.purge_markers,
        )
    )


def is_quiet(shard: Shard) -> bool:
    """Its writer does nothing."""
    writer = shard._writer
    return not any(
        (
            writer._bisection_queue,
            writer._sealed_batch,
            writer._is_flushing,
            writer._reads,
            writer._flush_requested,
            writer.pending_key_slots,
        )
    )


def watermark_ms(shard: Shard) -> int | None:
    """No row of its table is due before; None: any may be."""
    return shard.memory.timers.watermark_ms


def purged_in_index(shard: Shard) -> list[str]:
    """Return the topics with purged items in the index. Must be empty at any time."""
    markers, index = shard.memory.purge_markers, shard.index
    return [
        f"{topic} has something in its window that is purged"
        for topic, last in (markers._last_numbers.items() if markers else ())
        if any(order_key_number(key) <= last for key in index.peek(topic, len(index)))
    ]


def differences(shard: Shard, tables: ShardTables) -> list[str]:
    """Return how the shard's memory differs from its tables, and the timer table from the rows."""
    rows = list(tables.rows.values())
    return [
        *_counts(shard, rows),
        *_topics(shard, tables),
        *_index(shard, rows),
        *_cache(shard, rows),
        *_timers(shard, rows),
        *wrong_timers(rows, tables.timers),
    ]


def wrong_timers(rows: Iterable[Row], timers: Iterable[TimerEntry]) -> Iterator[str]:
    """Yield how the timer table differs from what the rows say."""
    wanted = {entry for entry in map(timer_entry, rows) if entry is not None}
    for due_ms, number in sorted(wanted.difference(timers)):
        yield f"invariant 10: row {number} is due at {due_ms} and has no timer entry"
    for due_ms, number in sorted(set(timers) - wanted):
        yield f"invariant 10: the timer entry ({due_ms}, {number}) has no row with this due"


def uncovered_leases(shard: Shard, rows: Iterable[Row]) -> list[str]:
    """Return the leases whose end neither a look nor a walk will find. Must be empty between two flushes."""
    leases = shard.memory.timers.leases
    return [
        f"invariant 10: the lease of row {row.id} that ends at {row.due_ms} is forgotten"
        for row in rows
        if row.state is State.LEASED and row.due_ms is not None and not leases.covers(row.id, row.due_ms)
    ]


def _counts(shard: Shard, rows: Sequence[Row]) -> Iterator[str]:
    counts = shard.counts
    held = Counter((row.namespace, row.topic, row.state) for row in rows)
    counted = {
        (namespace, name, state): counts.count((namespace, name), state)
        for namespace, names in counts._topics.items()
        for name in names
        for state in State
        if counts.count((namespace, name), state)
    }
    if counted != dict(held):
        yield f"counts {counted} instead of {dict(held)}"
    usage: dict[str, list[int]] = {}
    for row in rows:
        held_by = usage.setdefault(row.namespace, [0, 0])
        held_by[0] += 1
        held_by[1] += row.payload_bytes
    counted_usage = shard.memory.usage._usage
    if counted_usage != usage:
        yield f"usage {counted_usage} instead of {usage}"
    totals = [sum(row.state is state for row in rows) for state in State]
    if counts.totals[1:] != totals:
        yield f"totals {counts.totals[1:]} instead of {totals}"


def _topics(shard: Shard, tables: ShardTables) -> Iterator[str]:
    memory = shard.memory
    known = {(namespace, name) for namespace, names in memory._topics.items() for name in names}
    if known != tables.topics:
        yield f"topics {known} instead of {tables.topics}"
    for topic in {(row.namespace, row.topic) for row in tables.rows.values()}:
        if topic not in tables.topics:
            yield f"{topic} has items and is not in the topics table: the next owner would not find them"
        if topic in memory._empty_since_ms:
            yield f"{topic} has items and counts as empty: it would leave the topics table"


def _index(shard: Shard, rows: Sequence[Row]) -> Iterator[str]:
    index = shard.index
    keys: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.state is State.READY:
            keys.setdefault((row.namespace, row.topic), []).append(row.order_key)
    for topic in index.topics():
        if topic not in keys:
            yield f"invariant 13: {topic} has a window but nothing is ready"
    for topic, ready in keys.items():
        boundary = index.boundary(topic)
        within = sorted(key for key in ready if boundary is None or key <= boundary)
        if topic not in index:
            yield f"invariant 13: {topic} has {len(ready)} ready items and no window"
        elif index.peek(topic, len(rows) + 1) != within:
            yield f"invariant 13: {topic} has window {index.peek(topic, len(rows) + 1)} instead of {within}"
    if len(index) != sum(len(index.peek(topic, len(rows) + 1)) for topic in index.topics()):
        yield "the index does not know its size"


def _cache(shard: Shard, rows: Sequence[Row]) -> Iterator[str]:
    table = {row.id: row for row in rows}
    for number, row in shard.memory.cache._rows.items():
        there = table.get(number)
        if there is None:
            yield f"invariant 2: row {number} is remembered and gone"
        elif replace(row, payload=there.payload) != there:
            yield f"row {number} is remembered as {row} and is {there}"
        elif row.payload is not None and row.payload != there.payload:
            yield f"row {number} is remembered with another payload"


def _timers(shard: Shard, rows: Sequence[Row]) -> Iterator[str]:
    yield from uncovered_leases(shard, rows)
    dues = [row.due_ms for row in rows if row.due_ms is not None]
    watermark_ms = shard.memory.timers.watermark_ms
    if watermark_ms is not None and any(due < watermark_ms for due in dues):
        yield f"invariant 10: due {min(dues)} lies below the watermark {watermark_ms}"
    entries = [entry[0] for entry in map(timer_entry, rows) if entry is not None]
    next_ms = shard.memory.timers.next_table_scan_ms()
    if entries and next_ms > min(entries):
        yield f"invariant 10: due {min(entries)} is before the next scan at {next_ms}"
