"""Faults that only a server has: it dies, restarts, kills connections, becomes read-only, or has unsafe settings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from foqs.core.flush.fence import CommitOutcome, commit_outcome
from foqs.core.flush.writes import LeaseUpdate, Writes
from foqs.core.items.item import TIME_MS_MAX, State
from foqs.store.mysql import mysql_session_sql, mysql_store
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings, OnResults
from foqs.store.mysql.mysql_protocol import Result
from foqs.store.mysql.mysql_rows import decode_processes
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import (
    FAULT_POINTS,
    DueRow,
    Store,
    StoreLost,
    StoreUnusable,
    WriteRefused,
)
from foqs.store.row_columns import ROW_COLUMNS
from tests.contract.conftest import Bench, mysql_bench
from tests.support.aio import run
from tests.support.inner_parts import link_of
from tests.support.mariadb import MariaDb
from tests.support.poll import soon
from tests.support.stores import NONCE, OTHER, contents, make_row, opened, reading

pytestmark = pytest.mark.mysql


class At:
    """A hook that runs an action once at a point, when armed. It blocks the loop, as a slow network would."""

    def __init__(self, point: str, action: Callable[[], None]) -> None:
        self._point = point
        self._action = action
        self.armed = False

    def __call__(self, point: str) -> None:
        if self.armed and point == self._point:
            self.armed = False
            self._action()


@pytest.fixture
def bench(place: MysqlSettings) -> Bench:
    return mysql_bench(place)


def test_new_tables_have_the_columns_of_a_row(bench: Bench) -> None:
    listed = ", ".join(f"{column.name} {column.mysql}" for column in ROW_COLUMNS)
    names = "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT FROM information_schema.COLUMNS"
    here = "WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME ="

    async def story() -> None:
        link = link_of((await opened(bench.store())).store)
        await link.run(f"CREATE TABLE listed ({listed})".encode())
        found, expected = await link.run(*[f"{names} {here} '{table}'".encode() for table in ("foqs_3_item", "listed")])
        assert sorted(map(repr, found.rows)) == sorted(map(repr, expected.rows))

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_server_killed_at_a_point_and_restarted_keeps_exactly_what_committed(own_mariadb: MariaDb, point: str) -> None:
    place = own_mariadb.settings(own_mariadb.database())
    crash = At(point, own_mariadb.kill9)
    bench = mysql_bench(place)

    async def story() -> None:
        owned = await opened(bench.store(faults=crash))
        await owned.write(inserts=[make_row(1), make_row(2)])
        fence = owned.fence
        crash.armed = True
        if point == "committed":
            await owned.write(inserts=[make_row(3)], deletes=[1])
            with pytest.raises(StoreLost):
                await owned.store.now_ms()
        else:
            with pytest.raises(StoreLost):
                await owned.write(inserts=[make_row(3)], deletes=[1])
        with pytest.raises(StoreLost):
            await owned.store.read_owner()
        await asyncio.to_thread(own_mariadb.start)
        outcome = commit_outcome(fence, await owned.store.read_owner())
        assert outcome is (CommitOutcome.COMMITTED if point == "committed" else CommitOutcome.NOT_COMMITTED)
        assert set(await contents(owned)) == ({2, 3} if point == "committed" else {1, 2})
        owned.number = fence.flush + (outcome is CommitOutcome.COMMITTED)
        await owned.write(inserts=[make_row(4)])

    bench.run(story(), timeout=120)


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_killed_connection_is_lost_and_resolved(bench: Bench, mariadb: MariaDb, point: str) -> None:
    recorded: list[int] = []

    def kill() -> None:
        for number in recorded:
            mariadb.query(f"KILL {number}")

    killing = At(point, kill)

    async def story() -> None:
        owned = await opened(bench.store(faults=killing))
        recorded.append((await owned.store.read_owner()).connection)
        await owned.write(inserts=[make_row(1)])
        fence = owned.fence
        killing.armed = True
        if point == "committed":
            await owned.write(inserts=[make_row(2)])
            with pytest.raises(StoreLost):
                await owned.store.topics()
        else:
            with pytest.raises(StoreLost):
                await owned.write(inserts=[make_row(2)])
        assert (commit_outcome(fence, await owned.store.read_owner()) is CommitOutcome.COMMITTED) is (
            point == "committed"
        )
        assert set(await contents(owned)) == ({1, 2} if point == "committed" else {1})

    bench.run(story())


def test_read_only_server_is_lost_until_it_writes_again(own_mariadb: MariaDb) -> None:
    database = own_mariadb.database()
    own_mariadb.query("CREATE USER plain@localhost")
    own_mariadb.query(f"GRANT ALL ON {database}.* TO plain@localhost")
    place = own_mariadb.settings(database, user="plain")
    bench = mysql_bench(place)

    async def story() -> None:
        owned = await opened(bench.store())
        own_mariadb.query("SET GLOBAL read_only = 1")
        with pytest.raises(StoreLost, match="read-only"):
            await owned.write(inserts=[make_row(1)])
        with pytest.raises(StoreLost):
            await owned.store.read_owner()
        own_mariadb.query("SET GLOBAL read_only = 0")
        assert (await owned.store.read_owner()).flush == 0
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


def test_server_that_came_back_with_weak_durability_gets_no_write_until_it_is_set_right(own_mariadb: MariaDb) -> None:
    place = own_mariadb.settings(own_mariadb.database())
    bench = mysql_bench(place)

    async def story() -> None:
        owned = await opened(bench.store())
        own_mariadb.kill9()
        own_mariadb.start("--innodb-flush-log-at-trx-commit=2")
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(1)])
        for _ in range(2):
            with pytest.raises(StoreLost, match="innodb_flush_log_at_trx_commit is 2: set it to 1"):
                await owned.store.read_owner()
            with pytest.raises(StoreLost):
                await owned.write(inserts=[make_row(1)])
        own_mariadb.query("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        assert (await owned.store.read_owner()).flush == 0
        await owned.write(inserts=[make_row(1)])
        assert set(await contents(owned)) == {1}

    bench.run(story())


def test_owner_of_a_weak_server_is_confirmed_where_the_loss_is_accepted(own_mariadb: MariaDb) -> None:
    place = own_mariadb.settings(own_mariadb.database(), unsafe_durability=True)
    bench = mysql_bench(place)

    async def story() -> None:
        own_mariadb.query("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        owned = await opened(bench.store())
        await owned.store.read_owner()
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


def test_sql_mode_that_became_weak_is_named_when_the_owner_reconnects(own_mariadb: MariaDb) -> None:
    bench = mysql_bench(own_mariadb.settings(own_mariadb.database()))

    async def story() -> None:
        owned = await opened(bench.store())
        own_mariadb.query("SET GLOBAL sql_mode = ''")
        with pytest.raises(StoreLost, match="sql_mode is ''"):
            await owned.store.read_owner()

    bench.run(story())


def test_read_only_server_is_refused_although_the_user_may_write_there(own_mariadb: MariaDb) -> None:
    """Other hosts never see writes on a replica or on a primary that was replaced."""
    bench = mysql_bench(own_mariadb.settings(own_mariadb.database(), user="root"))

    async def story() -> None:
        owned = await opened(bench.store())
        own_mariadb.query("SET GLOBAL read_only = 1")
        with pytest.raises(StoreLost, match="read-only: point the URL at the primary"):
            await owned.store.read_owner()
        with pytest.raises(StoreLost, match="read-only: point the URL at the primary"):
            await bench.store().open()
        own_mariadb.query("SET GLOBAL read_only = 0")
        await owned.store.read_owner()
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


def test_owner_row_under_a_newer_schema_is_refused(bench: Bench, mariadb: MariaDb, place: MysqlSettings) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        mariadb.query(f"UPDATE {place.database}.foqs_schema SET version = 99")
        with pytest.raises(StoreUnusable, match="version 99"):
            await owned.store.read_owner()

    bench.run(story())


def test_recorded_connection_follows_every_reconnection(bench: Bench, mariadb: MariaDb) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        first = (await owned.store.read_owner()).connection
        second = (await owned.store.read_owner()).connection
        assert first != second
        listed = mariadb.query("SELECT ID FROM information_schema.PROCESSLIST")
        assert (second,) in listed
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


def test_former_owner_that_reads_no_reply_keeps_no_lock(place: MysqlSettings) -> None:
    """Its fence matches no row, but the delete that travels with it would lock its row until the connection ends."""
    bench = mysql_bench(replace(place, lock_wait_timeout_s=1))

    async def story() -> None:
        former = await opened(bench.store())
        former.clock_ms = await former.store.now_ms()
        await former.write(inserts=[make_row(1)])
        received = _ignore_replies(former.store)
        new = await opened(bench.store(), epoch=2, nonce=OTHER)
        stray = asyncio.ensure_future(former.store.flush(former.fence, [], {}, [], lambda *_: Writes(deletes=[1])))
        await received.wait()
        await new.write(deletes=[1])
        stray.cancel()
        await asyncio.wait([stray])

    bench.run(story())


def test_a_missing_owner_row_is_reported_to_a_flush_and_to_a_takeover(
    bench: Bench, place: MysqlSettings, mariadb: MariaDb
) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        mariadb.query(f"DELETE FROM {place.database}.foqs_3_owner")
        with pytest.raises(StoreUnusable, match=r"owner row is missing.*backup"):
            await owned.write(deletes=[1])
        with pytest.raises(StoreUnusable, match=r"owner row is missing.*backup"):
            await opened(bench.store(), epoch=2, nonce=OTHER)

    bench.run(story())


def test_abandoned_connection_is_ended_on_the_server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its statements that are still on their way, behind a broken network, take no effect."""

    async def story() -> None:
        owned = await opened(bench.store())
        assert isinstance(owned.store, MysqlStore)
        abandoned = link_of(owned.store)
        received = _ignore_replies(owned.store)
        with monkeypatch.context() as patched:
            patched.setattr(abandoned, "abort", lambda: None)
            owned.store._disconnect()
        await owned.store.read_owner()
        await received.wait()
        abandoned.abort()

    bench.run(story())


