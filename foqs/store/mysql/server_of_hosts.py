"""The server that hosts use as long as their database has no entry, compared with one of the named servers.

Always true: two connections lead to one server exactly if a lock of a random name that one
of them has is held by its number for the other one. Numbers and uids of servers prove
nothing: a copy of a server may have the same. Nothing is written. Knows nothing of entries.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from foqs.store.mysql.gtids import ServerUnfit
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings, ServerError
from foqs.store.mysql.mysql_session_sql import lock_owner, take_lock
from foqs.store.mysql.mysql_sql import Statements
from foqs.store.mysql.replication_kinds import replication_sql_of
from foqs.store.mysql.replication_sql import IDENTITY, READ_GRANTS, by_name, text, write_nothing
from foqs.store.mysql.schema_upgrade import NO_SUCH_TABLE_CODE
from foqs.store.sql_rows import OWNER_COLUMNS
from shardmgr.first_entry import SeenByHosts
from shardmgr.server_port import ServerFailed

_READ_ONLY_CODE: Final = 1290
_NO_SUCH_DATABASE_CODE: Final = 1049


class MysqlServerOfHosts:
    """Implements `shardmgr.first_entry.ServerOfHosts`.

    Args:
        settings: those of hosts, by `databases.NAME.url`.
        addresses: host and port of each server of the database, by its name.
    """

    def __init__(self, settings: MysqlSettings, addresses: Mapping[str, tuple[str, int]]) -> None:
        self._settings = settings
        self._addresses = addresses

    async def compare_server(self, name: str, shards: Collection[int]) -> SeenByHosts:
        host, port = self._addresses[name]
        named_settings = replace(self._settings, host=host, port=port, unix_socket=None)
        async with (
            _connected("the url of the database", self._settings) as theirs,
            _connected(name, named_settings) as named,
        ):
            try:
                return SeenByHosts(await _is_one_server(theirs, named), await _epochs(named, shards))
            except (ServerError, MysqlLinkLost) as error:
                raise ServerFailed(f"{name}: {error}") from error

    async def accepts_commits(self, name: str) -> bool:
        """Return whether a named server is reached from here and is not read-only, as one that hosts use."""
        host, port = self._addresses[name]
        try:
            async with _connected(name, replace(self._settings, host=host, port=port, unix_socket=None)) as link:
                (identity,) = await link.run(IDENTITY)
                sql = replication_sql_of(text(identity.rows[0][0]))
                (variables,) = await link.run(sql.read_variables)
                return not sql.is_read_only(by_name(variables.rows))
        except (ServerFailed, ServerError, MysqlLinkLost, ServerUnfit):
            return False

    async def passes_read_only(self, name: str, *, is_read_only: bool) -> bool:
        host, port = self._addresses[name]
        # An empty server does not have the schema yet.
        settings = replace(self._settings, host=host, port=port, unix_socket=None, database="")
        async with _connected(name, settings) as link:
            try:
                (identity,) = await link.run(IDENTITY)
                (grants,) = await link.run(READ_GRANTS)
                if replication_sql_of(text(identity.rows[0][0])).passes_read_only(grants.rows):
                    return True
                return is_read_only and not await _is_refused(link, self._settings.database)
            except (ServerError, MysqlLinkLost, ServerUnfit) as error:
                raise ServerFailed(f"{name}: {error}") from error


async def _is_refused(link: MysqlLink, database: str) -> bool:
    """Return whether a server that is read-only refuses a write of this account. Nothing is written in any case."""
    try:
        await link.run(write_nothing(database))
    except ServerError as error:
        if error.code not in (_READ_ONLY_CODE, NO_SUCH_TABLE_CODE, _NO_SUCH_DATABASE_CODE):
            raise
        return error.code == _READ_ONLY_CODE
    return False


@asynccontextmanager
async def _connected(name: str, settings: MysqlSettings) -> AsyncIterator[MysqlLink]:
    try:
        link = await MysqlLink.connect(settings)
    except (ServerError, MysqlLinkLost) as error:
        raise ServerFailed(f"{name}: {error}") from error
    try:
        yield link
    finally:
        link.abort()


async def _is_one_server(one: MysqlLink, other: MysqlLink) -> bool:
    lock = f"foqs-{secrets.token_hex(16)}"
    (taken,) = await one.run(take_lock(lock))
    (found,) = await other.run(lock_owner(lock))
    number, is_taken = taken.rows[0]
    return bool(is_taken) and found.rows[0][0] == number


async def _epochs(link: MysqlLink, shards: Collection[int]) -> dict[int, int]:
    """Return the epochs in the owner rows of the shards that have tables."""
    found: dict[int, int] = {}
    for shard in shards:
        try:
            (result,) = await link.run(Statements(shard).read_owner())
        except ServerError as error:
            if error.code != NO_SUCH_TABLE_CODE:
                raise
            continue
        if result.rows:
            found[shard] = int(result.rows[0][OWNER_COLUMNS.index("epoch")])
    return found
