"""`foqs worker` on a real host: stopped under load, and with killed processes."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs_client import Item, SyncClient
from tests.support.poll import until
from tests.support.processes import PROGRAM, RestartableHost, is_gone

pytestmark = pytest.mark.process

JOBS = """
import os
import time
from pathlib import Path

from foqs_client.consumer import Job, Worker

worker = Worker()
FOLDER = Path(__file__).parent


def note(*words):
    with (FOLDER / "notes").open("a") as notes:
        notes.write(" ".join(map(str, words)) + "\\n")


def work(job: Job) -> None:
    note("begun", job.payload.decode(), job.attempt, os.getpid(), job.metadata.decode() or "-")
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    note("done", job.payload.decode(), job.attempt)


worker.add(work, "threads.*", concurrency=2, in_flight=8)
worker.add(work, "processes.*", processes=2, in_flight=6)
"""
ITEMS = 30
LONG_MS = 60_000
"""A lease that lasts through a stall of some seconds."""
BRIEF_MS = 5_000
"""A lease short enough to wait for its end, and long enough to be renewed in time."""


class Workplace:
    """A folder with handlers, the workers that run in it, and their notes."""

    def __init__(self, folder: Path, host: RestartableHost) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        (folder / "jobs.py").write_text(JOBS)
        self.environment = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith("FOQS_") or name == "FOQS_PURE"
            },
            "FOQS_ADDRESS": host.address,
        }

    def start(self, *options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [PROGRAM, "worker", "jobs:worker", "-o", "jsonl", *options],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def go(self) -> None:
        """Let the handlers end from now on."""
        (self.folder / "go").touch()

    def notes(self, what: str) -> list[list[str]]:
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split(" ", 4)[1:] for line in lines if line.startswith(what)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RestartableHost]:
    options = {"namespace.backoff_ms_min": 50}
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", options) as host:
        host.start()
        yield host


@pytest.fixture
def client(host: RestartableHost) -> Iterator[SyncClient]:
    with SyncClient(host.address) as client:
        yield client


@pytest.fixture
def place(tmp_path: Path, host: RestartableHost) -> Iterator[Workplace]:
    folder = tmp_path / "work"
    folder.mkdir()
    place = Workplace(folder, host)
    yield place
    for process in place.processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def put(client: SyncClient, topic: str, items: int = ITEMS, *, lease_ms: int = LONG_MS) -> None:
    for result in client.enqueue([Item(topic, b"%d" % number, lease_ms=lease_ms) for number in range(items)]):
        result.require()


def left(client: SyncClient) -> tuple[int, int]:
    """Return the numbers of READY and LEASED items."""
    topics = client.topics().topics
    return sum(topic.ready for topic in topics), sum(topic.leased for topic in topics)


def test_a_stop_under_load_loses_nothing_and_counts_only_started_attempts(place: Workplace, client: SyncClient) -> None:
    put(client, "threads.a")
    worker = place.start()
    until(lambda: len(place.notes("begun")) == 2 and left(client) == (ITEMS - 8, 8), "two begun, eight leased")
    worker.send_signal(signal.SIGTERM)
    until(lambda: left(client) == (ITEMS - 2, 2), "unstarted items are released while handlers run")
    place.go()
    out, err = worker.communicate(timeout=60)
    assert worker.returncode == 0, err
    assert '"done": 2, "retried": 0' in out
    assert '"released": 6' in out
    place.start()
    until(lambda: left(client) == (0, 0), "all is done")
    assert Counter(tuple(note) for note in place.notes("done")) == {(str(n), "1"): 1 for n in range(ITEMS)}


def test_a_killed_worker_process_affects_only_its_item_and_is_replaced(place: Workplace, client: SyncClient) -> None:
    put(client, "processes.a")
    worker = place.start()
    until(lambda: len(place.notes("begun")) == 2, "two begun")
    (number, _, pid, _), (other, _, _, _) = place.notes("begun")
    os.kill(int(pid), signal.SIGKILL)
    until(lambda: len(place.notes("begun")) == 3, "another process continues")
    place.go()
    until(lambda: left(client) == (0, 0) and len(place.notes("done")) == ITEMS, "all is done")
    done = {tuple(note) for note in place.notes("done")}
    assert done == {(str(n), "2" if str(n) == number else "1") for n in range(ITEMS)}
    [again] = [note for note in place.notes("begun") if note[:2] == [number, "2"]]
    assert again[2] != pid
    assert "killed by SIGKILL" in again[3]
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 0, err
    assert other != number


def test_a_killed_worker_ends_its_processes_and_its_items_are_delivered_again(
    place: Workplace, client: SyncClient
) -> None:
    put(client, "processes.a", lease_ms=BRIEF_MS)
    worker = place.start()
    until(lambda: len(place.notes("begun")) == 2, "two begun")
    pids = [int(note[2]) for note in place.notes("begun")]
    worker.kill()
    until(lambda: all(map(is_gone, pids)), "its processes are gone")
    place.go()
    place.start()
    # An item whose lease ended while the machine stood still is done once more.
    until(lambda: left(client) == (0, 0) and len(items_done(place)) == ITEMS, "all is done")
    assert items_done(place) == {str(n) for n in range(ITEMS)}


def items_done(place: Workplace) -> set[str]:
    return {note[0] for note in place.notes("done")}


def test_a_second_signal_ends_the_worker_at_once_and_says_so(place: Workplace, client: SyncClient) -> None:
    put(client, "threads.a")
    worker = place.start()
    until(lambda: len(place.notes("begun")) == 2, "two begun")
    worker.send_signal(signal.SIGTERM)
    until(lambda: left(client)[1] == 2, "unstarted items are released")
    worker.send_signal(signal.SIGTERM)
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "Stopped at once" in err


def test_handlers_that_cannot_be_imported_are_reported_before_the_first_dequeue(
    place: Workplace, client: SyncClient
) -> None:
    put(client, "processes.a", 1)
    only_here = "import multiprocessing\nassert multiprocessing.parent_process() is None, 'not here'\n"
    (place.folder / "jobs.py").write_text(only_here + JOBS)
    worker = place.start()
    _, err = worker.communicate(timeout=60)
    assert worker.returncode == 1
    assert "No worker process can be started: jobs cannot be imported: AssertionError: not here." in err
    assert left(client) == (1, 0)
