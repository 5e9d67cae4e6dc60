"""The command that makes a cluster, before there is any host: its tables, then the list of its shards.

Always true: nothing is changed before it was shown and agreed to; the tables are
there before any host can be told of their shard, so that an init that was
interrupted is repeated. Speaks to ZooKeeper and to the databases, to no host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.commands.shard_tables import make_tables, shards_by_database
from foqs.cli.host_session import UNREACHABLE, USAGE, CommandFailed, configuration
from foqs.cli.output import print_message

if TYPE_CHECKING:
    from foqs.options.config import Config
    from shardmgr.model import ShardSpec
    from shardmgr.registry.port import Registry

PER_DATABASE_DEFAULT: Final = 4
_SHARDS_MAX: Final = 1_000
_EPOCHS_ABOVE_MAX: Final = 1_000_000
"""Leaves each shard enough for as long as it can be served: there are 1,048,575."""


@click.command(
    "init",
    epilog="\b\nExamples:\n  foqs cluster init --config /etc/foqs/host1.toml --shards 8\n"
    "  foqs cluster init --config host1.toml --shards-per-database 4 --yes",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    envvar="FOQS_CONFIG",
    required=True,
    help="The configuration of any of the hosts: [cluster] and [databases.NAME].",
)
@click.option("--shards", type=click.IntRange(1, _SHARDS_MAX), default=None, help="So many, spread over the databases.")
@click.option(
    "--shards-per-database",
    "each",
    type=click.IntRange(1, _SHARDS_MAX),
    default=None,
    help=f"So many in each database.  [default: {PER_DATABASE_DEFAULT}]",
)
@click.option("--no-tables", is_flag=True, help="Make no tables: they are there, or the hosts may make them.")
@click.option(
    "--epochs-above",
    type=click.IntRange(0, _EPOCHS_ABOVE_MAX),
    default=0,
    help="Issue higher epochs only: after both databases and ZooKeeper were put back to an earlier state. Higher than any "
    "that served since.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def init(file: Path, shards: int | None, each: int | None, no_tables: bool, epochs_above: int, yes: bool) -> None:
    """Make a cluster: its shards in ZooKeeper, their tables in the databases. Then start its hosts.

    Safe to repeat, and to interrupt. A cluster that has other shards already is left as it is; change those with foqs
    shard.
    """
    if shards is not None and each is not None:
        raise click.UsageError("--shards and --shards-per-database exclude each other.")
    config = configuration(file)
    cluster, databases = config.cluster, list(config.databases)
    if not cluster.zookeeper:
        raise CommandFailed(
            f"{file}: cluster.zookeeper: it is not set; name the servers of ZooKeeper, HOST:PORT", USAGE
        )
    count = shards if shards is not None else (each or PER_DATABASE_DEFAULT) * len(databases)
    if count > _SHARDS_MAX:
        raise CommandFailed(
            f"{count} shards are more than {_SHARDS_MAX}; give hosts fewer, and more to do in each", USAGE
        )
    if count < len(databases):
        raise CommandFailed(f"{count} shards leave some of {len(databases)} databases without any; ask for more", USAGE)
    specs = spread_over_databases(count, databases, config.server.tier)
    print_message(f"A cluster at {cluster.root} in ZooKeeper ({cluster.zookeeper}), of tier {config.server.tier}:")
    for name, numbers in shards_by_database(specs).items():
        url = config.databases[name].url
        print_message(f"  database {name} ({url}): shards {', '.join(map(str, numbers))}")
    if epochs_above:
        print_message(f"  epochs above {epochs_above}")
    if not yes:
        tables = "" if no_tables else " and their tables"
        click.confirm(f"Make these shards{tables}?", abort=True, err=True)
    is_new = asyncio.run(_init_cluster(config, specs, epochs_above, tables=not no_tables))
    print_message(
        f"{'Made' if is_new else 'There is already'} a cluster of {count} shards; "
        "start its hosts with: foqs host --config FILE"
    )


def spread_over_databases(count: int, databases: Sequence[str], tier: str) -> list[ShardSpec]:
    """Shards 0 to count-1, one database after the other in turn."""
    from shardmgr.model import ShardSpec

    return [ShardSpec(number, databases[number % len(databases)], tier) for number in range(count)]


async def _init_cluster(config: Config, specs: Sequence[ShardSpec], epochs_above: int, *, tables: bool) -> bool:
    """True where the cluster is new. Raises Failed."""
    from foqs.cluster.registry_factory import COMMAND_SESSION_MS, registry_from_config
    from foqs.runtime.clock import SystemClock
    from shardmgr.layout_changes import ChangeRefused
    from shardmgr.model import MalformedDocument
    from shardmgr.registry.port import RegistryError

    registry = registry_from_config(config, SystemClock(), COMMAND_SESSION_MS)
    try:
        await registry.open()
    except RegistryError as error:
        raise CommandFailed(str(error), UNREACHABLE) from None
    try:
        return await _create_layout_and_tables(registry, config, specs, epochs_above, tables=tables)
    except ChangeRefused as error:
        raise CommandFailed(error.problem, USAGE) from None
    except (RegistryError, MalformedDocument) as error:
        raise CommandFailed(str(error)) from None
    finally:
        await registry.close()


async def _create_layout_and_tables(
    registry: Registry, config: Config, specs: Sequence[ShardSpec], epochs_above: int, *, tables: bool
) -> bool:
    from shardmgr.layout_changes import ChangeRefused, create_layout, raise_epochs, read_cluster_view

    try:
        found = (await read_cluster_view(registry)).layout
    except ChangeRefused:
        found = None
    if found is not None and dict(found.shards) != {spec.number: spec for spec in specs}:
        raise CommandFailed(
            f"there is a cluster at {config.cluster.root} already, with other shards ({len(found.shards)}); nothing was "
            "changed. Look at it with: foqs shard list, or name another cluster.root",
            USAGE,
        )
    if tables:
        await make_tables(config, specs)
    if epochs_above:
        await raise_epochs(registry, [spec.number for spec in specs], epochs_above)
    return found is None and await create_layout(registry, specs)
