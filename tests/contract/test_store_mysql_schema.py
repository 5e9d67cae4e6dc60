"""Checks of a server and a shard's tables before they are used: settings, rights, engines, versions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from foqs.store.migrations import Migration
from foqs.store.mysql import mysql_migrations, mysql_sql
from foqs.store.mysql.mysql_driver import MysqlSettings
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import StoreLost, StoreUnusable
from tests.contract.conftest import Bench, mysql_bench
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.stores import contents, make_row, opened

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
    assert mariadb.query(f"SELECT * FROM {place.database}.foqs_schema") == [(1, mysql_migrations.MIGRATIONS[-1].number)]
    assert mariadb.query(f"SELECT one, epoch FROM {place.database}.foqs_1_owner") == [(1, 0)]


def test_newer_schema_is_refused_with_both_numbers(place: MysqlSettings, mariadb: MariaDb) -> None:
    _open_many(place, 1)
    mariadb.query(f"UPDATE {place.database}.foqs_schema SET version = 99")
    newest = mysql_migrations.MIGRATIONS[-1].number

    async def story() -> None:
        with pytest.raises(StoreUnusable, match=f"version 99.*up to {newest}"):
            await MysqlStore(place, 1).open()

    run(story())


def test_a_later_migration_is_applied_once_and_rows_stay(
    place: MysqlSettings, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch, bench: Bench
) -> None:
    newest = mysql_migrations.MIGRATIONS[-1].number
    note = ("CREATE TABLE IF NOT EXISTS {owner}_note (n INT NOT NULL)", "INSERT INTO {owner}_note VALUES (3)")

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        monkeypatch.setattr(
            mysql_migrations, "MIGRATIONS", (*mysql_migrations.MIGRATIONS, Migration(newest + 1, "a note", note))
        )
        hosts = [bench.store() for _ in range(4)]
        await asyncio.gather(*(host.open() for host in hosts))
        assert mariadb.query(f"SELECT n FROM {place.database}.foqs_3_owner_note") == [(3,)]
        assert await contents(owned) == {1: make_row(1)}
        await owned.write(inserts=[make_row(2)])

    bench.run(story())


def test_migration_that_stopped_half_way_is_resumed(
    place: MysqlSettings, mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = mysql_migrations.MIGRATIONS
    broken = (replace(original[0], statements=(original[0].statements[0], "THIS IS NOT SQL")),)
    monkeypatch.setattr(mysql_migrations, "MIGRATIONS", broken)

    async def story() -> None:
        with pytest.raises(StoreLost):
            await MysqlStore(place, 1).open()
        assert mariadb.query(f"SELECT version FROM {place.database}.foqs_schema") == [(0,)]

    run(story())
    monkeypatch.setattr(mysql_migrations, "MIGRATIONS", original)
    _open_many(place, 1)
    assert mariadb.query(f"SELECT version FROM {place.database}.foqs_schema") == [(original[-1].number,)]
