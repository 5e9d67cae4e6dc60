"""The constants of a shard, which are no options, and why each number is what it is.

No metric, error or fact of a machine would make an operator change one of these. Numbers that an operator may have to
change are the options of `[shard]`. Tests and the simulation have other values, with small pages and short times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ShardConstants:
    """The constants of a shard, by default those of a host."""

    # ------------------------------------------------------------------ flushes
    flush_items_max: int = 2_000
    """The maximum of entries in one flush. Larger ones gain little, and each caller waits longer."""
    flush_items_min: int = 10
    """A flush may have this number of entries however slow the database is, or a slow one would never catch up."""
    flush_bytes_max: int = 4 << 20
    """The bytes that one lane of a flush writes, or may have to read: room for a few of the largest items. The store
    cuts statements to the packet limit of its database."""
    flush_ms_target: int = 25
    """The time that a flush should take: a caller waits for the one under way and for its own. The fixed cost of a flush
    is measured, so a slow database gets more time."""
    flush_contended_ms_target: int = 2
    """The same while a namespace with few entries waits beside one with many."""
    small_flush_items_max: int = 32
    """The entries of every other flush meanwhile: about as many as a transaction carries without getting slower."""
    retry_ms_min: int = 50
    retry_ms_max: int = 5_000
    """The first and the longest pause before a failed database is tried again: soon after a hiccup, and
    often enough that an outage costs little more than itself."""

    # ------------------------------------------------------------------- memory
    ready_window_items_max: int = 10_000
    """The keys of one topic in the ready index: more than a topic is asked for while the next page is read."""
    empty_topic_linger_ms: int = 60_000
    """How long an empty topic keeps its row: topics that fill and empty each few seconds cost no writes."""

    # ------------------------------------------------------ timers and purges
    timer_page_items: int = 1_200
    """The due rows read at once. More than half of a flush, so that they are handled faster than new ones can come."""
    timer_tick_ms_min: int = 20
    """The resolution of timers. A delay is exact to about a flush."""
    sweep_interval_ms: int = 5 * 60_000
    """How often all due rows are searched for: a timer that was missed is late and not lost. Less often if a search takes
    more than a hundredth of it. Ended key windows are searched for and the ownership is checked at this interval, too."""
    purge_page_items: int = 1_200
    """The rows of a purged topic deleted at once, as many as due rows for the same reason."""
    purge_topics_max: int = 10_000
    purge_topics_per_namespace_max: int = 1_000
    """The purged topics of a shard, and of one namespace, whose rows are not deleted yet: their markers are in memory
    and each read compares with them. A namespace leaves room for nine others."""

    # ------------------------------------------------------------------- clocks
    clock_sample_interval_ms: int = 10_000
    """How often the database's clock is read: machines drift apart by less than a millisecond meanwhile."""
    clock_slew_permille: int = 50
    """How much faster or slower the shard clock runs until it agrees with the database's clock. A lease of 30 s is at most
    1.5 s shorter, and a difference of an hour is gone in 20 hours."""

    # ------------------------------------------------------------------ breaker
    breaker_window_ms: int = 10_000
    """The circuit breaker judges the flushes of this time: some hundreds, and a hiccup of a second is a tenth of it."""
    breaker_error_percent: int = 50
    """It opens when this percentage of them failed. Retries hide fewer failures from callers."""
    breaker_flushes_min: int = 5
    """Fewer flushes do not open it. One flush opens it after this number times `shard.breaker_latency_ms_max`."""
    breaker_reset_ms: int = 2_000
    """After this time an open breaker lets one flush with new items through."""
