"""The phases of migration 8 on real servers: owners of two versions on the same tables, and the contraction."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.items.item import TIME_MS_MAX, State
from foqs.store.migrations import Phase, SchemaState
from foqs.store.mysql import mysql_migrations, mysql_store, online_statement
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings, Result, Statement
from foqs.store.mysql.mysql_session_sql import COMMIT, ROLLBACK
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.mysql.schema_upgrade import RUN_RIGHTS, SCHEMA_RIGHTS, contract_tables, read_state, schema_link
from foqs.store.mysql.timer_filling import read_filling
from foqs.store.port import DueRow, StoreUnusable
from tests.contract.conftest import Bench, mysql_bench
from tests.support.mariadb import MariaDb
from tests.support.older_tables import NEWEST, OLDER_VERSION, OlderShard
from tests.support.stores import Ownership, make_row, opened, reading, write_again

pytestmark = pytest.mark.mysql

EXPANDED = SchemaState(OLDER_VERSION, OLDER_VERSION, NEWEST)
CONTRACTED = SchemaState(NEWEST, NEWEST, NEWEST)
TRIES = 4
"""How often a statement that meets a reader is tried while flushes are written."""


@pytest.fixture
def bench(place: MysqlSettings) -> Bench:
    return mysql_bench(place)


@pytest.fixture
def older(mariadb: MariaDb, place: MysqlSettings) -> OlderShard:
    found = OlderShard(mariadb, place)
    found.create()
    return found


async def state_of(older: OlderShard) -> SchemaState:
    async with schema_link(older.place) as link:
        return await read_state(link, older.shard)


async def contract(older: OlderShard) -> None:
    async with schema_link(older.place) as link:
        await contract_tables(link, older.place, older.shard)


async def dues(owned: Ownership) -> list[DueRow]:
    """Return all dues as scans and sweeps find them, which must be the same."""
    found = await owned.store.due_rows(None, TIME_MS_MAX, None, 100)
    async with reading(owned.store) as reads:
        assert await reads.due_rows(owned.past, TIME_MS_MAX, None, 100) == found
    return found


def test_owners_of_both_versions_alternate_on_expanded_tables_and_miss_no_due(bench: Bench, older: OlderShard) -> None:
    async def story() -> None:
        older.take_over(1)
        older.insert(1, State.DEFERRED, 50)
        new = await opened(bench.store(), epoch=2)
        assert await state_of(older) == EXPANDED
        assert await dues(new) == [DueRow(50, 1)]
        await new.write(inserts=[make_row(2, due_ms=60)], timers_added=[(60, 2)])
        assert await new.store.next_due_ms(50, TIME_MS_MAX) == 60

        older.take_over(3)
        older.insert(3, State.DEFERRED, 40)
        older.insert(4, State.LEASED, 10)
        older.delete(2)
        new = await opened(bench.store(), epoch=4)
        assert await dues(new) == [DueRow(40, 3), DueRow(50, 1)]
        assert older.version() == OLDER_VERSION
        assert older.timers() == [(60, 2)], "the entry of a row that is gone"

        await contract(older)
        assert await state_of(older) == CONTRACTED
        assert older.timers() == [(40, 3), (50, 1)]
        assert not older.has_due_index()
        assert await dues(new) == [DueRow(40, 3), DueRow(50, 1)]
        await new.write(inserts=[make_row(9, due_ms=45)], timers_added=[(45, 9)])
        assert await new.store.next_due_ms(40, TIME_MS_MAX) == 45

    bench.run(story())


def test_dues_are_found_if_the_index_is_dropped_between_the_decision_to_read_it_and_the_read(
    bench: Bench, older: OlderShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        new = await opened(bench.store(), epoch=2)
        await new.write(inserts=[make_row(1, due_ms=7)], timers_added=[(7, 1)])
        other = bench.store()
        await other.open()
        await contract(older)

        async def was_filled(link: MysqlLink, shard: int) -> bool:
            return False  # what the store read before the contraction

        monkeypatch.setattr(mysql_store, "are_timers_filled", was_filled)
        assert await new.store.due_rows(None, TIME_MS_MAX, None, 100) == [DueRow(7, 1)]
        assert await other.next_due_ms(0, TIME_MS_MAX) == 7
        await new.write(deletes=[1], timers_removed=[(7, 1)])
        assert await other.next_due_ms(0, TIME_MS_MAX) is None

    bench.run(story())


def test_nothing_is_contracted_while_an_older_host_owns_the_shard(bench: Bench, older: OlderShard) -> None:
    async def story() -> None:
        await bench.store().open()
        older.take_over(5)
        with pytest.raises(
            StoreUnusable, match=r"shard 3 .* was last owned by a host of an older version: let a host of this version"
        ):
            await contract(older)
        assert await state_of(older) == EXPANDED
        older.take_over(6)

    bench.run(story())


def test_the_database_refuses_a_takeover_by_an_older_host_after_the_contraction_began(
    bench: Bench, older: OlderShard
) -> None:
    async def story() -> None:
        await opened(bench.store(), epoch=2)
        await contract(older)
        assert older.version() == NEWEST
        with pytest.raises(Exception, match=r"(?i)constraint"):
            older.take_over(7)
        await opened(bench.store(), epoch=8)

    bench.run(story())


def test_an_interrupted_contraction_is_shown_and_finished(bench: Bench, older: OlderShard) -> None:
    """The filling is interrupted in the middle; a new owner comes, and the command is repeated."""
    count = 2_000

    async def story() -> None:
        rows = [make_row(n, due_ms=n) for n in range(1, count + 1)]
        new = await opened(bench.store(), epoch=2)
        await new.write(inserts=rows)  # without entries, as an older owner writes them

        async with schema_link(older.place) as link:
            seen: list[int] = []

            def stop(done: int, total: int) -> None:
                seen.append(done)
                if done > count // 4:
                    raise asyncio.CancelledError

            with pytest.raises(asyncio.CancelledError):
                await contract_tables(link, older.place, older.shard, stop)
            assert max(seen) < count
            state = await read_state(link, older.shard)
            assert (state.phase, state.version) == (Phase.CONTRACTING, NEWEST)
            done, total = await read_filling(link, older.shard)
            assert count // 4 < done < total

        new = await opened(bench.store(), epoch=3)
        assert len(await new.store.due_rows(None, TIME_MS_MAX, None, count + 1)) == count
        await contract(older)
        assert await state_of(older) == CONTRACTED
        assert older.timers() == [(n, n) for n in range(1, count + 1)]

    bench.run(story())


def test_a_new_connection_reads_again_whether_the_timers_are_filled(bench: Bench, older: OlderShard) -> None:
    """A replica that replaces the server may have lost the end of the filling, and so the drop of the index."""

    async def story() -> None:
        new = await opened(bench.store(), epoch=2)
        await new.write(inserts=[make_row(1, due_ms=7)], timers_added=[(7, 1)])
        await contract(older)
        assert await dues(new) == [DueRow(7, 1)]
        older.server.query(f"ALTER TABLE {older.table('item')} ADD KEY item_due (due_ms, id)")
        older.server.query(f"DELETE FROM {older.table('timer')}")
        older.server.query(f"UPDATE {older.table('owner')} SET timers_filled_to = -1")
        await new.store.read_owner()
        assert await dues(new) == [DueRow(7, 1)]

    bench.run(story())


def test_tables_of_an_earlier_moment_are_opened_again(bench: Bench, older: OlderShard) -> None:
    """A replica that replaces the server may lack the expansion."""

    async def story() -> None:
        new = await opened(bench.store(), epoch=2)
        older.server.query(f"UPDATE {older.place.database}.foqs_schema_steps SET expanded = {OLDER_VERSION}")
        with pytest.raises(StoreUnusable, match="lost its expansion to schema version"):
            await new.store.read_owner()
        await bench.store().open()
        assert await state_of(older) == EXPANDED

    bench.run(story())


def test_each_step_may_run_again(bench: Bench, older: OlderShard) -> None:
    """A command that dies after its statements and before the state is stored runs them again."""

    def forget(state: SchemaState) -> None:
        database = older.place.database
        older.server.query(f"UPDATE {database}.foqs_schema SET version = {state.version}")
        older.server.query(
            f"UPDATE {database}.foqs_schema_steps SET expanded = {state.expanded}, contracted = {state.contracted}"
        )

    async def story() -> None:
        new = await opened(bench.store(), epoch=2)
        await new.write(inserts=[make_row(1, due_ms=7)], timers_added=[(7, 1)])
        forget(SchemaState(OLDER_VERSION, OLDER_VERSION, OLDER_VERSION))
        new = await opened(bench.store(), epoch=3)
        await contract(older)
        for state in (EXPANDED, SchemaState(OLDER_VERSION, NEWEST, NEWEST)):
            forget(state)
            await contract(older)
            assert await state_of(older) == CONTRACTED
        assert await dues(new) == [DueRow(7, 1)]

    bench.run(story())


def test_a_statement_gives_way_to_writers_while_a_reader_holds_the_table(
    bench: Bench, older: OlderShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself would end the statement after an hour only: flushes that wait behind it would never end."""
    ends: list[bool] = []
    run_once = online_statement._run_once

    async def counted(*given: Any) -> bool:
        ends.append(await run_once(*given))
        return ends[-1]

    monkeypatch.setattr(online_statement, "_run_once", counted)
    monkeypatch.setattr(mysql_migrations, "LIMIT_LOCK_WAIT", b"SET SESSION lock_wait_timeout = 3600")

    async def story() -> None:
        new = await opened(bench.store(), epoch=2)
        async with schema_link(older.place) as reader:
            await reader.run(b"START TRANSACTION", b"SELECT COUNT(*) FROM foqs_3_item")
            contracting = asyncio.ensure_future(contract(older))
            while ends.count(False) < TRIES:
                await write_again(new, deletes=[7])
            assert not contracting.done()
            assert older.has_due_index()
            await reader.run(b"ROLLBACK")
        await contracting
        assert ends[-1]
        assert not older.has_due_index()

    bench.run(story())


