"""The services of a host that each of its shards uses.

Holds the ports through which a shard calls up: to the namespaces and to the dequeues that wait. A shard is
named by its number there, so that the ports know no class of the shard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from foqs.core.flush.operation import Leases
from foqs.core.groups.group_rules import GroupRules
from foqs.core.groups.host_turns import HostTurns
from foqs.core.groups.rule_changes import RuleChanges
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
    """The settings of namespaces that a shard needs."""

    @property
    def retry_policies(self) -> Mapping[str, RetryPolicy]:
        """The retry policy of each namespace. Every name has one."""
        ...

    @property
    def group_rules(self) -> Mapping[TopicName, GroupRules]:
        """The rules for groups, of topics whose policy has any. One object until it changes."""
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
        """Assign items that are about to be inserted or due to waiters. Return their direct deliveries.

        `order_keys` are sorted. The deliveries take them from the first on, and need not take all.
        """
        ...

    def on_items_ready(self, topics: Iterable[TopicName]) -> None:
        """Serve waiters of these topics, because they have READY items."""
        ...

    def on_room_freed(self, shard: int, namespace: str) -> None:
        """Serve waiters of this namespace, because the shard may have room for deliveries again."""
        ...

    def on_callers_notified(self) -> None:
        """Send the replies of callers that have their results, before other work is done."""
        ...


@dataclass(slots=True, frozen=True)
class HostServices:
    """The services of one host, the same for each of its shards."""

    options: ShardOptions
    constants: ShardConstants
    namespaces: NamespaceRules
    clock: Clock
    backoff: Backoff
    observer: ShardObserver
    delivery_port: DeliveryPort
    topic_rates: TopicRates
    arrivals: Arrivals
    turns: HostTurns
    rule_changes: RuleChanges

    def database(self) -> HostDatabase:
        """Return the clock and the lock for the shards of one more database."""
        monotonic_ms = self.clock.monotonic_ms
        slew_permille, skew_ms_max = self.constants.clock_slew_permille, self.options.clock_skew_ms_max
        return HostDatabase(DatabaseClock(monotonic_ms, slew_permille, skew_ms_max, self.arrivals), monotonic_ms)


@dataclass(slots=True, frozen=True)
class HostDatabase:
    """The clock and the lock that the shards of this host in one database share.

    Attributes:
        clock: the estimate of the database's clock.
        monotonic_ms: the steady clock with which it is compared.
        count_lock: the lock that is held while one of them is counted.
    """

    clock: DatabaseClock
    monotonic_ms: Callable[[], int]
    count_lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def sample_clock(self, store: Store) -> int:
        """Read the database's clock, correct its estimate, and return its time. Raises `StoreLost`."""
        requested_at_ms = self.monotonic_ms()
        database_ms = await store.now_ms()
        self.clock.on_sample(database_ms, requested_at_ms)
        return database_ms
