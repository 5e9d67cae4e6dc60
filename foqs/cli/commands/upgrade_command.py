"""`foqs upgrade FOLDER --program PATH`: another program for a running `foqs dev --cluster`, host by host.

Always true: the tables are prepared by the other program first, which refuses what it
cannot use; the process that runs the cluster keeps the hosts as its own. The same
command goes back, until the tables are contracted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.host_session import ERROR, USAGE, CommandFailed
from foqs.cli.output import print_message
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs.dev.local_cluster import RunningHost

_POLL_S: Final = 0.1
_REPLACE_TIMEOUT_S: Final = 180.0


@click.command(
    "upgrade",
    epilog="\b\nExamples:\n  foqs upgrade /var/tmp/cluster --program /opt/foqs-0.2/bin/foqs\n"
    "  foqs schema apply --config /var/tmp/cluster/host1/foqs.toml --contract",
)
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--program",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="The foqs of the other version.",
)
def upgrade(folder: Path, program: Path) -> None:
    """Run the hosts of the cluster in FOLDER with another program, host by host, while it serves.

    FOLDER is the folder that foqs dev --cluster shows. The tables are expanded first, so that hosts of both versions can
    use them. Each host is drained, replaced and undrained. To go back, run the command with the former program. When
    no host will go back any more, run foqs schema apply --contract.

    Safe to repeat: a host that runs the program already is only undrained.
    """
    from foqs.dev.local_cluster import read_description
    from foqs.dev.rolling_upgrade import upgrade_hosts
    from foqs.dev.server_process import ServerNotAvailable

    if not os.access(program, os.X_OK):
        raise CommandFailed(
            f"{program} is not a program that this user may run; name the foqs of the newer version", USAGE
        )
    command = [str(program.absolute())]
    try:
        url, hosts = read_description(folder)
        check_none_ended(hosts)
        prepare_tables(command, Path(hosts[0].folder) / "foqs.toml")
        chosen = [ReplacedHost(folder, host, command) for host in hosts if host.program != command]
        upgraded = [host.name for host in hosts if host.program == command]
        asyncio.run(upgrade_hosts(url, chosen, print_message, upgraded))
    except ServerNotAvailable as error:
        raise CommandFailed(str(error), ERROR) from None
    print_message(f"{counted(len(hosts), 'host runs', 'hosts run')} {command[0]} now.")


def check_none_ended(hosts: Sequence[RunningHost]) -> None:
    """Raise CommandFailed if a host is not run by the process that runs the cluster any more."""
    ended = [host.name for host in hosts if host.pid is None]
    if ended:
        raise CommandFailed(
            f"{', '.join(ended)} ended, and foqs dev does not run it any more, even if you started it again. No host was "
            "changed. Stop foqs dev and start it again (with --data the items stay), then run this command again"
        )


def prepare_tables(command: list[str], config: Path) -> None:
    """Let the other program prepare the tables. Raises CommandFailed with its reason if it cannot."""
    from foqs.dev.host_process import program_environment

    apply = [*command, "schema", "apply", "--config", str(config)]
    try:
        done = subprocess.run(apply, capture_output=True, text=True, check=False, env=program_environment(command))
    except OSError as error:
        raise CommandFailed(
            f"{command[0]} cannot be run, so no host was changed: {error}; name the foqs of the newer version"
        ) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it gives no reason"])[-1].removeprefix("Error: ")
        raise CommandFailed(f"{command[0]} cannot run this cluster, so no host was changed: {reason}")


@dataclass(slots=True, frozen=True)
class ReplacedHost:
    """A host that another process runs, and the program that it should run."""

    folder: Path
    host: RunningHost
    command: list[str]

    @property
    def name(self) -> str:
        return self.host.name

    def replace(self) -> None:
        """Stop the host; the process that runs the cluster starts it again. Raises ServerNotAvailable."""
        from foqs.dev.host_process import REQUEST_FILE, replace_file
        from foqs.dev.local_cluster import read_description
        from foqs.dev.server_process import ServerNotAvailable

        replace_file(Path(self.host.folder) / REQUEST_FILE, json.dumps(self.command))
        assert self.host.pid is not None
        with contextlib.suppress(ProcessLookupError):  # it has just ended, and is started with the other program
            os.kill(self.host.pid, signal.SIGTERM)
        until_s = time.monotonic() + _REPLACE_TIMEOUT_S
        while time.monotonic() < until_s:
            _, hosts = read_description(self.folder)
            [found] = [host for host in hosts if host.name == self.name]
            if found.pid != self.host.pid:
                if found.program == self.command:
                    return
                break
            time.sleep(_POLL_S)
        log = Path(self.host.folder) / "log"
        raise ServerNotAvailable(
            f"{self.name} does not run {self.command[0]}; see {log}, and the output of foqs dev --cluster"
        )
