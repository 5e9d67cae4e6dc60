"""A program that creates or upgrades a shard's tables dies after each statement; the next one finishes.

Meanwhile `foqs schema status` and `foqs doctor` say that the tables are not complete.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from foqs.cli.doctor.finding import StoreLocation, rolling_schema_finding
from foqs.cli.doctor.sqlite_checks import check_sqlite
from foqs.store.migrations import NO_TABLES, Phase, SchemaState
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings, Result, Statement
from foqs.store.mysql.mysql_migrations import MIGRATIONS
from foqs.store.mysql.mysql_sql import TABLES
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.mysql.schema_upgrade import contract_tables, read_states, schema_link
from foqs.store.port import DueRow
from foqs.store.sqlite import sqlite_file, sqlite_sql
from foqs.store.sqlite.sqlite_store import SqliteStore
from foqs.telemetry.findings import Finding
from tests.support.aio import run
from tests.support.mariadb import MariaDb
from tests.support.mysql9 import MYSQL9_IF_LONG, running
from tests.support.older_tables import NEWEST, OlderShard
from tests.support.sqlite_files import edit
from tests.support.stores import Ownership, contents, make_row, opened

FINISHED = SchemaState(NEWEST, NEWEST, NEWEST)
_CHANGES = (b"CREATE", b"INSERT", b"ALTER", b"REPLACE", b"UPDATE", b"DELETE", b"COMMIT")


class Died(BaseException):
    """The program ends here."""


# ---------------------------------------------------------------- MySQL, MariaDB

UNSYNCED = {
    "mariadb": ("--innodb-flush-method=nosync", "--skip-sync-frm"),
    "mysql9": ("--innodb-flush-method=nosync",),
}
"""No server crashes here, and each of hundreds of tables would be synced several times."""


@pytest.fixture(params=MYSQL9_IF_LONG, scope="module")
def mariadb(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with running(str(request.param), *UNSYNCED[str(request.param)]) as server:
        yield server


@pytest.fixture
def place(mariadb: MariaDb) -> MysqlSettings:
    return mariadb.settings(mariadb.database())


@contextmanager
def dying_after(changes: int) -> Iterator[list[int]]:
    """Let the program die after this number of statements that change something. Yields a list with their number so far."""
    seen = [0]
    run_whole = MysqlLink.run

    async def run_until_death(link: MysqlLink, *statements: Statement, **how: Any) -> list[Result]:
        results: list[Result] = []
        for statement in statements:
            is_change = isinstance(statement, bytes) and statement.startswith(_CHANGES)
            if is_change and seen[0] == changes:
                link.abort()
                raise Died
            results += await run_whole(link, statement, **how)
            seen[0] += is_change
        return results

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MysqlLink, "run", run_until_death)
        yield seen


async def found_by_doctor(place: MysqlSettings, shard: int) -> tuple[SchemaState, Finding]:
    async with schema_link(place) as link:
        states = await read_states(link)
    found = rolling_schema_finding(
        states, MIGRATIONS, StoreLocation("store", range(shard + 1), False), may_upgrade=True
    )
    return states.get(shard, NO_TABLES), found


def definitions(server: MariaDb, place: MysqlSettings, shard: int) -> list[str]:
    """Return how the server would create the shard's tables."""
    found = [server.query(f"SHOW CREATE TABLE {place.database}.foqs_{shard}_{name}")[0][1] for name in TABLES]
    return [text.replace(f"foqs_{shard}_", "foqs_") for text in found]


async def open_and_use(place: MysqlSettings, shard: int, epoch: int) -> None:
    store = MysqlStore(place, shard)
    try:
        owned = await opened(store, epoch)
        await owned.write(inserts=[make_row(epoch, due_ms=5)], timers_added=[(5, epoch)])
        assert DueRow(5, epoch) in await store.due_rows(None, 9, None, 9)
    finally:
        await store.close()


async def create(place: MysqlSettings, shard: int) -> None:
    store = MysqlStore(place, shard)
    try:
        await store.open()
    finally:
        await store.close()


async def upgrade(place: MysqlSettings, shard: int) -> None:
    """Expand and contract, as `foqs schema apply` and `--contract` do."""
    await create(place, shard)
    async with schema_link(place) as link:
        await contract_tables(link, place, shard)


async def deaths(change: Callable[[], Coroutine[Any, Any, None]], after: int) -> bool:
    """Run a change that dies after this number of statements. Return False if it has fewer."""
    with dying_after(after):
        try:
            await change()
        except Died:
            return True
    return False


