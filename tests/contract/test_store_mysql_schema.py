"""Checks of a server and a shard's tables before they are used: settings, rights, engines, versions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import TIME_MS_MAX, State
from foqs.store.migrations import Migration
from foqs.store.mysql import mysql_sql
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import DueRow, FencedOut, StoreLost, StoreUnusable
from tests.contract.conftest import Bench, mysql_bench
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.stores import TOPIC, contents, make_row, opened

pytestmark = pytest.mark.mysql


@pytest.fixture
def bench(place: MysqlSettings) -> Bench:
    return mysql_bench(place)


@pytest.mark.parametrize(
    ("variable", "weak"),
    [("innodb_flush_log_at_trx_commit", "2"), ("sql_mode", "''"), ("innodb_flush_log_at_trx_commit", "0")],
)
def test_weak_settings_are_refused_by_name_unless_accepted(own_mariadb: MariaDb, variable: str, weak: str) -> None:
    place = own_mariadb.settings(own_mariadb.database())
    own_mariadb.query(f"SET GLOBAL {variable} = {weak}")

    async def story() -> None:
        store = MysqlStore(place, 1)
        with pytest.raises(StoreUnusable, match=f"{variable} is {weak}.*--unsafe-durability"):
            await store.open()
        accepted = MysqlStore(replace(place, unsafe_durability=True), 1)
        await accepted.open()
        await accepted.close()

    run(story())


def test_unsynced_binary_log_is_refused() -> None:
    server = MariaDb("--log-bin=log", "--sync-binlog=0")
    try:
        server.start()
        place = server.settings(server.database())

        async def story() -> None:
            store = MysqlStore(place, 1)
            with pytest.raises(StoreUnusable, match="sync_binlog is 0: set it to 1"):
                await store.open()
            server.query("SET GLOBAL sync_binlog = 1")
            await store.open()
            await store.close()

        run(story())
    finally:
        server.remove()


def test_missing_rights_and_wrong_names_are_refused_with_the_necessary_grant(own_mariadb: MariaDb) -> None:
    database = own_mariadb.database()
    own_mariadb.query("CREATE USER reader@localhost")
    own_mariadb.query(f"GRANT SELECT ON {database}.* TO reader@localhost")

    async def refused(place: MysqlSettings, text: str) -> None:
        with pytest.raises(StoreUnusable, match=text):
            await MysqlStore(place, 1).open()

    async def story() -> None:
        await refused(own_mariadb.settings(database, user="reader"), "GRANT SELECT, INSERT")
        await refused(own_mariadb.settings(database, user="nobody_here"), "Access denied")
        await refused(own_mariadb.settings("no_such_database"), "Unknown database")
        owner = MysqlStore(own_mariadb.settings(database), 1)
        await owner.open()
        await owner.close()
        await refused(own_mariadb.settings(database, user="reader"), "denied.*GRANT SELECT, INSERT")
        own_mariadb.query(f"GRANT INSERT, UPDATE, DELETE ON {database}.foqs_1_item TO reader@localhost")
        own_mariadb.query(f"GRANT UPDATE ON {database}.foqs_1_owner TO reader@localhost")
        await refused(own_mariadb.settings(database, user="reader"), "denied.*foqs_1_topic.*GRANT SELECT, INSERT")

    run(story())


def test_table_of_another_engine_is_refused(place: MysqlSettings, mariadb: MariaDb) -> None:
    async def story() -> None:
        store = MysqlStore(place, 1)
        await store.open()
        for table in mysql_sql.TABLES:
            mariadb.query(f"ALTER TABLE {place.database}.foqs_1_{table} ENGINE = MyISAM")
            with pytest.raises(StoreUnusable, match=rf"foqs_1_{table} .*ENGINE = InnoDB"):
                await store.open()
            mariadb.query(f"ALTER TABLE {place.database}.foqs_1_{table} ENGINE = InnoDB")
        await store.close()

    run(story())


def _open_many(place: MysqlSettings, count: int) -> None:
    async def story() -> None:
        stores = [MysqlStore(place, 1) for _ in range(count)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.close() for store in stores))

    run(story())


def test_many_hosts_may_open_a_new_shard_at_once(place: MysqlSettings, mariadb: MariaDb) -> None:
    _open_many(place, 6)
    assert mariadb.query(f"SELECT * FROM {place.database}.foqs_schema") == [(1, mysql_sql.MIGRATIONS[-1].number)]
    assert mariadb.query(f"SELECT one, epoch FROM {place.database}.foqs_1_owner") == [(1, 0)]


def test_newer_schema_is_refused_with_both_numbers(place: MysqlSettings, mariadb: MariaDb) -> None:
    _open_many(place, 1)
    mariadb.query(f"UPDATE {place.database}.foqs_schema SET version = 99")
    newest = mysql_sql.MIGRATIONS[-1].number

    async def story() -> None:
        with pytest.raises(StoreUnusable, match=f"version 99.*up to {newest}"):
            await MysqlStore(place, 1).open()

    run(story())


def test_later_migrations_are_applied_once_in_order_and_rows_stay(
    place: MysqlSettings, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    newest = mysql_sql.MIGRATIONS[-1].number
    later = (
        Migration(newest + 1, "a note", ("CREATE TABLE IF NOT EXISTS {owner}_note (n INT NOT NULL)",)),
        Migration(newest + 2, "a line in it", ("INSERT INTO {owner}_note VALUES (3)",)),
    )

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        monkeypatch.setattr(mysql_sql, "MIGRATIONS", (*mysql_sql.MIGRATIONS, *later))
        hosts = [bench.store() for _ in range(4)]
        await asyncio.gather(*(host.open() for host in hosts))
        assert mariadb.query(f"SELECT n FROM {place.database}.foqs_3_owner_note") == [(3,)]
        assert await contents(owned) == {1: make_row(1)}
        await owned.write(inserts=[make_row(2)])

    bench.run(story())


def test_migration_that_stopped_half_way_is_resumed(
    place: MysqlSettings, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = mysql_sql.MIGRATIONS
    broken = (replace(original[0], statements=(original[0].statements[0], "THIS IS NOT SQL")),)
    monkeypatch.setattr(mysql_sql, "MIGRATIONS", broken)

    async def story() -> None:
        with pytest.raises(StoreLost):
            await MysqlStore(place, 1).open()
        assert mariadb.query(f"SELECT version FROM {place.database}.foqs_schema") == [(0,)]

    run(story())
    monkeypatch.setattr(mysql_sql, "MIGRATIONS", original)
    _open_many(place, 1)
    assert mariadb.query(f"SELECT version FROM {place.database}.foqs_schema") == [(original[-1].number,)]


def test_topics_of_a_version_1_database_are_found(bench: Bench, mariadb: MariaDb, place: MysqlSettings) -> None:
    topics = [("n", "a"), ("n", "A"), ("n", "a "), ("N", "a")]

    async def story() -> None:
        owned = await opened(bench.store())
        for number, (namespace, topic) in enumerate(topics * 3, 1):
            await owned.write(inserts=[make_row(number, namespace=namespace, topic=topic)])
        for table in ("topic", "key", "slot", "cut", "timer"):
            mariadb.query(f"DROP TABLE {place.database}.foqs_3_{table}")
        mariadb.query(f"ALTER TABLE {place.database}.foqs_3_item ADD KEY item_due (due_ms, id)")
        mariadb.query(f"UPDATE {place.database}.foqs_schema SET version = 1")
        hosts = [bench.store() for _ in range(3)]
        await asyncio.gather(*(host.open() for host in hosts))
        owned = await opened(hosts[0], epoch=2)
        assert sorted(await hosts[0].topics()) == sorted(topics)
        assert len(await contents(owned)) == 3 * len(topics)

    bench.run(story())


def test_a_version_2_database_gets_tables_of_keys_and_slots(
    bench: Bench, mariadb: MariaDb, place: MysqlSettings
) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)], topics_added=[TOPIC])
        for table in ("key", "slot", "cut", "timer"):
            mariadb.query(f"DROP TABLE {place.database}.foqs_3_{table}")
        mariadb.query(f"ALTER TABLE {place.database}.foqs_3_item ADD KEY item_due (due_ms, id)")
        mariadb.query(f"UPDATE {place.database}.foqs_schema SET version = 2")
        hosts = [bench.store() for _ in range(3)]
        await asyncio.gather(*(host.open() for host in hosts))
        owned = await opened(hosts[0], epoch=2)
        assert set(await contents(owned)) == {1}
        assert (await owned.store.topics(), await owned.store.key_slots()) == ([TOPIC], [])
        await owned.write(idempotency_keys_added=[IdempotencyKey("n", b"k", 1, b"d" * 16, 9)], key_slots_added=[5])
        assert (await owned.store.next_key_expiry_ms(), await owned.store.key_slots()) == (9, [5])

    bench.run(story())


def test_a_version_5_database_gets_a_table_of_purge_markers(
    bench: Bench, mariadb: MariaDb, place: MysqlSettings
) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)], topics_added=[TOPIC])
        mariadb.query(f"DROP TABLE {place.database}.foqs_3_cut, {place.database}.foqs_3_timer")
        mariadb.query(f"ALTER TABLE {place.database}.foqs_3_item ADD KEY item_due (due_ms, id)")
        mariadb.query(f"UPDATE {place.database}.foqs_schema SET version = 5")
        hosts = [bench.store() for _ in range(3)]
        await asyncio.gather(*(host.open() for host in hosts))
        owned = await opened(hosts[0], epoch=2)
        assert (set(await contents(owned)), await owned.store.purge_markers()) == ({1}, [])
        await owned.write(purge_markers_added=[PurgeMarker(*TOPIC, 1)])
        assert await owned.store.purge_markers() == [PurgeMarker(*TOPIC, 1)]

    bench.run(story())


def test_a_version_7_database_gets_a_table_of_timers_even_if_the_step_is_run_again(
    bench: Bench, mariadb: MariaDb, place: MysqlSettings
) -> None:
    rows = [
        make_row(1),
        make_row(2, due_ms=7),
        make_row(3, state=State.LEASED, due_ms=5),
        make_row(4, state=State.DEAD, due_ms=TIME_MS_MAX),
        make_row(5),
    ]
    entries = [DueRow(7, 2), DueRow(TIME_MS_MAX, 4)]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=rows, topics_added=[TOPIC])
        mariadb.query(f"UPDATE {place.database}.foqs_3_item SET due_ms = NULL WHERE id = 5")
        mariadb.query(f"DROP TABLE {place.database}.foqs_3_timer")
        mariadb.query(f"ALTER TABLE {place.database}.foqs_3_item ADD KEY item_due (due_ms, id)")
        for _ in range(2):
            mariadb.query(f"UPDATE {place.database}.foqs_schema SET version = 7")
            hosts = [bench.store() for _ in range(3)]
            await asyncio.gather(*(host.open() for host in hosts))
            assert await owned.store.due_rows(None, TIME_MS_MAX, None, 9) == entries
            mariadb.query(f"INSERT INTO {place.database}.foqs_3_timer (due_ms, id) VALUES (3, 2)")  # outdated
        with pytest.raises(FencedOut):
            await owned.write(deletes=[1])
        found = mariadb.query(f"SHOW INDEX FROM {place.database}.foqs_3_item WHERE Key_name = 'item_due'")
        assert list(found) == []

    bench.run(story())
