"""The command that finds problems: of a host on this machine, or of the cluster at an address.

Always true: the exit code is 5 if a finding is bad, and each bad finding has a
remedy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from foqs.cli.host_session import UNHEALTHY, CommandFailed, HostSession, OpenClient, host_call_options
from foqs.cli.output import Column, print_message, show_rows
from foqs_contract.plurals import counted

if TYPE_CHECKING:
    from foqs.options.config import Config
    from foqs.telemetry.findings import Finding

_COLUMNS: Final[list[Column]] = [
    ("CHECK", lambda row: row["check"]),
    ("STATE", lambda row: row["state"]),
    ("FOUND", lambda row: row["found"]),
    ("REMEDY", lambda row: row["remedy"] or ""),
]


@click.command(
    epilog="\b\nExamples:\n  foqs doctor\n  foqs doctor --config configs/foqs.toml -o json\n"
    "  foqs doctor --address foqs://host1,host2"
)
@click.option(
    "--config", "file", type=click.Path(path_type=Path), envvar="FOQS_CONFIG", help="The configuration to check."
)
@click.option("--outbox", "database", metavar="URL", help="Also check the outbox in this database; see foqs relay.")
@click.option(
    "--outbox-prefix",
    "prefix",
    envvar="FOQS_OUTBOX_PREFIX",
    default="foqs_",
    show_default=True,
    show_envvar=True,
    help="The beginning of the names of the outbox' tables.",
)
@host_call_options
def doctor(session: HostSession, file: Path | None, database: str | None, prefix: str) -> None:
    """Check configuration, ports, data folder, disk, store (tables, rights, clock, files), catalog, Python and libraries.

    For a host in a cluster: its address, ZooKeeper, the layout, and each database in place of folder and store.

    With --address (or FOQS_ADDRESS): whether the cluster answers, this machine reaches each of its hosts, and each
    shard is served. This machine is then checked only if --config names a configuration.

    With --outbox: the outbox' tables, its relay, its rows, and with --address the key window of the namespace. This
    machine is then checked only if --config names a configuration.

    Exit code 5 if a check is bad.
    """
    source = click.get_current_context().get_parameter_source("address")
    address = None if source is ParameterSource.DEFAULT else session.address
    findings = list(asyncio.run(_run_checks(file, address, session.open_client, with_host=database is None)))
    if database is not None:
        from foqs.cli.doctor.outbox_checks import check_outbox

        findings += asyncio.run(check_outbox(database, prefix, session if address is not None else None))
    rows = [
        {"check": found.check, "state": found.state, "found": found.detail, "remedy": found.remedy or None}
        for found in findings
    ]
    show_rows(rows, _COLUMNS, session.output_format)
    bad = sum(found.state == "bad" for found in findings)
    if bad:
        raise CommandFailed(f"{bad} of {counted(len(findings), 'check')} {'is' if bad == 1 else 'are'} bad.", UNHEALTHY)
    is_host = address is None and (database is None or file is not None)
    print_message("Everything that a host needs is here." if is_host else "No problem found.")


async def _run_checks(
    file: Path | None, address: str | None, connect: OpenClient, *, with_host: bool
) -> Sequence[Finding]:
    """Return the findings. `with_host`: without an address and a file, check this machine with the defaults."""
    findings: list[Finding] = []
    if file is not None or (address is None and with_host):
        findings += await _check_host(file, connect)
    if address is not None:
        from foqs.cli.doctor.address_checks import check_cluster_at

        findings += await check_cluster_at(address, connect)
    return findings


async def _check_host(file: Path | None, connect: OpenClient) -> Sequence[Finding]:
    from foqs.access.host_secrets import check_secrets
    from foqs.cli.doctor import host_checks
    from foqs.cli.doctor.catalog_checks import check_catalog
    from foqs.cli.doctor.cluster_checks import check_cluster
    from foqs.cli.doctor.journal_checks import check_journals
    from foqs.cli.doctor.sqs_checks import check_sqs
    from foqs.options.config import ConfigError, load
    from foqs.telemetry.findings import Finding

    findings: list[Finding] = []
    config: Config | None = None
    try:
        loaded = load(file, os.environ)
        check_secrets(loaded)
        config = loaded
        findings.append(Finding("Configuration", "ok", str(file) if file else "defaults and environment"))
    except ConfigError as error:
        where = " ".join(part for part in (error.source, error.key) if part)
        findings.append(Finding("Configuration", "bad", f"{where}: {error.problem}", error.remedy))
    findings += [*host_checks.check_python(), *host_checks.check_libraries()]
    if config is not None:
        findings += [await host_checks.check_rpc_port(config, connect), await host_checks.check_http_port(config)]
        findings += [*await check_journals(config), *await check_sqs(config)]
        if config.cluster.zookeeper:
            findings += await check_cluster(config)
        else:
            findings += [
                *host_checks.check_data_folder(config),
                *await host_checks.check_store(config),
                *await check_catalog(config),
            ]
    return findings
