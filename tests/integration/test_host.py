"""A host process from outside: how it starts, stops, waits, gives way to another host, and handles a full disk."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pymysql
import pytest

from foqs_client import Client, Delivery, Enqueued, FoqsError, Item, UnknownOutcome
from tests.support.aio import run
from tests.support.disk import small_disk
from tests.support.history import CallEnd, History, machine_clock_ms, read
from tests.support.item_account import in_flight
from tests.support.load_run import check_run, stop_and_drain
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import HOST, RestartableHost
from tests.support.recording_client import RecordingClient
from tests.support.tables import Tables, in_mariadb, in_sqlite
from tests.support.workload import Load, wall_ms

pytestmark = [pytest.mark.process]


@dataclass(slots=True, frozen=True)
class Place:
    """An empty store for hosts to share."""

    url: str
    tables: Tables
    hold: Callable[[], AbstractContextManager[None]]
    """Prevents all hosts from committing to shard 0 until the block ends."""
    held: Callable[[], bool]
    """Returns whether a host is inside a transaction."""
    ends_holders: bool
    """Whether a takeover ends such a transaction of another host. The lock of a SQLite file ends only with its process."""
    unlock: Callable[[], None]
    """Lets a second host start, as a folder in a network would whose locks reach one machine only."""


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


@pytest.fixture(params=["sqlite", pytest.param("mariadb", marks=pytest.mark.mysql)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return on_sqlite(tmp_path / "data")
    return on_mariadb(request.getfixturevalue("mariadb"))


long_on_sqlite = pytest.mark.parametrize(
    "place",
    [pytest.param("sqlite", marks=pytest.mark.long), pytest.param("mariadb", marks=pytest.mark.mysql)],
    indirect=True,
)
"""For stories in which the two stores differ by their fence alone, which tests/contract shows."""


def on_sqlite(folder: Path) -> Place:
    def files() -> list[Path]:
        return sorted(folder.glob("shard-*.db"))

    @contextmanager
    def hold() -> Iterator[None]:
        with closing(sqlite3.connect(files()[0], isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield

    def held() -> bool:
        for path in files():
            with closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as db:
                try:
                    db.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    return True
        return False

    return Place(
        f"sqlite:{folder}", in_sqlite(folder), hold, held, ends_holders=False, unlock=(folder / "host.lock").unlink
    )


def on_mariadb(server: MariaDb) -> Place:
    database = server.database()

    @contextmanager
    def locked(shards: Iterable[int], how: str) -> Iterator[None]:
        with closing(pymysql.connect(unix_socket=str(server.socket), user="root", database=database)) as connection:
            try:
                for shard in shards:
                    connection.cursor().execute(f"SELECT * FROM foqs_{shard}_owner FOR UPDATE {how}")
                yield
            finally:
                connection.rollback()  # the locks of a connection that is closed are there for a moment longer

    def held() -> bool:
        try:
            with locked(range(4), "NOWAIT"):
                return False
        except pymysql.err.OperationalError:
            return True

    url = f"mysql://root@127.0.0.1:{server.port}/{database}"
    return Place(
        url, in_mariadb(server, database), lambda: locked([0], ""), held, ends_holders=True, unlock=lambda: None
    )


# ----------------------------------------------------------------------- stopping


def test_a_stopping_host_answers_every_call_that_it_has_read(place: Place, tmp_path: Path) -> None:
    async def work(host: RestartableHost) -> tuple[list[Enqueued], list[Delivery]]:
        async with Client(host.address, timeout_ms=100_000) as client:
            with place.hold():
                calls = [asyncio.ensure_future(client.enqueue([Item("t", b"%d" % n)])) for n in range(30)]
                # Sent last on the same connection: when it waits, the host has read all others.
                poll = asyncio.ensure_future(client.dequeue({"empty": 1}, wait_ms=60_000))
                await asyncio.to_thread(until, lambda: gauge(host, "foqs_waiting_dequeues") == 1, "the long poll waits")
                host.signal(signal.SIGTERM)
                got = await poll
                assert not any(call.done() for call in calls)
            return [one for call in calls for one in await call], got

    tables = replace(place.tables, shards=range(1))
    # By default a flush that waits opens the breaker after two and a half seconds, and the calls are refused.
    options = {"store.shards": 1, "shard.breaker_latency_ms_max": 60_000}
    with RestartableHost(tmp_path / "host", place.url, options) as host:
        host.start()
        results, got = run(work(host))
        assert host.wait_for_exit() == 0
        assert got == []
        ids = {result.require() for result in results}
        assert {row["id"] for row in tables.rows()} == ids
        host.start()
        assert host.stop() == 0
        assert {row["id"] for row in tables.rows()} == ids


@long_on_sqlite
def test_a_host_that_restarts_under_load_answers_the_calls_in_flight(place: Place, tmp_path: Path) -> None:
    history = History(machine_clock_ms, source="load")
    stopped: list[float] = []

    async def work(host: RestartableHost) -> bool:
        load = Load(host.address, history, seed=1, patience_ms=60_000)
        load.start()
        for _ in range(3):
            await load.acked(50)
            # A connection that is not yet accepted when the host closes its port gets no reply.
            await asyncio.to_thread(until, lambda: gauge(host, "foqs_connections") == load.clients, "all are connected")
            stopped.append(machine_clock_ms())
            assert await asyncio.to_thread(host.stop) == 0
            host.launch()
        await load.acked(50)
        return await stop_and_drain(load, host, history)

    with RestartableHost(tmp_path / "host", place.url) as host:
        host.start()
        drained = run(work(host), timeout=100)
        assert host.stop() == 0
        check_run(history, place.tables, drained)
        record = read(history.events)
        under_way = [call for at_ms in stopped for call in in_flight(record, at_ms)]
        assert under_way
        assert not [call.name for call in under_way if call.end is CallEnd.UNKNOWN]


# ----------------------------------------------------------------------- starting


@pytest.mark.parametrize("option", ["port", "http_port"])
def test_a_taken_port_gives_one_sentence_and_exit_code_2(tmp_path: Path, option: str) -> None:
    with (
        RestartableHost(tmp_path / "one", f"sqlite:{tmp_path / 'one-data'}") as one,
        RestartableHost(tmp_path / "two", f"sqlite:{tmp_path / 'two-data'}", {f"server.{option}": one.port}) as two,
    ):
        one.start()
        two.launch()
        assert two.wait_for_exit() == 2
        sentence = f"Error: {two.config}: server.{option}: Port {one.port} on 127.0.0.1 is in use by another process"
        assert two.log.startswith(sentence)
        assert f"server.{option}" in two.log
        assert len(two.log.splitlines()) == 1
        assert not (tmp_path / "two-data").exists()


def test_a_file_of_a_newer_program_is_refused_with_the_reason(tmp_path: Path) -> None:
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}") as host:
        host.start()
        assert host.stop() == 0
        with closing(sqlite3.connect(tmp_path / "data" / "shard-2.db")) as db:
            db.execute("PRAGMA user_version = 999")
        before = host.log
        host.launch()
        assert host.wait_for_exit() == 1
        logged = host.log.removeprefix(before)
        assert "shard-2.db" in logged
        assert "999" in logged
        assert "Traceback" not in logged


@pytest.mark.mysql
def test_tables_of_a_newer_program_are_refused_with_the_reason(tmp_path: Path, mariadb: MariaDb) -> None:
    database = mariadb.database()
    with RestartableHost(tmp_path / "host", f"mysql://root@127.0.0.1:{mariadb.port}/{database}") as host:
        host.start()
        assert host.stop() == 0
        mariadb.query(f"UPDATE {database}.foqs_schema SET version = 999 WHERE shard = 1")
        before = host.log
        host.launch()
        assert host.wait_for_exit() == 1
        logged = host.log.removeprefix(before)
        assert "shard 1" in logged
        assert "999" in logged
        assert "Traceback" not in logged


@pytest.mark.mysql
def test_a_host_waits_for_its_database_and_says_so(tmp_path: Path) -> None:
    server = MariaDb()
    try:
        server.start()
        database = server.database()
        server.stop()
        with RestartableHost(tmp_path / "host", f"mysql://root@127.0.0.1:{server.port}/{database}") as host:
            alive: list[int] = []

            def says(status: int, words: str) -> bool:
                assert host.is_running
                live, ready = host.get("/livez"), host.get("/readyz")
                alive.extend([live[0]] if live else [])
                return ready is not None and ready[0] == status and words in ready[1]

            host.launch()
            until(lambda: says(503, f"127.0.0.1:{server.port}"), "the host names the database that it waits for")
            with pytest.raises(FoqsError, match="UNAVAILABLE"):
                run(enqueue_one(host)).require()
            server.start()
            until(lambda: says(200, ""), "the host is ready")
            assert run(enqueue_one(host, timeout_ms=30_000)).require()
            server.kill9()
            until(lambda: says(503, f"127.0.0.1:{server.port}"), "the host says that its database is gone")
            server.start()
            until(lambda: says(200, ""), "the host is ready again")
            assert set(alive) == {200}
            assert host.stop() == 0
    finally:
        server.remove()


async def enqueue_one(host: RestartableHost, timeout_ms: int = 3_000) -> Enqueued:
    async with Client(host.address) as client:
        [result] = await client.enqueue([Item("t", b"one")], timeout_ms=timeout_ms)
        return result


# -------------------------------------------------------------------- giving way


def test_a_second_host_on_the_same_folder_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with (
        RestartableHost(tmp_path / "first", f"sqlite:{tmp_path / 'data'}") as first,
        RestartableHost(tmp_path / "second", f"sqlite:{tmp_path / 'data'}") as second,
    ):
        first.start()
        second.launch()
        assert second.wait_for_exit() == 2
        assert f"{tmp_path / 'data'} is in use by the process {first.pid}" in second.log
        assert first.stop() == 0


def test_a_host_without_standard_streams_serves_and_stops(tmp_path: Path) -> None:
    command = ("sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', *HOST)
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", command=command) as host:
        host.start()
        run(put_one(host.address))
        assert host.stop() == 0


def test_only_the_user_of_a_host_may_use_its_files(tmp_path: Path) -> None:
    data = tmp_path / "data"
    shell = ("sh", "-c", 'umask 000; exec "$@"', "sh", *HOST)
    with RestartableHost(tmp_path / "host", f"sqlite:{data}", {"coordinator.file": ""}, shell) as host:
        host.start()
        run(put_one(host.address))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.iterdir()}
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        assert {"shard-0.db", "shard-0.db-wal", "coordinator.json", "catalog.json", "host.lock"} <= set(modes)
        assert set(modes.values()) == {0o600}, modes


async def put_one(address: str) -> None:
    async with Client(address) as client:
        await client.pause_topic("other")
        [result] = await client.enqueue([Item("mail", b"private")])
        assert result.error is None


@long_on_sqlite
def test_the_first_of_two_hosts_on_the_same_shards_gives_way_and_nothing_is_lost(place: Place, tmp_path: Path) -> None:
    history = History(machine_clock_ms, source="load")

    async def work(first: RestartableHost, second: RestartableHost) -> bool:
        load = Load(f"{first.address},127.0.0.1:{second.port}", history, seed=2)
        load.start()
        await load.acked(100)
        place.unlock()
        await asyncio.to_thread(second.start)
        assert await asyncio.to_thread(first.wait_for_exit) == 1
        await load.acked(100)
        return await stop_and_drain(load, second, history)

    with (
        RestartableHost(tmp_path / "first", place.url) as first,
        RestartableHost(tmp_path / "second", place.url) as second,
    ):
        first.start()
        drained = run(work(first, second), timeout=100)
        assert_says_why(first)
        assert second.stop() == 0
        check_run(history, place.tables, drained)


@long_on_sqlite
def test_a_frozen_host_writes_nothing_when_it_wakes_after_a_takeover(place: Place, tmp_path: Path) -> None:
    history = History(machine_clock_ms, source="load")

    async def work(old: RestartableHost, new: RestartableHost) -> bool:
        load = Load(old.address, history, seed=3)
        load.start()
        await load.acked(100)
        await asyncio.to_thread(freeze, old, lambda: place.held() is place.ends_holders)
        async with Client(old.address) as client:
            zombie = RecordingClient(client, history, "client of the frozen host", wall_ms)
            late = [asyncio.ensure_future(zombie.enqueue([Item("mail", b"late %d" % n)])) for n in range(20)]
            late_acks = [asyncio.ensure_future(zombie.ack([lease])) for lease in list(load.leases)[-20:]]
            place.unlock()
            await asyncio.to_thread(new.start)
            await asyncio.to_thread(freeze, new, lambda: not place.held())
            before = await asyncio.to_thread(place.tables.image)
            old.thaw()
            assert await asyncio.to_thread(old.wait_for_exit) == 1
            outcomes = await asyncio.gather(*late, *late_acks, return_exceptions=True)
            assert await asyncio.to_thread(place.tables.image) == before
            new.thaw()
        assert codes(outcomes) <= {"NOT_OWNER", "UNKNOWN_OUTCOME", "UNAVAILABLE"}
        await load.stop()
        return await stop_and_drain(Load(new.address, history, seed=4), new, history)

    with (
        RestartableHost(tmp_path / "old", place.url) as old,
        RestartableHost(tmp_path / "new", place.url) as new,
    ):
        old.start()
        drained = run(work(old, new), timeout=100)
        assert_says_why(old)
        assert new.stop() == 0
        check_run(history, place.tables, drained)


def freeze(host: RestartableHost, when: Callable[[], bool]) -> None:
    """Freeze a host at a moment at which `when` holds."""
    host.freeze()
    while not when():
        host.thaw()
        host.freeze()


def codes(outcomes: list[object]) -> set[str]:
    """Return the error codes of calls with one item each."""
    found = set()
    for outcome in outcomes:
        if isinstance(outcome, list):
            [outcome] = [result.error for result in outcome]
        found.add(outcome.code if isinstance(outcome, FoqsError) else repr(outcome))
    return found


def assert_says_why(host: RestartableHost) -> None:
    assert "was taken over by another host" in host.log
    assert "run only one host on these shards" in host.log
    assert "Traceback" not in host.log


# --------------------------------------------------------------------- a full disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 6) as folder:
        yield folder


def test_a_full_disk_refuses_new_items_and_loses_none(disk: Path, tmp_path: Path) -> None:
    history = History(machine_clock_ms, source="load")
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(3 << 20))

    async def work(host: RestartableHost) -> bool:
        async with Client(host.address) as client:
            recording = RecordingClient(client, history, "client", wall_ms)
            await recording.enqueue([Item("sms", b"early %d" % n) for n in range(20)])
            leased = await recording.dequeue({"sms": 20}, lease_ms=60_000)
            refused = [await enqueue_until_refused(recording, n) for n in range(3)]
            assert all("make room" in error.message for error in refused), refused
            assert {error.code for error in refused} == {"UNAVAILABLE"}
            first = await recording.ack(leased[:10])
            # On a slow machine the transaction may still be in flight when the call times out.
            honest = {"", "UNAVAILABLE", "UNKNOWN_OUTCOME"}
            assert {outcome.error.code if outcome.error else "" for outcome in first} <= honest
            ballast.unlink()
            second = await recording.ack(leased)
            assert all(outcome.error is None for outcome in second)
            [result] = await recording.enqueue([Item("mail", b"there is room again")])
            assert result.require()
        return await stop_and_drain(Load(host.address, history, seed=5), host, history)

    with RestartableHost(tmp_path / "host", f"sqlite:{disk / 'data'}", {"store.shards": 1}) as host:
        host.start()
        drained = run(work(host), timeout=100)
        assert host.stop() == 0
        check_run(history, in_sqlite(disk / "data", 1), drained)


async def enqueue_until_refused(client: RecordingClient, turn: int) -> FoqsError:
    """Return the error of the first call that is refused. A slow machine may leave the outcome of two others unknown."""
    unknown = 0
    for number in range(2_000):
        payload = b"turn %d number %d " % (turn, number) + os.urandom(8_000)
        [result] = await client.enqueue([Item("mail", payload)], timeout_ms=4_000)
        unknown += isinstance(result.error, UnknownOutcome)
        if result.error is not None and (unknown > 2 or not isinstance(result.error, UnknownOutcome)):
            return result.error
    raise AssertionError("the disk never filled up")


# -------------------------------------------------------------------------- helpers


def gauge(host: RestartableHost, name: str) -> int:
    """Return a gauge of the host."""
    answer = host.get("/metrics")
    assert answer is not None
    [line] = [line for line in answer[1].splitlines() if line.startswith(f"{name} ")]
    return int(float(line.split()[1]))
