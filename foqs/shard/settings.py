"""The limits of one shard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class ShardSettings:
    """Limits of one shard; see `[shard]` in configs/foqs.toml for units and reasons."""

    flush_items_max: int
    flush_bytes_max: int
    flush_items_min: int
    flush_ms_target: int
    flush_contended_ms_target: int
    small_flush_items_max: int
    queue_items_max: int
    queue_bytes_max: int
    ready_window_items_max: int
    ready_index_items_max: int
    timer_page_items: int
    timer_tick_ms_min: int
    sweep_interval_ms: int
    purge_page_items: int
    purge_topics_max: int
    purge_topics_per_namespace_max: int
    clock_sample_interval_ms: int
    clock_slew_permille: int
    clock_skew_ms_max: int
    empty_topic_linger_ms: int
    retry_ms_min: int
    retry_ms_max: int
    breaker_window_ms: int
    breaker_latency_ms_max: int
    breaker_error_percent: int
    breaker_flushes_min: int
    breaker_reset_ms: int