@pytest.mark.parametrize("whose", ["another database", "made after a restart"])
def test_takeover_does_not_kill_another_connection_with_the_former_owners_id(
    place: MysqlSettings, mariadb: MariaDb, whose: str
) -> None:
    home = place if whose == "made after a restart" else mariadb.settings(mariadb.database())
    neighbours = mysql_bench(home)

    async def story() -> None:
        store = mysql_bench(place).store()
        owned = await opened(store)
        neighbour = await opened(neighbours.store(shard=4))
        number = (await neighbour.store.read_owner()).connection
        written_ms = 1 if whose == "made after a restart" else await store.now_ms()
        text = f"UPDATE {place.database}.foqs_3_owner SET connection = {number}, clock_ms = {written_ms}"
        mariadb.query(text)
        assert (await owned.store.take_over(2, OTHER)).connection != number
        assert (number,) in mariadb.query("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND <> 'Killed'")
        await neighbour.write(inserts=[make_row(1)])
        await store.close()

    neighbours.run(story())


def _ignore_replies(store: Store) -> asyncio.Event:
    """Make the store ignore the server from now on. The event is set with the first ignored reply."""
    received = asyncio.Event()
    link = link_of(store)
    link.data_received = lambda data: received.set()  # type: ignore[method-assign]
    link.connection_lost = lambda exc: received.set()  # type: ignore[method-assign]
    return received


