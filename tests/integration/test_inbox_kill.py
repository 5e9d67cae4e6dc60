"""Consumers with an inbox that are killed and frozen at each step, over a real host: each item's work is done once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from foqs_client import Item, SyncClient
from foqs_client.inbox import Pruned, prune
from tests.support.inbox_process import STEPS, TOPIC
from tests.support.mariadb import MariaDb
from tests.support.outbox_databases import Place, mysql_place, sqlite_place
from tests.support.poll import until
from tests.support.processes import RestartableHost

pytestmark = pytest.mark.process


class World:
    """A host, a user's database, and consumers."""

    def __init__(self, host: RestartableHost, place: Place, client: SyncClient) -> None:
        self.place = place
        self.client = client
        self._command = [sys.executable, "-m", "tests.support.inbox_process", host.address, place.url]
        self.wanted: list[str] = []

    def put(self, work: str) -> str:
        self.wanted.append(work)
        return self.client.enqueue([Item(TOPIC, work.encode(), lease_ms=1_000)])[0].require()

    def run(self, *how: str) -> int:
        return subprocess.run([*self._command, *how], timeout=120).returncode

    def start(self, *how: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self._command, *how])

    def attempts(self, id: str) -> int:
        return self.client.item(id).attempt

    def age_rows(self) -> None:
        self.place.query(f"UPDATE foqs_inbox SET done_ms = done_ms - {8 * 86_400_000}")

    def prune(self) -> Pruned:
        with closing(self.place.connect(True)) as connection:
            return prune(connection, self.client)

    @property
    def done(self) -> list[str]:
        return sorted(work for (work,) in self.place.query("SELECT work FROM effect"))


@contextmanager
def running(place: Place, folder: Path) -> Iterator[World]:
    for statement in ("CREATE TABLE effect (work VARCHAR(99))", "DROP TABLE orders"):
        place.query(statement)
    with RestartableHost(folder / "host", "memory:") as host:
        host.start()
        with SyncClient(host.address, timeout_ms=60_000) as client:
            yield World(host, place, client)


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mysql)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    is_sqlite = request.param == "sqlite"
    place = sqlite_place(tmp_path) if is_sqlite else mysql_place(request.getfixturevalue("mariadb"))
    with running(place.prepare(), tmp_path) as found:
        yield found


def test_work_is_done_once_although_consumers_die_at_each_step(world: World) -> None:
    for step in STEPS:
        world.put(step)
        world.put(f"{step} again")
        assert world.run(step) == -signal.SIGKILL
    assert world.run() == 0

    assert world.done == sorted(world.wanted)
    world.age_rows()
    assert world.prune() == Pruned(deleted=len(world.wanted))


@contextmanager
def stopped(consumer: subprocess.Popen[bytes]) -> Iterator[None]:
    """Wait until a consumer has stopped itself. It goes on afterwards."""
    try:
        _, status = os.waitpid(consumer.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        yield
    except BaseException:
        consumer.kill()
        raise
    consumer.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("step", ["dequeued", "inserted", "committed"])
def test_work_is_done_once_although_the_lease_ends_while_a_handler_works(world: World, step: str) -> None:
    id = world.put("frozen")
    first = world.start(step, "SIGSTOP")
    with stopped(first):
        second = world.start()
        if step == "inserted":
            until(lambda: world.attempts(id) > 1, "another consumer has the item, and waits for the first one")
        else:
            assert second.wait(60) == 0
    assert [first.wait(60), second.wait(60)] == [0, 0]

    assert world.done == ["frozen"]


def prune_by_time(world: World) -> None:
    world.place.query("DELETE FROM foqs_inbox")  # all rows are old


@pytest.mark.parametrize(
    ("prune_rows", "times"), [(World.prune, 1), (prune_by_time, 2)], ids=["by acks", "planted: by time alone"]
)
def test_consumers_that_are_away_for_longer_than_rows_are_kept(
    world: World, prune_rows: Callable[[World], Any], times: int
) -> None:
    world.put("away")
    assert world.run("committed") == -signal.SIGKILL
    world.age_rows()
    prune_rows(world)
    assert world.run() == 0

    assert world.done == ["away"] * times
