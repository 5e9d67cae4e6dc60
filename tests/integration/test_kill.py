"""kill -9 at random moments, of hosts and of their database, under load: nothing that was promised is broken.

The clients' own records and the tables at the end are all that is looked at.
The seed of a run is printed; FOQS_TEST_SEED sets it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

from tests.support.aio import run
from tests.support.history import Call, End, History, Record, machine_clock_ms, read
from tests.support.ledger import in_flight
from tests.support.mariadb import MariaDb
from tests.support.processes import HostProcess
from tests.support.tables import Tables, in_mariadb, in_sqlite
from tests.support.trial import heal, judge
from tests.support.workload import FAR, Load, pause

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

HOST_KILLS = 20
DATABASE_KILLS = 5
ACKED_BETWEEN_KILLS_MIN = 30

Strike: TypeAlias = Callable[[], Awaitable[None]]
"""Kills something and starts it again, or begins to."""


@pytest.fixture
def seed() -> int:
    number = int(os.environ.get("FOQS_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"FOQS_TEST_SEED={number}")
    return number


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


def test_a_host_on_sqlite_may_be_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    with HostProcess(tmp_path / "host", f"sqlite:{tmp_path / 'data'}") as host:
        host.start()
        kill_under_load(host, in_sqlite(tmp_path / "data"), seed, HOST_KILLS, again(host))


@pytest.mark.mysql
def test_a_host_on_mariadb_may_be_killed_at_any_moment(tmp_path: Path, mariadb: MariaDb, seed: int) -> None:
    database = mariadb.database()
    with HostProcess(tmp_path / "host", f"mysql://root@127.0.0.1:{mariadb.port}/{database}") as host:
        host.start()
        kill_under_load(host, in_mariadb(mariadb, database), seed, HOST_KILLS, again(host))


@pytest.mark.mysql
def test_the_database_may_be_killed_at_any_moment(tmp_path: Path, mariadb: MariaDb, seed: int) -> None:
    database = mariadb.database()
    away = Random(seed)

    async def strike() -> None:
        await asyncio.to_thread(mariadb.kill9)
        await pause(away.choice((0, 0.3, 1.5)))
        await asyncio.to_thread(mariadb.start)

    with HostProcess(tmp_path / "host", f"mysql://root@127.0.0.1:{mariadb.port}/{database}") as host:
        host.start()
        pid = host.pid
        kill_under_load(host, in_mariadb(mariadb, database), seed, DATABASE_KILLS, strike)
        assert host.pid == pid, "the host was to stay up"


def again(host: HostProcess) -> Strike:
    """Kills a host and starts it on the same port."""

    async def strike() -> None:
        await asyncio.to_thread(host.kill9)
        host.launch()

    return strike


def kill_under_load(host: HostProcess, tables: Tables, seed: int, kills: int, strike: Strike) -> None:
    """Strikes under load, heals, drains, stops the host and judges the whole history."""
    history = History(machine_clock_ms, source="load")
    struck, drained = run(work(host, history, seed, kills, strike), timeout=200)
    assert host.stop() == 0
    found = judge(history, tables, drained)
    assert found.exact > found.acknowledged / 2, "too few items of which all is known"
    record = read(history.events)
    assert record.present is not None
    assert any(row["topic"] == FAR for row in record.present.values()), "no item was for much later"
    hit = [len(interrupted(record, *times)) for times in struck]
    assert sum(map(bool, hit)) > len(hit) / 2, f"most kills interrupted nothing: {hit}"


async def work(
    host: HostProcess, history: History, seed: int, kills: int, strike: Strike
) -> tuple[list[tuple[float, float]], bool]:
    """When each kill began and was over, and whether everything could be drained in the end."""
    rng = Random(seed)
    load = Load(host.address, history, seed)
    struck: list[tuple[float, float]] = []
    load.start()
    for _ in range(kills):
        await load.acked(rng.randint(ACKED_BETWEEN_KILLS_MIN, 150))
        await pause(rng.uniform(0, 0.03))
        began = machine_clock_ms()
        await strike()
        struck.append((began, machine_clock_ms()))
    await load.acked(ACKED_BETWEEN_KILLS_MIN)
    return struck, await heal(load, host, history)


def interrupted(record: Record, began_ms: float, over_ms: float) -> list[Call]:
    """The calls that were under way at a kill and were not answered before it was over."""
    return [
        call
        for call in in_flight(record, began_ms)
        if call.end is End.UNKNOWN or (call.returned is not None and call.returned.at_ms >= over_ms)
    ]
