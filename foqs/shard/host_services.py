"""What a host provides to each of its shards.

Holds the ports through which a shard calls up: to the namespaces and to the dequeues that wait. A shard is
named by its number there, so that the ports know no class of the shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from foqs.core.flush.operation import Leases
from foqs.core.items.item import OrderKey, TopicName
from foqs.core.items.life import RetryPolicy
from foqs.core.memory.topic_rates import TopicRates
from foqs.core.timing.arrivals import Arrivals
from foqs.core.timing.database_clock import DatabaseClock
from foqs.options.shard_options import ShardOptions
from foqs.runtime.clock import Clock
from foqs.shard.observer import ShardObserver
from foqs.shard.shard_constants import ShardConstants
from foqs.store.port import Store
from foqs_contract.backoff import Backoff


class NamespaceRules(Protocol):
    """What a shard asks about the namespaces of its items."""

    @property
    def retry_policies(self) -> Mapping[str, RetryPolicy]:
        """The retry policy of each namespace. Every name has one."""
        ...

    def weight_of(self, name: str) -> int:
        """Return the weight of a namespace where a resource is short; at least 1."""
        ...


class DeliveryPort(Protocol):
    """The waiting dequeues of this host, as its shards see them."""

    def has_waiters(self, namespace: str) -> bool:
        """Return whether a dequeue waits for a topic of this namespace."""
        ...

    def assign_to_waiters(self, shard: int, topic: TopicName, order_keys: Sequence[OrderKey]) -> list[Leases]:
        """Assign these sorted keys to waiters, for direct delivery when they are inserted or due."""
        ...

    def on_items_ready(self, topics: Iterable[TopicName]) -> None:
        """These topics have items that waiters may want."""
        ...

    def on_room_freed(self, shard: int, namespace: str) -> None:
        """The shard may have room again to deliver items of this namespace."""
        ...

    def on_callers_notified(self) -> None:
        """Callers have their results. Their replies should be sent before other work is done."""
        ...


@dataclass(slots=True, frozen=True)
class HostServices:
    """The same for every shard of the host."""

    options: ShardOptions
    constants: ShardConstants
    namespaces: NamespaceRules
    clock: Clock
    backoff: Backoff
    observer: ShardObserver
    delivery_port: DeliveryPort
    topic_rates: TopicRates
    arrivals: Arrivals

    def database(self) -> HostDatabase:
        """Return what the shards of one more database share."""
        monotonic_ms = self.clock.monotonic_ms
        slew_permille, skew_ms_max = self.constants.clock_slew_permille, self.options.clock_skew_ms_max
        return HostDatabase(DatabaseClock(monotonic_ms, slew_permille, skew_ms_max, self.arrivals), monotonic_ms)


@dataclass(slots=True, frozen=True)
class HostDatabase:
    """What the shards of this host in one database share.

    Attributes:
        clock: the estimate of the database's clock.
        monotonic_ms: the steady clock with which it is compared.
        count_lock: held while one of them is counted.
    """

    clock: DatabaseClock
    monotonic_ms: Callable[[], int]
    count_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def sample_clock(self, store: Store) -> int:
        """Compare the database's clock with its estimate, and return what it shows. Raises `StoreLost`."""
        requested_at_ms = self.monotonic_ms()
        database_ms = await store.now_ms()
        self.clock.on_sample(database_ms, requested_at_ms)
        return database_ms
