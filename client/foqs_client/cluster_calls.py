"""The client's calls about hosts and shards: which there are, and where shards go.

Holds the calls, which `Client` inherits. Always true: a change is recorded when
its call returns, and the hosts follow within seconds; each may be repeated
without harm. Where a host is named, it is by its name or by its address,
`(host, port)`. A host that is alone answers NotImplementedYet to changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from foqs_client import conversion
from foqs_client.idl import ttypes
from foqs_client.thrift_messages import ThriftMethod
from foqs_client.types import Host, Shard

HostRef: TypeAlias = str | tuple[str, int]
_PAGE_ROWS: Final = 500
_T = TypeVar("_T")


class ClusterCalls:
    """The calls."""

    async def _call(self, method: ThriftMethod, request: Any, timeout_ms: int | None) -> Any:
        raise NotImplementedError

    async def list_shards(self, *, timeout_ms: int | None = None) -> list[Shard]:
        """All shards by number, with who should own them. `timeout_ms` is for each page."""
        return await self._list_all(
            _LIST_SHARDS, lambda reply: [conversion.shard(info) for info in reply.shards or ()], timeout_ms
        )

    async def list_hosts(self, *, timeout_ms: int | None = None) -> list[Host]:
        """The hosts that are there, by name. `timeout_ms` is for each page."""
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
        """Adds a shard, in a database that hosts' configurations know by this name; `tier` None: that of the host asked.

        Raises InvalidArgument where there is another of this number.
        """
        await self._call(_ADD_SHARD, ttypes.AddShardRequest(shard, database, tier, weight, region), timeout_ms)

    async def remove_shard(self, shard: int, *, force: bool = False, timeout_ms: int | None = None) -> None:
        """Forgets a shard; its tables stay. Raises InvalidArgument where it is not drained, unless by `force`."""
        await self._call(_REMOVE_SHARD, ttypes.ShardRequest(shard, force=force), timeout_ms)

    async def drain_shard(self, shard: int, *, timeout_ms: int | None = None) -> None:
        """The shard takes no new items; what it holds is delivered."""
        await self._call(_DRAIN_SHARD, ttypes.ShardRequest(shard), timeout_ms)

    async def undrain_shard(self, shard: int, *, timeout_ms: int | None = None) -> None:
        """The shard takes new items again."""
        await self._call(_UNDRAIN_SHARD, ttypes.ShardRequest(shard), timeout_ms)

    async def move_shard(self, shard: int, host: HostRef | None, *, timeout_ms: int | None = None) -> None:
        """Hands a shard over to a host, which keeps it while it is there; None: wherever the planner puts it."""
        address, name = _address_and_name(host)
        await self._call(_MOVE_SHARD, ttypes.ShardRequest(shard, address, target_name=name), timeout_ms)

    async def drain_host(self, host: HostRef, *, timeout_ms: int | None = None) -> None:
        """The host's shards are handed over to others, and it gets none until undrained."""
        address, name = _address_and_name(host)
        await self._call(_DRAIN_HOST, ttypes.HostRequest(address, host_name=name), timeout_ms)

    async def undrain_host(self, host: HostRef, *, timeout_ms: int | None = None) -> None:
        """The host may own shards again."""
        address, name = _address_and_name(host)
        await self._call(_UNDRAIN_HOST, ttypes.HostRequest(address, host_name=name), timeout_ms)

    async def _list_all(
        self, method: ThriftMethod, rows_of: Callable[[Any], list[_T]], timeout_ms: int | None
    ) -> list[_T]:
        """The rows of every page."""
        rows: list[_T] = []
        cursor: str | None = None
        while True:
            reply = await self._call(method, ttypes.ListRequest(ttypes.Page(_PAGE_ROWS, cursor)), timeout_ms)
            rows += rows_of(reply)
            cursor = reply.next_cursor
            if cursor is None:
                return rows


def _address_and_name(host: HostRef | None) -> tuple[Any, str | None]:
    """(address struct, name), of which one is None."""
    if host is None or isinstance(host, str):
        return None, host
    return ttypes.HostAddress(*host), None


_LIST_SHARDS: Final = ThriftMethod("listShards")
_LIST_HOSTS: Final = ThriftMethod("listHosts")
_ADD_SHARD: Final = ThriftMethod("addShard", is_write=True)
_REMOVE_SHARD: Final = ThriftMethod("removeShard", is_write=True)
_DRAIN_SHARD: Final = ThriftMethod("drainShard", is_write=True)
_UNDRAIN_SHARD: Final = ThriftMethod("undrainShard", is_write=True)
_MOVE_SHARD: Final = ThriftMethod("moveShard", is_write=True)
_DRAIN_HOST: Final = ThriftMethod("drainHost", is_write=True)
_UNDRAIN_HOST: Final = ThriftMethod("undrainHost", is_write=True)
