"""The command line: nouns, then verbs.

Always true: data is written to standard output, messages to standard error; the
exit code is 0 ok, 1 error, 2 usage or configuration, 3 unreachable, 4 not found,
5 unhealthy. Knows nothing of how commands work.
"""

from __future__ import annotations

import errno
import sys
from typing import Any, Final

import click

from foqs.cli.commands.audit_command import audit
from foqs.cli.commands.change_commands import item_cancel, item_extend, item_move, item_update
from foqs.cli.commands.cluster_commands import cluster
from foqs.cli.commands.cluster_init import init as cluster_init
from foqs.cli.commands.config_commands import config
from foqs.cli.commands.console_commands import console
from foqs.cli.commands.database_commands import database
from foqs.cli.commands.dead_commands import dead
from foqs.cli.commands.enqueue_command import enqueue
from foqs.cli.commands.explain_command import explain
from foqs.cli.commands.grant_commands import grant
from foqs.cli.commands.group_commands import topic_groups
from foqs.cli.commands.host_commands import host_drain, host_list, host_undrain
from foqs.cli.commands.host_process_commands import dev, host
from foqs.cli.commands.item_commands import ack, dequeue, item, nack, peek
from foqs.cli.commands.jobs_commands import jobs
from foqs.cli.commands.namespace_commands import namespace
from foqs.cli.commands.policy_commands import topic_policies, topic_policy
from foqs.cli.commands.region_commands import region
from foqs.cli.commands.relay_commands import relay
from foqs.cli.commands.schema_commands import schema
from foqs.cli.commands.shard_commands import shard
from foqs.cli.commands.spark_command import spark
from foqs.cli.commands.sqs_commands import sqs
from foqs.cli.commands.topic_commands import topic
from foqs.cli.commands.upgrade_command import upgrade
from foqs.cli.commands.version_command import version_
from foqs.cli.commands.worker_command import worker
from foqs.cli.doctor.doctor_command import doctor
from foqs.cli.host_session import CommandFailed
from foqs.cli.output import check_output, print_message
from foqs.runtime.plain_python import is_compiled

RENAMED_COMMANDS: Final = {"why": "explain"}
"""Old names of commands, with their present names."""

_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

SERVICES: Final = frozenset({"dev", "host", "relay", "worker"})
"""Commands that serve until they are stopped. All others show results, and do nothing if they cannot."""


class RootGroup(click.Group):
    """Ends each command with the exit code of its failure."""

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the program. If output cannot be written, as on a full disk, the program ends with a sentence about that."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            print_message(f"Error: the output cannot be written: {error.strerror}")
            sys.exit(1)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in RENAMED_COMMANDS:
            ctx.fail(f"'foqs {args[0]}' was renamed; use: foqs {RENAMED_COMMANDS[args[0]]}")
        if args and args[0] not in SERVICES:
            check_output()
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CommandFailed as error:
            print_message(f"Error: {error}")
            ctx.exit(error.code)
        except click.UsageError as error:
            if commands := _commands_to_choose(error):
                raise click.UsageError(f"{error.message} {commands}", error.ctx) from None
            raise


def _commands_to_choose(error: click.UsageError) -> str | None:
    """Return which commands there are if the error is about an unknown one for which click suggests none; else None."""
    # Click before 8.4 has no class for this error, and suggests nothing.
    if not error.message.startswith("No such command") or getattr(error, "possibilities", None):
        return None
    if error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return None
    return f"The commands of {error.ctx.command_path}: {', '.join(sorted(error.ctx.command.commands))}."


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  foqs dev                       start a queue on this machine\n"
    "  foqs enqueue mail 'hello'      add an item\n  foqs dequeue mail --wait 5s    get one\n"
    "\n\b\nExit codes: 0 ok, 1 error, 2 usage, 3 unreachable, 4 not found, 5 unhealthy.",
)
@click.version_option(
    package_name="foqs", message=f"foqs %(version)s ({'compiled' if is_compiled() else 'plain Python'})"
)
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
    relay,
    peek,
    topic,
    item,
    explain,
    dead,
    jobs,
    namespace,
    grant,
    cluster,
    shard,
    database,
    region,
    doctor,
    audit,
    config,
    sqs,
    console,
    schema,
    spark,
    upgrade,
    version_,
):
    root.add_command(command)
for command in (item_cancel, item_update, item_extend, item_move):
    item.add_command(command)
for command in (host_list, host_drain, host_undrain):
    host.add_command(command)
topic.add_command(topic_groups)
topic.add_command(topic_policy)
topic.add_command(topic_policies)
cluster.add_command(cluster_init)


def main(constants: object = None) -> None:
    """Run the command line and exit the process. `constants`: the `HostConstants` of a host that it runs; None: the usual ones."""
    root(prog_name="foqs", obj=constants)
