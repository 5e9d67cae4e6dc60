"""The command line: nouns, then verbs.

Always true: data goes to standard output and prose to standard error; the exit
code is 0 ok, 1 error, 2 usage or configuration, 3 unreachable, 4 not found, 5
unhealthy. Knows nothing of how things are done.
"""

from __future__ import annotations

from typing import Any

import click

from foqs.cli.change import item_cancel, item_update
from foqs.cli.cluster import cluster
from foqs.cli.cluster_init import init as cluster_init
from foqs.cli.dead import dead
from foqs.cli.doctor import doctor
from foqs.cli.grants import grant
from foqs.cli.hosts import dev, host
from foqs.cli.items import ack, dequeue, item, nack, peek
from foqs.cli.members import host_drain, host_list, host_undrain
from foqs.cli.namespaces import namespace
from foqs.cli.output import print_message
from foqs.cli.produce import enqueue
from foqs.cli.schema import schema
from foqs.cli.session import CommandFailed
from foqs.cli.settings import config
from foqs.cli.shards import shard
from foqs.cli.topics import topic
from foqs.cli.why import explain
from foqs.cli.worker import worker


class RootGroup(click.Group):
    """Ends every command with the exit code that its failure has."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CommandFailed as error:
            print_message(f"Error: {error}")
            ctx.exit(error.code)


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  foqs dev                       start a queue on this machine\n"
    "  foqs enqueue mail 'hello'      add an item\n  foqs dequeue mail --wait 5s    take one\n"
    "\n\b\nExit codes: 0 ok, 1 error, 2 usage, 3 unreachable, 4 not found, 5 unhealthy.",
)
@click.version_option(package_name="foqs", message="foqs %(version)s")
def root() -> None:
    """A distributed, durable priority queue."""


for command in (
    dev,
    host,
    enqueue,
    dequeue,
    ack,
    nack,
    worker,
    peek,
    topic,
    item,
    explain,
    dead,
    namespace,
    grant,
    cluster,
    shard,
    doctor,
    config,
    schema,
):
    root.add_command(command)
for command in (item_cancel, item_update):
    item.add_command(command)
for command in (host_list, host_drain, host_undrain):
    host.add_command(command)
cluster.add_command(cluster_init)


def main() -> None:
    """The entry point; exits the process."""
    root(prog_name="foqs")
