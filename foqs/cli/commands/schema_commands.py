"""The command that creates or upgrades the tables of a store.

Always true: no shard is taken over, so a host may run meanwhile. Knows nothing of
the content of the tables.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foqs.cli.commands.host_process_commands import without_none
from foqs.cli.commands.shard_tables import make_tables
from foqs.cli.host_session import UNREACHABLE, USAGE, CommandFailed, configuration
from foqs.cli.output import print_message

if TYPE_CHECKING:
    from foqs.options.config import Config


@click.group()
def schema() -> None:
    """The tables of a host's shards."""


@schema.command(
    epilog="\b\nExamples:\n  foqs schema apply --config foqs.toml\n"
    "  foqs schema apply --config foqs.toml --store mysql://foqs_schema@db:3306/foqs --password-file schema.password"
)
@click.option(
    "--config", "file", type=click.Path(path_type=Path), envvar="FOQS_CONFIG", help="The configuration of the host."
)
@click.option("--store", default=None, help="A store URL that replaces the configuration's, for another user.")
@click.option("--password-file", default=None, help="The file with that user's password.")
def apply(file: Path | None, store: str | None, password_file: str | None) -> None:
    """Create the tables of every shard, or upgrade them to the version of this program.

    Safe to repeat and to interrupt. A host does the same at its start if its user has the rights; this is for hosts
    whose user may only read and write rows. Before an upgrade, stop the hosts and make a backup.

    In a cluster the shards are those of the layout in ZooKeeper, in the databases of the configuration.
    """
    config = configuration(file, without_none({"store.url": store, "store.password_file": password_file}))
    if config.cluster.zookeeper:
        if store is not None or password_file is not None:
            raise CommandFailed(
                "a cluster uses [databases]: give --config with that user's URLs and password files", USAGE
            )
        count = asyncio.run(_apply_cluster(config))
        print_message(f"{count} shards of the cluster at {config.cluster.root} have the tables of this program.")
        return
    asyncio.run(_apply(config))
    shards = config.store.shards
    print_message(f"{shards} shards in {config.store.url} have the tables of this program.")


async def _apply_cluster(config: Config) -> int:
    """Create or upgrade the tables of all shards and return the number of shards."""
    from foqs.cluster.connections import read_registry
    from shardmgr.model import MalformedDocument
    from shardmgr.registry.port import RegistryError

    try:
        layout = (await read_registry(config)).layout
    except RegistryError as error:
        raise CommandFailed(str(error), UNREACHABLE) from None
    except MalformedDocument as error:
        raise CommandFailed(f"the layout cannot be read: {error}") from None
    if layout is None:
        raise CommandFailed(
            f"there is no cluster at {config.cluster.root}; create it with: foqs cluster init --config FILE", USAGE
        )
    await make_tables(config, layout.shards.values())
    return len(layout.shards)


async def _apply(config: Config) -> None:
    from foqs.runtime.clock import SystemClock
    from foqs.store.port import StoreError
    from foqs.stores import local_store_factory

    open_store = local_store_factory(config, SystemClock())
    for shard in range(config.store.shards):
        opened = open_store(shard)
        try:
            await opened.open()
        except StoreError as error:
            raise CommandFailed(str(error)) from None
        finally:
            await opened.close()
