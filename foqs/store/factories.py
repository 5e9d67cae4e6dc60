"""Makes stores for shards from the configuration of a host.

Always true: a store made here is new and not open. Knows nothing of the
owners of shards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

from foqs.access.host_secrets import database_password, database_tls
from foqs.options.config import Config
from foqs.options.options import StoreUrl
from foqs.runtime.clock import Clock
from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.store.journaled.journal_settings import FLUSH_ITEMS_MAX, WRITE_BACK_AFTER_MS, JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_server import MysqlServers
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.mysql.replica_rows import ReplicaRows
from foqs.store.port import Store, StoreUnusable
from foqs.store.primary_servers import promoter_servers, settings_of_primary, settings_while_serving
from foqs.store.sqlite.sqlite_store import SqliteStore
from shardmgr.primary import Primaries, Primary

_NO_ENTRIES: Final = Primaries()

StoreFactory: TypeAlias = Callable[[int], Store]
"""Makes a store for a shard number."""
ShardStoreFactory: TypeAlias = Callable[[int, str, Primary | None], Store]
"""Makes a store of a shard in the named database, at the primary of its entry; None: it has none, and one server."""


def local_store_factory(config: Config, clock: Clock) -> StoreFactory:
    """Return a factory for the shards of a standalone host."""
    if config.store.parsed_url.kind == "memory":
        return MemoryDatabase(clock.wall_ms).store
    return _store_factory(config, None)


def database_store_factory(config: Config, name: str, primaries: Primaries = _NO_ENTRIES) -> StoreFactory:
    """Return a factory for the shards of a cluster in the database of this name, which must be in `[databases]`.

    Raises:
        StoreUnusable: see `settings_while_serving`.
    """
    return _store_factory(config, name, primaries)


def shard_store_factory(config: Config, clock: Clock) -> ShardStoreFactory:
    """Return a factory of stores that journal if `store.journal` says so.

    A standalone host has one database and ignores its name. Otherwise the factory
    raises `StoreUnusable` for a database or a server that is not configured.
    """
    settings = JournalSettings(WRITE_BACK_AFTER_MS, FLUSH_ITEMS_MAX, clock.monotonic_ms, is_on=config.store.journal)
    if not config.cluster.zookeeper:
        local_factory = local_store_factory(config, clock)
        return lambda shard, database, primary: JournaledStore(local_factory(shard), settings)
    factories = {name: database_store_factory(config, name) for name in config.databases}

    def make_store(shard: int, database: str, primary: Primary | None) -> Store:
        factory = factories.get(database)
        if factory is None:
            raise StoreUnusable(
                f"shard {shard} is in the database {database!r}, which this host does not know; "
                f"add [databases.{database}] to its configuration and start it again"
            )
        if primary is None:
            return JournaledStore(factory(shard), settings)
        of_primary = settings_of_primary(config, database, mysql_settings(config, database), primary)
        return JournaledStore(MysqlStore(of_primary, shard), settings)

    return make_store


def servers_of_promoters(config: Config) -> dict[str, MysqlServers]:
    """Return the servers, as a promoter reaches them, of each database that has servers and an account for promoters.

    Raises:
        ConfigError: a password file is missing or unsafe.
    """
    return {
        name: promoter_servers(config, name, mysql_settings(config, name))
        for name, options in config.databases.items()
        if config.cluster.zookeeper and options.servers and options.promoter_user
    }


def replica_readers(config: Config) -> dict[str, dict[str, ReplicaRows]]:
    """Return, for each database with servers, what reads the owner rows at each of them. Raises `ConfigError`."""
    found: dict[str, dict[str, ReplicaRows]] = {}
    for database, options in config.databases.items():
        if config.cluster.zookeeper and options.servers:
            settings = mysql_settings(config, database)
            found[database] = {
                name: ReplicaRows(name, replace(settings, host=host, port=port, unix_socket=None))
                for name, (host, port) in options.server_addresses.items()
            }
    return found


def mysql_settings(config: Config, database: str | None = None) -> MysqlSettings:
    """Return the settings of the MySQL server at `store.url`, or of a database of the cluster by its name."""
    url, options = _parsed_url(config, database), config.store
    return MysqlSettings(
        database=url.database,
        host=url.host,
        port=url.port,
        unix_socket=url.socket,
        user=url.user,
        password=database_password(config, database) or "",
        tls=database_tls(config, database),
        statement_timeout_s=options.statement_timeout_ms / 1000,
        unsafe_durability=options.unsafe_durability,
    )


def _store_factory(config: Config, database: str | None, primaries: Primaries = _NO_ENTRIES) -> StoreFactory:
    url = _parsed_url(config, database)
    if url.kind == "sqlite":
        folder = Path(url.path)
        unsafe = config.store.unsafe_durability
        return lambda shard: SqliteStore(folder / f"shard-{shard}.db", shard, unsafe_durability=unsafe)
    settings = mysql_settings(config, database)
    if database is not None:
        settings = settings_while_serving(config, database, settings, primaries)
    return lambda shard: MysqlStore(settings, shard)


def _parsed_url(config: Config, database: str | None) -> StoreUrl:
    return config.store.parsed_url if database is None else config.databases[database].parsed_url
