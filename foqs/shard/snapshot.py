"""A shard in numbers, for metrics and operators. A snapshot is taken on request and not kept.

Always true: taking one costs a few attribute reads, however much the shard holds.
Counters start at the takeover.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foqs.core.flush.intake import Intake
from foqs.core.journal.journal_status import JournalStatus
from foqs.shard.flush_report import FlushReport
from foqs.shard.group_reads import GroupReads
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.shard_reader import ShardReader
from foqs.shard.writer import Writer


@dataclass(slots=True, frozen=True)
class ShardSnapshot:
    """The figures of one shard. Times are of the shard clock, in milliseconds; None if there is none yet.

    `queue_items`, `queue_bytes`: entries that wait for a flush, and their bytes, by lane.
    `held_items`: events that wait for an earlier event on the same number.
    `bisection_batch_count`: parts of refused batches that wait for another try.
    `flush_items_limit`: entries that the next flush may have.
    `group_units`: memory of the groups of topics with a limit, in units of `Group.count_units`.
    `full_topics`: topics with a limit whose groups under delivery fill their memory.
    `overdue_ms`: for how long the next scan for due items has been due.
    `lease_ranges`: memory of the remembered lease ends, in ranges; at most `lease_ranges_max`.
    `due_counts`: items that became due, by what ended.
    `journal`: None if its flushes write rows.
    """

    queue_items: Mapping[str, int]
    queue_bytes: Mapping[str, int]
    held_items: int
    bisection_batch_count: int
    flush_items_limit: int
    refused_writes: int
    reconnects: int
    reads_waiting: int
    read_failures: int
    index_keys: int
    index_reserved: int
    index_topics: int
    refills: int
    evicted_keys: int
    group_units: int
    group_units_max: int
    group_pages: int
    forgotten_groups: int
    full_topics: int
    watermark_age_ms: int | None
    overdue_ms: int
    sweep_age_ms: int | None
    lease_ranges: int
    lease_ranges_max: int
    is_lease_walk_running: bool
    lease_walks: int
    due_counts: Mapping[str, int]
    keys_repeated: int
    keys_in_conflict: int
    key_reruns: int
    key_expiry_flushes: int
    purged_rows: int
    purging_topics: int
    journal: JournalStatus | None


def take_snapshot(
    intake: Intake,
    writer: Writer,
    reader: ShardReader,
    memory: ShardMemory,
    group_reads: GroupReads,
    report: FlushReport,
    journal: JournalStatus | None,
    now_ms: int,
) -> ShardSnapshot:
    waiting, timers, index = intake.waiting_by_lane(), memory.timers, memory.index
    return ShardSnapshot(
        queue_items={lane.name.lower(): items for lane, items, _ in waiting},
        queue_bytes={lane.name.lower(): size for lane, _, size in waiting},
        held_items=intake.held_back_count,
        bisection_batch_count=writer.bisection_batch_count,
        flush_items_limit=intake.items_max,
        refused_writes=writer.refused_writes.count,
        reconnects=writer.reconnects,
        reads_waiting=reader.waiting_count,
        read_failures=reader.failure_count,
        index_keys=len(index),
        index_reserved=index.reserved_count,
        index_topics=index.topic_count,
        refills=index.refill_count,
        evicted_keys=index.evicted_count,
        group_units=memory.group_shares.units,
        group_units_max=memory.group_shares.units_max,
        group_pages=group_reads.page_count,
        forgotten_groups=memory.forgotten_groups,
        full_topics=sum([limited.room.is_full for limited in memory.limited_topics.values()]),
        watermark_age_ms=None if timers.watermark_ms is None else now_ms - timers.watermark_ms,
        overdue_ms=max(0, now_ms - timers.next_scan_ms()),
        sweep_age_ms=None if timers.last_sweep_ms is None else now_ms - timers.last_sweep_ms,
        lease_ranges=timers.leases.cost,
        lease_ranges_max=timers.leases.ranges_max,
        is_lease_walk_running=timers.leases.is_lease_walk_running,
        lease_walks=timers.leases.lease_walk_count,
        due_counts=report.due_counts,
        keys_repeated=report.keys_repeated,
        keys_in_conflict=report.keys_in_conflict,
        key_reruns=writer.key_reruns,
        key_expiry_flushes=writer.key_expiry_flushes,
        purged_rows=report.rows_purged,
        purging_topics=len(memory.purge_markers),
        journal=journal,
    )
