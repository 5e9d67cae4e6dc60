"""The commands for shards: list, add, remove, drain, undrain and move.

Always true: a command returns when its change is recorded; the hosts follow it
later. Knows nothing of how shards are planned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from foqs.cli.cluster_rows import SHARD_COLUMNS, shard_row, unserved_warning
from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Row, confirm, print_message, show_rows
from foqs.cli.watch import run_watchable, watch_option

if TYPE_CHECKING:
    from foqs_client import Client

_NUMBER = click.IntRange(0, 65_535)


@click.group()
def shard() -> None:
    """Shards: the parts of the store. Each shard is owned by one host."""


@shard.command("list", epilog="\b\nExamples:\n  foqs shard list\n  foqs shard list --watch 1s")
@watch_option
@host_call_options
def shard_list(session: HostSession, watch_ms: int | None) -> None:
    """List the shards by number, with their owners."""

    async def work(client: Client) -> list[Row]:
        return [shard_row(found) for found in await client.list_shards()]

    def draw(session: HostSession, rows: list[Row]) -> None:
        show_rows(rows, SHARD_COLUMNS, session.output_format)
        if (
            text := unserved_warning(rows)
            if rows
            else "There is no shard; add one with: foqs shard add NUMBER --database NAME"
        ):
            print_message(text)

    run_watchable(session, watch_ms, work, draw)


@shard.command("add", epilog="\b\nExample:\n  foqs shard add 8 --database db2")
@click.argument("number", type=_NUMBER)
@click.option("--database", required=True, help="The name of its database in the hosts' configurations.")
@click.option("--tier", default=None, help="The tier of its hosts.  [default: the tier of the called host]")
@click.option("--weight", type=click.IntRange(1, 1_000_000), default=1, show_default=True, help="Its part of the work.")
@click.option("--region", default=None, help="The region of its database's primary; hosts there are preferred.")
@host_call_options
def shard_add(
    session: HostSession, number: int, database: str, tier: str | None, weight: int, region: str | None
) -> None:
    """Add a shard. Every host needs its database in the configuration first. The owner creates its tables."""
    session.run(lambda client: client.add_shard(number, database, tier=tier, weight=weight, region=region))
    print_message(f"Added shard {number}; see its owner with: foqs shard list")


@shard.command("remove", epilog="\b\nExamples:\n  foqs shard remove 8\n  foqs shard remove 8 --force --yes")
@click.argument("number", type=_NUMBER)
@click.option("--force", is_flag=True, help="Remove it although it is not drained.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@host_call_options
def shard_remove(session: HostSession, number: int, force: bool, yes: bool) -> None:
    """Remove a drained shard from the cluster. Its tables stay in its database.

    Items that it still holds are not delivered any more; foqs topic list --all shows whether there are any.
    """
    if not yes:
        confirm(f"Remove shard {number} from the cluster? Items that it holds are not delivered any more.")
    session.run(lambda client: client.remove_shard(number, force=force))
    print_message(
        f"Removed shard {number}. Its tables are still in its database: foqs shard add {number} --database NAME brings it back."
    )


@shard.command("drain", epilog="\b\nExample:\n  foqs shard drain 8")
@click.argument("number", type=_NUMBER)
@host_call_options
def shard_drain(session: HostSession, number: int) -> None:
    """Stop new items for a shard before it is removed. Its items are still delivered.

    The shard still accepts items with idempotency keys of its key slots, as no other shard may take them.
    """
    session.run(lambda client: client.drain_shard(number))
    print_message(f"Shard {number} accepts no new items.")


@shard.command("undrain", epilog="\b\nExample:\n  foqs shard undrain 8")
@click.argument("number", type=_NUMBER)
@host_call_options
def shard_undrain(session: HostSession, number: int) -> None:
    """Let a drained shard accept new items again."""
    session.run(lambda client: client.undrain_shard(number))
    print_message(f"Shard {number} accepts new items.")


@shard.command("move", epilog="\b\nExamples:\n  foqs shard move 3 host2\n  foqs shard move 3 --anywhere")
@click.argument("number", type=_NUMBER)
@click.argument("host", required=False)
@click.option("--anywhere", is_flag=True, help="In place of HOST: let the planner choose.")
@host_call_options
def shard_move(session: HostSession, number: int, host: str | None, anywhere: bool) -> None:
    """Hand a shard over to HOST (a name or address). HOST keeps it as long as it runs."""
    if (host is None) != anywhere:
        raise click.UsageError("Give either a HOST to move the shard to, or --anywhere.")
    session.run(lambda client: client.move_shard(number, host))
    print_message(
        f"Shard {number} moves {'where the planner puts it' if host is None else f'to {host}'}; watch it with: foqs shard list"
    )
