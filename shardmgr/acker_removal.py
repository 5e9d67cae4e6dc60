"""A server that will not come back acknowledges for its database no more.

Always true: with the policy semi-sync it is removed only after it cannot receive from any server that may be the primary, so
it acknowledges nothing where nobody looks for it. Nothing of a server is changed but its connections. Knows nothing of SQL.
"""

from __future__ import annotations

from collections.abc import Collection

from shardmgr.primary import LossPolicy, Primary
from shardmgr.primary_changes import PromotionRefused, without_acker
from shardmgr.primary_document import change_primary, read_primary
from shardmgr.registry.port import Registry, RegistryFailed
from shardmgr.rejoin import connect_to
from shardmgr.server_port import DatabaseServers, ServerFailed


async def remove_acker(
    registry: Registry, database: str, servers: DatabaseServers, name: str, left: Collection[str] | None = None
) -> Primary:
    """Remove an acker from the entry. Return the entry. Safe to repeat.

    The primary and all other ackers must be reached: one that was passed over might become the primary later.

    Args:
        left: the ackers that an administrator was asked to keep; None: any.

    Raises:
        PromotionRefused: it may not be removed, its account is not known, or the entry has changed meanwhile.
        ServerFailed: a server is not reached, or lets the removed one receive.
        RegistryFailed, RegistryOutcomeUnknown, MalformedDocument
    """
    found = await read_primary(registry, database)
    if found is None:
        raise RegistryFailed(f"the database {database!r} has no entry")
    entry = found.entry
    after = without_acker(entry, name)  # refused before any server is reached
    if after == entry:
        return entry
    if entry.policy is LossPolicy.SEMI_SYNC:
        if name not in servers.names:
            raise PromotionRefused(
                f"the configuration does not name {name}, so its account is not known; add it to the servers of the database"
            )
        for each in (*after.ackers, entry.server):
            try:
                await _end_reception(servers, each, name, entry)
            except ServerFailed as error:
                raise ServerFailed(
                    f"{error}. {name} is still an acker: repeat this, or unlock its account where it is locked, as a promotion "
                    "would wait for its login"
                ) from error

    def remove(now: Primary) -> Primary:
        if (now.term, now.server) != (entry.term, entry.server):
            raise PromotionRefused(f"{now.server} is the primary now; start this again")
        if not set(now.ackers) <= set(entry.ackers):
            raise PromotionRefused("another server was admitted meanwhile; start this again")
        after = without_acker(now, name)
        if left is not None and after != now and set(after.ackers) != set(left):
            raise PromotionRefused(
                f"other ackers were removed meanwhile; left are {', '.join(now.ackers)}; start this again"
            )
        return after

    return await change_primary(registry, database, remove)


async def _end_reception(servers: DatabaseServers, server: str, name: str, entry: Primary) -> None:
    connection = await connect_to(servers, server, entry)
    try:
        await connection.end_reception(name)
    finally:
        connection.close()