def test_flush_that_waits_too_long_for_a_lock_may_be_run_again(place: MysqlSettings, mariadb: MariaDb) -> None:
    impatient = replace(place, lock_wait_timeout_s=1)
    bench = mysql_bench(impatient)

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        holder = await MysqlLink.connect(place)
        await holder.run(b"START TRANSACTION", b"SELECT * FROM foqs_3_item WHERE id = 1 FOR UPDATE")
        with pytest.raises(WriteRefused) as refused:
            await owned.write(inserts=[make_row(2)], deletes=[1])
        assert refused.value.is_retryable
        holder.abort()
        assert set(await contents(owned)) == {1}
        await owned.write(inserts=[make_row(2)], deletes=[1])
        assert set(await contents(owned)) == {2}

    bench.run(story())


def test_silent_server_is_lost_after_the_statement_timeout(place: MysqlSettings) -> None:
    async def story() -> None:
        store = MysqlStore(place, 3)
        owned = await opened(store)
        link_of(store).timeout_s = 1.0
        holder = await MysqlLink.connect(place)
        await holder.run(b"START TRANSACTION", b"SELECT * FROM foqs_3_owner FOR UPDATE")
        with pytest.raises(StoreLost, match="no answer"):
            await owned.write(inserts=[make_row(1)])
        holder.abort()
        assert (await store.read_owner()).flush == 0
        await store.close()

    run(story())


def test_unreachable_server_is_lost(place: MysqlSettings, tmp_path: Path) -> None:
    async def story() -> None:
        store = MysqlStore(replace(place, unix_socket=str(tmp_path / "nothing")), 1)
        with pytest.raises(StoreLost):
            await store.open()
        await store.close()

    run(story())


