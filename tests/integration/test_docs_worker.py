"""docs/worker.md and README.md's worker: what they show works as it stands."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs_client import Item, SyncClient
from tests.support.poll import until
from tests.support.processes import PROGRAM, HostProcess

ROOT = Path(__file__).parents[2]
ADDRESS = "foqs://127.0.0.1:7411"
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "worker.md").read_text(), re.DOTALL)
SECTION = (ROOT / "README.md").read_text().partition("\n## Workers\n")[2].partition("\n## ")[0]

pytestmark = pytest.mark.process


@pytest.fixture
def host(tmp_path: Path) -> Iterator[HostProcess]:
    with HostProcess(tmp_path / "host", "memory:") as host:
        host.start()
        yield host


@pytest.fixture
def client(host: HostProcess) -> Iterator[SyncClient]:
    with SyncClient(host.address) as client:
        yield client


def environment(host: HostProcess) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{PROGRAM.parent}:{os.environ['PATH']}",
        "FOQS_ADDRESS": host.address,
        "PYTHONUNBUFFERED": "1",
    }


def run_until_empty(command: list[str], folder: Path, host: HostProcess, client: SyncClient) -> tuple[str, str]:
    """Both streams of a worker that is stopped when nothing is left to do, now or later."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment(host), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        until(lambda: not client.topics(states=["ready", "leased", "deferred"]).topics, "all is done")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 0, err
    return out, err


@pytest.mark.parametrize("command", [[str(PROGRAM), "worker", "jobs:worker"], [sys.executable, "jobs.py"]])
def test_the_program_of_handlers_runs_both_ways(
    command: list[str], tmp_path: Path, host: HostProcess, client: SyncClient
) -> None:
    (tmp_path / "jobs.py").write_text(EXAMPLES[0].replace(ADDRESS, host.address))
    client.enqueue([Item("mail.eu", b"hello"), Item("sms", b""), Item("images.a", b"cat")])
    out, _ = run_until_empty(command, tmp_path, host, client)
    assert "sent mail.eu b'hello' at attempt 1" in out
    assert "resized b'cat'" in out
    [dead] = client.dead().items
    assert dead.metadata == b"an empty letter"


def test_a_consumer_in_a_program_of_its_own_runs(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(EXAMPLES[1])
    done = subprocess.run(
        [sys.executable, "own.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "2 done"


def test_the_readme_s_worker_runs(tmp_path: Path, host: HostProcess, client: SyncClient) -> None:
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", SECTION, re.DOTALL | re.MULTILINE)
    [(_, program)] = [block for block in blocks if block[0] == "python"]
    [(_, commands)] = [block for block in blocks if block[0] == "sh"]
    (tmp_path / "letters.py").write_text(program)
    *before, start = [line.partition(" #")[0].strip() for line in commands.splitlines()]
    for line in before:
        subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment(host), check=True, timeout=60)
    assert start == "foqs worker letters:worker"
    out, err = run_until_empty(["bash", "-c", f"exec {start}"], tmp_path, host, client)
    assert "sent hello" in out
    assert "no such address" in err
    assert len(client.dead().items) == 1
