"""The options of `[shard]` and `[row_cache]`: the limits of the shards of a host, and the properties of their databases.

Knows nothing of shards. `foqs.shard.shard_constants` has its constants.
"""

from __future__ import annotations

from foqs.options.options import HOUR_MS, MIB, MS, Options, option


class ShardOptions(Options):
    """The limits of a shard's waiting operations and memory, and the properties of its database."""

    queue_items_max: int = option(
        40_000,
        "items",
        "The entries that wait for a flush. The limit holds three times: for inserts, for other events of callers, and "
        "for the work of the shard itself. A namespace gets a part by its weight: with weight 1 and alone, half. "
        "Further entries are answered OVERLOADED.",
        2_000,
        10_000_000,
        change='Raise it if calls are OVERLOADED with "the shard\'s write queue is full" in bursts that the callers can '
        "wait for. Lower it if calls end as DEADLINE_EXCEEDED because they wait too long.",
    )
    queue_bytes_max: int = option(
        64 * MIB,
        "bytes",
        "The payload, metadata and trace contexts that wait for a flush. It limits the same three kinds "
        "of entries as queue_items_max, and is divided in the same way. Further entries are answered OVERLOADED.",
        4 * MIB,
        4096 * MIB,
        change='Raise it if calls with large payloads are OVERLOADED with "the shard\'s write queue is full" and there is '
        "memory. Lower it if the host is short of memory: each shard may use three times this.",
    )
    ready_index_items_max: int = option(
        250_000,
        "items",
        "The ready items of one shard in the ready index, over all topics. The rest is only in the table. Beside them, topics "
        "with a limit on the leases of groups have room for an eighth as many groups: 31,250. A group with many items counts "
        "more than once.",
        10_000,
        100_000_000,
        change="Raise it if foqs_ready_index_items stays near it, or foqs_full_group_topics is not 0, and there is memory; "
        "foqs_ready_index_bytes shows what the index takes. Lower it if the host is short of memory.",
    )
    lease_ranges_max: int = option(
        262_144,
        "ranges",
        "The ranges of consecutive item numbers whose lease ends are remembered, at 16 bytes each; each "
        "slot of time costs 24 ranges more. Beyond it, leases that end later are read from the table when their time comes.",
        64,
        100_000_000,
        change="Raise it if foqs_lease_ranges reaches foqs_lease_ranges_limit: then leased items have few consecutive "
        "numbers.",
    )
    clock_skew_ms_max: int = option(
        100,
        MS,
        "The largest difference between the clocks of two database servers. After the database failed over to "
        "another server, leases and delays end later by this time.",
        0,
        HOUR_MS,
        change="Raise it if NTP shows a larger difference between the servers.",
    )
    breaker_latency_ms_max: int = option(
        500,
        MS,
        "The circuit breaker refuses new items when flushes take longer than this on average, or half of them fail; acks, "
        "nacks and deliveries go on. A flush that has not ended counts with its time so far.",
        1,
        HOUR_MS,
        change="Raise it if foqs_shard_breaker_state shows an open breaker while foqs_flush_duration_seconds is what this "
        "database always takes.",
    )


class RowCacheOptions(Options):
    """Rows that the host keeps in memory, so that deliveries and acks read nothing."""

    written_bytes_max: int = option(
        256 * MIB,
        "bytes",
        "The memory for rows that were just written, of all shards. A namespace may take what is left free: "
        "alone, half. At most 800 rows are kept for each MiB. Other rows are read when they are needed.",
        0,
        64 * 1024 * MIB,
        change="Raise it if foqs_row_cache_bytes of the pool written stays above half of its limit and there is memory: the "
        "database reads less. Lower it if the host is short of memory.",
    )
    prefetched_bytes_max: int = option(
        32 * MIB,
        "bytes",
        "The memory for prefetched rows, of all shards. At most 800 rows are kept for each MiB.",
        0,
        64 * 1024 * MIB,
        change="Raise it if foqs_row_cache_bytes of the pool prefetched reaches its limit and there is memory: dequeues "
        "wait less for the database. Lower it if the host is short of memory.",
    )
