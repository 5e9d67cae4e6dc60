"""A server that comes back, as the former primary does, becomes an acker of its database again.

Always true: it is admitted only while it is closed and has nothing that the primary lacks, so
a server that has diverged is never an acker. Nothing of a server is changed here. Knows
nothing of SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from shardmgr.primary import Primary, PrimaryState, ReplicationPosition, ServerReport
from shardmgr.primary_changes import PromotionRefused, admit_acker
from shardmgr.primary_document import change_primary, read_primary
from shardmgr.registry.port import Registry, RegistryFailed
from shardmgr.server_port import DatabaseServers, ServerConnection, ServerFailed

_UNLOCK_OUTSIDE_OF_LOG: Final = (
    "SET SESSION sql_log_bin = 0, then ALTER USER ... ACCOUNT UNLOCK, on MySQL with super_read_only = 0 meanwhile"
)


async def rejoin(
    registry: Registry, database: str, servers: DatabaseServers, name: str, say: Callable[[str], None] = lambda _: None
) -> Primary:
    """Let a server acknowledge for the primary again; the promoter lets it follow. Return the entry. Safe to repeat.

    Args:
        say: gets what could not be checked, a sentence each.

    Raises:
        PromotionRefused: the server is the primary, is open, has diverged, has locked accounts of the others, or its own is still
            locked somewhere; or the next primary is not chosen yet.
        ServerFailed: it or the primary is not reached.
        RegistryFailed, RegistryOutcomeUnknown, MalformedDocument
    """
    found = await read_primary(registry, database)
    if found is None:
        raise RegistryFailed(f"the database {database!r} has no entry")
    entry = found.entry
    if name in entry.ackers:
        return entry
    admit_acker(entry, name)  # refused before any server is reached
    # The primary comes last: what the server has received from it meanwhile is not its own.
    report, shut_out = await _ask_returning(servers, name, entry)
    of_primary = await _report(servers, entry.server, entry)
    _check_is_contained(name, report, entry.server, of_primary)
    if shut_out:
        raise PromotionRefused(
            f"the replication accounts of {', '.join(shut_out)} are locked at {name}, so nobody could acknowledge for it if it "
            f"became the primary; as root at {name} use {_UNLOCK_OUTSIDE_OF_LOG}, and repeat this"
        )
    if name in entry.shut_out:
        await _check_is_let_in(servers, name, entry, say)

    def admit(now: Primary) -> Primary:
        if (now.term, now.server) != (entry.term, entry.server):
            raise PromotionRefused(f"{now.server} is the primary now; start this again")
        return now if name in now.ackers else admit_acker(now, name)

    return await change_primary(registry, database, admit)


async def connect_to(servers: DatabaseServers, name: str, entry: Primary) -> ServerConnection:
    """Connect to the server that the entry names. Raises PromotionRefused, ServerFailed."""
    if name not in servers.names:
        raise PromotionRefused(f"the configuration has no address of {name}; add it to the servers of the database")
    connection: ServerConnection = await servers.connect(name)
    expected = entry.servers[name].server_id
    if connection.server_id != expected:
        connection.close()
        raise PromotionRefused(
            f"the address of {name} leads to the server with server_id {connection.server_id}, not to {expected}; correct it"
        )
    return connection


async def _report(servers: DatabaseServers, name: str, entry: Primary) -> ServerReport:
    connection = await connect_to(servers, name, entry)
    try:
        return await connection.report(await connection.standing())
    finally:
        connection.close()


async def _ask_returning(servers: DatabaseServers, name: str, entry: Primary) -> tuple[ServerReport, list[str]]:
    """Return the report of a server, and which others it would not let receive as the next primary.

    A lock that is replicated is in its copy, and one that was lifted outside of the log is there for good.
    """
    connection = await connect_to(servers, name, entry)
    try:
        report = await connection.report(await connection.standing())
        others = [each for each in (entry.server, *entry.ackers) if await connection.refuses(each)]
        return report, others
    finally:
        connection.close()


async def _check_is_let_in(servers: DatabaseServers, name: str, entry: Primary, say: Callable[[str], None]) -> None:
    """Raise `PromotionRefused` if a server that was shut out still is somewhere: it would be an acker that nobody can prove.

    Each server may have accounts of its own, and each acker may be the next primary. One that is not reached stops nothing: if
    it is lost for good, this server is the one that can acknowledge in its place.
    """
    locked = []
    for each in (entry.server, *entry.ackers):
        try:
            if await _refuses(servers, each, name, entry):
                locked.append(each)
        except ServerFailed as error:
            if each == entry.server:
                raise
            say(
                f"{each} was not asked whether the replication account of {name} is unlocked there ({error}); when it is back, see "
                "that it is: foqs doctor says so"
            )
    if locked:
        raise PromotionRefused(
            f"the replication account of {name} is still locked at {', '.join(locked)}, since it was removed; {_how_to_unlock(entry)}"
        )


def _how_to_unlock(entry: Primary) -> str:
    """Return how a lock is lifted in each copy. While the next primary waits for acks, what is written into its log waits as well."""
    if entry.state is PrimaryState.SERVING:
        return (
            f"as root at {entry.server} use ALTER USER ... ACCOUNT UNLOCK, which the others receive, and repeat this; a server that "
            f"was locked by itself needs {_UNLOCK_OUTSIDE_OF_LOG}"
        )
    return f"as root there use {_UNLOCK_OUTSIDE_OF_LOG}, and repeat this"


async def _refuses(servers: DatabaseServers, server: str, name: str, entry: Primary) -> bool:
    connection = await connect_to(servers, server, entry)
    try:
        return await connection.refuses(name)
    finally:
        connection.close()


def _check_is_contained(name: str, report: ServerReport, primary: str, of_primary: ServerReport) -> None:
    """Raise `PromotionRefused` if a server accepts commits, or has transactions that the primary lacks."""
    if not report.is_read_only:
        raise PromotionRefused(
            f"{name} accepts commits; end it with SIGKILL, as a stop in order commits what waits, and start it with read_only = 1"
        )
    held = report.applied if report.received is None else report.received
    own = _beyond(held, of_primary.applied)
    if own:
        raise PromotionRefused(
            f"{name} has diverged, it has transactions that {primary} lacks: {own}. No caller was told that these are "
            f"committed. On MariaDB end the server with SIGKILL, start it once with --init-rpl-role=SLAVE, which cuts them off, "
            f"and repeat this; otherwise rebuild it from {primary}"
        )


def _beyond(held: ReplicationPosition, known: ReplicationPosition) -> str:
    """Return by origin which transactions are not known, as text."""
    return ", ".join(
        f"{origin}: {known.last.get(origin, 0) + 1} to {number}"
        for origin, number in sorted(held.last.items())
        if number > known.last.get(origin, 0)
    )
