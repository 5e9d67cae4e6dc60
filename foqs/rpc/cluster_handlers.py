"""The administrative calls about hosts and shards: from a decoded request to a reply.

Holds one function for each call. Always true: the cluster gets validated values
only. Knows nothing of connections, of planning, or of what a shard holds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Final

from foqs.core.items import validation
from foqs.core.items.item import SHARD_MAX
from foqs.routing.port import ClusterService, HostRef, HostView, ShardView
from foqs.rpc.call import Call, Handler
from foqs.rpc.filters import page_by_name, parse_page
from foqs.rpc.methods import task_handler
from foqs_contract.errors import InvalidArgument
from foqs_contract.idl import ttypes
from foqs_contract.key_slots import KEY_SLOT_COUNT
from shardmgr.model import WEIGHT_MAX, ShardSpec

_PORT_MAX: Final = 65_535


def cluster_handlers(cluster: ClusterService) -> Mapping[str, Handler]:
    """Return the handlers by method name."""
    handlers = _ClusterHandlers(cluster)
    served: Mapping[str, Callable[[Call], Coroutine[Any, Any, Any]]] = {
        "getRouting": handlers.get_routing,
        "listShards": handlers.list_shards,
        "addShard": handlers.add_shard,
        "removeShard": handlers.remove_shard,
        "moveShard": handlers.move_shard,
        "drainShard": handlers.drain_shard,
        "undrainShard": handlers.undrain_shard,
        "listHosts": handlers.list_hosts,
        "drainHost": handlers.drain_host,
        "undrainHost": handlers.undrain_host,
    }
    return {name: task_handler(serve) for name, serve in served.items()}


class _ClusterHandlers:
    def __init__(self, cluster: ClusterService) -> None:
        self._cluster = cluster

    # -------------------------------------------------------------------- reading

    async def get_routing(self, call: Call) -> ttypes.GetRoutingReply:
        request: ttypes.GetRoutingRequest = call.request
        cluster = self._cluster
        if request.version is not None and request.changes:
            change = cluster.changes_since(request.version)
            if change is not None:
                return ttypes.GetRoutingReply(
                    change.version,
                    [_host_info(host) for host in change.hosts],
                    _shard_infos(change.shards),
                    cluster.tier,
                    change.since_version,
                    list(change.removed_hosts) or None,
                    list(change.removed_shards) or None,
                    list(cluster.host_loads()),
                )
        elif request.version is not None and request.version == cluster.version:
            return ttypes.GetRoutingReply(version=request.version)
        routing = cluster.routing()
        hosts = [_host_info(host) for host in routing.hosts]
        return ttypes.GetRoutingReply(routing.version, hosts, _shard_infos(routing.shards), cluster.tier)

    async def list_shards(self, call: Call) -> ttypes.ShardsReply:
        request: ttypes.ListRequest = call.request
        limit, cursor = parse_page(request.page)
        after = -1
        if cursor is not None:
            if not cursor.isascii() or not cursor.isdigit():
                raise InvalidArgument(
                    "this is not a cursor of listShards; leave it out to begin again", field="page.cursor"
                )
            after = int(cursor)
        shards = [shard for shard in self._cluster.routing().shards if shard.shard > after]
        next_cursor = str(shards[limit - 1].shard) if len(shards) > limit else None
        return ttypes.ShardsReply([_shard_info(shard) for shard in shards[:limit]], next_cursor)

    async def list_hosts(self, call: Call) -> ttypes.HostsReply:
        request: ttypes.ListRequest = call.request
        hosts, next_cursor = page_by_name(self._cluster.routing().hosts, lambda host: host.name, request.page)
        return ttypes.HostsReply([_host_info(host) for host in hosts], next_cursor)

    # ------------------------------------------------------------------- changing

    async def add_shard(self, call: Call) -> ttypes.DoneReply:
        request: ttypes.AddShardRequest = call.request
        spec = ShardSpec(
            number=_shard_number(request),
            database=validation.decode_name(request.database_name, "database_name"),
            tier=self._cluster.tier if request.tier is None else validation.decode_name(request.tier, "tier"),
            weight=1 if request.weight is None else validation.check_number(request.weight, 1, WEIGHT_MAX, "weight"),
            region="" if request.region is None else validation.decode_name(request.region, "region"),
        )
        await self._cluster.add_shard(spec, call.deadline)
        return ttypes.DoneReply()

    async def remove_shard(self, call: Call) -> ttypes.DoneReply:
        request: ttypes.ShardRequest = call.request
        await self._cluster.remove_shard(_shard_number(request), call.deadline, force=bool(request.force))
        return ttypes.DoneReply()

    async def move_shard(self, call: Call) -> ttypes.DoneReply:
        request: ttypes.ShardRequest = call.request
        shard = _shard_number(request)
        target = _host_ref(request.target, request.target_name, "target")
        await self._cluster.move_shard(shard, target, call.deadline)
        return ttypes.DoneReply()

    async def drain_shard(self, call: Call) -> ttypes.DoneReply:
        await self._cluster.drain_shard(_shard_number(call.request), call.deadline, draining=True)
        return ttypes.DoneReply()

    async def undrain_shard(self, call: Call) -> ttypes.DoneReply:
        await self._cluster.drain_shard(_shard_number(call.request), call.deadline, draining=False)
        return ttypes.DoneReply()

    async def drain_host(self, call: Call) -> ttypes.DoneReply:
        await self._cluster.drain_host(_required_host(call.request), call.deadline, drained=True)
        return ttypes.DoneReply()

    async def undrain_host(self, call: Call) -> ttypes.DoneReply:
        await self._cluster.drain_host(_required_host(call.request), call.deadline, drained=False)
        return ttypes.DoneReply()


def _shard_number(request: ttypes.AddShardRequest | ttypes.ShardRequest) -> int:
    return validation.check_number(request.shard, 0, SHARD_MAX, "shard")


def _required_host(request: ttypes.HostRequest) -> HostRef:
    host = _host_ref(request.host, request.host_name, "host")
    if host is None:
        raise InvalidArgument("host and host_name are both missing; give one of them", field="host")
    return host


def _host_ref(address: ttypes.HostAddress | None, raw_name: bytes | None, field: str) -> HostRef | None:
    """Parse a host's address or name; return None if neither is given. Raises InvalidArgument."""
    if raw_name is not None:
        if address is not None:
            raise InvalidArgument(f"give either {field} or {field}_name, not both", field=field)
        return validation.decode_name(raw_name, f"{field}_name")
    if address is None:
        return None
    host = validation.decode_name(address.host, f"{field}.host")
    return host, validation.check_number(address.port, 1, _PORT_MAX, f"{field}.port")


