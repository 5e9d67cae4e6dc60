"""A promoter's connections to the MySQL or MariaDB servers of a database.

Always true: a report is read in the order that `ServerReport` names; a command is
bounded in time; when `connect` returns, no statement of an earlier promoter runs at
the server, and none can follow. It recognises promoters by their account, which hosts
do not use. Knows nothing of the entry or of the rules of a promotion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foqs.store.mysql import mysql_session_sql as session_sql
from foqs.store.mysql.gtids import ServerUnfit, merged
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings, Result, ServerError
from foqs.store.mysql.mysql_rows import WAITS_FOR_ACK, decode_processes
from foqs.store.mysql.replication_kinds import replication_sql_of
from foqs.store.mysql.replication_sql import (
    ACCOUNT_LOCKED_CODES,
    HEARTBEATS,
    IDENTITY,
    LIMIT_TABLE_WAIT,
    RESET_TABLE_WAIT,
    ReplicationLogin,
    ReplicationSql,
    ReplicationTls,
    by_name,
    last_flushes,
    read_term,
    standing,
    text,
    write_term,
)
from foqs.store.mysql.schema_upgrade import NO_SUCH_TABLE_CODE
from shardmgr.loss_report import LastFlush
from shardmgr.primary import ServerReport
from shardmgr.promotion import SendCommand, ServerCommand
from shardmgr.server_port import ServerFailed

_NO_SUCH_DATABASE_CODE: Final = 1049
_NO_SUCH_CONNECTION_CODE: Final = 1094
_KILL_DENIED_CODE: Final = 1095
_LOCK_WAIT_CODE: Final = 1205
_LOCK_WAIT_S: Final = 5
_SHARDS_PER_READ: Final = 100
_READ_S: Final = 5.0
"""The time limit of a read: a server that is silent for longer counts as not reached."""
_FLUSHES_S: Final = 10.0
"""How long the last flushes of all shards are read: each table that somebody holds takes a second or two, and the promoter waits."""
_ENDING_S: Final = 0.01
"""The pause between two looks at connections that are ending."""
_ENDING_COUNT_MAX: Final = 200


@dataclass(slots=True, frozen=True)
class ServerAccess:
    """How a promoter reaches a server, and how others receive from it.

    Attributes:
        settings: address, and the promoter's account. Without a database: a new server has none.
        source: the address for other servers.
        user, password: the replication account with which this server receives from others.
        hosts_user: the account with which hosts use the database.
        tls: how it does; None: as it has it by itself.
    """

    settings: MysqlSettings
    source: tuple[str, int]
    user: str
    password: str
    hosts_user: str
    tls: ReplicationTls | None = None


class MysqlServers:
    """Implements `shardmgr.server_port.DatabaseServers`.

    Args:
        database: the name of the schema that has the tables.
        accesses: the servers by name.
    """

    def __init__(self, database: str, accesses: Mapping[str, ServerAccess]) -> None:
        self.names = tuple(accesses)
        self._database = database
        self._accesses = accesses

    async def connect(self, name: str) -> MysqlServer:
        settings = replace(self._accesses[name].settings, database="")
        try:
            link = await MysqlLink.connect(settings)
        except (ServerError, MysqlLinkLost) as error:
            raise ServerFailed(f"{name}: {error}") from error
        try:
            await link.run(*session_sql.session_settings(_LOCK_WAIT_S))
            await link.run(session_sql.set_autocommit(True))
            (found,) = await link.run(IDENTITY)
            version, server_id = found.rows[0]
            sql = replication_sql_of(text(version))
            await _end_connections(link, sql, settings.user, settings.user, "another promoter")
        except BaseException as error:
            link.abort()
            if isinstance(error, ServerError | MysqlLinkLost | ServerUnfit):
                raise ServerFailed(f"{name}: {error}") from error
            raise
        return MysqlServer(name, int(server_id), link, sql, self._database, self._accesses)


async def _end_connections(link: MysqlLink, sql: ReplicationSql, promoter: str, user: str, whose: str) -> None:
    """End all connections of an account but this one, and wait until they are gone.

    Args:
        promoter: the user of this connection.
        whose: for the error.

    A KILL returns at once, and the statement goes on for some milliseconds. On MariaDB it frees a commit that waits
    for its ack: that of a term, which is the only one that a promoter makes.
    """
    killed = set[int]()
    (own,) = await link.run(b"SELECT CONNECTION_ID()")
    for _ in range(_ENDING_COUNT_MAX):
        (found,) = await link.run(session_sql.PROCESSES)
        others = {
            number: process
            for number, process in decode_processes(found).items()
            if process.user == user and number != own.rows[0][0]
        }
        for number in others.keys() - killed:
            await _kill(link, number, sql, promoter, whose)
        killed |= others.keys()
        # MySQL does not end a commit that waits for its ack when its connection is killed. It does nothing more.
        if all(process.state.startswith(WAITS_FOR_ACK) for process in others.values()):
            return
        await asyncio.sleep(_ENDING_S)
    raise ServerUnfit(f"connections of {whose} do not end: {sorted(others)}; see SHOW PROCESSLIST")


async def _kill(link: MysqlLink, number: int, sql: ReplicationSql, promoter: str, whose: str) -> None:
    """End a connection, which may have ended already. Raises `ServerUnfit` if this user may not."""
    try:
        await link.run(session_sql.kill(number))
    except ServerError as error:
        if error.code == _KILL_DENIED_CODE:
            raise ServerUnfit(
                f"{promoter} may not end connections of {whose} there: {error}; "
                f"as root: GRANT {sql.kill_right} ON *.* TO {promoter}@'...'"
            ) from error
        if error.code != _NO_SUCH_CONNECTION_CODE:
            raise


class MysqlServer:
    """Implements `shardmgr.server_port.ServerConnection`."""

    def __init__(
        self,
        name: str,
        server_id: int,
        link: MysqlLink,
        sql: ReplicationSql,
        database: str,
        accesses: Mapping[str, ServerAccess],
    ) -> None:
        self.server_id = server_id
        self.is_usable = True
        self._name = name
        self._link = link
        self._command_s = link.timeout_s
        self._sql = sql
        self._database = database
        self._accesses = accesses
        self._sources = {"{}:{}".format(*access.source): other for other, access in accesses.items()}

    async def standing(self) -> str:
        self._link.timeout_s = min(_READ_S, self._command_s)
        times, counters = await self._run(self._sql.read_start_times, self._sql.read_counters)
        return self._standing(times, counters)

    async def report(self, standing: str) -> ServerReport:
        self._link.timeout_s = min(_READ_S, self._command_s)
        term = await self._term()
        sql = self._sql
        variables, counters, state, position, applied, *after = await self._run(
            sql.read_variables,
            sql.read_counters,
            sql.read_reception,
            sql.read_reception,
            sql.read_applied,
            sql.read_start_times,
            sql.read_counters,
        )
        settings, status = by_name(variables.rows), by_name(counters.rows)
        try:
            reception, received = sql.reception(state.rows), sql.reception(position.rows).received
            in_log = sql.applied(applied.rows)
        except ServerUnfit as error:
            raise ServerFailed(f"{self._name}: {error}") from error
        return ServerReport(
            term=term,
            is_read_only=sql.is_read_only(settings),
            waits_for_acks=sql.waits_for_acks(settings, status),
            kept_log=sql.kept_log(status),
            source=self._sources.get(reception.source, reception.source),
            is_receiving=reception.is_running,
            acknowledges=sql.acknowledges(settings),
            standing=standing if self._standing(*after) == standing else "",
            received=in_log if not reception.source else received and merged(received, in_log),
            applied=in_log,
            complaint=reception.complaint,
            acknowledgers=sql.acknowledgers(status),
            unacknowledged=sql.unacknowledged(status),
            acknowledged=sql.acknowledged(status),
            waiting_commits=sql.waiting_commits(status),
            heard=reception.heard and f"{status.get(HEARTBEATS, '')} {reception.heard}",
        )

    async def last_flushes(self, shards: Collection[int]) -> Sequence[LastFlush]:
        self._link.timeout_s = min(_READ_S, self._command_s)
        numbers, found = sorted(shards), list[LastFlush]()
        until_s = asyncio.get_running_loop().time() + _FLUSHES_S
        # A table that somebody holds must not end the connection.
        await self._run(LIMIT_TABLE_WAIT)
        for start in range(0, len(numbers), _SHARDS_PER_READ):
            found += await self._read_flushes(numbers[start : start + _SHARDS_PER_READ], until_s)
        await self._run(RESET_TABLE_WAIT)
        return found

    async def _read_flushes(self, shards: Sequence[int], until_s: float) -> list[LastFlush]:
        """Read the last flushes of some shards with one statement, or of each half if one of them cannot be read."""
        if asyncio.get_running_loop().time() >= until_s:
            return [LastFlush(shard, 0, 0, 0, problem=f"not read within {_FLUSHES_S:.0f} s") for shard in shards]
        try:
            (result,) = await self._link.run(last_flushes(self._database, shards))
        except ServerError as error:
            if len(shards) == 1:
                is_there = error.code not in (NO_SUCH_TABLE_CODE, _NO_SUCH_DATABASE_CODE)
                return [LastFlush(shards[0], 0, 0, 0, problem=str(error))] if is_there else []
            half = len(shards) // 2
            halves = shards[:half], shards[half:]
            return [each for part in halves for each in await self._read_flushes(part, until_s)]
        except MysqlLinkLost as error:
            raise self._lost(error) from error
        return [
            LastFlush(int(shard), int(epoch), int(flush), int(written)) for shard, epoch, flush, written in result.rows
        ]

    async def carry_out(self, step: SendCommand) -> None:
        sql, waits = self._sql, step.waits_for_acks
        self._link.timeout_s = self._command_s
        if step.command is ServerCommand.WRITE_TERM:
            statements = (*sql.allow_own_writes, *write_term(self._database, step.term, self._name))
        elif step.command is ServerCommand.FOLLOW:
            await self._end_hosts()
            statements = sql.follow(self._login(step.source))
        elif step.command is ServerCommand.BECOME_PRIMARY:
            statements = sql.become_primary(waits_for_acks=waits)
        elif step.command is ServerCommand.OPEN:
            statements = sql.open(waits_for_acks=waits)
        else:
            statements = sql.revoke if step.command is ServerCommand.REVOKE else sql.make_read_only
        # One after the other: a statement of a group is not sent if the one before it has failed.
        for statement in statements:
            await self._run(statement)

    async def _end_hosts(self) -> None:
        """End the connections that hosts have to a server which is read-only: it applies nothing to rows that one of them holds.

        It is read-only since before, so one that is made later is refused before it locks a row. No commit is in progress; if
        one were, MariaDB would free it without an ack.
        """
        (found,) = await self._run(session_sql.PROCESSES)
        access = self._accesses[self._name]
        hosts = (access.hosts_user, self._database)
        for number, process in decode_processes(found).items():
            if (process.user, process.database) == hosts and not process.is_committing:
                try:
                    await _kill(self._link, number, self._sql, access.settings.user, f"the hosts ({access.hosts_user})")
                except (ServerError, ServerUnfit) as error:
                    raise ServerFailed(f"{self._name}: {error}") from error
                except MysqlLinkLost as error:
                    raise self._lost(error) from error

    async def end_reception(self, replica: str) -> None:
        account = self._accesses[replica]
        remedy = (
            f"as root at {self._name}, for each host name of this account: ALTER USER {account.user}@'...' ACCOUNT LOCK"
        )
        error = await self._login_error(replica)
        if error is None:
            raise ServerFailed(f"{self._name}: {replica} can still receive from it with its account; {remedy}")
        if error.code not in ACCOUNT_LOCKED_CODES:
            raise ServerFailed(
                f"{self._name}: it is not known whether {replica} could still receive from it: {error}; {remedy}"
            ) from error
        self._link.timeout_s = min(_READ_S, self._command_s)
        try:
            promoter = self._accesses[self._name].settings.user
            await _end_connections(self._link, self._sql, promoter, account.user, "replicas")
        except (ServerError, ServerUnfit) as error:
            raise ServerFailed(f"{self._name}: {error}") from error
        except MysqlLinkLost as error:
            raise self._lost(error) from error

    async def refuses(self, replica: str) -> bool:
        error = await self._login_error(replica)
        return error is not None and error.code in ACCOUNT_LOCKED_CODES

    async def _login_error(self, replica: str) -> ServerError | None:
        """Return why the account of another server is refused here; None: it is not. Raises ServerFailed: no answer."""
        account = self._accesses[replica]
        own = self._accesses[self._name].settings
        try:
            link = await MysqlLink.connect(replace(own, user=account.user, password=account.password, database=""))
        except ServerError as error:
            return error
        except MysqlLinkLost as error:
            raise ServerFailed(f"{self._name}: {error}") from error
        link.abort()
        return None

    def close(self) -> None:
        self.is_usable = False
        self._link.abort()

    def _login(self, source: str) -> ReplicationLogin:
        own, (host, port) = self._accesses[self._name], self._accesses[source].source
        return ReplicationLogin(host, port, own.user, own.password, own.tls)

    async def _term(self) -> int:
        """Return the term in the server's tables; 0 before the first."""
        try:
            (found,) = await self._link.run(read_term(self._database))
        except ServerError as error:
            if error.code in (NO_SUCH_TABLE_CODE, _NO_SUCH_DATABASE_CODE):
                return 0
            raise ServerFailed(f"{self._name}: {error}") from error
        except MysqlLinkLost as error:
            raise self._lost(error) from error
        return int(found.rows[0][0]) if found.rows else 0

    def _standing(self, times: Result, counters: Result) -> str:
        try:
            return standing(times.rows, by_name(counters.rows), self._sql.start_counters)
        except ServerUnfit as error:
            raise ServerFailed(f"{self._name}: {error}") from error

    async def _run(self, *statements: bytes) -> Sequence[Result]:
        try:
            return await self._link.run(*statements)
        except ServerError as error:
            if error.code == _LOCK_WAIT_CODE:
                raise ServerFailed(
                    f"{self._name}: a commit in progress waits for an ack, so it is not read-only yet; an acker must follow it"
                ) from error
            raise ServerFailed(f"{self._name}: {error}") from error
        except MysqlLinkLost as error:
            raise self._lost(error) from error

    def _lost(self, error: MysqlLinkLost) -> ServerFailed:
        self.close()
        return ServerFailed(f"{self._name}: {error}")
