"""A real MariaDB with faults under load: the host stays up, reports the fault, and recovers on its own.

Every test runs the same way: producers enqueue and consumers hold items during the
fault. After it the same process accepts and acks everything again, acknowledged
items are in the tables, and refused ones are not.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

import pymysql
import pytest

from foqs_client import Client, Delivery, FoqsError, Item
from tests.support.aio import run
from tests.support.disk import filled_disk, small_disk
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import RestartableHost, quick_host
from tests.support.tables import in_mariadb
from tests.support.workload import pause

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.timeout(180)]

SHARDS: Final = 2
PACE_S: Final = 0.01
USER: Final = "foqs"
"""A user without the right to write to a read-only server, as in production."""

WAITING: Final = (
    "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'INNODB_ROW_LOCK_CURRENT_WAITS'"
)
"""Return the number of transactions that wait for a row."""

OPTIONS: Final[Mapping[str, Any]] = {
    "store.shards": SHARDS,
    "shard.breaker_latency_ms_max": 500,
}
"""A transaction without a reply opens the breaker after two and a half seconds. A busy disk delays one for less."""
PATIENT: Final = {"shard.breaker_latency_ms_max": 2_000}
"""The breaker opens after ten seconds, so that a machine that stalls does not open the other shard's breaker."""
LESS_PATIENT: Final = {"shard.breaker_latency_ms_max": 800}
"""The breaker opens after four seconds: the database limits a wait for a lock to five."""
SOON: Final = {"breaker_window_ms": 2_000, "breaker_reset_ms": 500}
"""The breaker judges the last two seconds, and tries the database twice a second."""
NEVER: Final = {**SOON, "breaker_flushes_min": 10_000}


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb()
    server.start()
    server.query(f"CREATE USER {USER}@'%'")
    yield server
    server.remove()


class Trial:
    """One host on one database, and load on it."""

    def __init__(
        self,
        folder: Path,
        server: MariaDb,
        payload_bytes: int = 20,
        options: Mapping[str, Any] = MappingProxyType({}),
        constants: Mapping[str, Any] = SOON,
    ) -> None:
        self.server = server
        self.database = server.database()
        server.query(f"GRANT ALL ON {self.database}.* TO {USER}@'%'")
        self.host = RestartableHost(
            folder,
            f"mysql://{USER}@127.0.0.1:{server.port}/{self.database}",
            {**OPTIONS, **options},
            quick_host(shard=constants),
        )
        self.written: dict[str, bytes] = {}
        """The payloads of acknowledged items by id."""
        self.failed: dict[bytes, FoqsError] = {}
        """The errors of the other payloads."""
        self.held: list[Delivery] = []
        """The deliveries that are leased during the whole test."""
        self._payload_bytes = payload_bytes
        self._stopping = False

    def __enter__(self) -> Self:
        self.host.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.host.__exit__(kind, error, trace)

    def play(self, trouble: Callable[[Trial, Client], Awaitable[None]]) -> None:
        """Run the test. `trouble` begins the fault and ends it."""
        pid = self.host.pid
        run(self._play(trouble), timeout=150)
        assert self.host.pid == pid
        assert self.host.stop() == 0
        assert "Traceback" not in self.host.log
        tables = in_mariadb(self.server, self.database, SHARDS)
        present = {row["id"] for row in tables.rows()}
        assert set(self.written) - present == {seen.id for seen in self.held}
        assert len(present) == len(self.written) - len(self.held), "a refused item was written"

    async def _play(self, trouble: Callable[[Trial, Client], Awaitable[None]]) -> None:
        async with Client(self.host.address, automatic_keys=False) as client:
            producing = asyncio.ensure_future(self._produce(client))
            await self.more("01")
            while {seen.id[0] for seen in self.held} != {"0", "1"}:
                self.held += await client.dequeue({"t": 10}, wait_ms=5_000, lease_ms=600_000)
            await trouble(self, client)
            await self.more("01")
            outcomes = await client.ack(self.held, timeout_ms=30_000)
            assert [outcome.error for outcome in outcomes] == [None] * len(self.held)
            self._stopping = True
            await producing

    async def _produce(self, client: Client) -> None:
        """Start a call every few milliseconds, whether or not earlier calls have ended."""
        calls: list[asyncio.Future[None]] = []
        while not self._stopping:
            calls.append(asyncio.ensure_future(self._put(client, b"%d" % len(calls))))
            await pause(PACE_S)
        await asyncio.gather(*calls)

    async def _put(self, client: Client, payload: bytes) -> None:
        try:
            [result] = await client.enqueue([Item("t", payload.ljust(self._payload_bytes))], timeout_ms=60_000)
            self.written[result.require()] = payload
        except FoqsError as error:
            self.failed[payload] = error

    # ------------------------------------------------------------------- waiting

    async def more(self, shards: str, count: int = 1) -> None:
        """Wait until this many more items were written, all to these shards and some to each."""
        before = set(self.written)

        def found() -> set[str]:
            return set(self.written) - before

        await self.when(
            lambda: len(found()) >= count and {name[0] for name in found()} >= set(shards),
            f"shards {shards} take items",
        )
        if len(shards) < SHARDS:
            assert {name[0] for name in found()} == set(shards)

    async def open(self, *shards: int) -> None:
        """Wait until the breakers of these shards are open."""
        name = "foqs_shard_breaker_state"
        await self.when(
            lambda: all(self.metric(name, shard=str(shard), state="open") == 1 for shard in shards),
            f"the breakers of {shards} are open",
        )

    async def when(self, condition: Callable[[], bool], what: str) -> None:
        await asyncio.to_thread(until, condition, what, 60.0)

    # ------------------------------------------------------------------- looking

    def metric(self, name: str, **labels: str) -> float:
        """Return a metric of the host; 0 if there is none with these labels."""
        answer = self.host.get("/metrics")
        assert answer is not None
        wanted = name + "{" + ",".join([f'{label}="{value}"' for label, value in labels.items()]) + "} "
        return next((float(line.split()[-1]) for line in answer[1].splitlines() if line.startswith(wanted)), 0.0)

    def retries(self, shard: int) -> float:
        """Return the number of flushes that were run again."""
        return self.metric("foqs_flush_retries_total", shard=str(shard))

    @property
    def codes(self) -> set[str]:
        """The error codes of the items that were not written."""
        return {error.code for error in self.failed.values()}

    @contextmanager
    def root(self) -> Iterator[pymysql.cursors.Cursor]:
        """Yield a cursor of root in a transaction that is rolled back at the end."""
        connection = pymysql.connect(unix_socket=str(self.server.socket), user="root", database=self.database)
        with closing(connection), connection.cursor() as cursor:
            yield cursor


