"""Creates or upgrades the tables of a cluster's shards in their databases.

Always true: no shard is taken over, so hosts may run meanwhile; an interrupted
upgrade keeps the finished tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from foqs.cli.host_session import USAGE, CommandFailed

if TYPE_CHECKING:
    from foqs.options.config import Config
    from shardmgr.model import ShardSpec
    from shardmgr.primary import Primaries


def shards_by_database(specs: Iterable[ShardSpec]) -> Mapping[str, list[int]]:
    """Return the numbers of the shards by database."""
    found: dict[str, list[int]] = {}
    for spec in specs:
        found.setdefault(spec.database, []).append(spec.number)
    return found


async def make_tables(config: Config, specs: Iterable[ShardSpec], primaries: Primaries) -> Mapping[int, str]:
    """Create the tables of each shard, or upgrade them to this program's version.

    Args:
        primaries: the entries of the databases. Tables are made at the primaries.

    Returns the identity of the cluster that a shard's tables name, by shard, of those that name one.

    Raises:
        CommandFailed: a database is not configured, or cannot be used.
    """
    from foqs.core.flush.fence import cluster_of
    from foqs.store.factories import database_store_factory
    from foqs.store.port import StoreError

    clusters: dict[int, str] = {}
    for name, numbers in shards_by_database(specs).items():
        if name not in config.databases:
            raise CommandFailed(
                f"shards are in the database {name!r}; add [databases.{name}] to the configuration", USAGE
            )
        try:
            open_store = database_store_factory(config, name, primaries)
        except StoreError as error:
            raise CommandFailed(str(error)) from None
        for number in numbers:
            store = open_store(number)
            try:
                await store.open()
                cluster = cluster_of((await store.read_owner()).nonce)
                if cluster is not None:
                    clusters[number] = cluster
            except StoreError as error:
                raise CommandFailed(f"database {name}: {error}; foqs doctor --config FILE says what to do") from None
            finally:
                await store.close()
    return clusters
