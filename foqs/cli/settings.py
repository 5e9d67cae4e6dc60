"""The commands about the configuration itself."""

from __future__ import annotations

from pathlib import Path

import click

from foqs.cli.session import configuration


@click.group()
def config() -> None:
    """The configuration of a host."""


@config.command(
    epilog="\b\nExamples:\n  foqs config check configs/foqs.toml\n  FOQS_SERVER__PORT=70000 foqs config check"
)
@click.argument("file", type=click.Path(path_type=Path), envvar="FOQS_CONFIG", required=False)
def check(file: Path | None) -> None:
    """Say whether FILE, together with the environment, is a valid configuration.

    Without FILE, the defaults and the environment are checked. Exit code 2 when it is not valid.
    """
    found = configuration(file)
    where = file if file else "defaults and environment"
    click.echo(
        f"{where}: valid; {found.store.shards} shards in {found.store.url}, "
        f"calls on {found.server.host}:{found.server.port}, HTTP on {found.server.http_port}"
    )


@config.command(epilog="\b\nExample:\n  foqs config default > foqs.toml")
def default() -> None:
    """Print a configuration file with every option, its reason, unit, range and default."""
    from foqs.config import Config

    click.echo(Config().to_toml(), nl=False)
