"""A whole cluster on this machine: the command that starts it, and the commands that show and change it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from foqs.dev.local_cluster import LocalCluster
from foqs.dev.mariadb_server import MariaDb
from tests.support.cluster import cluster
from tests.support.poll import until
from tests.support.processes import PROGRAM
from tests.support.sqs_host import sqs_client

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]

_SHARDS = 4


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    with cluster(shards=_SHARDS, options={"cluster.session_timeout_ms": 6_000}) as found:
        yield found


def foqs(arguments: Sequence[str], address: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), *arguments, "--address", address]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def done(running: LocalCluster, *arguments: str) -> str:
    """Run a command at the last host. It must succeed. Return its output."""
    result = foqs(arguments, running.hosts[-1].address)
    assert result.returncode == 0, result.stderr
    return result.stdout


def status(running: LocalCluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done(running, "cluster", "status", "-o", "json"))
    return found


def owners(running: LocalCluster) -> dict[int, str]:
    """Return the owner of each shard that is served."""
    return {shard["shard"]: shard["owner"] for shard in status(running)["shards"] if shard["state"] == "owned"}


def test_every_host_lists_the_same_hosts_and_shards_with_owner_and_epoch(running: LocalCluster) -> None:
    statuses: list[dict[str, Any]] = []

    def agree() -> bool:
        results = [foqs(["cluster", "status", "-o", "json"], host.address) for host in running.hosts]
        if any(result.returncode for result in results):
            return False
        statuses[:] = [json.loads(result.stdout) for result in results]
        names = [[host["name"] for host in found["hosts"]] for found in statuses]
        shards = [[(s["shard"], s["owner"], s["epoch"]) for s in found["shards"]] for found in statuses]
        return names == [["host1", "host2", "host3"]] * 3 and shards[1:] == shards[:-1]

    # The hosts are asked one after the other, and a shard may move in between. Each learns of the others by itself.
    until(agree, "all list the same", 60)
    for found in statuses:
        assert [shard["shard"] for shard in found["shards"]] == list(range(_SHARDS))
        assert {shard["database"] for shard in found["shards"]} == {"db1", "db2"}
        assert all(shard["epoch"] >= 1 for shard in found["shards"])


def test_doctor_finds_no_problem_with_a_cluster_and_names_one_that_is_made(
    running: LocalCluster, tmp_path: Path
) -> None:
    config = running.hosts[0].config

    def examine(text: str) -> tuple[int, dict[str, dict[str, str]]]:
        (tmp_path / "foqs.toml").write_text(text)
        command = [str(PROGRAM), "doctor", "--config", str(tmp_path / "foqs.toml"), "-o", "json"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        return result.returncode, {row["check"]: row for row in json.loads(result.stdout)}

    code, found = examine(config.read_text())
    assert code == 0, found
    assert {"ZooKeeper", "Layout", "Store db1", "Schema db1", "Grants db2", "Clock db2"} <= set(found)
    code, found = examine(config.read_text().replace("mysql://root@", "mysql://nobody@"))
    assert (code, found["Store db1"]["state"]) == (5, "bad")
    assert "databases.db1.url" in found["Store db1"]["remedy"]


def test_a_moved_shard_has_a_higher_epoch_at_its_new_owner(running: LocalCluster) -> None:
    [before] = [shard for shard in status(running)["shards"] if shard["shard"] == 0]
    target = "host1" if before["owner"] != "host1" else "host2"
    done(running, "shard", "move", "0", target)
    until(lambda: owners(running).get(0) == target, f"shard 0 is served by {target}", 60)
    [after] = [shard for shard in status(running)["shards"] if shard["shard"] == 0]
    assert after["epoch"] > before["epoch"]
    assert after["pinned_to"] == target
    done(running, "shard", "move", "0", "--anywhere")


def test_a_drained_host_owns_nothing_until_it_is_undrained(running: LocalCluster) -> None:
    done(running, "host", "drain", "host2")
    try:
        until(
            lambda: len(owners(running)) == _SHARDS and "host2" not in owners(running).values(),
            "host2 has nothing",
            60,
        )
    finally:
        done(running, "host", "undrain", "host2")
    until(lambda: "host2" in owners(running).values(), "host2 owns a shard", 60)


def test_a_shard_is_added_drained_and_removed(running: LocalCluster) -> None:
    done(running, "shard", "add", "9", "--database", "db2")
    until(lambda: 9 in owners(running), "shard 9 is served", 60)
    refused = foqs(["shard", "remove", "9", "--yes"], running.hosts[0].address)
    assert (refused.returncode, "drain it first" in refused.stderr) == (2, True)
    done(running, "shard", "drain", "9")
    done(running, "shard", "remove", "9", "--yes")
    until(lambda: 9 not in {shard["shard"] for shard in status(running)["shards"]}, "shard 9 is removed", 60)


def test_other_hosts_serve_the_shards_of_a_killed_host(running: LocalCluster) -> None:
    os.kill(running.hosts[0].pid, signal.SIGKILL)

    def others_serve_all() -> bool:
        found = owners(running)
        return len(found) == _SHARDS and set(found.values()) <= {"host2", "host3"}

    try:
        until(others_serve_all, "the others serve every shard", 60)
    finally:
        running.hosts[0].start()
    until(lambda: len(status(running)["hosts"]) == 3, "it is back", 60)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that servers reach which run as another user."""
    with TemporaryDirectory(prefix="foqs-dev-") as found:
        Path(found).chmod(0o711)
        yield Path(found)


