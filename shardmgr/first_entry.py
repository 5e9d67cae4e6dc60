"""The first entry of a database that has hosts already, and the end of its last one.

Always true: it is written before any server is changed, and only if there is none. It is
written only after the named server was proven to be the one that hosts use, while no host
of an older version is announced: such a host knows no entries. Knows nothing of SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from shardmgr.cluster_reader import ClusterReading, read_cluster
from shardmgr.model import Layout
from shardmgr.ownership import OwnershipState
from shardmgr.primary import DatabaseServer, LossPolicy, Primary, PrimaryState, ReplicationPosition, ServerReport
from shardmgr.primary_changes import PromotionRefused, first_entry, start_release
from shardmgr.primary_document import change_primary, read_last_primary, read_primary, replace_primary
from shardmgr.promotion import unfit_for_adoption
from shardmgr.registry.port import Registry, RegistryConflict, RegistryFailed
from shardmgr.server_port import DatabaseServers, ServerConnection
from shardmgr.versions import older_hosts, read_versions

_RECEIVE_ATTEMPTS: Final = 50
"""How often a server is asked whether it has received what the primary had, before no server is adopted."""
_RECEIVE_PAUSE_S: Final = 0.1


@dataclass(slots=True, frozen=True)
class SeenByHosts:
    """A named server, as hosts without an entry see it.

    Attributes:
        is_their_server: their configuration leads to this server.
        epochs: by shard, the epoch in its owner row there. A shard without tables is missing.
    """

    is_their_server: bool
    epochs: Mapping[int, int]


class ServerOfHosts(Protocol):
    """The server that hosts use as long as the database has no entry."""

    async def compare_server(self, name: str, shards: Collection[int]) -> SeenByHosts:
        """Compare a named server with it, and read the owner rows of shards there. Raises ServerFailed."""
        ...

    async def passes_read_only(self, name: str, *, is_read_only: bool) -> bool:
        """Return whether the account of hosts may commit at a named server that is read-only. Nothing is written.

        Args:
            is_read_only: the server is read-only now, so it is also tried.

        Raises:
            ServerFailed: hosts cannot log in there, for example.
        """
        ...


async def make_first_entry(
    registry: Registry,
    database: str,
    servers: DatabaseServers,
    server_of_hosts: ServerOfHosts,
    regions: Mapping[str, str],
    primary: str,
    policy: LossPolicy,
    schema: int,
) -> None:
    """Write the first entry of a database. A promoter makes its first term then.

    Args:
        regions: by name, the region of each server.
        primary: the server that has the data, and that hosts use.
        schema: the version of the tables of this program.

    Raises:
        PromotionRefused: a name is wrong, the server is not the one that hosts use, another server is not its replica,
            the account of hosts may write a server that is read-only, no server would acknowledge, or hosts of an older version are members of the cluster.
        ServerFailed: a server is not reached.
        RegistryConflict: there is an entry already.
        RegistryFailed, RegistryOutcomeUnknown
    """
    if primary not in regions or set(regions) != set(servers.names):
        raise PromotionRefused(
            f"name the region of each of {', '.join(sorted(servers.names))}, and one of these servers as the primary"
        )
    reading = await read_cluster(registry)
    await _check_hosts(registry, database, reading, schema)
    connections: dict[str, ServerConnection] = {}
    try:
        for name in regions:
            connections[name] = await servers.connect(name)
        numbers = {name: connection.server_id for name, connection in connections.items()}
        # The primary comes last: its replicas receive all the time.
        reports: dict[str, ServerReport] = {}
        for name in sorted(connections, key=lambda each: each == primary):
            reports[name] = await connections[name].report(await connections[name].standing())
        _check_servers(primary, numbers, reports)
        if policy is LossPolicy.SEMI_SYNC:
            await _check_one_receives(primary, connections, reports)
    finally:
        for connection in connections.values():
            connection.close()
    await _check_is_used(server_of_hosts, primary, database, reading)
    await _check_stops_hosts(server_of_hosts, reports)
    named = {name: DatabaseServer(region, numbers[name]) for name, region in regions.items()}
    last = await read_last_primary(registry, database)
    if last is not None and last.entry.state is not PrimaryState.RELEASED:
        raise RegistryConflict(f"the database {database!r} has an entry already")
    # A term belongs to one server, also if the last entry was removed before its term was written.
    term = 1 + max(reports[primary].term, 0 if last is None else last.entry.term)
    version = None if last is None else last.version
    await replace_primary(registry, database, first_entry(primary, policy, named, term), version)


async def forget_entry(registry: Registry, database: str, server_of_hosts: ServerOfHosts) -> Primary:
    """Begin to remove the entry of a database: its promoter ends that, and hosts use its server by their configuration then.

    Return the entry. Safe to repeat.

    Raises:
        PromotionRefused: the configuration of hosts leads to another server, or the database does not serve.
        ServerFailed: a server is not reached.
        RegistryFailed, RegistryOutcomeUnknown, MalformedDocument
    """
    found = await read_primary(registry, database)
    if found is None:
        raise RegistryFailed(f"the database {database!r} has no entry")
    server = start_release(found.entry).server  # refused before any server is reached
    if not (await server_of_hosts.compare_server(server, ())).is_their_server:
        raise PromotionRefused(
            f"databases.{database}.url leads to another server than {server}, which is the primary; name {server} there at all "
            "hosts, start them again, and repeat this"
        )

    def release(now: Primary) -> Primary:
        if now.server != server:
            raise PromotionRefused(f"{now.server} is the primary now; start this again")
        return start_release(now)

    return await change_primary(registry, database, release)


async def _check_hosts(registry: Registry, database: str, reading: ClusterReading, schema: int) -> None:
    if not _shards_of(reading.layout, database):
        raise PromotionRefused(
            f"the cluster has no shard in the database {database!r}; foqs shard list names its databases"
        )
    older = older_hosts(reading, await read_versions(registry), schema)
    if older:
        raise PromotionRefused(
            f"hosts of an older version are members of the cluster: {', '.join(older)}; upgrade or stop them first"
        )


def _check_servers(primary: str, numbers: Mapping[str, int], reports: Mapping[str, ServerReport]) -> None:
    """Raise `PromotionRefused` if two servers have one number, or if they are not a primary and its replicas."""
    names: dict[int, str] = {}
    for name, number in numbers.items():
        if (other := names.setdefault(number, name)) != name:
            raise PromotionRefused(f"{name} and {other} both have server_id {number}; give each its own")
    problems = unfit_for_adoption(primary, reports)
    if not problems and reports[primary].is_read_only:
        problems = (f"{primary} is read-only, so hosts do not write there; name the server that hosts use",)
    if problems:
        raise PromotionRefused("; ".join(problems))


async def _check_one_receives(
    primary: str, connections: Mapping[str, ServerConnection], reports: Mapping[str, ServerReport]
) -> None:
    """Raise `PromotionRefused` if no other server would acknowledge soon: then all commits would wait.

    One that receives already shows that the primary has what it needs, and that a login of replicas works.
    """
    unable: dict[str, str] = {}
    for _ in range(_RECEIVE_ATTEMPTS):
        for name in sorted(connections.keys() - {primary}):
            report = await connections[name].report(await connections[name].standing())
            unable[name] = _why_not_acknowledging(primary, reports[primary].applied, report)
        if not all(unable.values()):
            return
        await asyncio.sleep(_RECEIVE_PAUSE_S)
    reasons = "; ".join(f"{name} {reason}" for name, reason in unable.items())
    raise PromotionRefused(
        f"with semi-sync each commit waits for another server, and none could acknowledge: {reasons}. Let one receive from "
        f"{primary} as its replica account, without an error, and repeat this"
    )


def _why_not_acknowledging(primary: str, position: ReplicationPosition, report: ServerReport) -> str:
    """Return why a replica would not acknowledge for the primary at once; empty if it would."""
    if report.source != primary or not report.is_receiving:
        return f"does not receive from {primary}"
    if report.complaint or not report.heard:
        return report.complaint or f"is not connected to {primary}"
    has_all = report.received is not None and report.received.covers(position)
    return "" if has_all else f"has not received all that {primary} has"


async def _check_is_used(server_of_hosts: ServerOfHosts, primary: str, database: str, reading: ClusterReading) -> None:
    """Raise `PromotionRefused` if hosts use another server, or own shards that this one does not know as theirs."""
    seen = await server_of_hosts.compare_server(primary, _shards_of(reading.layout, database))
    if not seen.is_their_server:
        raise PromotionRefused(
            f"{primary} is not the server of databases.{database}.url, which hosts use; name that one as the primary"
        )
    for number in _shards_of(reading.layout, database):
        for member in reading.members:
            held = member.held_shards.get(number)
            if held is None or held.state != OwnershipState.OWNED.value:
                continue
            # The entry of the host was read before the row, and epochs only rise.
            if seen.epochs.get(number, 0) < held.epoch:
                raise PromotionRefused(
                    f"{member.name} owns shard {number} in epoch {held.epoch}, and {primary} does not have that: the host "
                    "uses another server; name that one as the primary"
                )


async def _check_stops_hosts(server_of_hosts: ServerOfHosts, reports: Mapping[str, ServerReport]) -> None:
    """Raise `PromotionRefused` if `read_only` does not stop hosts, which is how a drained primary is fenced."""
    for name, report in sorted(reports.items()):
        if await server_of_hosts.passes_read_only(name, is_read_only=report.is_read_only):
            raise PromotionRefused(
                f"the account of hosts may write {name} although it is read-only, so nothing would stop them in a move; revoke "
                "READ_ONLY ADMIN and ALL PRIVILEGES ON *.* from it at each server"
            )


def _shards_of(layout: Layout | None, database: str) -> list[int]:
    shards = {} if layout is None else layout.shards
    return sorted(number for number, spec in shards.items() if spec.database == database)
