"""Compares the memory of a shard with its tables (invariants 10, 13 and 15), at any time between two flushes.

`differences` finds whatever memory and rows disagree about; `uncovered_leases` is its part about the ends of
leases. `OwnedShard.check` compares the parts of the memory with each other and knows no table. `checked_shards`
calls `check` after each flush and `differences` after every eighth; the simulation also calls `differences` at
rest, and `uncovered_leases` at each commit for the leases that it leaves unchanged. Knows the internals of a shard, so
that tests need not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from foqs.core.items.item import Row, State, order_key_number
from foqs.core.timing.due_timers import TimerEntry, timer_entry
from foqs.shard.shard import OwnedShard
from foqs.store.in_memory.memory_table import ShardTables
from tests.support.group_differences import differences_of_groups


def is_at_rest(shard: OwnedShard) -> bool:
    """Nothing is queued, being written, being read, reserved or being purged."""
    return is_quiet(shard) and not any(
        (
            shard._intake,
            shard.index.reserved_count,
            not shard.loader.is_idle,
            shard.counts.is_lagging,
            shard.memory.purge_markers,
        )
    )


def is_quiet(shard: OwnedShard) -> bool:
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


def watermark_ms(shard: OwnedShard) -> int | None:
    """No row of its table is due before; None: any may be."""
    return shard.memory.timers.watermark_ms


def is_up_to_date(shard: OwnedShard, tables: ShardTables) -> bool:
    """Return whether the shard's memory has the last flush that was committed, and it is its own."""
    owner, writer = tables.owner, shard._writer
    return (owner.epoch, owner.flush) == (shard.epoch, writer.flush_number) and not writer._is_maybe_written


def differences(shard: OwnedShard, tables: ShardTables) -> list[str]:
    """Return how the shard's memory, which is up to date, differs from its tables, and the timer table from the rows."""
    all_rows = list(tables.rows.values())
    markers = shard.memory.purge_markers
    rows = [row for row in all_rows if not markers.covers(row)] if markers else all_rows
    # A purged row may have an entry or none until it is deleted.
    purged = {row.id for row in all_rows if markers.covers(row)} if markers else set()
    return [
        *_counts(shard, rows),
        *_usage(shard, all_rows),
        *_topics(shard, rows, tables),
        *_index(shard, rows),
        *_cache(shard, all_rows),
        *_timers(shard, rows),
        *wrong_timers(rows, [entry for entry in tables.timers if entry[1] not in purged]),
    ]


def wrong_timers(rows: Iterable[Row], timers: Iterable[TimerEntry]) -> Iterator[str]:
    """Yield how the timer table differs from what the rows say."""
    wanted = {entry for entry in map(timer_entry, rows) if entry is not None}
    for due_ms, number in sorted(wanted.difference(timers)):
        yield f"invariant 10: row {number} is due at {due_ms} and has no timer entry"
    for due_ms, number in sorted(set(timers) - wanted):
        yield f"invariant 10: the timer entry ({due_ms}, {number}) has no row with this due"


def uncovered_leases(shard: OwnedShard, rows: Iterable[Row]) -> list[str]:
    """Return the leases whose end neither a look nor a walk will find. Must be empty between two flushes."""
    leases = shard.memory.timers.leases
    return [
        f"invariant 10: the lease of row {row.id} that ends at {row.due_ms} is forgotten"
        for row in rows
        if row.state is State.LEASED and row.due_ms is not None and not leases.covers(row.id, row.due_ms)
    ]


def _counts(shard: OwnedShard, rows: Sequence[Row]) -> Iterator[str]:
    counts = shard.counts
    if counts.is_lagging:
        return
    held = Counter((row.namespace, row.topic, row.state) for row in rows)
    counted = {
        (namespace, name, state): counts.count((namespace, name), state)
        for namespace, names in counts._topics.items()
        for name in names
        for state in State
        if counts.count((namespace, name), state)
    }
    if counted != dict(held):
        yield f"invariant 15: counts {counted} instead of {dict(held)}"


def _usage(shard: OwnedShard, rows: Sequence[Row]) -> Iterator[str]:
    if shard.counts.is_lagging:
        return
    usage: dict[str, list[int]] = {}
    for row in rows:
        held_by = usage.setdefault(row.namespace, [0, 0])
        held_by[0] += 1
        held_by[1] += row.payload_bytes
    counted = shard.memory.usage._usage
    if counted != usage:
        yield f"usage {counted} instead of {usage}"


def _topics(shard: OwnedShard, rows: Sequence[Row], tables: ShardTables) -> Iterator[str]:
    memory = shard.memory
    known = {(namespace, name) for namespace, names in memory.topic_table.names_by_namespace() for name in names}
    if known != tables.topics:
        yield f"topics {known} instead of {tables.topics}"
    for topic in {(row.namespace, row.topic) for row in rows}:
        if topic not in tables.topics:
            yield f"{topic} has items and is not in the topics table: the next owner would not find them"
        if memory.topic_table.is_empty(topic):
            yield f"{topic} has items and counts as empty: it would leave the topics table"
    if memory.key_slots != tables.key_slots:
        yield f"invariant 3: key slots {memory.key_slots} instead of {tables.key_slots}"


