"""The tier of a host, as its queue asks it: the other shards, this host's part of the limits, where samples of the order go.

Holds the port `Tier`, and `Alone` for a host that is its whole tier.
`foqs.cluster.tier_member.Member` is a host with others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from foqs.catalog.namespace_deletion import Deletions, DirectDeletions
from foqs.core.items.item import TopicName
from foqs.core.limits.whole_limit import WholeLimits
from foqs.core.memory.order_samples import Displacement
from foqs.queue.host_state import HostState
from foqs.queue.order_meter import OrderSink


class LimitPart(Protocol):
    """This host's part of the limits of one namespace."""

    @property
    def scope(self) -> str:
        """The words that errors add to a limit: empty, or that it is the limit of all hosts together."""
        ...

    @property
    def elsewhere_items(self) -> int:
        """The items that other hosts hold."""
        ...

    @property
    def elsewhere_bytes(self) -> int:
        """The payload bytes that other hosts hold."""
        ...

    def record_request(self, items: int, now_s: float) -> None:
        """Record that a caller asks to enqueue `items`, whether they will pass or not."""
        ...

    def wait_s(self, items: int, per_minute: int, now_s: float) -> float:
        """Return the time until `items` may pass; 0 if they may now."""
        ...

    def consume(self, items: int, per_minute: int, now_s: float) -> None:
        """Charge items that passed, after `wait_s` returned 0."""
        ...

    def refund(self, items: int) -> None:
        """Return the charge of items that were not enqueued."""
        ...

    def items_max(self, limit: int) -> int:
        """Return how many items this host may hold, if the tier may hold `limit`."""
        ...

    def bytes_max(self, limit: int) -> int:
        """Return how many payload bytes this host may hold, if the tier may hold `limit`."""
        ...


class LimitParts(Protocol):
    """This host's parts of the limits of all namespaces."""

    def of(self, namespace: str) -> LimitPart:
        """Return the part of a namespace's limits."""
        ...

    def forget(self, namespaces: Iterable[str]) -> None:
        """Forget the use of namespaces that were deleted."""
        ...


class Tier(Protocol):
    """The tier of a host, as the queue of the host uses it."""

    @property
    def is_alone(self) -> bool:
        """Whether there is no other host."""
        ...

    @property
    def ownership_nonce(self) -> str:
        """The nonce that this run of the host writes into the owner rows of its shards."""
        ...

    @property
    def deletions(self) -> Deletions: ...

    @property
    def limits(self) -> LimitParts: ...

    @property
    def order_sink(self) -> OrderSink: ...

    @property
    def drained_shards(self) -> Collection[int]:
        """The shards of this host that accept new items only with a key, because such items can be nowhere else."""
        ...

    @property
    def removed_shards(self) -> Collection[int]:
        """The shards of this host that accept no new items, because no host would deliver them."""
        ...

    def owner_of(self, shard: int) -> tuple[str, int] | None:
        """Return the address of a shard's owner, if the plan that was read last has one."""
        ...

    def tier_shards(self) -> Collection[int]:
        """Return all shards of this host's tier; none while that is not known."""
        ...

    async def find_older_hosts(self, documents: int) -> Sequence[str]:
        """Return the names of the hosts of the cluster that cannot read documents of a format. Raises `Unavailable`."""
        ...


class Alone:
    """A host that is its whole tier.

    Args:
        nonce: names this run of the host.
        shards: all shards.
    """

    is_alone = True
    drained_shards: Collection[int] = frozenset()
    removed_shards: Collection[int] = frozenset()

    def __init__(self, nonce: str, shards: Collection[int], state: HostState) -> None:
        self.ownership_nonce = nonce
        self.deletions: Deletions = DirectDeletions()
        self.limits = WholeLimits(state.stopwatch_s)
        self.order_sink = _DirectSamples(state)
        self._shards = shards

    def owner_of(self, shard: int) -> tuple[str, int] | None:
        """Return None: a shard that is not here is nowhere."""
        return None

    def tier_shards(self) -> Collection[int]:
        return self._shards

    async def find_older_hosts(self, documents: int) -> Sequence[str]:
        """Return none: this host reads what it writes."""
        return ()


class _DirectSamples:
    """Adds the samples as they are: no other host can have had better items."""

    def __init__(self, state: HostState) -> None:
        self._samples = state.order_samples
        self._stopwatch_s = state.stopwatch_s

    def on_sample(
        self, topic: TopicName, priority: int, deliver_after_ms: int, here: Displacement, deliveries: int
    ) -> None:
        self._samples.add(topic, here, deliveries, self._stopwatch_s())
