"""The commands about the tables of a store: which version they have, and bringing them to this program's.

Always true: nothing but `apply` changes anything; no shard is taken over, so a
host may run meanwhile. Knows nothing of what the tables hold.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foqs.cli.hosts import given
from foqs.cli.output import say
from foqs.cli.session import Failed, configuration

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
    """
    config = configuration(file, given({"store.url": store, "store.password_file": password_file}))
    asyncio.run(_apply(config))
    shards = config.store.shards
    say(f"{shards} shards in {config.store.url} have the tables of this program.")


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
