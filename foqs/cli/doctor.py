"""The command that says whether a host can run here, and what stands in its way.

Always true: it ends with exit code 5 when anything is bad, and every such
finding carries its remedy.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from foqs.cli.output import Column, Format, say, show
from foqs.cli.session import UNHEALTHY, Connect, Failed, open_client

if TYPE_CHECKING:
    from foqs.cli.finding import Finding
    from foqs.config import Config

_COLUMNS: Final[list[Column]] = [
    ("CHECK", lambda row: row["check"]),
    ("STATE", lambda row: row["state"]),
    ("FOUND", lambda row: row["found"]),
    ("REMEDY", lambda row: row["remedy"] or ""),
]


@click.command(epilog="\b\nExamples:\n  foqs doctor\n  foqs doctor --config configs/foqs.toml -o json")
@click.option(
    "--config", "file", type=click.Path(path_type=Path), envvar="FOQS_CONFIG", help="The configuration to check."
)
@click.option(
    "-o", "--output", "form", type=click.Choice(["table", "json", "jsonl"]), default="table", show_default=True
)
@click.pass_obj
def doctor(connect: Connect | None, file: Path | None, form: Format) -> None:
    """Check configuration, ports, data folder, disk, store (tables, rights, clock, files), catalog, Python and libraries.

    Of a host in a cluster: its address, ZooKeeper, the list of shards, and each database in place of folder and store.

    Exit code 5 when anything is bad.
    """
    findings = asyncio.run(_examine(file, connect or open_client))
    rows = [
        {"check": found.what, "state": found.state, "found": found.detail, "remedy": found.remedy or None}
        for found in findings
    ]
    show(rows, _COLUMNS, form)
    bad = sum(found.state == "bad" for found in findings)
    if bad:
        raise Failed(f"{bad} of {len(findings)} checks are bad.", UNHEALTHY)
    say("Everything a host needs is here.")


async def _examine(file: Path | None, connect: Connect) -> Sequence[Finding]:
    from foqs.cli import checks
    from foqs.cli.checks_catalog import catalog
    from foqs.cli.checks_cluster import cluster
    from foqs.cli.finding import Finding
    from foqs.config import ConfigError, load

    findings: list[Finding] = []
    config: Config | None = None
    try:
        config = load(file, os.environ)
        findings.append(Finding("Configuration", "ok", str(file) if file else "defaults and environment"))
    except ConfigError as error:
        where = " ".join(part for part in (error.source, error.key) if part)
        findings.append(Finding("Configuration", "bad", f"{where}: {error.problem}", error.remedy))
    findings += [*checks.python(), *checks.libraries()]
    if config is not None:
        findings += [await checks.calls(config, connect), await checks.http(config)]
        if config.cluster.zookeeper:
            findings += await cluster(config)
        else:
            findings += [*checks.folder(config), *await checks.store(config), *await catalog(config)]
    return findings
