"""The options of `[shard]` and `[row_cache]`: how the shards of a host write, and what they keep in memory.

Knows nothing of shards.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from foqs.options.options import DAY_MS, HOUR_MS, MIB, MS, Options, check_not_above, option


class ShardOptions(Options):
    """How a shard writes, and what it keeps in memory."""

    flush_items_max: int = option(
        2_000,
        "items",
        "The operations of one flush. Larger flushes gain little and make every caller wait longer.",
        1,
        100_000,
    )
    flush_items_min: int = option(
        10, "items", "A flush may always have this number of operations, even when flushes are slow.", 1, 100_000
    )
    flush_ms_target: int = option(
        25,
        MS,
        "When a flush takes longer, the next ones carry fewer operations. New operations wait until the flush ends.",
        1,
        60_000,
    )
    flush_contended_ms_target: int = option(
        2,
        MS,
        "The target while a namespace with few waiting operations competes with a namespace with many, so "
        "that a flood delays it less.",
        1,
        60_000,
    )
    small_flush_items_max: int = option(
        32,
        "items",
        "While a namespace with few waiting operations competes with a namespace with many, every other flush "
        "carries at most this number of operations.",
        2,
        100_000,
    )
    flush_bytes_max: int = option(
        4 * MIB,
        "bytes",
        "The payload, metadata and trace contexts of one flush. Below the packet limit of the database.",
        MIB,
        64 * MIB,
    )
    queue_items_max: int = option(
        40_000,
        "items",
        "The operations that wait for a flush. A namespace gets a part by its weight, at most half if it is "
        "alone. Further operations are answered OVERLOADED.",
        2,
        10_000_000,
    )
    queue_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "The payload, metadata and trace contexts that wait for a flush. Further operations are answered OVERLOADED.",
        MIB,
        4096 * MIB,
    )
    ready_window_items_max: int = option(
        10_000,
        "items",
        "The ready items of one topic in the ready index. The rest is only in the table.",
        10,
        10_000_000,
    )
    ready_index_items_max: int = option(
        250_000,
        "items",
        "The ready items of one shard in the ready index, over all topics.",
        10,
        100_000_000,
    )
    timer_page_items: int = option(
        1_200,
        "items",
        "The due rows that are read at once, so that many due items cannot stall the writer. With more than half "
        "of flush_items_max, due rows are handled faster than new ones can come.",
        1,
        10_000,
    )
    lease_ranges_max: int = option(
        262_144,
        "ranges",
        "The ranges of consecutive item numbers whose lease ends are remembered, at 16 bytes each. Beyond it, leases "
        "that end later are read from the table when their time comes.",
        64,
        100_000_000,
    )
    purge_page_items: int = option(
        1_200,
        "items",
        "The rows of a purged topic that are deleted at once, beside other operations. With more than half of "
        "flush_items_max, they are deleted faster than new ones can come.",
        1,
        10_000,
    )
    purge_topics_max: int = option(
        10_000,
        "topics",
        "The purged topics of a shard whose rows are not deleted yet. Further purges are refused for a while.",
        1,
        1_000_000,
    )
    purge_topics_per_namespace_max: int = option(
        1_000,
        "topics",
        "The same for one namespace, so that others can purge too.",
        1,
        1_000_000,
    )
    timer_tick_ms_min: int = option(
        20, MS, "The resolution of timers: due items are searched no more often than this.", 1, 10_000
    )
    sweep_interval_ms: int = option(
        5 * 60_000,
        MS,
        "How often all due rows are searched for, so that a missed timer is late and not lost; less often if a search "
        "takes more than a hundredth of this time. Key expiry and checks of the ownership run at this interval too.",
        1_000,
        DAY_MS,
    )
    clock_sample_interval_ms: int = option(
        10_000,
        MS,
        "How often the shard clock is compared with the database's clock. Machines drift apart by less than a "
        "millisecond in that time.",
        10,
        HOUR_MS,
    )
    clock_slew_permille: int = option(
        50,
        "thousandths",
        "How much faster or slower the shard clock runs until it agrees with the database's clock. With the "
        "default a lease of 30 s can be 1.5 s shorter, and a difference of an hour is gone in 20 hours.",
        1,
        500,
    )
    clock_skew_ms_max: int = option(
        100,
        MS,
        "The largest difference between the clocks of two database servers. NTP keeps them within a few "
        "milliseconds. After a takeover from another server leases and delays end later by this time.",
        0,
        HOUR_MS,
    )
    empty_topic_linger_ms: int = option(
        60_000, MS, "How long the shard's table remembers a topic without items.", 0, DAY_MS
    )
    retry_ms_min: int = option(50, MS, "The first wait before a failed database is tried again.", 1, 60_000)
    retry_ms_max: int = option(5_000, MS, "The longest wait before a failed database is tried again.", 1, 600_000)
    breaker_window_ms: int = option(
        10_000,
        MS,
        "The circuit breaker judges the database by the flushes of this time. It refuses new items while the "
        "database fails or is slow; acks, nacks and deliveries go on.",
        100,
        HOUR_MS,
    )
    breaker_latency_ms_max: int = option(
        500,
        MS,
        "The circuit breaker opens when flushes take longer than this on average. A flush that has not ended "
        "counts with its time so far. Far above flush_ms_target, because a busy database is healthy.",
        1,
        HOUR_MS,
    )
    breaker_error_percent: int = option(
        50,
        "percent",
        "The circuit breaker opens when this part of the flushes fails: lost connections, deadlocks, a full "
        "disk. Refused items, idempotency keys in use and other owners are no failures.",
        1,
        100,
    )
    breaker_flushes_min: int = option(
        5,
        "transactions",
        "Fewer flushes than this do not open the circuit breaker. A single flush opens it after this number "
        "times breaker_latency_ms_max, so a database that does not respond opens it.",
        1,
        10_000,
    )
    breaker_reset_ms: int = option(
        2_000,
        MS,
        "After this time an open circuit breaker lets one flush with new items through. It closes if that "
        "flush succeeds in time.",
        1,
        HOUR_MS,
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        check_not_above(self, "flush_items_min", "flush_items_max")
        check_not_above(self, "flush_contended_ms_target", "flush_ms_target")
        check_not_above(self, "purge_topics_per_namespace_max", "purge_topics_max")
        check_not_above(self, "flush_items_max", "queue_items_max")
        check_not_above(self, "flush_bytes_max", "queue_bytes_max")
        check_not_above(self, "ready_window_items_max", "ready_index_items_max")
        check_not_above(self, "retry_ms_min", "retry_ms_max")
        return self


class RowCacheOptions(Options):
    """Rows that the host keeps in memory, so that deliveries and acks read nothing."""

    written_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "The memory for rows that were just written, of all shards. A namespace may take what is left free, "
        "and at most half if it is alone. Other rows are read when they are needed.",
        0,
        64 * 1024 * MIB,
    )
    written_items_max: int = option(200_000, "items", "The rows that were just written, of all shards.", 0, 100_000_000)
    prefetched_bytes_max: int = option(
        32 * MIB, "bytes", "The memory for prefetched rows, of all shards.", 0, 64 * 1024 * MIB
    )
    prefetched_items_max: int = option(20_000, "items", "The prefetched rows, of all shards.", 0, 10_000_000)
    prefetch_topic_items_max: int = option(4_000, "items", "The prefetched rows of one topic.", 1, 1_000_000)
    prefetch_horizon_ms: int = option(
        250, MS, "A topic's prefetched rows cover its recent dequeues for this time.", 1, 60_000
    )
    demand_decay_ms: int = option(2_000, MS, "The time constant with which a topic's demand decays.", 10, HOUR_MS)
    prefetch_idle_ms: int = option(
        10_000, MS, "A topic without a dequeue for this time is not prefetched.", 10, HOUR_MS
    )
    demand_topics_max: int = option(10_000, "topics", "The topics whose demand is remembered.", 1, 10_000_000)