def _index(shard: OwnedShard, rows: Sequence[Row]) -> Iterator[str]:
    index = shard.index
    keys: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row.state is State.READY:
            keys.setdefault((row.namespace, row.topic), []).append(row.order_key)
    for topic in index.topics():
        if topic not in keys and not shard.counts.is_lagging and topic not in shard.memory.limited_topics:
            yield f"invariant 13: {topic} has a window but nothing is ready"
    for topic in shard.memory.limited_topics:
        yield from _limited_topic(shard, topic, [row for row in rows if (row.namespace, row.topic) == topic])
    for topic, ready in keys.items():
        if topic in shard.memory.limited_topics:
            continue
        boundary = index.boundary(topic)
        within = sorted(
            key
            for key in ready
            if (boundary is None or key <= boundary) and not index.is_reserved(order_key_number(key))
        )
        window = index.peek(topic, len(rows) + 1)
        if topic not in index and within:
            yield f"invariant 13: {topic} has {len(within)} ready items and no window"
        elif window != within:
            yield f"invariant 13: {topic} has window {window} instead of {within}"
        first, free = (
            index.first_known_key(topic),
            [key for key in ready if not index.is_reserved(order_key_number(key))],
        )
        if first is not None and first != min(free, default=None):
            yield f"invariant 13: {first} counts as the best item of {topic} instead of {min(free, default=None)}"


def _limited_topic(shard: OwnedShard, topic: tuple[str, str], rows: Sequence[Row]) -> Iterator[str]:
    """Yield how the groups of a topic with a limit differ from its rows, and its heads from what these allow."""
    groups = shard.memory.limited_topics[topic].groups
    limit = groups.limit
    # A head of a fair topic has the turn of its group in its key, so heads are compared by their numbers.
    keys = {row.id: row.order_key for row in rows}
    heads_in_window = [(key, order_key_number(key)) for key in shard.index.peek(topic, len(rows) + 1)]
    window = {keys.get(number, key) for key, number in heads_in_window}
    is_fair = groups.turns is not None
    by_group: dict[bytes | None, list[Row]] = {}
    for row in rows:
        by_group.setdefault(row.item_group, []).append(row)
    known = {row.order_key for row in rows if row.state is State.READY}
    for key in window - known:
        yield f"invariant 13: {topic} has the head {key}, which is not READY"
    if groups.is_read:
        for difference in differences_of_groups(groups, rows):
            yield f"{topic}: {difference}"
    elif window - {row.order_key for row in rows if row.attempt and row.item_group is not None}:
        yield f"invariant 13: {topic} has heads that wait before the rows of delivered items were read"
    reserved = set(groups.reserved)
    # An item that is cancelled while its lease is queued, or was refused a moment ago, keeps its permit until that has ended.
    cancelled = {groups.reserved[number].name for number in reserved.difference(row.id for row in rows)}
    for name, items in by_group.items():
        ready = sorted(row.order_key for row in items if row.state is State.READY and row.id not in reserved)
        heads = sorted(window.intersection(ready))
        if name is None:
            continue
        leased = {row.id: row.token for row in items if row.state is State.LEASED}
        own_reserved = reserved.intersection(row.id for row in items)
        # The items of a run of a strict group are reserved together, and leased in one flush. They count as one.
        is_reserved = not own_reserved <= leased.keys()
        busy = len(set(leased.values())) + is_reserved if limit == 1 else len(leased.keys() | own_reserved)
        if is_fair and len(heads) > 1:
            yield f"invariant 26: group {name!r} of {topic} has the heads {heads}, and one turn"
        if busy > limit or (heads and len(heads) + busy > limit):
            yield f"invariant 23: group {name!r} of {topic} has {busy} leases and the heads {heads}, and its limit is {limit}"
        delivered = [row for row in items if row.attempt and row.id not in reserved]
        returned = sorted(row.order_key for row in delivered if row.state is State.READY)
        backs_off = any(row.state is State.DEFERRED for row in delivered)
        if limit == 1 and heads and ((backs_off and not returned) or (returned and heads != returned[:1])):
            yield f"invariant 24: group {name!r} of {topic} has the heads {heads}, and {returned} were delivered before"
        may_deliver = groups.is_read and busy < limit and not (limit == 1 and backs_off)
        first = returned[:1] if limit == 1 and returned else ready[:1]
        group = groups.get(name.decode())
        known_up_to = groups.boundary if group is None else min(groups.boundary, group.cut)
        is_known = bool(first) and first[0] <= known_up_to and name.decode() not in cancelled
        if may_deliver and is_known and first[0] not in window:
            yield f"invariant 11: group {name!r} of {topic} has {first} READY, {busy} leases, and the heads {heads}"


def _cache(shard: OwnedShard, rows: Sequence[Row]) -> Iterator[str]:
    table = {row.id: row for row in rows}
    for number, row in shard.memory.cache._rows.items():
        there = table.get(number)
        if there is None:
            yield f"invariant 2: row {number} is remembered and gone"
        elif replace(row, payload=there.payload) != there:
            yield f"row {number} is remembered as {row} and is {there}"
        elif row.payload is not None and row.payload != there.payload:
            yield f"row {number} is remembered with another payload"


def _timers(shard: OwnedShard, rows: Sequence[Row]) -> Iterator[str]:
    yield from uncovered_leases(shard, rows)
    dues = [row.due_ms for row in rows if row.due_ms is not None]
    watermark_ms = shard.memory.timers.watermark_ms
    if watermark_ms is not None and any(due < watermark_ms for due in dues):
        yield f"invariant 10: due {min(dues)} lies below the watermark {watermark_ms}"
    entries = [entry[0] for entry in map(timer_entry, rows) if entry is not None]
    next_ms = shard.memory.timers.next_table_scan_ms()
    retry_ms = shard.now_ms() + shard._constants.retry_ms_max
    if entries and next_ms > max(min(entries), retry_ms):
        yield f"invariant 10: due {min(entries)} is before the next scan at {next_ms}"
