"""The commands about the hosts of a cluster: list, drain and undrain, below `foqs host`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from foqs.cli.cluster_rows import HOST_COLUMNS, host_row, namesakes
from foqs.cli.output import Row, say, show
from foqs.cli.session import Session, connected
from foqs.cli.watch import look, watchable

if TYPE_CHECKING:
    from foqs_client import Client


@click.command("list", epilog="\b\nExamples:\n  foqs host list\n  foqs host list -o json")
@watchable
@connected
def host_list(session: Session, watch_ms: int | None) -> None:
    """List the hosts that are there, by name, and how many shards each should own."""

    async def work(client: Client) -> list[Row]:
        return [host_row(found) for found in await client.list_hosts()]

    def draw(session: Session, rows: list[Row]) -> None:
        show(rows, HOST_COLUMNS, session.form)
        if text := namesakes(rows):
            say(text)

    look(session, watch_ms, work, draw)


@click.command("drain", epilog="\b\nExample:\n  foqs host drain host2")
@click.argument("host")
@connected
def host_drain(session: Session, host: str) -> None:
    """Hand the shards of HOST (its name or address) over to others. It gets none until undrained, over restarts too."""
    session.run(lambda client: client.drain_host(host))
    say(f"{host} gives its shards to others; follow it with: foqs host list")


@click.command("undrain", epilog="\b\nExample:\n  foqs host undrain host2")
@click.argument("host")
@connected
def host_undrain(session: Session, host: str) -> None:
    """Let a drained host own shards again."""
    session.run(lambda client: client.undrain_host(host))
    say(f"{host} may own shards again.")
