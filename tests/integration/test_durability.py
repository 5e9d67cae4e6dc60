"""A reply means that the commit is on disk.

A killed process never loses the bytes in the page cache, so kill -9 proves nothing
here. Instead the system calls of the host and of its database show that the log was
synced after it was written and before the first byte of the reply was sent. The same
check fails for a host or a database that does not wait for the disk.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import pytest

from foqs.dev.server_process import temporary_folder
from foqs_client import Client, Item
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import BOTH, MYSQL9_IF_LONG, running
from tests.support.poll import until
from tests.support.processes import RestartableHost, quick_host
from tests.support.tables import Tables, in_mariadb, in_sqlite
from tests.support.trace import Exchange, Step, Trace, exchanges, not_on_disk, parse

pytestmark = [pytest.mark.process]

WAL: Final = "/shard-0.db-wal"
REDO: Final = {"mariadb": "/ib_logfile0", "mysql9": "/#ib_redo"}
"""A part of the path of a server's log."""
COMMIT: Final = r"\3COMMIT"
ROUNDS: Final = 3
QUIET: Final = {"store.shards": 1, "shard.breaker_latency_ms_max": 60_000}
PATIENT_HOST: Final = quick_host(shard={"sweep_interval_ms": 600_000}, calls={"delivery_wait_ms_max": 60_000})
"""One log, written only by the calls of the test. A dequeue waits for its commit, however slow, and never replies
without items, as such a reply would follow no sync."""
UNSAFE_HOST: Final = (sys.executable, "-m", "tests.support.unsafe_store")
SYNC_S: Final = 2_700
"""A server that does not sync at commit syncs after this time, the longest that it accepts, and not once a second: a
machine that is slow may need a second for each call."""


