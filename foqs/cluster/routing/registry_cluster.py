"""A cluster's routing table, built from the registry, and its administration; see `ClusterService`.

Always true: the table comes from the last reading of the registry, and the status
of this host's own shards from the shards; hosts with the same reading report
the same table under the same version. A change is one compare-and-set of the layout.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from foqs.catalog.key_slot_assignment import SlotAssignment
from foqs.cluster.routing.host_views import HostViews, address_of
from foqs.cluster.routing.routing_log import RoutingLog
from foqs.routing.port import HostRef, HostView, RoutingChange, RoutingTable, ShardView
from foqs.shard.host_shards import ShardStatus
from foqs_contract.errors import InvalidArgument, Unavailable, UnknownOutcome
from shardmgr import layout_changes
from shardmgr.layout_changes import ChangeRefused
from shardmgr.model import ClusterView, Layout, MalformedDocument, Member, ShardSpec
from shardmgr.ownership import OwnershipState, ownership_state_of
from shardmgr.registry.port import Registry, RegistryFailed, RegistryOutcomeUnknown

_RETRY_MS: Final = 1_000


class RegistryCluster:
    """The `ClusterService` of a host of a cluster.

    Args:
        view: returns the cluster as this host last read it; None before the first reading.
        hosts: the hosts of the same reading.
        nonce, tier: the nonce and the tier of this host.
        statuses: returns the states of this host's shards.
        key_slots: returns the key slots of each shard of the tier.
        live_loads: returns the loads of hosts by nonce, newer than those in the registry.
        databases: the names of the configured databases; None: every name is accepted.
    """

    def __init__(
        self,
        registry: Registry,
        view: Callable[[], ClusterView | None],
        hosts: HostViews,
        nonce: str,
        tier: str,
        statuses: Callable[[], Sequence[ShardStatus]],
        key_slots: Callable[[], SlotAssignment] = dict,
        live_loads: Callable[[], Mapping[str, float]] = dict,
        databases: Collection[str] | None = None,
    ) -> None:
        self._registry = registry
        self._view = view
        self._nonce = nonce
        self._tier = tier
        self._statuses = statuses
        self._key_slots = key_slots
        self._hosts = hosts
        self._live_loads = live_loads
        self._databases = databases
        self._routing_source: tuple[ClusterView, SlotAssignment] | None = None
        self._routing: RoutingTable
        """The table built from `_routing_source`, without the status of this host's own shards."""
        self._routing_log = RoutingLog()

    @property
    def tier(self) -> str:
        return self._tier

    @property
    def version(self) -> int:
        return self._current_routing().version

    def changes_since(self, version: int) -> RoutingChange | None:
        routing = self._current_routing()
        change = self._routing_log.changes_since(version)
        return None if change is None else replace(change, shards=self._with_own_status(routing, change.shards))

    def host_loads(self) -> Sequence[float]:
        hosts, loads = self._current_routing().hosts, self._live_loads()
        return [loads.get(host.nonce, host.load or 0.0) for host in sorted(hosts, key=lambda host: host.nonce)]

    def routing(self) -> RoutingTable:
        routing, loads = self._current_routing(), self._live_loads()
        hosts = [replace(host, load=loads[host.nonce]) if host.nonce in loads else host for host in routing.hosts]
        return RoutingTable(routing.version, hosts, self._with_own_status(routing, routing.shards))

    def _with_own_status(self, routing: RoutingTable, shards: Sequence[ShardView]) -> Sequence[ShardView]:
        """Return the shards with the status of this host's own ones."""
        own = {status.shard: status for status in self._statuses()}
        address = next((host.address for host in routing.hosts if host.nonce == self._nonce), None)
        return [
            replace(shard, queued_items=status.queued_items, reason=status.reason)
            if shard.owner == address is not None and (status := own.get(shard.shard)) is not None
            else shard
            for shard in shards
        ]

    def _current_routing(self) -> RoutingTable:
        """Return the table that all hosts build alike from the last reading; built once per reading."""
        view, slots = self._required_view(), self._key_slots()
        if self._routing_source is None or self._routing_source[0] is not view or self._routing_source[1] is not slots:
            hosts = self._hosts.of(view)
            by_nonce = {member.nonce: member for member in view.members}
            shards = [self._shard_view(spec, view, by_nonce) for _, spec in sorted(view.layout.shards.items())]
            self._routing_source = view, slots
            self._routing = RoutingTable(_routing_version(hosts, shards), hosts, shards)
            self._routing_log.add(self._routing)
        return self._routing

    async def add_shard(self, spec: ShardSpec, deadline: float) -> None:
        if self._databases is not None and spec.database not in self._databases:
            raise InvalidArgument(
                f"this host has no database {spec.database!r}, only {', '.join(sorted(self._databases))}; "
                f"add [databases.{spec.database}] to the configuration of every host and restart the hosts",
                field="database_name",
            )
        async with _translated_errors(deadline):
            await layout_changes.add_shard(self._registry, spec)

    async def remove_shard(self, shard: int, deadline: float, *, force: bool) -> None:
        async with _translated_errors(deadline):
            await layout_changes.remove_shard(self._registry, shard, force=force)

    async def drain_shard(self, shard: int, deadline: float, *, draining: bool) -> None:
        async with _translated_errors(deadline):
            await layout_changes.drain_shard(self._registry, shard, drain=draining)

    async def move_shard(self, shard: int, target: HostRef | None, deadline: float) -> None:
        field = "target" if isinstance(target, tuple) else "target_name"
        async with _translated_errors(deadline, field):
            name = None if target is None else self._host_name(target, field)
            await layout_changes.move_shard(self._registry, shard, name)

    async def drain_host(self, host: HostRef, deadline: float, *, drained: bool) -> None:
        field = "host" if isinstance(host, tuple) else "host_name"
        async with _translated_errors(deadline, field):
            change = layout_changes.drain_host if drained else layout_changes.undrain_host
            await change(self._registry, self._host_name(host, field))

    # ------------------------------------------------------------------------ views

    def _required_view(self) -> ClusterView:
        view = self._view()
        if view is None:
            raise Unavailable("this host has not read the cluster's plan yet; try again", retry_after_ms=_RETRY_MS)
        return view

    def _shard_view(self, spec: ShardSpec, view: ClusterView, members: dict[str, Member]) -> ShardView:
        number = spec.number
        assignment = view.plan.assignments.get(number)
        member = None if assignment is None else members.get(assignment.nonce)
        state = ownership_state_of(number, assignment, member)
        reason: str | None = None
        if assignment is None:
            reason = _free_reason(spec, view)
        elif member is None:
            reason = f"its host {assignment.name} is gone; another host will own it"
        elif state != OwnershipState.OWNED.value:
            reason = f"the log and /readyz of {member.name} say why"
        return ShardView(
            shard=number,
            tier=spec.tier,
            region=spec.region,
            owner=None if member is None else address_of(member),
            owner_name="" if assignment is None else assignment.name,
            epoch=view.plan.epochs.get(number, 0) if assignment is None else assignment.epoch,
            state=state,
            database=spec.database,
            weight=spec.weight,
            draining=spec.draining,
            pinned_to=view.layout.pins.get(number, ""),
            reason=reason,
            key_slots=self._key_slots().get(number, ()) if spec.tier == self._tier else (),
        )

    def _host_name(self, host: HostRef, field: str) -> str:
        """Return the name of a host, given its name, or its address as a pair or as text.

        A text that is neither is returned unchanged. Raises InvalidArgument if no host has the pair.
        """
        members = self._required_view().members
        if isinstance(host, str):
            if any(member.name == host for member in members):
                return host
            return next((member.name for member in members if member.address == host), host)
        for member in members:
            if address_of(member) == host:
                return member.name
        raise InvalidArgument(f"there is no host at {host[0]}:{host[1]}; listHosts lists the hosts", field=field)


