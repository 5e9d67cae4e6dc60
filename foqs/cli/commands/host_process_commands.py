"""The commands that run a host in the foreground: dev and host.

Always true: a host starts only if its ports are free; otherwise one
sentence names the port and the option that changes it. Knows nothing of what a
host does.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.host_session import DEFAULT_ADDRESS, USAGE, CommandFailed, configuration
from foqs.cli.listen_addresses import console_url, listen_addresses, local_address, port_problem, url_scheme
from foqs.cli.output import print_message, program_name, show_banner
from foqs.telemetry import logs

if TYPE_CHECKING:
    from foqs.options.config import Config

SQS_PORT: Final = 7414
"""The port of foqs dev --sqs."""

HTTP_PORT: Final = 7412
"""The usual port of HTTP. With another one, the console does not insist on its usual port."""


@click.command(
    epilog="\b\nExamples:\n  foqs dev\n  foqs dev --sqs\n  foqs dev --data /var/tmp/queue --port 7500 --http-port 7501\n  foqs dev --store memory:\n"
    "  foqs dev --cluster 3 --sqs\n  foqs dev --regions 3"
)
@click.option("--data", default=None, help="The folder that keeps the items.  [default: ./foqs-data]")
@click.option(
    "--store", default=None, help="A store URL in place of --data: mysql://user@host:port/database or memory:."
)
@click.option("--shards", type=int, default=None, help="The number of shards.  [default: 4]")
@click.option("--port", type=int, default=None, help="The port for calls.  [default: 7411]")
@click.option("--http-port", type=int, default=None, help="The port for /livez, /readyz, /metrics.  [default: 7412]")
@click.option(
    "--console-port",
    type=int,
    default=None,
    help="The port of the console.  [default: 7413; any free one with another --http-port]",
)
@click.option(
    "--listen",
    "address",
    default=None,
    help="The address for calls; for both ports with --insecure-listen.  [default: 127.0.0.1]",
)
@click.option("--insecure-listen", is_flag=True, default=None, help="Allow an address that other machines can reach.")
@click.option(
    "--sqs",
    "sqs_port",
    type=int,
    is_flag=False,
    flag_value=SQS_PORT,
    default=None,
    metavar="[PORT]",
    help=f"Also serve programs written for Amazon SQS.  [default port: {SQS_PORT}]",
)
@click.option(
    "--cluster",
    "hosts",
    type=click.IntRange(1, 9),
    default=None,
    metavar="N",
    help="Start N hosts with ZooKeeper and two MariaDB servers on this machine, from installed packages.",
)
@click.option(
    "--regions",
    type=click.IntRange(3, 5),
    default=None,
    metavar="N",
    help="In place of --cluster: N hosts and one database, with a server and a host in each of N regions.",
)
@click.option(
    "--program",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="With --cluster or --regions, the foqs of another version that the hosts run; see foqs upgrade.",
)
def dev(
    data: str | None,
    store: str | None,
    shards: int | None,
    port: int | None,
    http_port: int | None,
    console_port: int | None,
    address: str | None,
    insecure_listen: bool | None,
    sqs_port: int | None,
    hosts: int | None,
    regions: int | None,
    program: Path | None,
) -> None:
    """Start one host on this machine for development, or several with --cluster or --regions.

    The host keeps its items in a folder (SQLite) and needs nothing else. Environment variables can set options of the
    configuration (FOQS_SECTION__OPTION).

    With --cluster there are 8 shards. --port is the first of two ports for each host; a port for each console, and
    with --sqs one more for each host, follow. The items are deleted at the end unless --data names a folder.
    """
    if hosts is not None and regions is not None:
        raise click.UsageError("Give --cluster or --regions, not both.")
    if hosts is not None or regions is not None:
        if any(option is not None for option in (store, http_port, console_port, address, insecure_listen)):
            raise click.UsageError(
                "--cluster and --regions go only with --data, --shards, --port, --sqs and --program; omit the other options."
            )
        if sqs_port not in (None, SQS_PORT):
            raise click.UsageError(
                "With --cluster, --sqs takes no port: omit it, and give the first of all ports as --port."
            )
        from foqs.cli.commands.dev_cluster import run_cluster

        count, with_sqs = hosts or regions or 0, sqs_port is not None
        run_cluster(count, data, shards, port, program, with_sqs, with_regions=regions is not None)
        return
    if program is not None:
        raise click.UsageError("--program is for a cluster: give --cluster or --regions too, or omit it.")
    if data is not None and store is not None:
        raise click.UsageError("Give --data or --store, not both.")
    from foqs_contract.size_ceilings import PAYLOAD_BYTES_CEILING

    config = configuration(
        None,
        without_none(
            {
                "store.url": f"sqlite:{data}" if data is not None else store,
                "store.shards": shards,
                "server.port": port,
                "server.http_port": http_port,
                "server.host": address,
                "server.http_host": address if insecure_listen else None,
                "server.console": True,
                "server.console_port": 0
                if console_port is None and http_port not in (None, HTTP_PORT)
                else console_port,
                "server.insecure_listen": insecure_listen,
                "server.sqs_port": sqs_port,
                "namespace.payload_bytes_max": None if sqs_port is None else PAYLOAD_BYTES_CEILING,
            }
        ),
    )
    _check_ports(config, None)
    print_message("Starting a host ...")
    _run_foreground(config, lambda listening: show_banner(dev_banner(listening)))


@click.group(
    invoke_without_command=True,
    epilog="\b\nExamples:\n  foqs host --config /etc/foqs/foqs.toml\n  foqs host list",
)
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    envvar="FOQS_CONFIG",
    help="The configuration (required without a COMMAND); write one with: foqs config default.",
)
@click.option("--insecure-listen", is_flag=True, default=None, help="Allow an address that other machines can reach.")
@click.option(
    "--unsafe-durability", is_flag=True, default=None, help="Accept a database that may lose acknowledged items."
)
@click.pass_context
def host(ctx: click.Context, file: Path | None, insecure_listen: bool | None, unsafe_durability: bool | None) -> None:
    """Run one host with its configuration until SIGTERM or Ctrl-C.

    With a COMMAND: show the hosts of a cluster, or change what they own.
    """
    if ctx.invoked_subcommand is not None:
        return
    if file is None:
        raise click.MissingParameter(ctx=ctx, param_type="option", param_hint="'--config'")
    overrides = without_none({"server.insecure_listen": insecure_listen, "store.unsafe_durability": unsafe_durability})
    config = configuration(file, overrides)
    _check_ports(config, file)
    _run_foreground(config, _log_addresses, file)


def without_none(options: dict[str, object]) -> dict[str, object]:
    """Return the options that were given on the command line."""
    return {key: value for key, value in options.items() if value is not None}


def _log_addresses(config: Config) -> None:
    """Log the addresses as one event, since programs read the log of a host."""
    addresses = {name.lower(): address for name, address, *_ in map(str.split, listen_addresses(config))}
    logging.getLogger(__name__).info("listening", extra=addresses)


def dev_banner(config: Config) -> list[str]:
    """Return the lines that a started development host shows."""
    url = config.store.parsed_url
    kept = {
        "sqlite": f"The items are in {Path(url.path).resolve()}; delete that folder to start empty.",
        "mysql": f"The items are in the database {url.database} on {url.host}:{url.port}.",
        "memory": "The items are in memory only: they are lost when this stops.",
    }[url.kind]
    foqs, called = program_name(), f"{url_scheme(config)}{local_address(config.server.host)}:{config.server.port}"
    address = "" if called == DEFAULT_ADDRESS else f" --address {called}"
    return [
        *listen_addresses(config),
        kept,
        f"For development, not for production: {_missing_protections(config)}one process.",
        "",
        "Try, in another terminal:",
        f"  {foqs} enqueue mail 'hello'{address}",
        f"  {foqs} dequeue mail --wait 5s{address}",
        f"  {foqs} topic list{address}",
        "",
        *_console_lines(config),
        "Stop with Ctrl-C.",
    ]


def _console_lines(config: Config) -> list[str]:
    url = console_url(config)
    return (
        [f"Or look at {url} in a browser: Topics leads to each item, whose page says why it waits.", ""] if url else []
    )


def _missing_protections(config: Config) -> str:
    tls = "" if config.server.tls_cert_file else "no TLS, "
    return tls if config.auth.enabled else f"{tls}no authentication, "


def _run_foreground(config: Config, on_ready: Callable[[Config], None], file: Path | None = None) -> None:
    from foqs.host_constants import HOST_CONSTANTS, HostConstants
    from foqs.host_run import run_host
    from shardmgr.process_lock import NotReserved

    context = click.get_current_context()
    constants = context.find_object(HostConstants) or HOST_CONSTANTS
    logs.setup_logging(config.log.level, config.log.format, sys.stderr)
    try:
        code = run_host(config, on_ready, constants)
    except NotReserved as error:
        raise CommandFailed(str(error), USAGE) from None
    except OSError:
        _check_ports(config, file)  # another process took the port meanwhile
        raise
    context.exit(code)


def _check_ports(config: Config, file: Path | None) -> None:
    server = config.server
    ports = [(server.host, server.port, "port"), (server.http_host, server.http_port, "http_port")]
    if server.console:
        ports.append((server.console_host, server.console_port, "console_port"))
    if server.sqs_port >= 0:
        ports.append((server.host, server.sqs_port, "sqs_port"))
    for host, port, option in ports:
        problem = port_problem(host, port, option)
        if problem:
            raise CommandFailed(f"{file}: server.{option}: {problem}" if file else problem, USAGE)
