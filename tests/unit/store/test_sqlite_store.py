"""Behaviour of the SQLite store alone: the file, its durability, its locks between processes, its damage."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from foqs.core.flush.fence import Fence
from foqs.core.flush.journal_rows import JournalRow, PayloadPlace
from foqs.store.port import StoreLost, StoreUnusable, WriteRefused, no_faults
from foqs.store.sqlite import sqlite_sql
from foqs.store.sqlite.sqlite_file import SqliteFile
from foqs.store.sqlite.sqlite_header import SqliteHeader, read_header
from foqs.store.sqlite.sqlite_reads import SqliteReads
from foqs.store.sqlite.sqlite_store import SqliteStore
from tests.support.aio import run
from tests.support.sqlite_files import edit, open_and_close
from tests.support.stores import OTHER, contents, make_row, opened, reading

_NOBODY = 65_534
_OTHER_PROCESS = """
import asyncio, sys
from pathlib import Path
from foqs.store.port import StoreError
from foqs.store.sqlite.sqlite_store import SqliteStore
from tests.support.stores import make_row, opened

async def main():
    owned = await opened(SqliteStore(Path(sys.argv[1]), 1))
    await owned.write(inserts=[make_row(1)])
    print("written", flush=True)
    sys.stdin.readline()
    try:
        await owned.write(inserts=[make_row(2)])
        print("written", flush=True)
    except StoreError as error:
        print(type(error).__name__, flush=True)
    await owned.store.close()

