"""The shards whose tables a schema command is about, and the connections to their databases.

Always true: in a cluster they are those of the layout in ZooKeeper; otherwise those of
the host's store. Knows nothing of migrations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foqs.cli.host_session import USAGE, CommandFailed
from foqs.cli.registry_session import open_registry

if TYPE_CHECKING:
    from foqs.options.config import Config
    from foqs.store.mysql.mysql_driver import MysqlSettings
    from shardmgr.cluster_reader import ClusterReading
    from shardmgr.primary import Primaries
    from shardmgr.versions import HostVersions


@dataclass(slots=True, frozen=True)
class ShardPlace:
    """One shard and where its tables are.

    Attributes:
        database: the name of its database in the layout; empty without a cluster.
        settings: the settings of the shard's MySQL or MariaDB server; None for a SQLite file.
        file: the shard's SQLite file; None for a server.
    """

    shard: int
    database: str
    settings: MysqlSettings | None = None
    file: Path | None = None


@dataclass(slots=True, frozen=True)
class SchemaPlaces:
    """The shards, and in a cluster its members with their versions."""

    shards: Sequence[ShardPlace]
    reading: ClusterReading | None = None
    versions: dict[str, HostVersions] | None = None


async def find_places(config: Config) -> SchemaPlaces:
    """Return the shards of a host, or of its cluster. Raises CommandFailed."""
    if not config.cluster.zookeeper:
        return SchemaPlaces([_place(config, shard) for shard in range(config.store.shards)])
    reading, primaries, versions = await _read_cluster(config)
    if reading.layout is None:
        raise CommandFailed(
            f"there is no cluster at {config.cluster.root}; create it with: foqs cluster init --config FILE", USAGE
        )
    specs = sorted(reading.layout.shards.values(), key=lambda spec: spec.number)
    for spec in specs:
        if spec.database not in config.databases:
            raise CommandFailed(
                f"shards are in the database {spec.database!r}; add [databases.{spec.database}] to the configuration",
                USAGE,
            )
    places = [_place_in_cluster(config, spec.number, spec.database, primaries) for spec in specs]
    return SchemaPlaces(places, reading, versions)


def _place(config: Config, shard: int) -> ShardPlace:
    from foqs.store.factories import mysql_settings

    url = config.store.parsed_url
    if url.kind == "mysql":
        return ShardPlace(shard, "", settings=mysql_settings(config))
    return ShardPlace(shard, "", file=Path(url.path) / f"shard-{shard}.db")


def _place_in_cluster(config: Config, shard: int, database: str, primaries: Primaries) -> ShardPlace:
    """Return where the tables of a shard are: at the primary, if the database has an entry. Raises CommandFailed."""
    from foqs.store.factories import mysql_settings
    from foqs.store.port import StoreUnusable
    from foqs.store.primary_servers import settings_while_serving

    url = config.databases[database].parsed_url
    if url.kind != "mysql":
        return ShardPlace(shard, database, file=Path(url.path) / f"shard-{shard}.db")
    try:
        settings = settings_while_serving(config, database, mysql_settings(config, database), primaries)
    except StoreUnusable as error:
        raise CommandFailed(str(error)) from None
    return ShardPlace(shard, database, settings=settings)


async def _read_cluster(config: Config) -> tuple[ClusterReading, Primaries, dict[str, HostVersions]]:
    from shardmgr.cluster_reader import read_cluster
    from shardmgr.primary_document import read_primaries
    from shardmgr.versions import read_versions

    async with open_registry(config) as registry:
        reading = await read_cluster(registry)
        shards = {} if reading.layout is None else reading.layout.shards
        primaries = await read_primaries(registry, (spec.database for spec in shards.values()))
        return reading, primaries, await read_versions(registry)