# --------------------------------------------------------------------- one shard


def test_a_locked_table_stops_one_shard_and_does_not_affect_the_other(tmp_path: Path, mariadb: MariaDb) -> None:
    async def locked(trial: Trial, client: Client) -> None:
        with trial.root() as cursor:
            cursor.execute("LOCK TABLES foqs_0_item WRITE")
            await trial.open(0)
            await trial.more("1")  # its reply follows those of the calls that failed when the breaker opened
            failed = len(trial.failed)
            await trial.more("1", 100)
            assert len(trial.failed) == failed, "who comes later is served by the other shard"
            outcomes = await client.ack([seen for seen in trial.held if seen.id[0] == "1"])
            assert not any(outcome.error for outcome in outcomes)

    with Trial(tmp_path / "host", mariadb, options=PATIENT) as trial:
        trial.play(locked)
        assert trial.codes <= {"UNAVAILABLE"}
        assert "shard 0: the circuit breaker is open" in trial.host.log
        assert "shard 1: the circuit breaker" not in trial.host.log


def test_a_lock_on_the_owner_row_stops_one_shard_and_does_not_affect_the_other(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    async def locked(trial: Trial, client: Client) -> None:
        with trial.root() as cursor:
            cursor.execute("SELECT * FROM foqs_0_owner FOR UPDATE")
            # Longer than the database lets a transaction wait for a lock.
            await trial.when(lambda: trial.retries(0) > 0, "the flush was refused and runs again")
            await trial.open(0)
            await trial.more("1", 100)
            assert trial.retries(1) == 0

    with Trial(tmp_path / "host", mariadb, options=LESS_PATIENT) as trial:
        trial.play(locked)
        assert trial.codes <= {"UNAVAILABLE"}
        assert "shard 0: the circuit breaker is open" in trial.host.log
        assert "shard 1: the circuit breaker" not in trial.host.log


def test_deadlocks_are_retried_without_an_error_to_any_caller(tmp_path: Path, mariadb: MariaDb) -> None:
    async def deadlock(trial: Trial, client: Client) -> None:
        """Root locks a row and then the owner row, the flush the other way. The one that has written less is the victim."""
        seen = next(seen for seen in trial.held if seen.id[0] == "0")
        for _ in range(5):
            retries = trial.retries(0)
            with trial.root() as cursor:
                cursor.execute("CREATE TABLE IF NOT EXISTS heavy (n INT) ENGINE = InnoDB")
                cursor.execute("INSERT INTO heavy SELECT seq FROM seq_1_to_20000")
                cursor.execute(f"SELECT * FROM foqs_0_item WHERE id = {seen.id.partition('-')[2]} FOR UPDATE")
                extending = asyncio.ensure_future(client.extend([seen], lease_ms=600_000, timeout_ms=30_000))
                await trial.when(lambda: mariadb.query(WAITING) == [("1",)], "the flush waits for the row")
                await asyncio.to_thread(cursor.execute, "SELECT * FROM foqs_0_owner FOR UPDATE")
            [outcome] = await extending
            assert outcome.error is None
            assert trial.retries(0) > retries

    with Trial(tmp_path / "host", mariadb, constants=NEVER) as trial:
        trial.play(deadlock)
        assert not trial.failed


# -------------------------------------------------------------------- the server


def test_calls_are_refused_at_once_while_the_server_hangs(tmp_path: Path, mariadb: MariaDb) -> None:
    async def frozen(trial: Trial, client: Client) -> None:
        mariadb.freeze()
        try:
            await trial.open(0, 1)
            failed = len(trial.failed)
            await trial.when(lambda: len(trial.failed) > failed + 20, "calls are refused at once")
        finally:
            mariadb.thaw()

    with Trial(tmp_path / "host", mariadb) as trial:
        trial.play(frozen)
        assert trial.codes == {"UNAVAILABLE"}


def test_a_host_needs_no_restart_after_its_server_was_down(tmp_path: Path, mariadb: MariaDb) -> None:
    async def away(trial: Trial, client: Client) -> None:
        mariadb.kill9()
        try:
            await trial.open(0, 1)
        finally:
            mariadb.start()

    with Trial(tmp_path / "host", mariadb) as trial:
        trial.play(away)
        assert trial.codes == {"UNAVAILABLE"}


def test_a_read_only_server_is_reported_and_needs_no_restart_of_the_host(tmp_path: Path, mariadb: MariaDb) -> None:
    async def read_only(trial: Trial, client: Client) -> None:
        mariadb.query("SET GLOBAL read_only = 1")
        try:
            await trial.open(0, 1)
        finally:
            mariadb.query("SET GLOBAL read_only = 0")

    with Trial(tmp_path / "host", mariadb) as trial:
        trial.play(read_only)
        assert trial.codes == {"UNAVAILABLE"}
        assert "it is read-only: point the URL at the primary" in trial.host.log


def test_a_server_that_returns_with_weak_durability_is_reported_and_used_once_it_is_fixed(
    tmp_path: Path, mariadb: MariaDb
) -> None:
    async def weak(trial: Trial, client: Client) -> None:
        setting = "innodb_flush_log_at_trx_commit"
        mariadb.kill9()
        mariadb.start(f"--{setting}=2")
        try:
            await trial.open(0, 1)
            written = len(trial.written)
            await trial.when(
                lambda: trial.host.log.count(f"{setting} is 2: set it to 1") >= SHARDS, "both shards say why"
            )
            assert len(trial.written) == written, "a write was acknowledged that the server may lose"
        finally:
            mariadb.query(f"SET GLOBAL {setting} = 1")

    with Trial(tmp_path / "host", mariadb) as trial:
        trial.play(weak)
        assert trial.codes == {"UNAVAILABLE"}


def test_a_full_disk_refuses_new_items_until_there_is_space(tmp_path: Path) -> None:
    async def full(trial: Trial, client: Client) -> None:
        with filled_disk(trial.server.folder / "disk"):
            await trial.open(0, 1)

    server = MariaDb()
    try:
        with small_disk(server.folder / "disk", 400) as disk:
            subprocess.run(["cp", "-a", server.folder / "data", disk], check=True)
            server.start(f"--datadir={disk / 'data'}")
            try:
                server.query(f"CREATE USER {USER}@'%'")
                with Trial(tmp_path / "host", server, payload_bytes=8_000) as trial:
                    trial.play(full)
                    assert trial.codes == {"UNAVAILABLE"}
                    assert any("make room" in error.message for error in trial.failed.values())
            finally:
                server.kill9()
    finally:
        server.remove()
