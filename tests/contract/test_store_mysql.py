"""What only a server can do to us: die, restart, kill connections, turn read-only, be set up weakly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from foqs.core.fence import Standing, standing
from foqs.store import sql_mysql
from foqs.store.mysql import MysqlStore
from foqs.store.mysql_driver import MysqlSettings
from foqs.store.port import POINTS, StoreLost, StoreUnusable, WriteRefused
from foqs.store.sql_migrations import Migration
from tests.contract.conftest import Bench
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.stores import NONCE, OTHER, contents, make_row, opened

pytestmark = pytest.mark.mysql


class At:
    """A hook that does something once at a point, when armed. It blocks the loop, as a slow network would."""

    def __init__(self, point: str, action: Callable[[], None]) -> None:
        self._point = point
        self._action = action
        self.armed = False

    def __call__(self, point: str) -> None:
        if self.armed and point == self._point:
            self.armed = False
            self._action()


@pytest.fixture
def settings(mariadb: MariaDb) -> MysqlSettings:
    return mariadb.settings(mariadb.database())


@pytest.fixture
def bench(settings: MysqlSettings) -> Bench:
    return Bench("mysql", lambda shard, faults: MysqlStore(settings, shard, faults))


@pytest.mark.parametrize("point", POINTS)
def test_server_killed_at_a_point_and_restarted_keeps_exactly_what_committed(own_mariadb: MariaDb, point: str) -> None:
    settings = own_mariadb.settings(own_mariadb.database())
    crash = At(point, own_mariadb.kill9)
    bench = Bench("mysql", lambda shard, faults: MysqlStore(settings, shard, faults))

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
            await owned.store.owner()
        await asyncio.to_thread(own_mariadb.start)
        outcome = standing(fence, await owned.store.owner())
        assert outcome is (Standing.COMMITTED if point == "committed" else Standing.NOT_COMMITTED)
        assert set(await contents(owned.store)) == ({2, 3} if point == "committed" else {1, 2})
        owned.number = fence.flush + (outcome is Standing.COMMITTED)
        await owned.write(inserts=[make_row(4)])

    bench.run(story(), timeout=120)


@pytest.mark.parametrize("point", POINTS)
def test_killed_connection_is_lost_and_resolved(bench: Bench, mariadb: MariaDb, point: str) -> None:
    recorded: list[int] = []

    def kill() -> None:
        for number in recorded:
            mariadb.query(f"KILL {number}")

    cut = At(point, kill)

    async def story() -> None:
        owned = await opened(bench.store(faults=cut))
        recorded.append((await owned.store.owner()).connection)
        await owned.write(inserts=[make_row(1)])
        fence = owned.fence
        cut.armed = True
        if point == "committed":
            await owned.write(inserts=[make_row(2)])
            with pytest.raises(StoreLost):
                await owned.store.counts()
        else:
            with pytest.raises(StoreLost):
                await owned.write(inserts=[make_row(2)])
        assert (standing(fence, await owned.store.owner()) is Standing.COMMITTED) is (point == "committed")
        assert set(await contents(owned.store)) == ({1, 2} if point == "committed" else {1})

    bench.run(story())


def test_read_only_server_is_lost_until_it_writes_again(own_mariadb: MariaDb) -> None:
    database = own_mariadb.database()
    own_mariadb.query("CREATE USER plain@localhost")
    own_mariadb.query(f"GRANT ALL ON {database}.* TO plain@localhost")
    settings = own_mariadb.settings(database, user="plain")
    bench = Bench("mysql", lambda shard, faults: MysqlStore(settings, shard, faults))

    async def story() -> None:
        owned = await opened(bench.store())
        own_mariadb.query("SET GLOBAL read_only = 1")
        with pytest.raises(StoreLost, match="read-only"):
            await owned.write(inserts=[make_row(1)])
        with pytest.raises(StoreLost):
            await owned.store.owner()
        own_mariadb.query("SET GLOBAL read_only = 0")
        assert (await owned.store.owner()).flush == 0
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


def test_recorded_connection_follows_every_reconnection(bench: Bench, mariadb: MariaDb) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        first = (await owned.store.owner()).connection
        second = (await owned.store.owner()).connection
        assert first != second
        listed = mariadb.query("SELECT ID FROM information_schema.PROCESSLIST")
        assert (second,) in listed
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


def test_flush_that_waits_too_long_for_a_lock_may_be_run_again(settings: MysqlSettings, mariadb: MariaDb) -> None:
    impatient = replace(settings, lock_wait_timeout_s=1)
    bench = Bench("mysql", lambda shard, faults: MysqlStore(impatient, shard, faults))

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        holder = MysqlStore(settings, 3)
        await holder.open()
        link = holder._reach()
        await link.run("START TRANSACTION", "SELECT * FROM foqs_3_item WHERE id = 1 FOR UPDATE")
        with pytest.raises(WriteRefused) as refused:
            await owned.write(inserts=[make_row(2)], deletes=[1])
        assert refused.value.again
        await holder.close()
        assert set(await contents(owned.store)) == {1}
        await owned.write(inserts=[make_row(2)], deletes=[1])
        assert set(await contents(owned.store)) == {2}

    bench.run(story())


def test_silent_server_is_given_up_after_the_statement_timeout(settings: MysqlSettings) -> None:
    hasty = replace(settings, statement_timeout_s=1.0)

    async def story() -> None:
        holder = MysqlStore(settings, 3)
        owned = await opened(MysqlStore(hasty, 3))
        await holder.open()
        await holder._reach().run("START TRANSACTION", "SELECT * FROM foqs_3_owner FOR UPDATE")
        with pytest.raises(StoreLost, match="no answer"):
            await owned.write(inserts=[make_row(1)])
        await holder.close()
        assert (await owned.store.owner()).flush == 0
        await owned.store.close()

    run(story())


def test_unreachable_server_is_lost(settings: MysqlSettings, tmp_path: Path) -> None:
    async def story() -> None:
        store = MysqlStore(replace(settings, unix_socket=str(tmp_path / "nothing")), 1)
        with pytest.raises(StoreLost):
            await store.open()
        await store.close()

    run(story())


def test_connecting_to_a_listener_that_never_answers_ends_in_time(settings: MysqlSettings) -> None:
    async def story() -> None:
        accepted: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = MysqlStore(replace(settings, unix_socket=None, port=port, connect_timeout_s=0.3), 1)
        with pytest.raises(StoreLost, match="no answer"):
            await store.open()
        server.close()
        for writer in accepted:
            writer.close()
            await writer.wait_closed()

    run(story())


@pytest.mark.parametrize(
    ("variable", "weak"),
    [("innodb_flush_log_at_trx_commit", "2"), ("sql_mode", "''"), ("innodb_flush_log_at_trx_commit", "0")],
)
def test_weak_settings_are_refused_by_name_unless_accepted(own_mariadb: MariaDb, variable: str, weak: str) -> None:
    settings = own_mariadb.settings(own_mariadb.database())
    own_mariadb.query(f"SET GLOBAL {variable} = {weak}")

    async def story() -> None:
        store = MysqlStore(settings, 1)
        with pytest.raises(StoreUnusable, match=f"{variable} is {weak}.*--unsafe-durability"):
            await store.open()
        accepted = MysqlStore(replace(settings, unsafe_durability=True), 1)
        await accepted.open()
        await accepted.close()

    run(story())


def test_unsynced_binary_log_is_refused() -> None:
    server = MariaDb("--log-bin=log", "--sync-binlog=0")
    try:
        server.start()
        settings = server.settings(server.database())

        async def story() -> None:
            store = MysqlStore(settings, 1)
            with pytest.raises(StoreUnusable, match="sync_binlog is 0: set it to 1"):
                await store.open()
            server.query("SET GLOBAL sync_binlog = 1")
            await store.open()
            await store.close()

        run(story())
    finally:
        server.remove()


def test_missing_rights_and_wrong_names_are_refused_with_the_grant_to_make(own_mariadb: MariaDb) -> None:
    database = own_mariadb.database()
    own_mariadb.query("CREATE USER reader@localhost")
    own_mariadb.query(f"GRANT SELECT ON {database}.* TO reader@localhost")

    async def refused(settings: MysqlSettings, told: str) -> None:
        with pytest.raises(StoreUnusable, match=told):
            await MysqlStore(settings, 1).open()

    async def story() -> None:
        await refused(own_mariadb.settings(database, user="reader"), "GRANT SELECT, INSERT")
        await refused(own_mariadb.settings(database, user="nobody_here"), "Access denied")
        await refused(own_mariadb.settings("no_such_database"), "Unknown database")
        owner = MysqlStore(own_mariadb.settings(database), 1)
        await owner.open()
        await owner.close()
        await refused(own_mariadb.settings(database, user="reader"), "denied.*GRANT SELECT, INSERT")

    run(story())


def test_table_of_another_engine_is_refused(settings: MysqlSettings, mariadb: MariaDb) -> None:
    async def story() -> None:
        store = MysqlStore(settings, 1)
        await store.open()
        mariadb.query(f"ALTER TABLE {settings.database}.foqs_1_item ENGINE = Aria")
        with pytest.raises(StoreUnusable, match=r"foqs_1_item .*ENGINE = InnoDB"):
            await store.open()
        await store.close()

    run(story())


def test_row_that_the_columns_cannot_hold_is_refused_and_nothing_else(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        for bad in (
            make_row(2, priority=1 << 31),
            make_row(2, topic="x" * 256),
            make_row(2, metadata=b"x" * 20_000),
            make_row(2, payload=b"x" * (16 << 20)),
            make_row(2, topic="\ud800"),
        ):
            with pytest.raises(WriteRefused) as refused:
                await owned.write(inserts=[make_row(1), bad])
            assert not refused.value.again
        assert await contents(owned.store) == {}
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


def test_second_call_at_once_is_a_mistake_that_is_told(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        first = asyncio.ensure_future(owned.store.counts())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one call at a time"):
            await owned.store.counts()
        assert await first == []

    bench.run(story())


def test_takeover_over_tcp_with_a_password(own_mariadb: MariaDb) -> None:
    database = own_mariadb.database()
    own_mariadb.query("CREATE USER foqs@127.0.0.1 IDENTIFIED BY 'it''s \"secret\"'")
    own_mariadb.query(f"GRANT ALL ON {database}.* TO foqs@127.0.0.1")
    settings = own_mariadb.settings(
        database, unix_socket=None, port=own_mariadb.port, user="foqs", password='it\'s "secret"'
    )
    assert "secret" not in repr(settings) + settings.where
    bench = Bench("mysql", lambda shard, faults: MysqlStore(settings, shard, faults))

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1, payload=b"x" * (1 << 20))])
        new = await opened(bench.store(), epoch=2, nonce=OTHER)
        assert set(await contents(new.store)) == {1}
        assert NONCE != OTHER

    bench.run(story())


def test_statements_use_their_indexes(settings: MysqlSettings, bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(n, priority=n % 5, due_ms=n) for n in range(1, 400)])
        store = owned.store
        assert isinstance(store, MysqlStore)
        texts = sql_mysql.Statements(3)
        for text, index in (
            (texts.ready("default", "t", None, 5), "item_order"),
            (texts.ready("default", "t", (1, 1_000, 7), 5), "item_order"),
            (texts.due(3, 9, None, 5), "item_due"),
            (texts.next_due(3), "item_due"),
            (texts.counts, "item_order"),
        ):
            (plan,) = await store._reach().run(f"EXPLAIN {text}")
            used = {(values[3], values[5]) for values in plan.rows if _name(values[2]) == "foqs_3_item"}
            assert {_name(key) for _, key in used} == {index}, text
            assert all(_name(access) in ("range", "ref", "index") for access, _ in used), text

    bench.run(story())


def _name(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# ---------------------------------------------------------------- migrations


def _open_many(settings: MysqlSettings, count: int) -> None:
    async def story() -> None:
        stores = [MysqlStore(settings, 1) for _ in range(count)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.close() for store in stores))

    run(story())


def test_many_hosts_may_open_a_new_shard_at_once(settings: MysqlSettings, mariadb: MariaDb) -> None:
    _open_many(settings, 6)
    assert mariadb.query(f"SELECT * FROM {settings.database}.foqs_schema") == [(1, sql_mysql.MIGRATIONS[-1].number)]
    assert mariadb.query(f"SELECT one, epoch FROM {settings.database}.foqs_1_owner") == [(1, 0)]


def test_newer_schema_is_refused_with_both_numbers(settings: MysqlSettings, mariadb: MariaDb) -> None:
    _open_many(settings, 1)
    mariadb.query(f"UPDATE {settings.database}.foqs_schema SET version = 99")
    newest = sql_mysql.MIGRATIONS[-1].number

    async def story() -> None:
        with pytest.raises(StoreUnusable, match=f"version 99.*up to {newest}"):
            await MysqlStore(settings, 1).open()

    run(story())


def test_later_migrations_are_applied_once_in_order_and_rows_stay(
    settings: MysqlSettings, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    later = (
        Migration(2, "a note", ("CREATE TABLE IF NOT EXISTS {owner}_note (n INT NOT NULL)",)),
        Migration(3, "a line in it", ("INSERT INTO {owner}_note VALUES (3)",)),
    )

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        monkeypatch.setattr(sql_mysql, "MIGRATIONS", (*sql_mysql.MIGRATIONS, *later))
        hosts = [bench.store() for _ in range(4)]
        await asyncio.gather(*(host.open() for host in hosts))
        assert mariadb.query(f"SELECT n FROM {settings.database}.foqs_3_owner_note") == [(3,)]
        assert await contents(hosts[0]) == {1: make_row(1)}
        await owned.write(inserts=[make_row(2)])

    bench.run(story())


def test_migration_that_stopped_half_way_is_taken_up_again(
    settings: MysqlSettings, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sql_mysql.MIGRATIONS
    broken = (replace(whole[0], statements=(whole[0].statements[0], "THIS IS NOT SQL")),)
    monkeypatch.setattr(sql_mysql, "MIGRATIONS", broken)

    async def story() -> None:
        with pytest.raises(StoreLost):
            await MysqlStore(settings, 1).open()
        assert mariadb.query(f"SELECT version FROM {settings.database}.foqs_schema") == [(0,)]

    run(story())
    monkeypatch.setattr(sql_mysql, "MIGRATIONS", whole)
    _open_many(settings, 1)
    assert mariadb.query(f"SELECT version FROM {settings.database}.foqs_schema") == [(whole[-1].number,)]
