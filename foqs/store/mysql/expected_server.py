"""The check of each connection of a host: is this the server that the entry of its database names?

Always true: a connection that passes leads to the server of the term, which accepts
commits, and with semi-sync answers none that no acker has. It does not stop a host whose
entry is old: see `docs/design/regions.md`. Knows nothing of how hosts learn of the entry.
"""

from __future__ import annotations

from dataclasses import dataclass

from foqs.store.mysql.mysql_driver import MysqlLink, ServerError, WrongServer
from foqs.store.mysql.replication_kinds import replication_sql_of
from foqs.store.mysql.replication_sql import IDENTITY, READ_GRANTS, by_name, read_term, text
from foqs.store.mysql.schema_upgrade import NO_SUCH_TABLE_CODE


@dataclass(slots=True, frozen=True)
class SeenServer:
    """What a connection shows of its server.

    Attributes:
        term: the term in its tables; 0 if there is none.
        waits_for_acks: it answers no commit that no acker has.
        passes_read_only: the account of this connection may commit although the server is read-only.
    """

    server_id: int
    term: int
    is_read_only: bool
    waits_for_acks: bool
    passes_read_only: bool = False


@dataclass(slots=True, frozen=True)
class ExpectedServer:
    """Implements `mysql_driver.ConnectionCheck`.

    Attributes:
        name, server_id, term: the primary, as the entry names it.
        needs_acks: its policy is `semi-sync`.
    """

    name: str
    server_id: int
    term: int
    needs_acks: bool

    async def check(self, link: MysqlLink, database: str) -> None:
        problem = self.problem(await see_server(link, database))
        if problem is not None:
            raise WrongServer(problem)

    def problem(self, seen: SeenServer) -> str | None:
        """Return why hosts must not use a server, and what to do; None if it is the right one."""
        if seen.server_id != self.server_id:
            return (
                f"this is another server than the primary {self.name}: its server_id is {seen.server_id}, not {self.server_id}; "
                "correct the address, or the server's configuration"
            )
        if seen.term != self.term:
            return (
                f"{self.name} is in term {seen.term}, and this host in term {self.term}; "
                "the host uses it when both have the same, see foqs_term and the entry of the database"
            )
        if seen.is_read_only:
            return f"{self.name} is read-only: its place is being taken, or it was restarted and is not opened yet"
        if seen.passes_read_only:
            return (
                f"the account of this host may write {self.name} although it is read-only, so a move would not stop the host; "
                "revoke READ_ONLY ADMIN and ALL PRIVILEGES ON *.* from the account at each server"
            )
        if self.needs_acks and not seen.waits_for_acks:
            return (
                f"{self.name} answers commits that no acker has; switch semi-sync on, AFTER_SYNC, without a timeout, or "
                "let the promoter open it again"
            )
        return None


async def see_server(link: MysqlLink, database: str) -> SeenServer:
    """Return what a connection shows of its server. Raises `ServerError`, `MysqlLinkLost`."""
    (identity,) = await link.run(IDENTITY)
    version, server_id = identity.rows[0]
    sql = replication_sql_of(text(version))
    variables, counters, grants = await link.run(sql.read_variables, sql.read_counters, READ_GRANTS)
    settings = by_name(variables.rows)
    return SeenServer(
        int(server_id),
        await _term(link, database),
        sql.is_read_only(settings),
        sql.waits_for_acks(settings, by_name(counters.rows)),
        sql.passes_read_only(grants.rows),
    )


async def _term(link: MysqlLink, database: str) -> int:
    try:
        (found,) = await link.run(read_term(database))
    except ServerError as error:
        if error.code != NO_SUCH_TABLE_CODE:
            raise
        return 0
    return int(found.rows[0][0]) if found.rows else 0