@pytest.fixture(autouse=True)
def servers_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the servers folders on a disk: MariaDB syncs no log that is in memory."""
    monkeypatch.setattr("foqs.dev.server_process.temporary_folder", temporary_folder)


async def work(host: RestartableHost) -> None:
    """Enqueue, dequeue and ack some items, call by call."""
    async with Client(host.address, timeout_ms=60_000) as client:
        for number in range(ROUNDS):
            [made] = await client.enqueue([Item("t", b"payload %d" % number, lease_ms=60_000)])
            made.require()
            [got] = await client.dequeue({"t": 1}, wait_ms=30_000)
            [outcome] = await client.ack([got])
            outcome.require()


def until_quiet(tables: Tables) -> None:
    """Wait until the key slots are written, after which only calls write."""
    until(lambda: all(flush for _, flush in tables.owners().values()), "the key slots are written")


def calls(steps: list[Step], host: RestartableHost) -> list[Exchange]:
    """Return the exchanges of every enqueue, dequeue and ack."""
    found = [
        each for name in ("enqueue", "dequeue", "ack") for each in exchanges(steps, host.port, rf"\{len(name)}{name}\0")
    ]
    assert len(found) == 3 * ROUNDS
    return found


# ------------------------------------------------------------------------- SQLite


def traced_on_sqlite(tmp_path: Path, command: tuple[str, ...]) -> list[str | None]:
    with RestartableHost(tmp_path / "host", f"sqlite:{tmp_path / 'data'}", QUIET, command) as host:
        host.start()
        until_quiet(in_sqlite(tmp_path / "data", 1))
        with Trace([host.pid], tmp_path / "trace") as trace:
            run(work(host))
        assert host.stop() == 0
        return [not_on_disk(trace.steps, each, WAL) for each in calls(trace.steps, host)]


def test_a_host_on_sqlite_replies_after_the_sync_of_its_log(tmp_path: Path) -> None:
    assert traced_on_sqlite(tmp_path, PATIENT_HOST) == [None] * 3 * ROUNDS


def test_a_host_that_does_not_sync_its_log_is_found(tmp_path: Path) -> None:
    for problem in traced_on_sqlite(tmp_path, UNSAFE_HOST):
        assert problem is not None
        assert "not synced after the last" in problem


# ------------------------------------------------------------- MariaDB and MySQL 9


def traced_on_server(tmp_path: Path, server: MariaDb, *, unsafe: bool) -> list[str | None]:
    database = server.database()
    url = f"mysql://root@127.0.0.1:{server.port}/{database}"
    with RestartableHost(tmp_path / "host", url, {**QUIET, "store.unsafe_durability": unsafe}, PATIENT_HOST) as host:
        host.start()
        until_quiet(in_mariadb(server, database, 1))
        with Trace([host.pid, server.pid], tmp_path / "trace") as trace:
            run(work(host))
        assert host.stop() == 0
        steps = trace.steps
        commits = exchanges(steps, server.port, COMMIT)
        return [committed_on_disk(steps, each, commits, REDO[server.name]) for each in calls(steps, host)]


def committed_on_disk(steps: list[Step], call: Exchange, commits: list[Exchange], log: str) -> str | None:
    """Do the same as `not_on_disk` for the COMMIT of a call, and check that the reply follows its OK.

    The host may have the OK and reply before the server's send of it returns.
    """
    within = [each for each in commits if call.asked.begin < each.asked.begin < call.answered.begin]
    assert within, "the host replied without a COMMIT"
    assert all(commit.answered.begin < call.answered.begin for commit in within), "the host replied too early"
    return next((problem for commit in within if (problem := not_on_disk(steps, commit, log))), None)


@pytest.mark.parametrize("kind", BOTH)
def test_a_host_on_a_server_replies_after_the_sync_of_the_redo_log(tmp_path: Path, kind: str) -> None:
    with running(kind) as server:
        assert traced_on_server(tmp_path, server, unsafe=False) == [None] * 3 * ROUNDS


@pytest.mark.parametrize("kind", MYSQL9_IF_LONG)
@pytest.mark.parametrize("level", [0, 2])
def test_a_server_that_does_not_sync_at_commit_is_found_by_the_trace_and_by_the_host(
    tmp_path: Path, level: int, kind: str
) -> None:
    options = (f"--innodb-flush-log-at-trx-commit={level}", f"--innodb-flush-log-at-timeout={SYNC_S}")
    with running(kind, *options) as server:
        found = traced_on_server(tmp_path, server, unsafe=True)
        # It may sync for another reason, such as a checkpoint.
        assert sum(problem is not None for problem in found) >= len(found) - 1
        with RestartableHost(
            tmp_path / "refusing", f"mysql://root@127.0.0.1:{server.port}/{server.database()}"
        ) as host:
            host.launch()
            assert host.wait_for_exit() == 1
            assert f"innodb_flush_log_at_trx_commit is {level}" in host.log
            assert "--unsafe-durability" in host.log
            assert "Traceback" not in host.log


# ------------------------------------------------- the check of the trace itself

ASKED: Final = r'1 read(5<TCP:[127.0.0.1:70->127.0.0.1:9]>, "\0\7enqueue\0", 99) = 12'
WROTE: Final = rf'2 pwrite64(6</d{WAL}>, "x", 1, 0) = 1'
SYNCED: Final = f"2 fdatasync(6</d{WAL}>) = 0"
REPLIED: Final = r'1 write(5<TCP:[127.0.0.1:70->127.0.0.1:9]>, "ok", 2) = 2'


def look(*lines: str) -> str | None:
    steps = list(parse(lines))
    [call] = exchanges(steps, 70, r"\7enqueue\0")
    return not_on_disk(steps, call, WAL)


def test_a_sync_between_the_last_write_and_the_reply_is_enough() -> None:
    assert look(ASKED, WROTE, SYNCED, REPLIED) is None
    begun, resumed = f"2 fdatasync(6</d{WAL}> <unfinished ...>", "2 <... fdatasync resumed>) = 0"
    assert look(ASKED, WROTE, begun, resumed, REPLIED) is None


def test_writes_of_another_thread_do_not_matter() -> None:
    own_write, own_sync = WROTE.replace("2 ", "1 ", 1), SYNCED.replace("2 ", "1 ", 1)
    assert look(ASKED, own_write, own_sync, WROTE, REPLIED) is None
    assert look(ASKED, WROTE, SYNCED, own_write, REPLIED) is not None


@pytest.mark.parametrize(
    "lines",
    [
        (ASKED, WROTE, REPLIED),
        (ASKED, SYNCED, REPLIED),
        (ASKED, SYNCED, WROTE, REPLIED),
        (ASKED, WROTE, REPLIED, SYNCED),
        (ASKED, WROTE, SYNCED, WROTE, REPLIED),
        (WROTE, SYNCED, ASKED, REPLIED),
        (ASKED, WROTE, f"2 fdatasync(6</d{WAL}> <unfinished ...>", REPLIED, "2 <... fdatasync resumed>) = 0"),
        (ASKED, WROTE, f"2 fdatasync(6</d{WAL}>) = -1 EIO (Input/output error)", REPLIED),
        (ASKED, WROTE, "2 fdatasync(7</d/other.db-wal>) = 0", REPLIED),
        (ASKED, f'2 pwrite64(6</d{WAL}>, "x", 1, 0 <unfinished ...>', SYNCED, "2 <... pwrite64 resumed>) = 1", REPLIED),
    ],
)
def test_any_other_order_is_found(lines: tuple[str, ...]) -> None:
    assert look(*lines) is not None
