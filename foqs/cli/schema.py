"""The commands about the tables of a store: which version they have, and bringing them to this program's.

Always true: nothing but `apply` changes anything; no shard is taken over, so a
host may run meanwhile. Knows nothing of what the tables hold.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foqs.cli.cluster_reading import read
from foqs.cli.cluster_tables import make_tables
from foqs.cli.hosts import given
from foqs.cli.output import say
from foqs.cli.session import UNREACHABLE, USAGE, Failed, configuration

if TYPE_CHECKING:
    from foqs.config import Config


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
@click.option("--store", default=None, help="A store URL in place of the configuration's: another user.")
@click.option("--password-file", default=None, help="The file that holds that user's password.")
def apply(file: Path | None, store: str | None, password_file: str | None) -> None:
    """Make the tables of every shard, or bring them to the version of this program.

    Safe to repeat, and to interrupt: what was done stays, and the rest is done next time. A host does the same when it
    starts, if its user may; this is for hosts whose user may only read and write rows. Stop the hosts and make a
    backup before an upgrade.

    In a cluster the shards are those that ZooKeeper lists, in the databases of the configuration.
    """
    config = configuration(file, given({"store.url": store, "store.password_file": password_file}))
    if config.cluster.zookeeper:
        if store is not None or password_file is not None:
            raise Failed(
                "in a cluster [databases] is used: give --config with that user's URLs and password files", USAGE
            )
        count = asyncio.run(_apply_cluster(config))
        say(f"{count} shards of the cluster at {config.cluster.root} have the tables of this program.")
        return
    asyncio.run(_apply(config))
    shards = config.store.shards
    say(f"{shards} shards in {config.store.url} have the tables of this program.")


async def _apply_cluster(config: Config) -> int:
    """How many shards there are."""
    from shardmgr.model import Malformed
    from shardmgr.registry import RegistryError

    try:
        layout = (await read(config)).layout
    except RegistryError as error:
        raise Failed(str(error), UNREACHABLE) from None
    except Malformed as error:
        raise Failed(f"the list of shards cannot be understood: {error}") from None
    if layout is None:
        raise Failed(
            f"there is no cluster at {config.cluster.root}; make it with: foqs cluster init --config FILE", USAGE
        )
    await make_tables(config, layout.shards.values())
    return len(layout.shards)


async def _apply(config: Config) -> None:
    from foqs.clock import SystemClock
    from foqs.store.port import StoreError
    from foqs.stores import store_opener

    open_store = store_opener(config, SystemClock())
    for shard in range(config.store.shards):
        opened = open_store(shard)
        try:
            await opened.open()
        except StoreError as error:
            raise Failed(str(error)) from None
        finally:
            await opened.close()
