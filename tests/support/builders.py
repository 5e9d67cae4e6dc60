"""Functions that make values of the core for tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from foqs.catalog.document import Document, NamespaceRecord
from foqs.catalog.memory_catalog import MemoryCatalog
from foqs.core.items.idempotency_keys import item_digest
from foqs.core.items.item import AbsoluteTimeItem, DeliveryPolicy, KeyedAbsoluteTimeItem, KeyedItem, NewItem, Row, State
from foqs.core.memory.demand import DemandSettings
from foqs.core.memory.reservations import CacheLimits
from foqs.options.options import NamespaceOptions, Options
from foqs.options.rpc_options import CallOptions, RpcOptions
from foqs.options.shard_options import ShardOptions
from foqs.queue.call_limits import CallConstants, CallLimits
from foqs.queue.engine import EngineSettings
from foqs.rpc.rpc_limits import RpcConstants, RpcLimits
from foqs.shard.shard_constants import ShardConstants

T = TypeVar("T", bound=Options)


def changed(options: T, **changes: Any) -> T:
    """The same options with these values; a value may be outside the range of its option."""
    unknown = changes.keys() - type(options).model_fields.keys()
    assert not unknown, f"{type(options).__name__} has no {sorted(unknown)}"
    return options.model_copy(update=changes)


def rpc_limits(**changes: int) -> RpcLimits:
    """Return the usual limits of connections, with these values."""
    return replace(RpcLimits.of(RpcOptions(), CallOptions(), RpcConstants()), **changes)


NAMESPACE = changed(
    NamespaceOptions(), backoff_ms_min=100, backoff_ms_max=10_000, dead_retention_ms=60_000, key_window_ms=20_000
)

CALLS = CallLimits.of(CallOptions(), CallConstants(timeout_ms_max=60_000))

CACHE = CacheLimits(
    written_bytes_max=40_000, written_items_max=1_000, prefetched_bytes_max=40_000, prefetched_items_max=40
)

DEMAND = DemandSettings(tau_s=1.0, horizon_s=0.25, idle_s=5.0, items_max=20, topics_max=100)

SHARD_OPTIONS = changed(
    ShardOptions(),
    queue_items_max=5_000,
    queue_bytes_max=1 << 24,
    ready_index_items_max=1_000,
    clock_skew_ms_max=0,
    breaker_latency_ms_max=60_000,
)
SHARD_CONSTANTS = ShardConstants(
    flush_items_max=100,
    flush_bytes_max=1 << 20,
    ready_window_items_max=50,
    flush_ms_target=1_000,
    flush_contended_ms_target=1_000,
    small_flush_items_max=8,
    empty_topic_linger_ms=1_000,
    timer_page_items=20,
    timer_tick_ms_min=5,
    sweep_interval_ms=5_000,
    purge_page_items=20,
    purge_topics_max=100,
    purge_topics_per_namespace_max=100,
    clock_sample_interval_ms=10**9,
    retry_ms_min=5,
    retry_ms_max=500,
    breaker_error_percent=100,
    breaker_flushes_min=1_000,
    breaker_reset_ms=1_000,
)
"""Small limits, short timers, and a breaker that does not open."""


def engine_settings(
    *shards: int,
    alone: bool = True,
    delivery_wait_ms_max: int = 1_000,
    delivery_bytes_max: int = 1 << 24,
    cache: CacheLimits = CACHE,
    demand: DemandSettings = DEMAND,
    **changes: Any,
) -> EngineSettings:
    """Return settings of a standalone engine with these shards; with `alone=False`, of one that is assigned its shards.

    Args:
        changes: options and constants of its shards.
    """
    options = {name: changes.pop(name) for name in ShardOptions.model_fields if name in changes}
    return EngineSettings(
        standalone_shards=dict.fromkeys(shards, "") if alone else None,
        namespace=NAMESPACE,
        calls=replace(CALLS, delivery_wait_ms_max=delivery_wait_ms_max, delivery_bytes_max=delivery_bytes_max),
        shard=changed(SHARD_OPTIONS, **options),
        cache=cache,
        shard_constants=replace(SHARD_CONSTANTS, **changes),
        demand=demand,
    )


def new_item(topic: str = "t", **changes: Any) -> NewItem:
    """Return an item to enqueue: ready at once, with a lease of 30 s."""
    values: dict[str, Any] = {
        "namespace": "default",
        "topic": topic,
        "priority": 0,
        "payload": b"payload",
        "metadata": b"",
        "delay_ms": 0,
        "deliver_after_ms": None,
        "lease_ms": 30_000,
        "ttl_ms": None,
        "policy": DeliveryPolicy.AT_LEAST_ONCE,
        "attempts_max": 0,
    }
    values |= changes
    if values["deliver_after_ms"] is None:
        return NewItem(**values)
    values["delay_ms"] = None
    return NewItem(**values) if values["ttl_ms"] is None else AbsoluteTimeItem(**values)


def keyed_item(key: str | bytes, topic: str = "t", **changes: Any) -> KeyedItem:
    """Return an item with an idempotency key. Items of equal values have the same digest."""
    item = new_item(topic, **changes)
    numbers = (item.delay_ms, item.deliver_after_ms, item.lease_ms, item.ttl_ms, item.policy, item.attempts_max)
    digest = item_digest(topic.encode(), item.priority, item.payload, item.metadata, numbers)
    kind = KeyedAbsoluteTimeItem if isinstance(item, AbsoluteTimeItem) else KeyedItem
    return kind(**asdict(item), idempotency_key=key if isinstance(key, bytes) else key.encode(), digest=digest)


def row(number: int = 1, **changes: Any) -> Row:
    """Return a READY row that was never delivered."""
    values: dict[str, Any] = {
        "id": number,
        "namespace": "default",
        "topic": "t",
        "priority": 0,
        "deliver_after_ms": 1_000,
        "enqueued_at_ms": 1_000,
        "lease_ms": 500,
        "ttl_ms": None,
        "expires_at_ms": None,
        "policy": DeliveryPolicy.AT_LEAST_ONCE,
        "attempts_max": 0,
        "payload_bytes": 1,
        "payload": b"p",
        "metadata": b"",
        "state": State.READY,
        "due_ms": None,
        "token": 0,
        "attempt": 0,
    }
    return Row(**(values | changes))


def catalog(**settings: Mapping[str, int]) -> MemoryCatalog:
    """Return a catalog of the namespaces `default`, `other` and the named ones, with these settings."""
    own = {"default": {}, "other": {}, **settings}
    return MemoryCatalog(Document(1, {name: NamespaceRecord(settings=values) for name, values in own.items()}))


class MemoryEpochBook:
    """The epoch book of a coordinator, in memory."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}

    def load(self) -> dict[int, int]:
        return dict(self.epochs)

    def save(self, epochs: dict[int, int]) -> None:
        self.epochs = dict(epochs)
