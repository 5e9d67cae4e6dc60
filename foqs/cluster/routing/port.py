"""What a host says of its cluster, and what administrators may ask it to change: the port, and a host that is alone.

Always true: what is told of a shard's owner is who *should* own it, with how far
that is; a change is recorded when its call returns, and followed by the hosts
soon after. Every error is a `FoqsError`. Speaks no Thrift; knows neither
planner nor coordination service.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn, Protocol, TypeAlias

from foqs.core.errors import NotImplementedYet
from foqs.shard.status import ShardStatus
from shardmgr.model import ShardSpec

Address: TypeAlias = tuple[str, int]
"""Host and port, where clients reach a host."""
HostRef: TypeAlias = str | Address
"""A host by its name, or by its address."""


@dataclass(slots=True, frozen=True)
class HostView:
    """A host that is there.

    Attributes:
        name: stays over restarts; empty where it has none.
        nonce: of this run; empty where it needs none.
        shards: how many it should own.
        drained: it shall own nothing.
        leaving: it is stopping, and gives its shards back.
        version: of its program, where it is known.
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
    """A shard, who should own it, and how far that is.

    Attributes:
        owner, owner_name: None and empty where nobody should own it now.
        epoch: of that ownership; 0 where there was none yet.
        state: of `shardmgr.ownership`.
        database: its name in hosts' configurations; empty where it needs none.
        pinned_to: the name of the host that it was moved to; empty for none.
        queued_items: what waits to be written; None where another host owns it.
        reason: why it is not served, when it is not.
        slots: of idempotency keys, those that it holds.
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
    """Hosts by name and shards by number. Equal versions are of equal maps, whichever host was asked."""

    version: int
    hosts: Sequence[HostView]
    shards: Sequence[ShardView]


@dataclass(slots=True, frozen=True)
class RoutingChange:
    """From a version of the map to the newest. Hosts and shards that changed or came; `gone` went: nonces, numbers."""

    since_version: int
    version: int
    hosts: Sequence[HostView] = ()
    shards: Sequence[ShardView] = ()
    removed_hosts: Sequence[str] = ()
    removed_shards: Sequence[int] = ()


class ClusterService(Protocol):
    """The calls. Deadlines are moments of the event loop's clock.

    What changes something may be repeated: what is so already is a success, but for a shard that was removed. It raises

    - `InvalidArgument`, naming the request's field: there is no such host or shard, or it cannot be so;
    - `Unavailable`: nothing was recorded, later it may be;
    - `UnknownOutcome`: it may have been recorded;
    - `NotImplementedYet`: this host is alone.
    """

    @property
    def tier(self) -> str:
        """Of the host that is asked."""
        ...

    @property
    def version(self) -> int:
        """That of `routing`, for less."""
        ...

    def routing(self) -> RoutingTable:
        """Who is there, and who should own what, as it was read last. Never blocks."""
        ...

    def changes_since(self, version: int) -> RoutingChange | None:
        """What changed in the map since a version; None where that is not remembered."""
        ...

    def host_loads(self) -> Sequence[float]:
        """What waits at the map's hosts to be written, in items, hosts by nonce."""
        ...

    async def add_shard(self, spec: ShardSpec, deadline: float) -> None:
        """There shall be such a shard."""
        ...

    async def remove_shard(self, shard: int, deadline: float, *, force: bool) -> None:
        """There shall be no such shard. Refused unless it is draining, or by `force`; its tables stay."""
        ...

    async def drain_shard(self, shard: int, deadline: float, *, draining: bool) -> None:
        """The shard takes no new items, or does again."""
        ...

    async def move_shard(self, shard: int, target: HostRef | None, deadline: float) -> None:
        """The shard shall be at a host while that is there; None: wherever the planner puts it."""
        ...

    async def drain_host(self, host: HostRef, deadline: float, *, drained: bool) -> None:
        """The host shall own nothing, or may own shards again."""
        ...


@dataclass(slots=True, frozen=True)
class HostIdentity:
    """What a host tells clients of itself.

    `routing_version` is constant from start to stop and differs between starts.
    """

    host: str
    port: int
    routing_version: int
    region: str = ""
    tier: str = "default"
    program_version: str = ""
    name: str = ""


class StandaloneCluster:
    """A host without a cluster: it owns every shard that it has; see `ClusterService`."""

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
        me = self._identity
        address = (me.host, me.port)
        shards = [
            ShardView(
                status.shard,
                me.tier,
                me.region,
                address,
                self._name,
                status.epoch,
                status.state,
                queued_items=status.queued_items,
                reason=status.reason,
            )
            for status in sorted(self._statuses(), key=lambda status: status.shard)
        ]
        host = HostView(self._name, address, me.tier, me.region, len(shards), version=me.program_version)
        return RoutingTable(me.routing_version, [host], shards)

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


_STANDALONE_TEXT: Final = "this host is alone and owns every shard of its store; set cluster.zookeeper in its configuration to have several hosts"


def _raise_standalone() -> NoReturn:
    raise NotImplementedYet(_STANDALONE_TEXT)