@contextmanager
def dev(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run foqs dev; give its process and what it has shown when everything runs."""
    said = folder / "said"
    with said.open("wb") as errors:
        process = subprocess.Popen(
            [str(PROGRAM), "dev", *arguments], stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder
        )
    try:
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and lines[-1].startswith("Stop with")):
            line = process.stdout.readline()
            assert line, said.read_text()
            lines.append(line)
        yield process, "".join(lines)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0, said.read_text()
    finally:
        process.kill()
        process.communicate()


def test_dev_starts_a_cluster_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with dev(tmp_path, "--cluster", "2", "--shards", "2", "--port", "0", "--sqs") as (_, shown):
        pids = [int(number) for number in re.findall(r"  pid (\d+)$", shown, re.M)]
        assert len(pids) == 5
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        [folder] = re.findall(r"are in (\S+);", shown)
        endpoints = re.findall(r"  sqs (\S+)", shown)
        assert [sqs_client(endpoint).list_queues().get("QueueUrls") for endpoint in endpoints] == [None, None]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not Path(folder).exists()


@pytest.mark.long
def test_dev_has_regions_whose_primary_moves_dies_and_rejoins_as_it_says(tmp_path: Path, open_folder: Path) -> None:
    data = open_folder / "data"
    arguments = ("--regions", "3", "--shards", "2", "--port", "0", "--data", str(data))
    with dev(tmp_path, *arguments) as (_, shown), ExitStack() as stack:
        commands = [shlex.split(line, comments=True) for line in shown.splitlines() if line.startswith("  ")]
        exported = dict(words[1].split("=", 1) for words in commands if words[0] == "export")
        environment = {**os.environ, **exported}

        def run(*words: str) -> str:
            """Run the command with these words that it shows. It must succeed. Return its output."""
            [shown] = [command[1:] for command in commands if command[1 : 1 + len(words)] == [*words]]
            found = subprocess.run(
                [str(PROGRAM), *shown],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            assert found.returncode == 0, found.stderr
            return found.stdout + found.stderr

        def primary() -> list[str]:
            [row] = [line.split() for line in run("region", "list").splitlines() if line.startswith("main")]
            return row[1:5]

        assert primary() == ["r1", "a", "1", "serving"]
        run("enqueue")
        assert "b in r2 is the primary in term 2" in run("database", "move")
        [primary_pid] = re.findall(r"kill -9 (\d+)   # b, the primary", shown)
        os.kill(int(primary_pid), signal.SIGKILL)
        until(lambda: primary()[2:] == ["3", "serving"], "another one is the primary", 120)
        [start] = [words[:-1] for words in commands if words[0] == "sh"]
        server = subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(server.wait)
        stack.callback(server.terminate)
        until(MariaDb(data / "b").is_ready, "it answers", 60)
        assert "main: b has all that it has" in run("database", "rejoin")
        assert "hello" in run("dequeue")
    with dev(tmp_path, *arguments):
        assert primary()[2:] == ["3", "serving"]
