"""The client's calls about hosts and shards: list them, and move shards.

Holds the calls, which `Client` inherits. Always true: a change is recorded when its
call returns, and the hosts follow within seconds. Every call is safe to repeat. A
host is given by its name or by its address, `(host, port)`. A host without a cluster
refuses changes with NotImplementedYet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from foqs_client import conversion
from foqs_client.routed_calls import RoutedCalls
from foqs_client.types import Host, Shard
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod

HostRef: TypeAlias = str | tuple[str, int]
_PAGE_ROWS: Final = 500
_T = TypeVar("_T")


class ClusterCalls(RoutedCalls):
    """The calls about hosts and shards."""

    async def list_shards(self, *, timeout_ms: int | None = None) -> list[Shard]:
        """List all shards by number, with the hosts that should own them. `timeout_ms` is the time of each page."""
        return await self._list_all(
            _LIST_SHARDS, lambda reply: [conversion.shard(info) for info in reply.shards or ()], timeout_ms
        )

    async def list_hosts(self, *, timeout_ms: int | None = None) -> list[Host]:
        """List the running hosts by name. `timeout_ms` is the time of each page."""
        return await self._list_all(
            _LIST_HOSTS, lambda reply: [conversion.host(info) for info in reply.hosts or ()], timeout_ms
        )

    async def add_shard(
        self,
        shard: int,
        database: str,
        *,
        tier: str | None = None,
        weight: int = 1,
        region: str | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Add a shard.

        Args:
            shard: the number of the new shard.
            database: the name of its database in the configurations of the hosts.
            tier: the tier of the shard; None: the tier of the host that gets the call.
            weight: the work that it causes, relative to other shards.
            region: the region of its database; hosts of this region are preferred.

        Raises:
            InvalidArgument: there is another shard with this number.
        """
        await self._call(_ADD_SHARD, ttypes.AddShardRequest(shard, database, tier, weight, region), timeout_ms)

    async def remove_shard(self, shard: int, *, force: bool = False, timeout_ms: int | None = None) -> None:
        """Remove a shard from the layout. Its tables stay.

        Raises:
            InvalidArgument: it is not drained, and `force` is False.
        """
        await self._call(_REMOVE_SHARD, ttypes.ShardRequest(shard, force=force), timeout_ms)

    async def drain_shard(self, shard: int, *, timeout_ms: int | None = None) -> None:
        """Let a shard accept no new items. Its own items are still delivered."""
        await self._call(_DRAIN_SHARD, ttypes.ShardRequest(shard), timeout_ms)

    async def undrain_shard(self, shard: int, *, timeout_ms: int | None = None) -> None:
        """Let a shard accept new items again."""
        await self._call(_UNDRAIN_SHARD, ttypes.ShardRequest(shard), timeout_ms)

    async def move_shard(self, shard: int, host: HostRef | None, *, timeout_ms: int | None = None) -> None:
        """Hand a shard over to a host, which owns it while the host runs; None: the planner chooses the host."""
        address, name = _address_and_name(host)
        await self._call(_MOVE_SHARD, ttypes.ShardRequest(shard, address, target_name=name), timeout_ms)

    async def drain_host(self, host: HostRef, *, timeout_ms: int | None = None) -> None:
        """Hand the host's shards over to other hosts. It gets no shard until it is undrained."""
        address, name = _address_and_name(host)
        await self._call(_DRAIN_HOST, ttypes.HostRequest(address, host_name=name), timeout_ms)

    async def undrain_host(self, host: HostRef, *, timeout_ms: int | None = None) -> None:
        """Let a host own shards again."""
        address, name = _address_and_name(host)
        await self._call(_UNDRAIN_HOST, ttypes.HostRequest(address, host_name=name), timeout_ms)

    async def _list_all(
        self, method: ThriftMethod, rows_of: Callable[[Any], list[_T]], timeout_ms: int | None
    ) -> list[_T]:
        """Return the rows of all pages."""
        rows: list[_T] = []
        cursor: str | None = None
        while True:
            reply = await self._call(method, ttypes.ListRequest(ttypes.Page(_PAGE_ROWS, cursor)), timeout_ms)
            rows += rows_of(reply)
            cursor = reply.next_cursor
            if cursor is None:
                return rows


def _address_and_name(host: HostRef | None) -> tuple[Any, str | None]:
    """Return (address struct, name); one of them is None."""
    if host is None or isinstance(host, str):
        return None, host
    return ttypes.HostAddress(*host), None


_LIST_SHARDS: Final = ThriftMethod("listShards")
_LIST_HOSTS: Final = ThriftMethod("listHosts")
_ADD_SHARD: Final = ThriftMethod("addShard")
_REMOVE_SHARD: Final = ThriftMethod("removeShard")
_DRAIN_SHARD: Final = ThriftMethod("drainShard")
_UNDRAIN_SHARD: Final = ThriftMethod("undrainShard")
_MOVE_SHARD: Final = ThriftMethod("moveShard")
_DRAIN_HOST: Final = ThriftMethod("drainHost")
_UNDRAIN_HOST: Final = ThriftMethod("undrainHost")
