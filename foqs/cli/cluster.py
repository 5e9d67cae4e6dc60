"""The commands about a whole cluster.

Always true: `status` asks one host, any of them, and changes nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from foqs.cli.cluster_rows import HOST_COLUMNS, SHARD_COLUMNS, host_row, namesakes, shard_row, unserved
from foqs.cli.output import Row, say, show
from foqs.cli.session import Session, connected
from foqs.cli.watch import look, watchable

if TYPE_CHECKING:
    from foqs_client import Client


@click.group()
def cluster() -> None:
    """Clusters: several hosts that share shards."""


@cluster.command(
    "status",
    epilog="\b\nExamples:\n  foqs cluster status --address foqs://host1,host2,host3\n  foqs cluster status -o json\n"
    "  foqs cluster status --watch 1s",
)
@watchable
@connected
def status(session: Session, watch_ms: int | None) -> None:
    """Show the hosts that are there, and for every shard its owner and epoch, as any host sees them."""

    async def work(client: Client) -> tuple[list[Row], list[Row]]:
        routing = await client.routing()
        return [host_row(host) for host in routing.hosts], [shard_row(shard) for shard in routing.shards]

    def draw(session: Session, found: tuple[list[Row], list[Row]]) -> None:
        hosts, shards = found
        if session.form != "table":
            indent = 2 if session.form == "json" else None
            click.echo(json.dumps({"hosts": hosts, "shards": shards}, indent=indent))
            return
        show(hosts, HOST_COLUMNS, session.form)
        click.echo()
        show(shards, SHARD_COLUMNS, session.form)
        for text in (unserved(shards), namesakes(hosts)):
            if text:
                say(text)

    look(session, watch_ms, work, draw)