def test_commands_and_flushes_at_once_leave_exactly_the_entries_of_the_rows(bench: Bench, older: OlderShard) -> None:
    async def story() -> None:
        new = await opened(bench.store(), epoch=2)
        await new.write(inserts=[make_row(n, due_ms=n) for n in range(1, 3_001)])

        async def flush() -> None:
            for n in range(1, 200):
                await write_again(new, deletes=[n * 10], timers_removed=[(n * 10, n * 10)])
                added = make_row(10_000 + n, due_ms=5_000 + n)
                await write_again(new, inserts=[added], timers_added=[(5_000 + n, 10_000 + n)])

        await asyncio.gather(contract(older), contract(older), flush())
        wanted = [(n, n) for n in range(1, 3_001) if n % 10 or n >= 2_000]
        assert older.timers() == [*wanted, *((5_000 + n, 10_000 + n) for n in range(1, 200))]
        assert await state_of(older) == CONTRACTED

    bench.run(story())


def test_old_entries_are_removed_in_order_and_once_while_a_snapshot_keeps_them(
    bench: Bench, older: OlderShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that looked for the first entries would walk over all that were removed before, with the owner row locked."""
    entries = [(n // 3, n) for n in range(2, 1_500)]
    removed: list[tuple[int, int]] = []
    run = MysqlLink.run

    async def spy(link: MysqlLink, *statements: Statement, **how: Any) -> list[Result]:
        for statement in statements:
            if isinstance(statement, bytes) and statement.startswith(b"DELETE foqs_3_timer"):
                for due_ms, ids in re.findall(rb"due_ms = (\d+) AND id IN \(([\d,]+)\)", statement):
                    removed.extend((int(due_ms), int(number)) for number in ids.split(b","))
        return await run(link, *statements, **how)

    async def story() -> None:
        new = await opened(bench.store(), epoch=2)
        await new.write(inserts=[make_row(1, due_ms=700)], timers_added=[(700, 1)])
        values = ",".join(map(str, entries))
        older.server.query(f"INSERT INTO {older.table('timer')} (due_ms, id) VALUES {values}")
        async with schema_link(older.place) as holder:
            await holder.run(b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
            monkeypatch.setattr(MysqlLink, "run", spy)
            await contract(older)
        assert removed == sorted([*entries, (700, 1)])
        assert older.timers() == [(700, 1)]

    bench.run(story())


def test_pages_are_read_before_the_owner_row_is_locked(
    bench: Bench, older: OlderShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a read walks over all deleted rows that a snapshot keeps, and flushes would wait for it."""
    locked: set[MysqlLink] = set()
    under_lock: list[bytes] = []
    read_timeouts_s: list[float] = []
    run = MysqlLink.run

    async def spy(link: MysqlLink, *statements: Statement, **how: Any) -> list[Result]:
        for statement in statements:
            if not isinstance(statement, bytes):
                continue
            if b"LIMIT" in statement:
                read_timeouts_s.append(link.timeout_s)
            if b"_owner" in statement and statement.endswith(b"FOR UPDATE"):
                locked.add(link)
            elif statement in (COMMIT, ROLLBACK):
                locked.discard(link)
            elif link in locked:
                under_lock.append(statement)
        return await run(link, *statements, **how)

    async def story() -> None:
        new = await opened(bench.store(), epoch=2)
        await new.write(inserts=[make_row(n, due_ms=n) for n in range(1, 1_001)], timers_added=[(1, 1), (8, 2)])
        await new.write(inserts=[make_row(n) for n in range(1_001, 1_003)])
        monkeypatch.setattr(MysqlLink, "run", spy)
        await contract(older)
        assert older.timers() == [(n, n) for n in range(1, 1_001)]
        assert under_lock
        assert [statement for statement in under_lock if b"LIMIT" in statement] == []
        assert min(read_timeouts_s) >= 3_600.0

    bench.run(story())


def test_a_new_shard_beside_one_that_is_not_contracted_is_usable_for_both_versions(
    bench: Bench, older: OlderShard
) -> None:
    async def story() -> None:
        await bench.store().open()
        await bench.store(shard=8).open()
        added = OlderShard(older.server, older.place, 8)
        assert await state_of(added) == EXPANDED
        added.take_over(1)
        await contract(older)
        await bench.store(shard=9).open()
        assert (await state_of(OlderShard(older.server, older.place, 9))).phase is Phase.EXPANDED
        await opened(bench.store(shard=8), epoch=2)
        await contract(added)

    bench.run(story())


def test_the_rights_of_the_runbook_suffice(bench: Bench, older: OlderShard) -> None:
    """One user changes the tables, another one runs the hosts before, between and after the phases."""
    database = older.place.database
    for user, rights in (("changer", SCHEMA_RIGHTS), ("runner", RUN_RIGHTS)):
        older.server.query(f"CREATE USER IF NOT EXISTS {user}@localhost")
        older.server.query(f"GRANT {rights} ON {database}.* TO {user}@localhost")
    changer = replace(older, place=older.server.settings(database, user="changer"))
    runner = older.server.settings(database, user="runner")

    async def use(epoch: int) -> None:
        store = MysqlStore(runner, older.shard)
        owned = await opened(store, epoch)
        await owned.write(inserts=[make_row(epoch, due_ms=epoch)], timers_added=[(epoch, epoch)])
        assert (await store.due_rows(None, TIME_MS_MAX, None, 100))[-1] == DueRow(epoch, epoch)
        await store.close()

    async def story() -> None:
        with pytest.raises(
            StoreUnusable, match="needs 8, but user runner may not create tables: run foqs schema apply"
        ):
            await use(2)
        store = MysqlStore(changer.place, older.shard)
        await store.open()
        await store.close()
        await use(3)
        await contract(changer)
        await use(4)

    bench.run(story())


@pytest.mark.parametrize("version", [1, 6])
def test_tables_more_than_one_version_older_are_refused(bench: Bench, older: OlderShard, version: int) -> None:
    older.server.query(f"UPDATE {older.place.database}.foqs_schema SET version = {version}")

    async def story() -> None:
        sentence = rf"version {version}, and .* First finish the upgrade to schema version {version + 1}"
        with pytest.raises(StoreUnusable, match=sentence):
            await bench.store().open()

    bench.run(story())
