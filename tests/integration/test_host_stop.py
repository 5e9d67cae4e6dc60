"""A real host process stops in the order that its design page lists, and in time whatever its database does."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from foqs_client import Client, Enqueued, FoqsError, Item
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import RestartableHost
from tests.support.tables import in_mariadb

pytestmark = [pytest.mark.process, pytest.mark.mysql]

NO_BREAKER = {"shard.breaker_latency_ms_max": 60_000}
"""By default a flush without a reply opens the breaker after two and a half seconds, in which a slow machine does little."""
DOCUMENT = Path(__file__).parents[2] / "docs/design/durability-and-crashes.md"


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    yield server
    server.remove()


def url(server: MariaDb, database: str = "") -> str:
    return f"mysql://root@127.0.0.1:{server.port}/{database or server.database()}"


def until_quiet(server: MariaDb, database: str) -> None:
    """Wait until the key slots are written. A call that comes before waits behind that flush, and is in none itself."""
    tables = in_mariadb(server, database)
    until(lambda: all(flush for _, flush in tables.owners().values()), "the key slots are written")


@contextmanager
def frozen(server: MariaDb) -> Iterator[None]:
    """A server that accepts connections and never replies."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


def documented() -> list[str]:
    """Return the `step: reason` lines of the document."""
    section = DOCUMENT.read_text().split("\n## Stopping\n")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. (.*)$", section, re.MULTILINE)


def steps(host: RestartableHost) -> list[str]:
    """Return the steps of a stop from the host's log."""
    messages = [json.loads(line)["message"] for line in host.log.rpartition("\n")[0].splitlines()]
    return [found.removeprefix("stopping the ") for found in messages if found.startswith("stopping the ")]


def assert_every_line_is_an_event(host: RestartableHost) -> None:
    for line in host.log.splitlines():
        assert {"time", "level", "logger", "message"} <= json.loads(line).keys()


def listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_host_stops_in_the_documented_order(mariadb: MariaDb, tmp_path: Path) -> None:
    async def work(host: RestartableHost) -> Enqueued:
        async with Client(host.address) as client:
            with frozen(mariadb):
                call = asyncio.ensure_future(client.enqueue([Item("t", b"x")], timeout_ms=100_000))
                poll = asyncio.ensure_future(client.dequeue({"nothing": 1}, wait_ms=60_000, timeout_ms=100_000))
                await asyncio.to_thread(until, lambda: waiting(host) == 1, "the long poll waits")
                host.signal(signal.SIGTERM)
                await asyncio.to_thread(until, lambda: not listens(host.port), "the listener is closed")
                assert await poll == []
                await asyncio.to_thread(until, lambda: len(steps(host)) == 8, "calls in flight are waited for")
                assert not call.done()
                live = await asyncio.to_thread(host.get, "/livez")
                assert live is not None
                assert live[0] == 200
            [result] = await call
            return result

    database = mariadb.database()
    options = {"server.stop_timeout_ms": 60_000, **NO_BREAKER}
    with RestartableHost(tmp_path / "host", url(mariadb, database), options) as host:
        host.start()
        until_quiet(mariadb, database)
        assert run(work(host), timeout=100).require()
        assert host.wait_for_exit() == 0
        assert steps(host) == documented()
        assert_every_line_is_an_event(host)
        assert "Traceback" not in host.log


def test_a_host_with_a_hanging_database_stops_in_time(mariadb: MariaDb, tmp_path: Path) -> None:
    async def work(host: RestartableHost) -> None:
        async with Client(host.address, automatic_keys=False) as client:
            # Without a key, so that the client does not repeat it.
            call = asyncio.ensure_future(client.enqueue([Item("t", b"x")], timeout_ms=100_000))
            poll = asyncio.ensure_future(client.dequeue({"nothing": 1}, wait_ms=60_000, timeout_ms=100_000))
            await asyncio.to_thread(until, lambda: waiting(host) == 1, "the calls are there")
            host.signal(signal.SIGTERM)
            assert await poll == []
            try:
                [result] = await call
            except FoqsError as error:
                assert error.code == "UNKNOWN_OUTCOME"
            else:
                assert result.error is not None
                assert result.error.code == "UNKNOWN_OUTCOME"
            assert await asyncio.to_thread(host.wait_for_exit) == 0

    patience = {
        "server.stop_timeout_ms": 300,
        "store.statement_timeout_ms": 600_000,
        **NO_BREAKER,
    }
    database = mariadb.database()
    with RestartableHost(tmp_path / "host", url(mariadb, database), patience) as host:
        host.start()
        until_quiet(mariadb, database)
        with frozen(mariadb):
            run(work(host), timeout=60)
        assert steps(host) == documented()
        assert_every_line_is_an_event(host)
        assert "Traceback" not in host.log


def test_a_host_that_never_reached_its_database_stops(mariadb: MariaDb, tmp_path: Path) -> None:
    with RestartableHost(tmp_path / "host", url(mariadb), {"server.stop_timeout_ms": 300}) as host, frozen(mariadb):
        host.launch()
        until(lambda: host.get("/livez") is not None, "the host is alive")
        assert host.stop() == 0
        assert steps(host) == documented()
        assert_every_line_is_an_event(host)


def waiting(host: RestartableHost) -> int:
    """Return the number of long polls that wait."""
    answer = host.get("/metrics")
    found = answer and re.search(r"^foqs_waiting_dequeues (\d+)", answer[1], re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_host_that_waits_for_zookeeper_stops_on_a_signal(mariadb: MariaDb, tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        options = {"cluster.zookeeper": f"127.0.0.1:{silent.getsockname()[1]}", "databases.main.url": url(mariadb)}
        with RestartableHost(tmp_path, "sqlite:unused", options) as host:
            host.launch()
            connection, _ = silent.accept()  # it requests a session and gets no reply
            with connection:
                assert host.stop() == 0
            assert "stopped before any shard was served" in host.log
            assert "Traceback" not in host.log


def test_a_stopped_host_ends_although_a_name_is_still_being_looked_up() -> None:
    """A thread of the event loop that does not end stands for the resolver: neither can be cancelled."""
    code = """
import asyncio, sys, threading
import foqs.host_run
async def serve(config, on_ready, constants):
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    return 7
foqs.host_run.serve = serve
sys.exit(foqs.host_run.run_host(None))
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 7