@pytest.mark.mysql
def test_a_creation_that_died_after_any_statement_is_shown_and_finished(place: MysqlSettings, mariadb: MariaDb) -> None:
    async def story() -> None:
        shard = 0
        while await deaths(partial(create, place, shard), after=shard):
            state, finding = await found_by_doctor(place, shard)
            if state == FINISHED:
                break
            begun = bool(mariadb.query(f"SHOW TABLES FROM {place.database} LIKE 'foqs_{shard}_%%'"))
            if state.phase is Phase.EMPTY:
                assert not begun, "a shard with tables is shown as empty"
            else:
                assert (state.phase, finding.state) == (Phase.CREATING, "warning")
                assert f"shard {shard} has incomplete tables" in finding.detail
            await open_and_use(place, shard, epoch=1)
            state, finding = await found_by_doctor(place, shard)
            assert (state, finding.state) == (FINISHED, "ok")
            shard += 1
        assert shard > len(TABLES)
        await create(place, shard)
        whole = definitions(mariadb, place, shard)
        for each in range(shard):
            assert definitions(mariadb, place, each) == whole

    run(story(), 120)


@pytest.mark.mysql
def test_an_upgrade_that_died_after_any_statement_is_finished(place: MysqlSettings, mariadb: MariaDb) -> None:
    async def story() -> None:
        shard = 0
        while True:
            older = OlderShard(mariadb, place, shard)
            older.create()
            older.insert(1, due_ms=5)
            await deaths(partial(upgrade, place, shard), after=shard)
            state, finding = await found_by_doctor(place, shard)
            assert (finding.state, state.has_tables) == ("ok" if state == FINISHED else "warning", True)
            if state == FINISHED:
                break
            await upgrade(place, shard)
            assert (await found_by_doctor(place, shard))[0] == FINISHED
            assert older.timers() == [(5, 1)]
            await open_and_use(place, shard, epoch=9)
            shard += 1
        assert shard > len([*MIGRATIONS[-1].steps()])

    run(story(), 120)


# ------------------------------------------------------------------------ SQLite


def die_after(statements: int, file: Path, image: Path, patch: pytest.MonkeyPatch) -> None:
    """Let the program die after this number of statements on a file. What is on disk then is copied to `image`."""

    class DyingConnection(sqlite3.Connection):
        left = statements

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            if not self.left:
                for part in file.parent.glob(f"{file.name}*"):
                    shutil.copy(part, image.parent / part.name.replace(file.name, image.name))
                raise Died
            self.left -= 1
            return super().execute(*arguments)

    def connect(self: sqlite_file.SqliteFile, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.path}?mode={mode}", isolation_level=None, uri=True, factory=DyingConnection)

    patch.setattr(sqlite_file.SqliteFile, "_connect", connect)


async def open_file(path: Path) -> None:
    store = SqliteStore(path, 1)
    try:
        await store.open()
    finally:
        await store.close()


def create_older(path: Path, version: int) -> None:
    """Create a file as a program of an older version does."""
    path.parent.mkdir()
    statements = [text for migration in sqlite_sql.MIGRATIONS[:version] for text in migration.statements]
    edit(path, "PRAGMA journal_mode = WAL", "BEGIN", *statements, sqlite_sql.ADD_OWNER.replace("?", "1"), "COMMIT")
    edit(path, f"PRAGMA application_id = {sqlite_sql.APPLICATION_ID}", f"PRAGMA user_version = {version}")


async def opening_is_interrupted(after: int, file: Path, image: Path) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        die_after(after, file, image, patch)
        try:
            await open_file(file)
        except Died:
            return True
    return False


async def schema_found_in(folder: Path) -> Finding:
    return (await check_sqlite(folder, StoreLocation("store", [1], False)))[-1]


@pytest.mark.parametrize("older", [0, 1])
def test_a_file_whose_program_died_after_any_statement_is_finished_by_the_next(
    tmp_path: Path, older: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(sqlite_file, "sync_folder", synced.append)

    async def story() -> None:
        after = 0
        while True:
            before, crashed = tmp_path / f"{after}", tmp_path / f"{after}-crashed"
            file, image = before / "shard-1.db", crashed / "shard-1.db"
            crashed.mkdir()
            if older:
                create_older(file, older)
            if not await opening_is_interrupted(after, file, image):
                break
            finding = await schema_found_in(crashed)
            if image.exists() and finding.state != "ok":
                sentence = f"schema version {older}" if older else "incomplete tables"
                assert (finding.state, sentence in finding.detail) == ("warning", True), finding
            else:
                assert older or not image.exists() or "every shard has version" in finding.detail
            synced.clear()
            owned: Ownership = await opened(SqliteStore(image, 1))
            assert crashed in synced, "the entry of the file may not be on disk"
            await owned.write(inserts=[make_row(1, due_ms=5)], timers_added=[(5, 1)])
            assert await contents(owned) == {1: make_row(1, due_ms=5)}
            await owned.store.close()
            finding = await schema_found_in(crashed)
            assert (finding.state, finding.detail) == (
                "ok",
                f"every shard has version {sqlite_sql.MIGRATIONS[-1].number}",
            )
            after += 1
        assert after > len(sqlite_sql.MIGRATIONS[-1].statements)

    run(story(), 120)
