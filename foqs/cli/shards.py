"""The commands about shards: which there are, and where they go.

Always true: a command that changes something returns when that is recorded; the
hosts follow by themselves. Knows nothing of how shards are planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from foqs.cli.cluster_rows import SHARD_COLUMNS, shard_row, unserved
from foqs.cli.output import Row, say, show
from foqs.cli.session import Session, connected
from foqs.cli.watch import look, watchable

if TYPE_CHECKING:
    from foqs_client import Client

_NUMBER = click.IntRange(0, 65_535)


@click.group()
def shard() -> None:
    """Shards: the parts that the items are spread over, each owned by one host."""


@shard.command("list", epilog="\b\nExamples:\n  foqs shard list\n  foqs shard list --watch 1s")
@watchable
@connected
def shard_list(session: Session, watch_ms: int | None) -> None:
    """List the shards by number, and who should own each."""

    async def work(client: Client) -> list[Row]:
        return [shard_row(found) for found in await client.list_shards()]

    def draw(session: Session, rows: list[Row]) -> None:
        show(rows, SHARD_COLUMNS, session.form)
        if text := unserved(rows) if rows else "There is no shard; add one with: foqs shard add NUMBER --database NAME":
            say(text)

    look(session, watch_ms, work, draw)


@shard.command("add", epilog="\b\nExample:\n  foqs shard add 8 --database db2")
@click.argument("number", type=_NUMBER)
@click.option("--database", required=True, help="The name of its database in the hosts' configurations.")
@click.option("--tier", default=None, help="The hosts that may own it.  [default: that of the host that is called]")
@click.option("--weight", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="Its part of the work.")
@click.option("--region", default=None, help="Of its database's primary; hosts of this region are preferred.")
@connected
def shard_add(session: Session, number: int, database: str, tier: str | None, weight: int, region: str | None) -> None:
    """Add a shard. Every host needs its database in its configuration first; its owner makes its tables."""
    session.run(lambda client: client.add_shard(number, database, tier=tier, weight=weight, region=region))
    say(f"Added shard {number}; see who takes it with: foqs shard list")


@shard.command("remove", epilog="\b\nExamples:\n  foqs shard remove 8\n  foqs shard remove 8 --force --yes")
@click.argument("number", type=_NUMBER)
@click.option("--force", is_flag=True, help="Also one that is not drained.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@connected
def shard_remove(session: Session, number: int, force: bool, yes: bool) -> None:
    """Forget a shard that is drained: nobody serves it any more. Its tables stay in its database.

    What it still holds is not delivered any more; foqs topic list --all shows whether anything is left.
    """
    if not yes:
        click.confirm(
            f"Remove shard {number} from the cluster? Items that it holds are not delivered any more.",
            abort=True,
            err=True,
        )
    session.run(lambda client: client.remove_shard(number, force=force))
    say(
        f"Removed shard {number}. Its tables are still in its database: foqs shard add {number} --database NAME brings it back."
    )


@shard.command("drain", epilog="\b\nExample:\n  foqs shard drain 8")
@click.argument("number", type=_NUMBER)
@connected
def shard_drain(session: Session, number: int) -> None:
    """Let a shard take no new items; what it holds is delivered. Before it is removed.

    Items with a key whose slot the shard has are taken all the same: no other shard may have them.
    """
    session.run(lambda client: client.drain_shard(number))
    say(f"Shard {number} takes no new items.")


@shard.command("undrain", epilog="\b\nExample:\n  foqs shard undrain 8")
@click.argument("number", type=_NUMBER)
@connected
def shard_undrain(session: Session, number: int) -> None:
    """Let a drained shard take new items again."""
    session.run(lambda client: client.undrain_shard(number))
    say(f"Shard {number} takes new items.")


@shard.command("move", epilog="\b\nExamples:\n  foqs shard move 3 host2\n  foqs shard move 3 --anywhere")
@click.argument("number", type=_NUMBER)
@click.argument("host", required=False)
@click.option("--anywhere", is_flag=True, help="In place of HOST: wherever the planner puts it.")
@connected
def shard_move(session: Session, number: int, host: str | None, anywhere: bool) -> None:
    """Hand a shard over to HOST (its name or address), which keeps it while it is there."""
    if (host is None) != anywhere:
        raise click.UsageError("Give either a HOST to move the shard to, or --anywhere.")
    session.run(lambda client: client.move_shard(number, host))
    say(
        f"Shard {number} goes {'wherever it is planned' if host is None else f'to {host}'}; follow it with: foqs shard list"
    )
