"""Files of the SQLite store of earlier and later schema versions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from foqs.core.flush.purge_markers import PurgeMarker
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import TIME_MS_MAX, State
from foqs.store.migrations import Migration
from foqs.store.port import DueRow, StoreLost, StoreUnusable
from foqs.store.row_columns import ROW_COLUMNS
from foqs.store.sqlite import sqlite_sql
from foqs.store.sqlite.sqlite_store import SqliteStore
from tests.support.aio import run
from tests.support.sqlite_files import edit, open_and_close
from tests.support.stores import TOPIC, Ownership, contents, make_row, opened, reading


def test_newer_schema_is_refused_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    open_and_close(SqliteStore(path, 1))
    edit(path, "PRAGMA user_version = 99")
    with pytest.raises(StoreUnusable, match=f"version 99.*up to {sqlite_sql.MIGRATIONS[-1].number}"):
        open_and_close(SqliteStore(path, 1))


def test_later_migrations_are_applied_in_order_and_all_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.db"
    first = sqlite_sql.MIGRATIONS
    newest = first[-1].number

    async def fill() -> None:
        owned = await opened(SqliteStore(path, 1))
        await owned.write(inserts=[make_row(1)])
        await owned.store.close()

    run(fill())
    note = Migration(newest + 1, "a note", ("CREATE TABLE note (n INTEGER)", "INSERT INTO note VALUES (1)"))
    broken = Migration(newest + 2, "a mistake", ("INSERT INTO note VALUES (2)", "THIS IS NOT SQL"))
    monkeypatch.setattr(sqlite_sql, "MIGRATIONS", (*first, note, broken))
    with pytest.raises(StoreLost):
        open_and_close(SqliteStore(path, 1))
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (newest,)
    assert db.execute("SELECT name FROM sqlite_schema WHERE name = 'note'").fetchall() == []
    monkeypatch.setattr(sqlite_sql, "MIGRATIONS", (*first, note, replace(broken, statements=broken.statements[:1])))

    async def story() -> None:
        store = SqliteStore(path, 1)
        await store.open()
        assert await contents(Ownership(store)) == {1: make_row(1)}
        await store.close()

    run(story())
    assert db.execute("SELECT n FROM note ORDER BY n").fetchall() == [(1,), (2,)]
    assert db.execute("PRAGMA user_version").fetchone() == (newest + 2,)
    db.close()


_NO_OFFSET = "ALTER TABLE owner DROP COLUMN offset_ms"
_NO_PURGE_MARKERS = "DROP TABLE cut"
_ADDED = [column.name for column in ROW_COLUMNS if column.default]
_AS_VERSION_6 = (
    *(f"ALTER TABLE item DROP COLUMN {name}" for name in _ADDED),
    "ALTER TABLE owner DROP COLUMN arrival_ms",
    "DROP TABLE timer",
    "DROP TABLE journal",
    "CREATE INDEX item_due ON item (due_ms) WHERE due_ms IS NOT NULL",
)


def test_new_file_has_the_columns_of_a_row(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    open_and_close(SqliteStore(path, 1))
    listed = ", ".join(f"{column.name} {column.sqlite}" for column in ROW_COLUMNS)
    edit(path, f"CREATE TABLE listed ({listed})")
    with closing(sqlite3.connect(path)) as db:
        columns = 'name, type, "notnull", dflt_value, pk'
        found, expected = [
            sorted(db.execute(f"SELECT {columns} FROM pragma_table_info('{table}')")) for table in ("item", "listed")
        ]
    assert found == expected


def test_topics_of_a_version_1_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    topics = [("n", "a"), ("n", "A"), ("n", "a "), ("N", "a")]

    async def fill() -> None:
        owned = await opened(SqliteStore(path, 1))
        rows = [make_row(n, namespace=namespace, topic=topic) for n, (namespace, topic) in enumerate(topics * 3, 1)]
        await owned.write(inserts=rows)
        await owned.store.close()

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2)
        assert sorted(await owned.store.topics()) == sorted(topics)
        assert len(await contents(owned)) == 3 * len(topics)
        await owned.store.close()

    run(fill())
    edit(
        path,
        "DROP TABLE topic",
        "DROP TABLE key",
        "DROP TABLE slot",
        _NO_PURGE_MARKERS,
        _NO_OFFSET,
        *_AS_VERSION_6,
        "PRAGMA user_version = 1",
    )
    run(story())


def test_a_version_2_file_gets_tables_of_keys_and_slots(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    key = IdempotencyKey("n", b"k", 1, b"d" * 16, 9)

    async def fill() -> None:
        owned = await opened(SqliteStore(path, 1))
        await owned.write(inserts=[make_row(1)], topics_added=[TOPIC])
        await owned.store.close()

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2)
        assert set(await contents(owned)) == {1}
        assert (await owned.store.topics(), await owned.store.key_slots()) == ([TOPIC], [])
        await owned.write(idempotency_keys_added=[key], key_slots_added=[5])
        assert (await owned.store.next_key_expiry_ms(), await owned.store.key_slots()) == (9, [5])
        await owned.store.close()

    run(fill())
    new = ("DROP TABLE key", "DROP TABLE slot", _NO_PURGE_MARKERS, _NO_OFFSET, *_AS_VERSION_6)
    edit(path, *new, "PRAGMA user_version = 2")
    run(story())


def test_a_version_4_file_gets_its_payload_bytes_counted(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def fill() -> None:
        owned = await opened(SqliteStore(path, 1))
        await owned.write(inserts=[make_row(1), make_row(2, payload=bytes(300))], topics_added=[TOPIC])
        await owned.store.close()

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2)
        async with reading(owned.store) as reads:
            assert await reads.ready_order_keys(owned.past, TOPIC, None, 9) == [
                make_row(1).order_key,
                make_row(2).order_key,
            ]
            await reads.begin_snapshot(owned.past)
            assert [count.payload_bytes for count in await reads.counts()] == [307]
        await owned.store.close()

    run(fill())
    old = "CREATE INDEX item_order ON item (namespace, topic, state, priority, deliver_after_ms)"
    edit(path, "DROP INDEX item_order", old, _NO_PURGE_MARKERS, *_AS_VERSION_6, "PRAGMA user_version = 4")
    run(story())


def test_a_version_5_file_gets_a_table_of_purge_markers(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    marker = PurgeMarker(*TOPIC, 1)

    async def fill() -> None:
        owned = await opened(SqliteStore(path, 1))
        await owned.write(inserts=[make_row(1)], topics_added=[TOPIC])
        await owned.store.close()

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2)
        assert await owned.store.purge_markers() == []
        await owned.write(purge_markers_added=[marker])
        assert await owned.store.purge_markers() == [marker]
        await owned.store.close()

    run(fill())
    edit(path, _NO_PURGE_MARKERS, *_AS_VERSION_6, "PRAGMA user_version = 5")
    run(story())


def test_a_version_6_file_gets_the_columns_of_the_first_delivery_and_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    old, leased = make_row(1), make_row(2, state=State.LEASED, due_ms=9, token=3, attempt=1)
    new = make_row(3, trace_context=b"t", first_delivered_at_ms=7, item_group=b"g")

    async def fill() -> None:
        owned = await opened(SqliteStore(path, 1))
        await owned.write(inserts=[old, leased])
        await owned.store.close()

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2)
        await owned.write(inserts=[new])
        assert await contents(owned) == {1: old, 2: leased, 3: new}
        await owned.store.close()

    run(fill())
    edit(path, *_AS_VERSION_6, "PRAGMA user_version = 6")
    run(story())


def test_a_version_6_file_gets_a_table_of_timers(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    rows = [
        make_row(1),
        make_row(2, due_ms=7),
        make_row(3, state=State.LEASED, due_ms=5),
        make_row(4, state=State.DEAD, due_ms=TIME_MS_MAX),
    ]

    async def fill() -> None:
        owned = await opened(SqliteStore(path, 1))
        await owned.write(inserts=rows, topics_added=[TOPIC])
        await owned.store.close()

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2)
        assert await owned.store.due_rows(None, TIME_MS_MAX, None, 9) == [DueRow(7, 2), DueRow(TIME_MS_MAX, 4)]
        await owned.store.close()

    run(fill())
    edit(path, *_AS_VERSION_6, "PRAGMA user_version = 6")
    run(story())


def test_a_migration_ends_the_ownership_of_a_program_that_writes_no_timers(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    open_and_close(SqliteStore(path, 1))
    edit(path, *_AS_VERSION_6, "UPDATE owner SET epoch = 1, nonce = 'older'", "PRAGMA user_version = 6")
    open_and_close(SqliteStore(path, 1))
    db = sqlite3.connect(path)
    assert db.execute("SELECT epoch, nonce FROM owner").fetchone() == (1, "")
    db.close()
