"""The client's calls about hosts and shards: which there are, and where shards go.

Holds the calls, which `Client` inherits. Always true: a change is recorded when
its call returns, and the hosts follow within seconds; each may be repeated
without harm. Where a host is named, it is by its name or by its address,
`(host, port)`. A host that is alone answers NotImplementedYet to changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from foqs_client import convert
from foqs_client.idl import ttypes
from foqs_client.message import Method
from foqs_client.types import Host, Shard

HostRef: TypeAlias = str | tuple[str, int]
_PAGE: Final = 500
_T = TypeVar("_T")


class ClusterCalls:
    """The calls."""

    async def _call(self, method: Method, request: Any, timeout_ms: int | None) -> Any:
        raise NotImplementedError

    async def list_shards(self, *, timeout_ms: int | None = None) -> list[Shard]:
        """All shards by number, with who should own them. `timeout_ms` is for each page."""
        return await self._all(_SHARDS, lambda reply: [convert.shard(info) for info in reply.shards or ()], timeout_ms)

    async def list_hosts(self, *, timeout_ms: int | None = None) -> list[Host]:
        """The hosts that are there, by name. `timeout_ms` is for each page."""
        return await self._all(_HOSTS, lambda reply: [convert.host(info) for info in reply.hosts or ()], timeout_ms)

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
        await self._call(_ADD, ttypes.AddShardRequest(shard, database, tier, weight, region), timeout_ms)

    async def remove_shard(self, shard: int, *, force: bool = False, timeout_ms: int | None = None) -> None:
        """Forgets a shard; its tables stay. Raises InvalidArgument where it is not drained, unless by `force`."""
        await self._call(_REMOVE, ttypes.ShardRequest(shard, force=force), timeout_ms)

    async def drain_shard(self, shard: int, *, timeout_ms: int | None = None) -> None:
        """The shard takes no new items; what it holds is delivered."""
        await self._call(_DRAIN, ttypes.ShardRequest(shard), timeout_ms)

    async def undrain_shard(self, shard: int, *, timeout_ms: int | None = None) -> None:
        """The shard takes new items again."""
        await self._call(_UNDRAIN, ttypes.ShardRequest(shard), timeout_ms)

    async def move_shard(self, shard: int, host: HostRef | None, *, timeout_ms: int | None = None) -> None:
        """Hands a shard over to a host, which keeps it while it is there; None: wherever the planner puts it."""
        address, name = _reference(host)
        await self._call(_MOVE, ttypes.ShardRequest(shard, address, target_name=name), timeout_ms)

    async def drain_host(self, host: HostRef, *, timeout_ms: int | None = None) -> None:
        """The host's shards are handed over to others, and it gets none until undrained."""
        address, name = _reference(host)
        await self._call(_DRAIN_HOST, ttypes.HostRequest(address, host_name=name), timeout_ms)

    async def undrain_host(self, host: HostRef, *, timeout_ms: int | None = None) -> None:
        """The host may own shards again."""
        address, name = _reference(host)
        await self._call(_UNDRAIN_HOST, ttypes.HostRequest(address, host_name=name), timeout_ms)

    async def _all(self, method: Method, rows_of: Callable[[Any], list[_T]], timeout_ms: int | None) -> list[_T]:
        """The rows of every page."""
        rows: list[_T] = []
        cursor: str | None = None
        while True:
            reply = await self._call(method, ttypes.ListRequest(ttypes.Page(_PAGE, cursor)), timeout_ms)
            rows += rows_of(reply)
            cursor = reply.next_cursor
            if cursor is None:
                return rows


def _reference(host: HostRef | None) -> tuple[Any, str | None]:
    """(address struct, name), of which one is None."""
    if host is None or isinstance(host, str):
        return None, host
    return ttypes.HostAddress(*host), None


_SHARDS: Final = Method("listShards")
_HOSTS: Final = Method("listHosts")
_ADD: Final = Method("addShard", writes=True)
_REMOVE: Final = Method("removeShard", writes=True)
_DRAIN: Final = Method("drainShard", writes=True)
_UNDRAIN: Final = Method("undrainShard", writes=True)
_MOVE: Final = Method("moveShard", writes=True)
_DRAIN_HOST: Final = Method("drainHost", writes=True)
_UNDRAIN_HOST: Final = Method("undrainHost", writes=True)