def test_connecting_to_a_listener_that_never_answers_ends_in_time(place: MysqlSettings) -> None:
    async def story() -> None:
        accepted: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = MysqlStore(replace(place, unix_socket=None, port=port, connect_timeout_s=0.3), 1)
        with pytest.raises(StoreLost, match="no answer"):
            await store.open()
        await soon(lambda: bool(accepted))  # a loop that stood still may accept it after the client has given up
        server.close()
        for writer in accepted:
            writer.close()
            await writer.wait_closed()

    run(story())


def test_second_call_at_once_raises(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        first = asyncio.ensure_future(owned.store.topics())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one call at a time"):
            await owned.store.topics()
        assert await first == []
        async with reading(owned.store) as reads:
            read = asyncio.ensure_future(reads.rows(owned.past, [1]))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="one call at a time"):
                await reads.rows(owned.past, [1])
            assert await read == []

    bench.run(story())


def test_takeover_over_tcp_with_a_password(own_mariadb: MariaDb) -> None:
    database = own_mariadb.database()
    own_mariadb.query("CREATE USER foqs@127.0.0.1 IDENTIFIED BY 'it''s \"secret\"'")
    own_mariadb.query(f"GRANT ALL ON {database}.* TO foqs@127.0.0.1")
    place = own_mariadb.settings(
        database, unix_socket=None, port=own_mariadb.port, user="foqs", password='it\'s "secret"'
    )
    assert "secret" not in repr(place) + place.location
    bench = mysql_bench(place)

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1, payload=b"x" * (1 << 20))])
        new = await opened(bench.store(), epoch=2, nonce=OTHER)
        assert set(await contents(new)) == {1}
        assert NONCE != OTHER

    bench.run(story())


