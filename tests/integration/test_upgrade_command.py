"""`foqs upgrade` on a cluster that `foqs dev --cluster` runs: forward, a program that does not start, contraction, back."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from foqs.dev.host_process import program_environment
from tests.support.older_tables import NEWEST, OLDER_VERSION
from tests.support.older_version import OLDER_TABLES, installed
from tests.support.processes import PROGRAM

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(400)]

HOSTS = 2
NEWER = str(PROGRAM)
SKIPPING = f"""#!{sys.executable}
import sys
sys.path[:0] = {sys.path!r}
from dataclasses import replace
from foqs.store.mysql import mysql_migrations
*before, newest = mysql_migrations.MIGRATIONS
mysql_migrations.MIGRATIONS = (*before, newest, replace(newest, number=newest.number + 1))
from foqs.cli import main
main()
"""
"""The program of the version after the newer one."""


@dataclass(slots=True)
class RunningDev:
    """A `foqs dev --cluster`, its folder, and commands on it."""

    folder: Path
    address: str

    def foqs(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        command = [str(PROGRAM), *map(str, arguments)]
        environment = program_environment([str(PROGRAM)])
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=environment)

    def done(self, *arguments: str | Path) -> str:
        """Run a command that must succeed; return its output."""
        result = self.foqs(*arguments)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def schema(self, *arguments: str) -> str:
        return self.done("schema", *arguments, "--config", self.folder / "host1" / "foqs.toml")

    def phases(self) -> set[tuple[int, str, str]]:
        rows: list[dict[str, Any]] = json.loads(self.schema("status", "-o", "json"))
        return {(row["version"], row["phase"], row["hosts"]) for row in rows}

    def programs(self) -> set[str]:
        found = json.loads((self.folder / "cluster.json").read_text())
        return {host["program"][0] for host in found["hosts"]}


@pytest.fixture
def older(pytestconfig: pytest.Config) -> str:
    return str(installed(pytestconfig, OLDER_TABLES).program)


@pytest.fixture
def dev(older: str, tmp_path: Path) -> Iterator[RunningDev]:
    """A cluster whose hosts run the older program."""
    command = [str(PROGRAM), "dev", "--cluster", str(HOSTS), "--shards", "2", "--port", "0", "--program", older]
    log = tmp_path / "said"
    with log.open("wb") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=tmp_path)
    try:
        assert process.stdout is not None
        shown = ""
        while "Stop with" not in shown:
            line = process.stdout.readline()
            assert line, log.read_text()
            shown += line
        [folder] = re.findall(r"are in (\S+);", shown)
        [address] = re.findall(r"FOQS_ADDRESS=(\S+)", shown)
        yield RunningDev(Path(folder), address)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, log.read_text()
    finally:
        process.kill()
        process.communicate()


def test_a_cluster_is_upgraded_host_by_host_skips_no_version_and_does_not_go_back_after_the_contraction(
    dev: RunningDev, older: str, tmp_path: Path
) -> None:
    dev.done("enqueue", "mail", "before", "--address", dev.address)
    skipping = tmp_path / "skipping"
    skipping.write_text(SKIPPING)
    skipping.chmod(0o755)
    refused = dev.foqs("upgrade", dev.folder, "--program", skipping)
    assert refused.returncode == 1
    assert "no host was changed: hosts of version 0.1.0 are members of the cluster" in refused.stderr
    assert "no version is skipped" in refused.stderr
    assert dev.programs() == {older}
    dev.done("upgrade", dev.folder, "--program", NEWER)
    assert dev.programs() == {NEWER}
    assert dev.phases() == {(OLDER_VERSION, "expanded", str(NEWEST))}
    assert "timers" in dev.schema("plan", "--contract")
    dev.schema("apply", "--contract", "--yes")
    assert dev.phases() == {(NEWEST, "stable", str(NEWEST))}
    refused = dev.foqs("upgrade", dev.folder, "--program", older)
    assert refused.returncode == 1
    assert "cannot run this cluster, so no host was changed: " in refused.stderr
    assert f"has schema version {NEWEST}, and this program knows versions up to {OLDER_VERSION}" in refused.stderr
    assert dev.programs() == {NEWER}
    assert "before" in dev.done("dequeue", "mail", "--wait", "5s", "--address", dev.address)


@pytest.mark.long
def test_a_program_that_does_not_start_is_replaced_by_the_former_one_and_a_cluster_goes_back(
    dev: RunningDev, older: str, tmp_path: Path
) -> None:
    dev.done("upgrade", dev.folder, "--program", NEWER)
    broken = tmp_path / "broken"
    broken.write_text('#!/bin/sh\n[ "$1" = schema ] || exit 3\n')
    broken.chmod(0o755)
    failed = dev.foqs("upgrade", dev.folder, "--program", broken)
    assert (failed.returncode, f"host1 does not run {broken}" in failed.stderr) == (1, True)
    assert dev.programs() == {NEWER}
    dev.done("upgrade", dev.folder, "--program", older)
    assert (dev.programs(), dev.phases()) == ({older}, {(OLDER_VERSION, "expanded", "older")})
    dev.done("upgrade", dev.folder, "--program", NEWER)
    assert dev.programs() == {NEWER}