def _free_reason(spec: ShardSpec, view: ClusterView) -> str:
    return (
        "the planner will assign it to a host soon"
        if any(_may_own(member, spec, view.layout) for member in view.members)
        else f"no host of tier {spec.tier} can own it: all are drained or stopping"
    )


def _may_own(member: Member, spec: ShardSpec, layout: Layout) -> bool:
    return member.tier == spec.tier and not member.leaving and member.name not in layout.drained


def _routing_version(hosts: Sequence[HostView], shards: Sequence[ShardView]) -> int:
    """Return a positive 63-bit digest of the parts of the table that all hosts report alike."""
    digest = hashlib.sha256()
    for host in hosts:
        parts = (host.name, host.address, host.tier, host.region, host.nonce, host.capacity, host.drained, host.leaving)
        digest.update(repr((parts, host.shard_count)).encode())
    for shard in shards:
        digest.update(
            repr(
                (shard.shard, shard.tier, shard.region, shard.owner, shard.owner_name, shard.epoch, shard.state)
            ).encode()
        )
        rest = (shard.database, shard.weight, shard.draining, shard.pinned_to, shard.reason, sorted(shard.key_slots))
        digest.update(repr(rest).encode())
    return int.from_bytes(digest.digest()[:8], "big") >> 1 or 1


@asynccontextmanager
async def _translated_errors(deadline: float, host_field: str = "host") -> AsyncIterator[None]:
    """Convert errors of the registry and of a change to errors for the caller.

    Raises InvalidArgument, Unavailable and UnknownOutcome; the last one also after the deadline.

    Args:
        host_field: the request's field that names the host.
    """
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except ChangeRefused as error:
        field = {"host": host_field, "cluster": None}.get(error.field, error.field)
        raise InvalidArgument(error.problem, field=field) from None
    except RegistryFailed as error:
        raise Unavailable(str(error), retry_after_ms=_RETRY_MS) from None
    except MalformedDocument as error:
        raise Unavailable(
            f"the cluster's layout cannot be read: {error}; if a newer program wrote it, upgrade this host",
            retry_after_ms=_RETRY_MS,
        ) from None
    except RegistryOutcomeUnknown as error:
        raise UnknownOutcome(f"{error}; the change may be recorded: check, or repeat it") from None
    except TimeoutError:
        raise UnknownOutcome(
            "ZooKeeper did not confirm the change by the deadline; it may be recorded: check, or repeat it"
        ) from None