def _host_info(host: HostView) -> ttypes.HostInfo:
    return ttypes.HostInfo(
        address=ttypes.HostAddress(*host.address),
        region=host.region or None,
        tier=host.tier,
        shards=host.shard_count,
        draining=host.drained,
        load=host.load,
        version=host.version or None,
        name=host.name or None,
        nonce=host.nonce or None,
        capacity=host.capacity,
        leaving=host.leaving,
    )


def _shard_info(shard: ShardView) -> ttypes.ShardInfo:
    return ttypes.ShardInfo(
        shard=shard.shard,
        tier=shard.tier,
        owner=None if shard.owner is None else ttypes.HostAddress(*shard.owner),
        epoch=shard.epoch,
        state=shard.state,
        queued_items=shard.queued_items,
        region=shard.region or None,
        reason=shard.reason,
        owner_name=shard.owner_name or None,
        database_name=shard.database or None,
        weight=shard.weight,
        draining=shard.draining,
        pinned_to=shard.pinned_to or None,
    )


def _shard_infos(shards: Sequence[ShardView]) -> list[Any]:
    """Return the structs with key slots, which only getRouting reports."""
    infos = [_shard_info(shard) for shard in shards]
    for info, shard in zip(infos, shards, strict=True):
        info.key_slots = _slot_bits(shard.key_slots)
    return infos


def _slot_bits(slots: Collection[int]) -> bytes | None:
    """Encode slots as one bit each; slot 0 is the lowest bit of the first byte."""
    if not slots:
        return None
    return sum([1 << slot for slot in slots]).to_bytes(KEY_SLOT_COUNT // 8, "little")
