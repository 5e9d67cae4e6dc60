"""The commands about the console.

Always true: they need a host's configuration, and no host that runs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from foqs.cli.host_session import USAGE, CommandFailed, configuration
from foqs.cli.output import print_message
from foqs.cli.registry_session import open_registry

if TYPE_CHECKING:
    from foqs.options.config import Config


@click.group()
def console() -> None:
    """The console: its sessions."""


@console.command("end-sessions", epilog="\b\nExample:\n  foqs console end-sessions --config /etc/foqs/foqs.toml")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    envvar="FOQS_CONFIG",
    required=True,
    help="A host's configuration: of the cluster, or of the host alone.",
)
def end_sessions(file: Path) -> None:
    """End the sessions of all principals, at all hosts of the cluster.

    Everybody logs in again. To end the sessions of one principal, remove its token.
    """
    from foqs.console.session_secret import secret_file

    config = configuration(file)
    if config.cluster.zookeeper:
        asyncio.run(_replace_secret(config))
    elif config.catalog_file is None:
        raise CommandFailed("The host keeps nothing on disk; a restart ends all sessions.", USAGE)
    else:
        path = secret_file(config.catalog_file.parent)
        try:
            path.unlink()
        except FileNotFoundError:
            raise CommandFailed(f"There is no {path}; no session began at a host with this folder.", USAGE) from None
        except OSError as error:
            raise CommandFailed(
                f"{path} cannot be deleted: {error.strerror}; give this user the right to delete it"
            ) from None
    print_message("All sessions end within 10 seconds; at a host without the coordinator, when it can reach it again.")


async def _replace_secret(config: Config) -> None:
    from foqs.console.session_secret import replace_secret

    async with open_registry(config) as registry:
        await replace_secret(registry)
