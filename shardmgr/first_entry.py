"""The first entry of a database that has hosts already.

Always true: the entry is written only after its server was made read-only and its position
was read, while no host of an older version is announced: such a host knows no entries. If
it is not written, the server is opened again. Knows nothing of SQL.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardmgr.cluster_reader import read_cluster
from shardmgr.primary import DatabaseServer, LossPolicy
from shardmgr.primary_changes import PromotionRefused, first_entry
from shardmgr.primary_document import replace_primary
from shardmgr.promotion import SendCommand, ServerCommand
from shardmgr.registry.port import Registry, RegistryOutcomeUnknown
from shardmgr.server_port import DatabaseServers, ServerConnection
from shardmgr.versions import older_hosts, read_versions


async def make_first_entry(
    registry: Registry,
    database: str,
    servers: DatabaseServers,
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
        PromotionRefused: a name is wrong, or hosts of an older version are members of the cluster.
        ServerFailed: a server is not reached.
        RegistryConflict: there is an entry already.
        RegistryFailed, RegistryOutcomeUnknown
    """
    if primary not in regions or set(regions) != set(servers.names):
        raise PromotionRefused(
            f"name the region of each of {', '.join(sorted(servers.names))}, and one of these servers as the primary"
        )
    await _check_hosts(registry, database, schema)
    connections: dict[str, ServerConnection] = {}
    try:
        for name in regions:
            connections[name] = await servers.connect(name)
        named = {name: DatabaseServer(region, connections[name].server_id) for name, region in regions.items()}
        await _fence_and_write(registry, database, connections[primary], named, primary, policy)
    finally:
        for connection in connections.values():
            connection.close()


async def _check_hosts(registry: Registry, database: str, schema: int) -> None:
    reading = await read_cluster(registry)
    if reading.layout is None or all(spec.database != database for spec in reading.layout.shards.values()):
        raise PromotionRefused(
            f"the cluster has no shard in the database {database!r}; foqs shard list names its databases"
        )
    older = older_hosts(reading, await read_versions(registry), schema)
    if older:
        raise PromotionRefused(
            f"hosts of an older version are members of the cluster: {', '.join(older)}; upgrade or stop them first"
        )


async def _fence_and_write(
    registry: Registry,
    database: str,
    connection: ServerConnection,
    servers: Mapping[str, DatabaseServer],
    primary: str,
    policy: LossPolicy,
) -> None:
    may_be_written = False
    try:
        await connection.carry_out(SendCommand(primary, ServerCommand.MAKE_READ_ONLY))
        report = await connection.report(await connection.standing())
        entry = first_entry(primary, policy, servers, report.applied)
        try:
            await replace_primary(registry, database, entry, None)
        except RegistryOutcomeUnknown:
            may_be_written = True
            raise
        may_be_written = True
    finally:
        if not may_be_written:
            await connection.carry_out(SendCommand(primary, ServerCommand.OPEN))
