"""The options of `[shard]` and `[row_cache]`: what the shards of a host gather, keep in memory, and how often they look.

Knows nothing of shards.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from foqs.options.options import DAY_MS, HOUR_MS, MIB, MS, Options, check_not_above, option


class ShardOptions(Options):
    """What one shard gathers, keeps in memory, and how often it looks."""

    flush_items_max: int = option(
        2_000,
        "items",
        "Operations of one transaction. Larger ones gain little and make everybody wait longer.",
        1,
        100_000,
    )
    flush_items_min: int = option(
        10, "items", "A transaction may have so many operations, however long it takes.", 1, 100_000
    )
    flush_ms_target: int = option(
        25,
        MS,
        "When a transaction takes longer, the next ones carry less: whoever comes meanwhile waits for all of it.",
        1,
        60_000,
    )
    flush_contended_ms_target: int = option(
        2,
        MS,
        "The same while a namespace waits with few operations beside others with many, so that a flood holds it up less.",
        1,
        60_000,
    )
    small_flush_items_max: int = option(
        32,
        "items",
        "Where a namespace waits with few operations beside others with many, every other transaction carries no more.",
        2,
        100_000,
    )
    flush_bytes_max: int = option(
        4 * MIB, "bytes", "Payload and metadata of one transaction; below the database's packet limit.", MIB, 64 * MIB
    )
    queue_items_max: int = option(
        40_000,
        "items",
        "Operations that wait for a flush; a namespace gets its share by weight, half of it when it is alone. Further ones are "
        "answered OVERLOADED.",
        2,
        10_000_000,
    )
    queue_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "Payload and metadata that wait for a flush; further ones are answered OVERLOADED.",
        MIB,
        4096 * MIB,
    )
    ready_window_items_max: int = option(
        10_000, "items", "Ready keys of one topic held in memory; the rest stays in the table.", 10, 10_000_000
    )
    ready_index_items_max: int = option(
        250_000,
        "items",
        "Ready keys of one shard held in memory, over all topics.",
        10,
        100_000_000,
    )
    timer_page_items: int = option(
        500, "items", "Due rows read at once, so that a burst of timers cannot stall the writer.", 1, 10_000
    )
    purge_page_items: int = option(
        500, "items", "Rows of a purged topic that are deleted at once, beside everything else.", 1, 10_000
    )
    purge_topics_max: int = option(
        10_000,
        "topics",
        "Purged topics of a shard whose rows have still to go; more are refused for a while.",
        1,
        1_000_000,
    )
    purge_topics_per_namespace_max: int = option(
        1_000,
        "topics",
        "The same of one namespace, so that there is room for the others'.",
        1,
        1_000_000,
    )
    timer_tick_ms_min: int = option(
        20, MS, "Timers are not looked at more often than this: their resolution.", 1, 10_000
    )
    sweep_interval_ms: int = option(
        5 * 60_000,
        MS,
        "How often due rows of all times are scanned, so that a missed timer is late and not lost.",
        1_000,
        DAY_MS,
    )
    clock_sample_interval_ms: int = option(
        10_000,
        MS,
        "How often the shard's time is compared with the database's clock: machines drift by less than a millisecond "
        "meanwhile.",
        10,
        HOUR_MS,
    )
    clock_slew_permille: int = option(
        50,
        "thousandths",
        "How much faster or slower the shard's time runs until it agrees with the database's clock. So much shorter a "
        "lease may be: 1.5 seconds of 30; and an hour's difference is gone in 20.",
        1,
        500,
    )
    clock_skew_ms_max: int = option(
        100,
        MS,
        "How far the clocks of two database servers are apart at most; time servers keep them within a few milliseconds. A "
        "takeover may be from another server, so leases and delays end so much later with it.",
        0,
        HOUR_MS,
    )
    empty_topic_linger_ms: int = option(
        60_000, MS, "How long a topic without items is remembered by its shard's table.", 0, DAY_MS
    )
    retry_ms_min: int = option(50, MS, "The first wait before a database that failed is tried again.", 1, 60_000)
    retry_ms_max: int = option(5_000, MS, "The longest wait before a database that failed is tried again.", 1, 600_000)
    breaker_window_ms: int = option(
        10_000,
        MS,
        "The breaker judges the database by the transactions of so long; it refuses new items while the database is not "
        "well, and acks, nacks and deliveries go on.",
        100,
        HOUR_MS,
    )
    breaker_latency_ms_max: int = option(
        500,
        MS,
        "The breaker opens when transactions take longer than this on average; one that waits counts with its time so far. "
        "Far above flush_ms_target: a database that is busy is well.",
        1,
        HOUR_MS,
    )
    breaker_error_percent: int = option(
        50,
        "percent",
        "The breaker opens when so many of the transactions fail: lost connections, deadlocks, a full disk. Refused items, "
        "taken keys and other owners are no failures.",
        1,
        100,
    )
    breaker_flushes_min: int = option(
        5,
        "transactions",
        "Fewer of them open nothing; but one that waits for as long as so many at breaker_latency_ms_max does, so a database "
        "that does not answer opens the breaker after the product of both.",
        1,
        10_000,
    )
    breaker_reset_ms: int = option(
        2_000,
        MS,
        "After this time an open breaker lets one transaction with new items through, and closes when that succeeds in time.",
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
    """Rows that the host keeps in memory, so that delivering and acking them reads nothing."""

    written_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "Rows that were just written, of all shards; a namespace may have as much as is left free, half of it when it "
        "is alone. Beyond it they are read when wanted.",
        0,
        64 * 1024 * MIB,
    )
    written_items_max: int = option(200_000, "items", "Rows that were just written, of all shards.", 0, 100_000_000)
    prefetched_bytes_max: int = option(
        32 * MIB, "bytes", "Rows loaded before they are asked for, of all shards.", 0, 64 * 1024 * MIB
    )
    prefetched_items_max: int = option(
        20_000, "items", "Rows loaded before they are asked for, of all shards.", 0, 10_000_000
    )
    prefetch_topic_items_max: int = option(
        4_000, "items", "Rows of one topic loaded before they are asked for.", 1, 1_000_000
    )
    prefetch_horizon_ms: int = option(
        250, MS, "A topic has so much time's worth of its recent dequeues loaded ahead.", 1, 60_000
    )
    demand_decay_ms: int = option(2_000, MS, "How quickly a topic's recent dequeues are forgotten.", 10, HOUR_MS)
    prefetch_idle_ms: int = option(
        10_000, MS, "Nothing is loaded for a topic that nobody asked for since.", 10, HOUR_MS
    )
    demand_topics_max: int = option(10_000, "topics", "Topics whose dequeues are remembered.", 1, 10_000_000)
