"""From the configuration of a host to stores for its shards.

Always true: a store given here is fresh and not opened. Knows nothing of who
owns a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from foqs.options.config import Config
from foqs.options.options import StoreOptions, StoreUrl
from foqs.runtime.clock import Clock
from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import Store, StoreUnusable
from foqs.store.sqlite.sqlite_store import SqliteStore

StoreFactory: TypeAlias = Callable[[int], Store]
"""A store for a shard, by its number."""


def local_store_factory(config: Config, clock: Clock) -> StoreFactory:
    """For the shards of a host that is alone."""
    url = config.store.parsed_url
    if url.kind == "memory":
        return MemoryDatabase(clock.wall_ms).store
    return _store_factory(url, config.password() or "", config.store)


def database_store_factory(config: Config, name: str) -> StoreFactory:
    """For the shards that a cluster has in the database of this name, which must be in `[databases]`."""
    return _store_factory(config.databases[name].parsed_url, config.database_password(name) or "", config.store)


def shard_store_factory(config: Config, clock: Clock) -> Callable[[int, str], Store]:
    """For the shards of a host, by number and the name of their database; a host that is alone has but one, of any name.

    What it gives raises `StoreUnusable` for a database that is not configured.
    """
    if not config.cluster.zookeeper:
        alone = local_store_factory(config, clock)
        return lambda shard, _: alone(shard)
    openers = {name: database_store_factory(config, name) for name in config.databases}

    def open_store(shard: int, database: str) -> Store:
        opener = openers.get(database)
        if opener is None:
            raise StoreUnusable(
                f"shard {shard} is in the database {database!r}, which this host does not know; "
                f"add [databases.{database}] to its configuration and start it again"
            )
        return opener(shard)

    return open_store


def mysql_settings(config: Config, database: str | None = None) -> MysqlSettings:
    """How to reach the MySQL server that `store.url` names, or a database of the cluster by its name."""
    if database is None:
        return _mysql_settings_of(config.store.parsed_url, config.password() or "", config.store)
    return _mysql_settings_of(
        config.databases[database].parsed_url, config.database_password(database) or "", config.store
    )


def _store_factory(url: StoreUrl, password: str, options: StoreOptions) -> StoreFactory:
    if url.kind == "sqlite":
        folder = Path(url.path)
        unsafe = options.unsafe_durability
        return lambda shard: SqliteStore(folder / f"shard-{shard}.db", shard, unsafe_durability=unsafe)
    settings = _mysql_settings_of(url, password, options)
    return lambda shard: MysqlStore(settings, shard)


def _mysql_settings_of(url: StoreUrl, password: str, options: StoreOptions) -> MysqlSettings:
    return MysqlSettings(
        database=url.database,
        host=url.host,
        port=url.port,
        unix_socket=url.socket,
        user=url.user,
        password=password,
        connect_timeout_s=options.connect_timeout_ms / 1000,
        statement_timeout_s=options.statement_timeout_ms / 1000,
        unsafe_durability=options.unsafe_durability,
    )
