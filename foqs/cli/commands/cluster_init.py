"""The command that creates a cluster before its hosts start: its tables, then its layout.

Always true: changes are shown and confirmed first; the tables exist before a host
can see their shard, so an interrupted init can be repeated. Calls ZooKeeper and
the databases, but no host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.commands.shard_tables import make_tables, shards_by_database
from foqs.cli.host_session import USAGE, CommandFailed, configuration
from foqs.cli.output import confirm, print_message
from foqs.cli.registry_session import open_registry
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs.options.config import Config
    from shardmgr.model import Layout, ShardSpec
    from shardmgr.registry.port import Registry

PER_DATABASE_DEFAULT: Final = 4
_SHARDS_MAX: Final = 1_000
_EPOCHS_ABOVE_MAX: Final = 1_000_000
"""The largest value of --epochs-above. It leaves enough epochs for the life of a shard: there are 1,048,575."""


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
@click.option(
    "--shards",
    type=click.IntRange(1, _SHARDS_MAX),
    default=None,
    help="The number of shards, spread over the databases.",
)
@click.option(
    "--shards-per-database",
    "each",
    type=click.IntRange(1, _SHARDS_MAX),
    default=None,
    help=f"The number of shards in each database.  [default: {PER_DATABASE_DEFAULT}]",
)
@click.option("--no-tables", is_flag=True, help="Create no tables: they exist, or the hosts may create them.")
@click.option(
    "--epochs-above",
    type=click.IntRange(0, _EPOCHS_ABOVE_MAX),
    default=0,
    help="Use only higher epochs. For a restore of both the databases and ZooKeeper: give an epoch above all that were "
    "used since the backup. A cluster that is there keeps its shards if neither number of shards is given.",
)
@click.option(
    "--adopt-cluster",
    "adopted",
    metavar="IDENTITY",
    default=None,
    help="The tables belong to the cluster of this identity, and this cluster continues it: if ZooKeeper has lost its "
    "data, or for a copy of its databases. No host of that cluster may run elsewhere.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def init(
    file: Path, shards: int | None, each: int | None, no_tables: bool, epochs_above: int, adopted: str | None, yes: bool
) -> None:
    """Create a cluster: its shards in ZooKeeper and their tables in the databases. Then start its hosts.

    Safe to repeat and to interrupt. A cluster that already has other shards is not changed; use foqs shard for that.
    """
    if shards is not None and each is not None:
        raise click.UsageError("Give --shards or --shards-per-database, not both.")
    if adopted is not None and no_tables:
        raise click.UsageError("--adopt-cluster needs to read the tables; omit --no-tables.")
    config = configuration(file)
    cluster, databases = config.cluster, list(config.databases)
    if not cluster.zookeeper:
        raise CommandFailed(f"{file}: cluster.zookeeper: it is not set; name the ZooKeeper servers, HOST:PORT", USAGE)
    count = shards if shards is not None else (each or PER_DATABASE_DEFAULT) * len(databases)
    if count > _SHARDS_MAX:
        raise CommandFailed(f"{counted(count, 'shard is', 'shards are')} more than {_SHARDS_MAX}; create fewer", USAGE)
    if count < len(databases):
        raise CommandFailed(
            f"{counted(count, 'shard leaves', 'shards leave')} some of {len(databases)} databases without a shard; create more",
            USAGE,
        )
    specs = spread_over_databases(count, databases, config.server.tier)
    print_message(f"A cluster at {cluster.root} in ZooKeeper ({cluster.zookeeper}), of tier {config.server.tier}:")
    for name, numbers in shards_by_database(specs).items():
        url = config.databases[name].url
        print_message(f"  database {name} ({url}): shards {', '.join(map(str, numbers))}")
    keeps_shards = epochs_above > 0 and shards is None and each is None
    if epochs_above:
        kept = "; a cluster that is there already keeps its shards" if keeps_shards else ""
        print_message(f"  epochs above {epochs_above}{kept}")
    if adopted is not None:
        print_message(f"  it continues the cluster {adopted}, of which no host may run elsewhere")
    if not yes:
        tables = "" if no_tables else " and their tables"
        confirm(f"Create these shards{tables}?")
    number = asyncio.run(
        _init_cluster(config, specs, epochs_above, adopted, tables=not no_tables, keeps_shards=keeps_shards)
    )
    print_message(
        f"{'There is already' if number else 'Created'} a cluster of {counted(number or count, 'shard')}; "
        "start its hosts with: foqs host --config FILE"
    )


def spread_over_databases(count: int, databases: Sequence[str], tier: str) -> list[ShardSpec]:
    """Return the shards 0 to count-1, distributed over the databases one after another."""
    from shardmgr.model import ShardSpec

    return [ShardSpec(number, databases[number % len(databases)], tier) for number in range(count)]


async def _init_cluster(
    config: Config,
    specs: Sequence[ShardSpec],
    epochs_above: int,
    adopted: str | None,
    *,
    tables: bool,
    keeps_shards: bool,
) -> int:
    """Create the layout of a cluster, and with `tables` the tables of its shards.

    Args:
        keeps_shards: a cluster that is there may have other shards, and keeps them.

    Returns how many shards the cluster had before; 0: it is new. Raises CommandFailed.
    """
    from shardmgr.layout_changes import ChangeRefused, create_layout, raise_epochs
    from shardmgr.primary_document import read_primaries

    async with open_registry(config) as registry:
        found = await _layout(registry)
        if found is not None and keeps_shards:
            specs = list(found.shards.values())
        if found is not None and dict(found.shards) != {spec.number: spec for spec in specs}:
            raise CommandFailed(
                f"there is already a cluster at {config.cluster.root} with other shards ({len(found.shards)}); nothing "
                "was changed. Look at it with: foqs shard list, or name another cluster.root",
                USAGE,
            )
        primaries = await read_primaries(registry, shards_by_database(specs))
        clusters = await make_tables(config, specs, primaries) if tables else {}
        await _set_identity(registry, clusters, adopted)
        try:
            if epochs_above:
                await raise_epochs(registry, [spec.number for spec in specs], epochs_above)
            is_new = found is None and await create_layout(registry, specs)
        except ChangeRefused as error:
            raise CommandFailed(error.problem, USAGE) from None
        return 0 if is_new else len(specs)


async def _layout(registry: Registry) -> Layout | None:
    """Return the layout; None if there is no cluster yet."""
    from shardmgr.layout_changes import ChangeRefused, read_cluster_view

    try:
        return (await read_cluster_view(registry)).layout
    except ChangeRefused:
        return None


async def _set_identity(registry: Registry, clusters: Mapping[int, str], adopted: str | None) -> None:
    """Give the cluster its identity, or that of the tables if it is adopted.

    Args:
        clusters: for each shard, the identity of the cluster that its tables name.

    Raises:
        CommandFailed: tables belong to another cluster.
    """
    from shardmgr.cluster_identity import draw_identity, read_identity, set_identity

    own = await read_identity(registry)
    if adopted is not None and adopted not in clusters.values():
        raise CommandFailed(f"no table names the cluster {adopted}; omit --adopt-cluster, or name the right one", USAGE)
    expected = adopted or own
    for shard, found in clusters.items():
        if found != expected:
            raise CommandFailed(
                f"the tables of shard {shard} belong to the cluster {found}, whose hosts would lose them; name other "
                f"databases. If ZooKeeper has lost the data of that cluster, or these databases are a copy, and no host of "
                f"it runs elsewhere, repeat the command with --adopt-cluster {found}",
                USAGE,
            )
    if adopted is None:
        await draw_identity(registry)
    elif adopted != own:
        await set_identity(registry, adopted)