def test_rows_without_a_due_moment_are_never_due_including_those_of_earlier_versions(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = {number: make_row(number) for number in (1, 2)}
        await owned.write(inserts=[*rows.values(), make_row(3, due_ms=5)], timers_added=[(5, 3)])
        store = owned.store
        await link_of(store).run(b"UPDATE foqs_3_item SET due_ms = NULL WHERE id = 2", mysql_session_sql.COMMIT)
        assert await contents(owned) == {**rows, 3: make_row(3, due_ms=5)}
        assert await store.due_rows(None, TIME_MS_MAX, None, 10) == [DueRow(5, 3)]
        assert await store.next_due_ms(0, TIME_MS_MAX + 1) == 5
        assert await store.next_due_ms(5, TIME_MS_MAX + 1) is None
        await owned.write(leases=[LeaseUpdate(9, 8, 7, [1, 2])])
        leased = {n: replace(row, state=State.LEASED, due_ms=9, token=8, attempt=7) for n, row in rows.items()}
        assert await contents(owned) == {**leased, 3: make_row(3, due_ms=5)}
        await owned.write(
            updates=[leased[1], replace(leased[2], due_ms=None)], deletes=[3], timers_removed=[(5, 3), (9, 2)]
        )
        assert await contents(owned) == {**leased, 2: replace(leased[2], due_ms=None)}
        assert await store.next_due_ms(9, TIME_MS_MAX + 1) is None

    bench.run(story())


def test_connections_are_listed_while_one_of_them_runs_a_statement_with_binary_values(place: MysqlSettings) -> None:
    async def story() -> None:
        busy, other = await MysqlLink.connect(place), await MysqlLink.connect(place)
        try:
            _, found = await busy.run(mysql_session_sql.NAMES_AS_BYTES, b"SELECT CONNECTION_ID()")
            await other.run(mysql_session_sql.NAMES_AS_BYTES, b"SELECT GET_LOCK('listed', 0)")
            running = asyncio.ensure_future(busy.run(b"SELECT GET_LOCK('listed', 60), '\xb9Y\x11\xa1'"))
            process = None
            while process is None or process.command == "Sleep":
                (listed,) = await other.run(mysql_session_sql.PROCESSES)
                process = decode_processes(listed).get(found.rows[0][0])
            assert (process.user, process.database) == (place.user, place.database)
            assert not running.done()
            await other.run(b"SELECT RELEASE_LOCK('listed')")
            await running
        finally:
            await busy.close()
            await other.close()

    run(story())


def test_reads_that_lost_their_connection_connect_again(bench: Bench, mariadb: MariaDb) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        async with reading(owned.store) as reads:
            before = _connections(mariadb)
            await reads.rows(owned.past, [1])
            (connection,) = _connections(mariadb) - before
            mariadb.query(f"KILL {connection}")
            with pytest.raises(StoreLost):
                await reads.rows(owned.past, [1])
            assert await reads.rows(owned.past, [1]) == [make_row(1)]
            await reads.begin_snapshot(owned.past)
            (connection,) = _connections(mariadb) - before
            mariadb.query(f"KILL {connection}")
            with pytest.raises(StoreLost):
                await reads.counts()
            with pytest.raises(StoreLost, match="the snapshot was lost"):
                await reads.counts()

    bench.run(story())


def test_a_flush_that_reads_more_than_a_packet_holds_uses_several(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_store, "PACKET_BYTES_MAX", 5_000)
    packets: list[int] = []

    async def story() -> None:
        owned = await opened(bench.store())
        for first in range(1, 2_001, 10):
            await owned.write(inserts=[make_row(number) for number in range(first, first + 10)])
        run_packet = MysqlLink.run

        async def counted(link: MysqlLink, *statements: bytes, on_results: OnResults | None = None) -> list[Result]:
            packets.append(sum(map(len, statements)))
            return await run_packet(link, *statements, on_results=on_results)

        monkeypatch.setattr(MysqlLink, "run", counted)
        assert len(await owned.write(deletes=list(range(1, 2_001)))) == 2_000
        assert await contents(owned) == {}
        assert len(packets) > 6
        assert max(packets) < 5_000

    bench.run(story())


@pytest.mark.parametrize("full", [0, 1])
def test_a_server_without_room_for_prepared_statements_is_sent_text(own_mariadb: MariaDb, full: int) -> None:
    """There is no room for the fence, or for the INSERT beside it. Text is sent from the second attempt on."""
    bench = mysql_bench(own_mariadb.settings(own_mariadb.database()))
    rows = [
        make_row(1, topic="it's ?", payload=bytes(range(256)) * 300, metadata=b"\\'?\0"),
        make_row(2, topic="\\ é", payload=b"", ttl_ms=7, expires_at_ms=(1 << 62) + 1, due_ms=9, priority=-(1 << 31)),
        *[make_row(number) for number in range(3, 300)],
    ]

    async def story() -> None:
        owned = await opened(bench.store())
        own_mariadb.query(f"SET GLOBAL max_prepared_stmt_count = {full}")
        try:
            with pytest.raises(WriteRefused, match="max_prepared_stmt_count") as refused:
                await owned.write(inserts=rows)
            assert refused.value.is_retryable
            await owned.write(inserts=rows)
            await owned.write(deletes=[3])
            with pytest.raises(WriteRefused, match="Duplicate") as refused:
                await owned.write(inserts=[make_row(4)])
            assert not refused.value.is_retryable
        finally:
            own_mariadb.query("SET GLOBAL max_prepared_stmt_count = 16382")
        await owned.write(inserts=[make_row(300)])
        assert await contents(owned) == {row.id: row for row in (*rows, make_row(300)) if row.id != 3}
        await owned.store.close()

    bench.run(story())


def test_a_statement_is_prepared_once_on_a_connection_and_ends_with_it(own_mariadb: MariaDb) -> None:
    bench = mysql_bench(own_mariadb.settings(own_mariadb.database()))

    def prepared() -> int:
        return int(own_mariadb.query("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'")[0][1])

    async def story() -> None:
        owned = await opened(bench.store())
        first = 1
        for count in (1, 1, 200, 200, 127, 5, 7):
            await owned.write(inserts=[make_row(number) for number in range(first, first + count)])
            first += count
        # 1; 100 twice; 100 + 27; 5; 7; and the fence. MariaDB's bulk execution needs but the first.
        assert prepared() == (2 if own_mariadb.name == "mariadb" else 6)
        assert len(await contents(owned)) == first - 1
        await owned.store.close()
        await soon(lambda: prepared() == 0)

    bench.run(story())


def test_reads_connect_with_their_first_call(bench: Bench, mariadb: MariaDb) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        before = _connections(mariadb)
        async with reading(owned.store) as reads:
            assert _connections(mariadb) <= before
            await reads.rows(owned.past, [1])
            assert len(_connections(mariadb) - before) == 1

    bench.run(story())


def _connections(mariadb: MariaDb) -> set[int]:
    # Connections of this query use no database; an earlier one may still be ending. One that was killed is listed for a
    # moment after its socket was closed.
    query = (
        "SELECT ID FROM information_schema.PROCESSLIST "
        "WHERE ID <> CONNECTION_ID() AND USER = 'root' AND DB IS NOT NULL AND COMMAND <> 'Killed'"
    )
    return {number for (number,) in mariadb.query(query)}
