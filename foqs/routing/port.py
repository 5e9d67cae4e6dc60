"""The port to a cluster's routing table and its administration, and the cluster of a single host.

Always true: a shard's owner is the host that *should* own it, and the state says
whether it does; a change is recorded when its call returns, and the hosts follow
it soon after. Every error is a `FoqsError`. Knows neither Thrift, nor the planner,
nor the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, TypeAlias

from foqs.shard.host_shards import ShardStatus
from foqs_contract.errors import NotImplementedYet
from shardmgr.model import ShardSpec

Address: TypeAlias = tuple[str, int]
"""Host and port at which clients reach a host."""
HostRef: TypeAlias = str | Address
"""A host by its name or by its address."""


@dataclass(slots=True, frozen=True)
class HostView:
    """A live host.

    Attributes:
        name: the name of the host, the same after a restart; may be empty.
        shard_count: how many shards it should own.
        nonce: names this run of the host; may be empty.
        load: how many items wait to be written there, as last reported; None if it is not known.
        drained: whether it is to own no shards.
        leaving: whether it is stopping and hands its shards over.
        version: the version of its program; None if it is not known.
    """

    name: str
    address: Address
    tier: str
    region: str
    shard_count: int
    nonce: str = ""
    capacity: int = 1
    load: float | None = None
    drained: bool = False
    leaving: bool = False
    version: str = ""


@dataclass(slots=True, frozen=True)
class ShardView:
    """A shard and its planned owner.

    Attributes:
        owner, owner_name: None and empty if no host should own it now.
        epoch: the epoch of that ownership; 0 if there was none yet.
        state: a state of `shardmgr.ownership`.
        database: its name in the hosts' configurations; may be empty.
        draining: whether it refuses new items; see `ClusterService.drain_shard`.
        pinned_to: the name of the host that it was moved to; empty for none.
        queued_items: how many items wait to be written; None if another host owns it.
        reason: why it is not served; None if it is.
        key_slots: the slots of idempotency keys that it holds.
    """

    shard: int
    tier: str
    region: str
    owner: Address | None
    owner_name: str
    epoch: int
    state: str
    database: str = ""
    weight: int = 1
    draining: bool = False
    pinned_to: str = ""
    queued_items: int | None = None
    reason: str | None = None
    key_slots: Collection[int] = ()


@dataclass(slots=True, frozen=True)
class RoutingTable:
    """Hosts sorted by name and shards by number. Equal versions mean equal tables, on all hosts."""

    version: int
    hosts: Sequence[HostView]
    shards: Sequence[ShardView]


@dataclass(slots=True, frozen=True)
class RoutingChange:
    """The changes from a version of the routing table to the newest.

    `hosts` and `shards` changed or are new; `removed_hosts` (nonces) and `removed_shards` (numbers) were removed.
    """

    since_version: int
    version: int
    hosts: Sequence[HostView] = ()
    shards: Sequence[ShardView] = ()
    removed_hosts: Sequence[str] = ()
    removed_shards: Sequence[int] = ()


class ClusterService(Protocol):
    """The cluster behind the calls about hosts and shards. Deadlines are on the event loop's clock.

    A change may be repeated: it succeeds if it is done already, except for a removed shard. A change raises

    - `InvalidArgument`, with the request's field: the host or shard does not exist, or the change is impossible;
    - `Unavailable`: nothing was recorded; a retry may succeed;
    - `UnknownOutcome`: the change may have been recorded;
    - `NotImplementedYet`: this host has no cluster.
    """

    @property
    def tier(self) -> str:
        """The tier of this host."""
        ...

    @property
    def version(self) -> int:
        """The version of `routing`, without building the table."""
        ...

    def routing(self) -> RoutingTable:
        """Return the routing table as last read. Never blocks."""
        ...

    def changes_since(self, version: int) -> RoutingChange | None:
        """Return the changes of the routing table since a version; None if the version is too old."""
        ...

    def host_loads(self) -> Sequence[float]:
        """Return how many items wait to be written at each host, sorted by nonce."""
        ...

    async def add_shard(self, spec: ShardSpec, deadline: float) -> None:
        """Add a shard to the layout."""
        ...

    async def remove_shard(self, shard: int, deadline: float, *, force: bool) -> None:
        """Remove a shard from the layout; its tables stay. It must be draining, unless `force` is set."""
        ...

    async def drain_shard(self, shard: int, deadline: float, *, draining: bool) -> None:
        """Make a shard refuse new items, or accept them again."""
        ...

    async def move_shard(self, shard: int, target: HostRef | None, deadline: float) -> None:
        """Pin a shard to a host while that host is alive; None: let the planner choose."""
        ...

    async def drain_host(self, host: HostRef, deadline: float, *, drained: bool) -> None:
        """Move all shards away from a host, or allow it to own shards again."""
        ...


@dataclass(slots=True, frozen=True)
class HostIdentity:
    """A host's description of itself.

    `routing_version` is constant for a run of the host and differs between runs.
    """

    host: str
    port: int
    routing_version: int
    region: str = ""
    tier: str = "default"
    program_version: str = ""
    name: str = ""


class StandaloneCluster:
    """The `ClusterService` of a host without a cluster, which owns all its shards."""

    def __init__(self, identity: HostIdentity, statuses: Callable[[], Sequence[ShardStatus]]) -> None:
        self._identity = identity
        self._statuses = statuses
        self._name = identity.name or f"{identity.host}:{identity.port}"

    @property
    def tier(self) -> str:
        return self._identity.tier

    @property
    def version(self) -> int:
        return self._identity.routing_version

    def routing(self) -> RoutingTable:
        identity = self._identity
        address = (identity.host, identity.port)
        shards = [
            ShardView(
                status.shard,
                identity.tier,
                identity.region,
                address,
                self._name,
                status.epoch,
                status.state,
                queued_items=status.queued_items,
                reason=status.reason,
            )
            for status in sorted(self._statuses(), key=lambda status: status.shard)
        ]
        host = HostView(
            self._name, address, identity.tier, identity.region, len(shards), version=identity.program_version
        )
        return RoutingTable(identity.routing_version, [host], shards)

    def changes_since(self, version: int) -> RoutingChange | None:
        return RoutingChange(version, version) if version == self.version else None

    def host_loads(self) -> Sequence[float]:
        return [float(sum(status.queued_items for status in self._statuses()))]

    async def add_shard(self, spec: ShardSpec, deadline: float) -> None:
        _raise_standalone()

    async def remove_shard(self, shard: int, deadline: float, *, force: bool) -> None:
        _raise_standalone()

    async def drain_shard(self, shard: int, deadline: float, *, draining: bool) -> None:
        _raise_standalone()

    async def move_shard(self, shard: int, target: HostRef | None, deadline: float) -> None:
        _raise_standalone()

    async def drain_host(self, host: HostRef, deadline: float, *, drained: bool) -> None:
        _raise_standalone()


_STANDALONE_TEXT: Final = "this host has no cluster and owns every shard of its store; set cluster.zookeeper in its configuration to have several hosts"


def _raise_standalone() -> NoReturn:
    raise NotImplementedYet(_STANDALONE_TEXT)
