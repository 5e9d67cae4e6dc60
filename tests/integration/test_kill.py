"""kill -9 of hosts and of their database at random moments under load breaks no guarantee.

The tests look only at the clients' records and at the tables at the end.
The seed of a run is printed; FOQS_TEST_SEED sets it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.support.aio import run
from tests.support.history import Call, CallEnd, History, Record, machine_clock_ms, read
from tests.support.item_account import in_flight
from tests.support.load_run import check_run, stop_and_drain
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import MYSQL9_IF_LONG, running
from tests.support.processes import RestartableHost
from tests.support.tables import Tables, in_mariadb, in_sqlite
from tests.support.workload import FAR_TOPIC, Load, pause

pytestmark = [pytest.mark.process, pytest.mark.timeout(480)]

HOST_KILLS = 10
DATABASE_KILLS = 5
ACKED_BETWEEN_KILLS_MIN = 30
ACKED_BETWEEN_KILLS_MAX = 150


@pytest.fixture
def seed() -> int:
    number = int(os.environ.get("FOQS_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"FOQS_TEST_SEED={number}")
    return number


@pytest.fixture(scope="module", params=MYSQL9_IF_LONG)
def server(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    """MariaDB, then MySQL 9."""
    with running(request.param) as server:
        yield server


def test_a_host_on_sqlite_may_be_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}") as host:
        host.start()
        kill_under_load(host, in_sqlite(tmp_path / "data"), seed, HOST_KILLS, host.kill9, host.launch)


@pytest.mark.mysql
def test_a_host_on_a_server_may_be_killed_at_any_moment(tmp_path: Path, server: MariaDb, seed: int) -> None:
    database = server.database()
    with RestartableHost(tmp_path / "host", f"mysql://root@127.0.0.1:{server.port}/{database}") as host:
        host.start()
        kill_under_load(host, in_mariadb(server, database), seed, HOST_KILLS, host.kill9, host.launch)


def test_the_database_may_be_killed_at_any_moment(tmp_path: Path, server: MariaDb, seed: int) -> None:
    database = server.database()
    with RestartableHost(tmp_path / "host", f"mysql://root@127.0.0.1:{server.port}/{database}") as host:
        host.start()
        pid = host.pid
        kill_under_load(host, in_mariadb(server, database), seed, DATABASE_KILLS, server.kill9, server.start, 1.5)
        assert host.pid == pid, "the host was to stay up"


def kill_under_load(
    host: RestartableHost,
    tables: Tables,
    seed: int,
    kills: int,
    kill: Callable[[], None],
    revive: Callable[[], None],
    away_s_max: float = 0,
    *,
    acked_between: tuple[int, int] = (ACKED_BETWEEN_KILLS_MIN, ACKED_BETWEEN_KILLS_MAX),
    timeout_s: float = 400,
    ready: Callable[[], None] = lambda: None,
    settle: Callable[[], None] = lambda: None,
) -> None:
    """Kill under load, revive, drain, stop the host and check the whole history.

    `kill` comes at any moment after `ready` has returned; `revive` follows after up to `away_s_max` seconds, mostly at
    once. `settle` follows the stop and leads to tables whose rows are all items.
    """
    history = History(machine_clock_ms, source="load")
    rng = Random(seed)
    killed: list[tuple[float, float]] = []

    async def work() -> bool:
        load = Load(host.address, history, seed)
        load.start()
        for _ in range(kills):
            await load.acked(rng.randint(*acked_between))
            await asyncio.to_thread(ready)
            await pause(rng.uniform(0, 0.03))
            began_ms = machine_clock_ms()
            await asyncio.to_thread(kill)
            killed.append((began_ms, machine_clock_ms()))
            await pause(rng.choice((0, 0, 0.2, 1)) * away_s_max)
            await asyncio.to_thread(revive)
        await load.acked(ACKED_BETWEEN_KILLS_MIN)
        return await stop_and_drain(load, host, history)

    drained = run(work(), timeout=timeout_s)
    assert host.stop() == 0
    settle()
    found = check_run(history, tables, drained)
    assert found.exact > found.acknowledged / 2, "too few items of which all is known"
    record = read(history.events)
    assert record.present is not None
    assert any(row["topic"] == FAR_TOPIC for row in record.present.values()), "no item was for much later"
    hit = [len(interrupted(record, *moment)) for moment in killed]
    assert sum(map(bool, hit)) > len(hit) / 2, f"most kills interrupted nothing: {hit}"


def interrupted(record: Record, began_ms: float, dead_ms: float) -> list[Call]:
    """Return the calls that were in flight at a kill and had no reply when the process was dead."""
    return [
        call
        for call in in_flight(record, began_ms)
        if call.end is CallEnd.UNKNOWN or (call.returned is not None and call.returned.at_ms >= dead_ms)
    ]
