"""The commands for a cluster.

Always true: `status` calls one host and changes nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from foqs.cli.cluster_rows import (
    HOST_COLUMNS,
    SHARD_COLUMNS,
    duplicate_names_warning,
    host_row,
    shard_row,
    unserved_warning,
)
from foqs.cli.host_session import HostSession, host_call_options
from foqs.cli.output import Row, print_message, show_rows, write_data
from foqs.cli.watch import run_watchable, watch_option

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
@watch_option
@host_call_options
def status(session: HostSession, watch_ms: int | None) -> None:
    """Show the hosts of the cluster, and the owner and epoch of each shard, as one host sees them.

    A host that was killed is shown until its ZooKeeper session ends, some seconds later.
    """

    async def work(client: Client) -> tuple[list[Row], list[Row]]:
        routing = await client.routing()
        return [host_row(host) for host in routing.hosts], [shard_row(shard) for shard in routing.shards]

    def draw(session: HostSession, found: tuple[list[Row], list[Row]]) -> None:
        hosts, shards = found
        if session.output_format != "table":
            indent = 2 if session.output_format == "json" else None
            write_data(json.dumps({"hosts": hosts, "shards": shards}, indent=indent))
            return
        show_rows(hosts, HOST_COLUMNS, session.output_format)
        write_data()
        show_rows(shards, SHARD_COLUMNS, session.output_format)
        for text in (unserved_warning(shards), duplicate_names_warning(hosts)):
            if text:
                print_message(text)

    run_watchable(session, watch_ms, work, draw)
