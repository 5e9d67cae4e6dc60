"""A host whose SQLite files become read-only: it says so, recovers on its own, and loses nothing."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from foqs_client import Client, Item
from tests.support.aio import run
from tests.support.history import History, machine_clock_ms
from tests.support.load_run import check_run, stop_and_drain
from tests.support.poll import until
from tests.support.processes import RestartableHost
from tests.support.recording_client import RecordingClient
from tests.support.tables import in_sqlite
from tests.support.workload import Load, wall_ms

pytestmark = [pytest.mark.process]


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make files that no user may change, not even root, as on a disk that was mounted read-only after an error."""
    # Not the log's index, which is mapped into memory: writing to it would end the process with SIGBUS.
    files = [str(path) for path in folder.glob("shard-*") if not path.name.endswith("-shm")]
    subprocess.run(["chattr", "+i", *files], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *files], check=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    if os.geteuid() != 0 or shutil.which("chattr") is None:
        pytest.skip("only root can make a file immutable")
    probe = tmp_path / "probe"
    probe.touch()
    if subprocess.run(["chattr", "+i", probe], capture_output=True).returncode:
        pytest.skip("this file system knows no immutable files")
    subprocess.run(["chattr", "-i", probe], check=True)
    return tmp_path / "data"


def test_a_host_serves_again_when_its_files_are_writable_again(folder: Path, tmp_path: Path) -> None:
    history = History(machine_clock_ms, source="load")

    async def work(host: RestartableHost) -> bool:
        async with Client(host.address, automatic_keys=False) as client:
            recording = RecordingClient(client, history, "client", wall_ms)
            await recording.enqueue([Item("mail", b"before")])
            with read_only(folder):
                [refused] = await asyncio.gather(
                    recording.enqueue([Item("mail", b"meanwhile")], timeout_ms=1_000), return_exceptions=True
                )
                assert not isinstance(refused, list) or refused[0].error is not None
                await asyncio.to_thread(until, lambda: is_named(readiness(host)), "/readyz names the file and a remedy")
                assert host.is_running
            await asyncio.to_thread(host.wait_until_ready)
            [result] = await recording.enqueue([Item("mail", b"after")])
            assert result.require()
        return await stop_and_drain(Load(host.address, history, seed=6), host, history)

    with RestartableHost(tmp_path / "host", f"sqlite:{folder}", {"store.shards": 1}) as host:
        host.start()
        drained = run(work(host), timeout=100)
        assert host.stop() == 0
        assert "Traceback" not in host.log
        check_run(history, in_sqlite(folder, 1), drained)


def is_named(text: str) -> bool:
    return "shard-0.db" in text and ("let this user read and write" in text or "permissions" in text)


def readiness(host: RestartableHost) -> str:
    answer = host.get("/readyz")
    return "" if answer is None or answer[0] == 200 else answer[1]