asyncio.run(main())
"""


def test_opened_file_is_in_wal_mode_and_syncs_fully(tmp_path: Path) -> None:
    db = SqliteFile(tmp_path / "s.db", 1, "FULL", unsafe_durability=False, busy_timeout_s=1.0).open(create=True)
    try:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA busy_timeout").fetchone() == (1_000,)
    finally:
        db.close()


def test_file_in_a_folder_whose_name_is_not_utf8_is_used_like_any_other(tmp_path: Path) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/da\xff\xfeta")) / "shard-1.db"

    async def main() -> None:
        owned = await opened(SqliteStore(path, 1))
        await owned.write(inserts=[make_row(1)])
        await owned.store.close()

    run(main())
    assert path.exists()


def test_error_that_names_such_a_folder_can_be_encoded() -> None:
    error = StoreLost(f"{os.fsdecode(b'/da' + bytes([255]))}/shard-1.db: disk I/O error")
    assert str(error).encode() == rb"/da\udcff/shard-1.db: disk I/O error"


@pytest.mark.parametrize("level", ["OFF", "normal"])
def test_weak_synchronous_is_refused_unless_accepted(tmp_path: Path, level: str) -> None:
    path = tmp_path / "s.db"
    with pytest.raises(StoreUnusable, match=f"synchronous={level.upper()} .*--unsafe-durability"):
        open_and_close(SqliteStore(path, 1, synchronous=level))
    assert not path.exists()
    open_and_close(SqliteStore(path, 1, synchronous=level, unsafe_durability=True))
    with pytest.raises(StoreUnusable, match="is unknown"):
        open_and_close(SqliteStore(path, 1, synchronous="SOMETIMES"))


def test_the_file_header_shows_the_schema_while_the_file_is_open(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "s.db", 1, "FULL", unsafe_durability=False, busy_timeout_s=1.0)
    db = file.open(create=True)
    try:
        header = read_header(file.path)
        assert header == SqliteHeader(sqlite_sql.MIGRATIONS[-1].number, sqlite_sql.APPLICATION_ID)
    finally:
        db.close()


def test_folders_are_created_and_special_characters_in_names_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a b" / "c?d#e%20" / "s.db"
    open_and_close(SqliteStore(path, 1))
    assert path.is_file()


def test_a_file_is_synced_into_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("foqs.store.sqlite.sqlite_file.sync_folder", synced.append)
    path = tmp_path / "one" / "two" / "s.db"
    open_and_close(SqliteStore(path, 1))
    assert synced == [tmp_path, tmp_path / "one", tmp_path / "one" / "two"]
    synced.clear()
    open_and_close(SqliteStore(path, 1))
    assert synced == [tmp_path / "one" / "two"], "the program that created the file may have died before it synced"


def test_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnusable, match="cannot be created"):
        open_and_close(SqliteStore(tmp_path / "file" / "s.db", 1))


def test_file_of_another_shard_is_refused(tmp_path: Path) -> None:
    open_and_close(SqliteStore(tmp_path / "s.db", 1))
    with pytest.raises(StoreUnusable, match="holds shard 1, not shard 2"):
        open_and_close(SqliteStore(tmp_path / "s.db", 2))


def test_file_of_another_program_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    edit(path, "CREATE TABLE theirs (x)")
    with pytest.raises(StoreUnusable, match="another program"):
        open_and_close(SqliteStore(path, 1))
    text = tmp_path / "text"
    text.write_text("no database at all, but long enough to have a header that SQLite reads and rejects" * 20)
    with pytest.raises(StoreUnusable, match="not a database"):
        open_and_close(SqliteStore(text, 1))


def test_reads_of_a_missing_file_are_lost_and_create_none(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        async with reading(SqliteStore(path, 1)) as reads:
            with pytest.raises(StoreLost, match="unable to open"):
                await reads.rows(Fence(1, "n", 0, 0), [1])
        assert not path.exists()

    run(story())


def test_reads_cannot_write(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "s.db", 1, "FULL", unsafe_durability=False, busy_timeout_s=1.0)
    file.open(create=True).close()
    db = file.open_for_reading()
    try:
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            db.execute("UPDATE owner SET epoch = 7")
    finally:
        db.close()


def test_statement_of_a_cancelled_read_is_ended(tmp_path: Path) -> None:
    """Otherwise the next call would wait for a result that is not wanted any more."""
    long = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 1000000) SELECT COUNT(count_call()) FROM n"
    errors: list[str] = []

    async def story() -> None:
        owned = await opened(SqliteStore(tmp_path / "s.db", 1))
        loop = asyncio.get_running_loop()
        running = asyncio.Event()

        def count_call() -> None:
            loop.call_soon_threadsafe(running.set)

        def count(db: sqlite3.Connection) -> None:
            db.create_function("count_call", 0, count_call)
            try:
                db.execute(long).fetchone()
            except sqlite3.OperationalError as error:
                errors.append(str(error))
                raise

        async with reading(owned.store) as reads:
            assert isinstance(reads, SqliteReads)
            counting = asyncio.ensure_future(reads._read(owned.past, count))
            await running.wait()
            counting.cancel()
            assert await reads.rows(owned.past, [1]) == []
            assert errors == ["interrupted"]
        await owned.store.close()

    run(story())


def test_many_may_open_a_new_file_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        for attempt in range(10):
            stores = [SqliteStore(tmp_path / f"{attempt}.db", 1, busy_timeout_s=60.0) for _ in range(6)]
            await asyncio.gather(*(store.open() for store in stores))
            await asyncio.gather(*(store.close() for store in stores))

    run(story())


def test_statements_use_their_indexes(tmp_path: Path) -> None:
    db = SqliteFile(tmp_path / "s.db", 1, "FULL", unsafe_durability=False, busy_timeout_s=1.0).open(create=True)
    try:
        for text, index in (
            (sqlite_sql.FIRST_ORDER_KEYS, "item_order"),
            (sqlite_sql.NEXT_ORDER_KEYS, "item_order"),
            (sqlite_sql.NEXT_ROWS, "item_order"),
            (sqlite_sql.FIRST_LEASES, "item_order"),
            (sqlite_sql.NEXT_LEASES, "item_order"),
            (sqlite_sql.COUNTS, "item_order"),
            (sqlite_sql.EXPIRE_IDEMPOTENCY_KEYS, "key_until"),
            (sqlite_sql.NEXT_KEY_EXPIRY, "key_until"),
            (sqlite_sql.IDEMPOTENCY_KEY_OF, "key_until"),
        ):
            values = (1,) * text.count("?")
            plan = " / ".join(step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {text}", values))
            assert f"INDEX {index}" in plan, text
            assert "TEMP B-TREE" not in plan, text
            assert "COVERING" in plan or text != sqlite_sql.COUNTS, plan
            assert "SCAN key" not in plan or text == sqlite_sql.NEXT_KEY_EXPIRY, plan
        for text, key in (
            (sqlite_sql.DUE_ROWS, "PRIMARY KEY ((due_ms,id)>(?,?) AND due_ms<?)"),
            (sqlite_sql.NEXT_DUE, "PRIMARY KEY (due_ms>? AND due_ms<?)"),
            (sqlite_sql.REMOVE_TIMER, "PRIMARY KEY (due_ms=? AND id=?)"),
            (sqlite_sql.LEASES_IN, "INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ):
            plan = " / ".join(step[3] for step in db.execute(f"EXPLAIN QUERY PLAN {text}", (1,) * text.count("?")))
            assert plan.endswith(key), plan
    finally:
        db.close()


def test_two_processes_fence_each_other_by_the_owner_row(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    other = _start_other(path)
    assert other.stdout is not None

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2, nonce=OTHER)
        assert set(await contents(owned)) == {1}
        output, _ = await asyncio.to_thread(other.communicate, "go on\n")
        assert output == "FencedOut\n"
        await owned.write(inserts=[make_row(3)])
        assert set(await contents(owned)) == {1, 3}
        await owned.store.close()

    try:
        assert other.stdout.readline() == "written\n"
        run(story())
    finally:
        other.kill()
        other.communicate()


def test_killed_process_keeps_its_committed_data(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    other = _start_other(path)
    assert other.stdout is not None
    assert other.stdout.readline() == "written\n"
    other.kill()
    other.communicate()

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2, nonce=OTHER)
        assert set(await contents(owned)) == {1}
        await owned.store.close()

    run(story())


def _start_other(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _OTHER_PROCESS, str(path)],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_flush_that_meets_a_locked_file_may_be_run_again(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1, busy_timeout_s=0.05))
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(WriteRefused, match="lock") as refused:
            await owned.write(inserts=[make_row(1)])
        assert refused.value.is_retryable
        assert await contents(owned) == {}
        holder.execute("ROLLBACK")
        holder.close()
        await owned.write(inserts=[make_row(1)])
        await owned.store.close()

    run(story())


@pytest.mark.takes_source
def test_values_that_the_columns_do_not_hold_are_refused_as_such_and_others_are_not(tmp_path: Path) -> None:
    async def story() -> None:
        owned = await opened(SqliteStore(tmp_path / "s.db", 1))
        await owned.write(inserts=[make_row(1)])
        changes: list[tuple[dict[str, Any], bool]] = [
            ({"priority": 1 << 63}, True),
            ({"topic": "\ud800"}, True),
            ({"metadata": None}, True),
            ({"number": 1}, False),
        ]
        for change, is_bad_value in changes:
            with pytest.raises(WriteRefused) as refused:
                await owned.write(inserts=[make_row(**({"number": 2} | change))])
            assert refused.value.is_bad_value == is_bad_value, change
        assert set(await contents(owned)) == {1}
        await owned.store.close()

    run(story())


def test_full_disk_refuses_inserts_and_accepts_deletes(tmp_path: Path) -> None:
    stores: list[SqliteStore] = []

    def shrink(point: str) -> None:
        db = stores[0]._db
        assert db is not None
        if point == "begin":
            (pages,) = db.execute("PRAGMA page_count").fetchone()
            db.execute(f"PRAGMA max_page_count = {pages}")

    async def story() -> None:
        stores.append(SqliteStore(tmp_path / "s.db", 1, shrink))
        owned = await opened(stores[0])
        with pytest.raises(WriteRefused, match="make room") as refused:
            await owned.write(inserts=[make_row(n, payload=b"x" * 100_000) for n in range(1, 9)])
        assert not refused.value.is_retryable
        await owned.write(inserts=[make_row(1)])
        await owned.write(deletes=[1])
        assert await contents(owned) == {}
        assert (await owned.store.read_owner()).flush == 2
        await owned.store.close()

    run(story())


def test_damaged_file_is_lost_and_then_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def fill() -> None:
        owned = await opened(SqliteStore(path, 1))
        await owned.write(inserts=[make_row(n, payload=b"x" * 3_000) for n in range(1, 200)])
        await owned.store.close()

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1), epoch=2, nonce=OTHER)
        with pytest.raises(StoreLost, match="damaged"):
            await owned.write(deletes=list(range(1, 200)))
        with pytest.raises(StoreUnusable, match=r"damaged.*restore"):
            await owned.store.read_owner()
        await owned.store.close()

    run(fill())
    size = path.stat().st_size
    owner_and_schema = 8 * 4096
    with path.open("r+b") as file:
        file.seek(owner_and_schema)
        file.write(b"\xff" * (size - owner_and_schema))
    run(story())


def _failing(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("failed")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize("code", [sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_READONLY])
def test_broken_disk_is_lost_until_the_owner_row_was_read(tmp_path: Path, code: int) -> None:
    broken = [code]

    def fail(point: str) -> None:
        if point == "committed" and broken:
            raise _failing(broken.pop())

    async def story() -> None:
        store = SqliteStore(tmp_path / "s.db", 1, fail)
        owned = await opened(store)
        with pytest.raises(StoreLost, match="check the disk"):
            await owned.write(inserts=[make_row(1)])
        with pytest.raises(StoreLost):
            await store.topics()
        assert (await store.read_owner()).flush == 1
        await store.close()

    run(story())


def test_a_missing_owner_row_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1, no_faults))
        edit(path, "DELETE FROM owner")
        with pytest.raises(StoreUnusable, match=r"owner row is missing.*backup"):
            await owned.write(inserts=[make_row(1)])
        with pytest.raises(StoreUnusable, match=r"owner row is missing.*backup"):
            await owned.store.read_owner()
        await owned.store.close()

    run(story())


def test_deleted_file_is_not_created_again_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    async def story() -> None:
        owned = await opened(SqliteStore(path, 1, no_faults))
        for name in ("s.db", "s.db-wal", "s.db-shm"):
            (tmp_path / name).unlink(missing_ok=True)
        with pytest.raises(StoreUnusable, match="unable to open"):
            await owned.store.read_owner()
        assert not path.exists()
        await owned.store.close()

    run(story())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can lose a right and have it back")
def test_file_without_rights_for_a_while_is_waited_for() -> None:
    async def story(folder: Path) -> None:
        owned = await opened(SqliteStore(folder / "s.db", 1, no_faults))
        os.seteuid(_NOBODY)
        try:
            with pytest.raises(StoreLost, match="let this user read and write"):
                await owned.store.read_owner()
            with pytest.raises(StoreUnusable, match="let this user read and write"):
                await SqliteStore(folder / "s.db", 1, no_faults).open()
        finally:
            os.seteuid(0)
        assert (await owned.store.read_owner()).epoch == owned.epoch
        await owned.store.close()

    with tempfile.TemporaryDirectory() as folder:
        run(story(Path(folder)))


def test_cancelled_call_ends_in_the_thread_before_the_next_begins(tmp_path: Path) -> None:
    fenced, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def pause(point: str) -> None:
        order.append(point)
        if point == "fenced":
            fenced.set()
            assert go_on.wait(30)

    async def story() -> None:
        owned = await opened(SqliteStore(tmp_path / "s.db", 1, pause))
        flush = asyncio.ensure_future(owned.write(inserts=[make_row(1)]))
        await asyncio.to_thread(fenced.wait, 30)
        flush.cancel()
        await asyncio.wait([flush])
        assert flush.cancelled()
        check = asyncio.ensure_future(owned.store.read_owner())
        await asyncio.sleep(0)
        assert order[-1] == "fenced"
        go_on.set()
        assert (await check).flush == 1
        assert order[-1] == "committed"
        await owned.store.close()

    run(story())


def test_payloads_of_long_journal_rows_are_read_without_the_rest_of_these_rows(tmp_path: Path) -> None:
    async def story() -> None:
        owned = await opened(SqliteStore(tmp_path / "s.db", 1))
        for _ in range(4):
            await owned.write(journal_row=JournalRow(b"events", [b"x" * 2_000_000, b"wanted"], (1, 1)))
        places = [PayloadPlace((1, flush), 2_000_000, 6) for flush in range(1, 5)]
        tracemalloc.start()
        try:
            assert await owned.store.journal_payloads(places) == dict.fromkeys(places, b"wanted")
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
        await owned.store.close()

    run(story())
