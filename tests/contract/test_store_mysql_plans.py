"""The plans that a server makes for the statements: each uses the index that it names, and reads no other rows."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from foqs.core.flush.writes import LeaseUpdate, Writes
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import State, pack_order_key
from foqs.core.items.row_filter import RowFilter
from foqs.store.mysql import mysql_migrations, mysql_sql
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlSettings
from foqs.store.port import ANY_LENGTH, DueRow, IdRange, Store
from tests.contract.conftest import Bench, mysql_bench
from tests.support.inner_parts import link_of
from tests.support.stores import TOPIC, make_row, opened

pytestmark = pytest.mark.mysql


@pytest.fixture
def bench(place: MysqlSettings) -> Bench:
    return mysql_bench(place)


def test_statements_use_their_indexes(place: MysqlSettings, bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [make_row(n, priority=n % 5, due_ms=n) for n in range(1, 400)]
        await owned.write(inserts=rows, timers_added=[(n, n) for n in range(1, 400)])
        store = owned.store
        texts = mysql_sql.Statements(3)
        for text, index in (
            (texts.ready_order_keys(TOPIC, None, 5), "item_order"),
            (texts.ready_order_keys(TOPIC, pack_order_key(1, 1_000, 7), 5), "item_order"),
            (texts.leases_of(TOPIC, pack_order_key(1, 1_000, 7), 5), "item_order"),
            (texts.due_rows(3, 9, None, 5, is_filled=True), "PRIMARY"),
            (texts.next_due_ms(3, 9, is_filled=True), "PRIMARY"),
            (texts.counts, "item_order"),
        ):
            steps = await explain(store, text)
            used = [step for step in steps if step.table in ("foqs_3_item", "foqs_3_timer")]
            assert {step.key for step in used} == {index}, text
            assert all(step.access in ("range", "ref", "index") for step in used), text
            assert text != texts.counts or "Using index" in steps[0].more, "the items are read"

    bench.run(story())


def test_writes_by_id_read_no_other_rows_however_small_the_table(place: MysqlSettings, bench: Bench) -> None:
    ids = list(range(1, 11))

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(n) for n in range(1, 41)])
        store = owned.store
        await link_of(store).run(b"ANALYZE TABLE foqs_3_item")
        texts = mysql_sql.Statements(3)
        for text in (
            *texts.write(Writes(deletes=ids), 1 << 20),
            *texts.write(Writes(leases=[LeaseUpdate(9, 9, 1, ids)]), 1 << 20),
            *texts.write(Writes(updates=[make_row(n) for n in ids]), 1 << 20),
            *texts.read_rows_with_payload(dict.fromkeys(ids, ANY_LENGTH)),
        ):
            assert isinstance(text, bytes)
            (used,) = [step for step in await explain(store, text) if step.table in ("foqs_3_item", "item")]
            assert (used.access, used.key) in {("range", "PRIMARY"), ("eq_ref", "PRIMARY")}, text
            assert used.rows <= len(ids), text

    bench.run(story())


def test_pages_by_id_read_a_range_of_the_primary_key(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(n) for n in range(1, 401)])
        store = owned.store
        await link_of(store).run(b"ANALYZE TABLE foqs_3_item")
        for text in mysql_sql.Statements(3).rows_by_id("default", RowFilter(topic="t"), IdRange(200, 300, 10, 20)):
            used = [step for step in await explain(store, text) if step.table in ("foqs_3_item", "item")]
            assert {(step.access, step.key) for step in used} <= {("range", "PRIMARY"), ("eq_ref", "PRIMARY")}, text
            assert all(step.rows <= 100 for step in used), text

    bench.run(story())


def test_writes_by_id_read_no_deleted_rows_that_a_snapshot_holds(place: MysqlSettings, bench: Bench) -> None:
    """The server expects a handful of rows, because its statistics leave deleted ones out."""
    ids = list(range(901, 1_001))

    async def story() -> None:
        owned = await opened(bench.store())
        holder = await MysqlLink.connect(place)
        try:
            await holder.run(b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
            await owned.write(inserts=[make_row(n) for n in range(1, 1_001)])
            await owned.write(deletes=list(range(1, 996)))
            store = owned.store
            await link_of(store).run(b"ANALYZE TABLE foqs_3_item")
            texts = mysql_sql.Statements(3)
            for text in (
                *texts.write(Writes(deletes=ids), 1 << 20),
                *texts.write(Writes(leases=[LeaseUpdate(9, 9, 1, ids)]), 1 << 20),
                *texts.write(Writes(updates=[make_row(n) for n in ids]), 1 << 20),
                *texts.read_rows(ids),
                *mysql_migrations.fill_timers(3, ids),
            ):
                assert isinstance(text, bytes)
                (used,) = [step for step in await explain(store, text) if step.table in ("foqs_3_item", "item")]
                assert (used.access, used.key) in {("range", "PRIMARY"), ("eq_ref", "PRIMARY")}, text
        finally:
            await holder.close()

    bench.run(story())


def test_timers_and_leases_are_read_by_ranges_whatever_a_snapshot_holds(place: MysqlSettings, bench: Bench) -> None:
    """The tables look empty to the server, so a scan looks as cheap as a range."""
    ids = list(range(901, 1_001))

    async def story() -> None:
        owned = await opened(bench.store())
        holder = await MysqlLink.connect(place)
        try:
            await holder.run(b"START TRANSACTION WITH CONSISTENT SNAPSHOT")
            entries = [(n // 3, n) for n in range(1, 1_001)]
            rows = [make_row(n, state=State.LEASED, due_ms=n) for n in range(1, 1_001)]
            await owned.write(inserts=rows, timers_added=entries)
            await owned.write(deletes=list(range(1, 996)), timers_removed=entries[:995])
            store = owned.store
            await link_of(store).run(b"ANALYZE TABLE foqs_3_item", b"ANALYZE TABLE foqs_3_timer")
            texts = mysql_sql.Statements(3)
            for text in (
                *texts.write(Writes(timers_removed=[(333, 1_000)]), 1 << 20),
                *texts.write(Writes(timers_removed=[(7, n) for n in ids]), 1 << 20),
                *texts.write(Writes(timers_removed=[(n, n) for n in ids]), 1 << 20),
                texts.due_rows(332, 400, None, 5, is_filled=True),
                texts.due_rows(None, 400, DueRow(330, 7), 5, is_filled=True),
                texts.next_due_ms(332, 400, is_filled=True),
                texts.leases_in([(1, 4_000)], 9),
                texts.leases_in([(n, n + 1) for n in range(1, 999, 5)], 9),
            ):
                assert isinstance(text, bytes)
                used = [step for step in await explain(store, text) if step.table in ("foqs_3_item", "foqs_3_timer")]
                assert used
                assert {step.key for step in used} == {"PRIMARY"}, text
                assert {step.access for step in used} <= {"range", "const"}, text
        finally:
            await holder.close()

    bench.run(story())


def test_statements_of_keys_use_their_indexes(place: MysqlSettings, bench: Bench) -> None:
    rows = [IdempotencyKey("n", b"%d" % n, n, bytes(16), n) for n in range(1, 2_000)]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(idempotency_keys_added=rows)
        store = owned.store
        texts = mysql_sql.Statements(3)
        (clear,) = texts.write(Writes(idempotency_keys_expired_by_ms=5, idempotency_keys_expired_max=500), 1 << 20)
        (read,) = texts.read_idempotency_keys([(row.namespace, row.key) for row in rows[:300]])
        for text, index in (
            (clear, "key_until"),
            (texts.next_key_expiry(3), "key_until"),
            (read, "PRIMARY"),
            (texts.idempotency_keys_of({7: 7})[0], "key_until"),
        ):
            assert isinstance(text, bytes)
            (step,) = await explain(store, text)
            assert (step.key, step.access) in {(index, "range"), (index, "index"), (index, "ref")}, text
            assert "filesort" not in step.more, text

    bench.run(story())


@dataclass(slots=True, frozen=True)
class Step:
    """One table in the plan of a statement."""

    table: str
    access: str
    key: str
    rows: int
    more: str


async def explain(store: Store, text: bytes) -> list[Step]:
    """Return the plan of a statement. Only MySQL's plan has a column for partitions, the fourth."""
    (plan,) = await link_of(store).run(b"EXPLAIN FORMAT=TRADITIONAL " + text)
    steps = []
    for values in plan.rows:
        _, _, table, *_, access, _, key, _, _, rows = values[:9] if len(values) == 10 else values[:10]
        steps.append(Step(_name(table), _name(access), _name(key), int(rows or 0), _name(values[-1])))
    return steps


def _name(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
