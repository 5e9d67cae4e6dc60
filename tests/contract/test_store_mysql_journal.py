"""The journal on a server: rows that need several packets, connections that break between them, and the plans of statements."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.flush.journal_rows import JournalRange, JournalRow, PayloadPlace, PositionedEvents
from foqs.store.mysql import mysql_store
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings
from foqs.store.mysql.mysql_journal_sql import JournalStatements, PayloadRange, payload_ranges
from foqs.store.mysql.mysql_sql import PREPARED_STATEMENTS_IN_BULK, PREPARED_STATEMENTS_MAX
from foqs.store.port import StoreLost
from tests.contract.conftest import SHARD, Bench, mysql_bench
from tests.contract.test_store_mysql_plans import explain
from tests.support.inner_parts import link_of
from tests.support.stores import contents, make_row, opened

pytestmark = pytest.mark.mysql


@pytest.fixture
def bench(place: MysqlSettings) -> Bench:
    return mysql_bench(place)


def test_row_that_needs_many_packets_is_whole_or_missing_wherever_the_connection_breaks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_store, "PACKET_BYTES_MAX", 20_000)
    row = JournalRow(b"e" * 50_000, [b"p" * 30_000, b"q" * 15_000], (1, 1))
    run_packet, left = MysqlLink.run, [1 << 30]

    async def run_or_break(link: MysqlLink, *statements: Any, **options: Any) -> Any:
        if left[0] == 0:
            link.abort()
            raise MysqlLinkLost("broken by the test")
        left[0] -= 1
        return await run_packet(link, *statements, **options)

    async def story() -> None:
        owned = await opened(bench.store())
        monkeypatch.setattr(MysqlLink, "run", run_or_break)
        for packets in range(100):
            left[0] = packets
            try:
                await owned.write(journal_row=row, inserts=[make_row(1)])
            except StoreLost:
                left[0] = 1 << 30
                assert (await owned.store.read_owner()).flush == 0
                assert await owned.store.journal_events((0, 0), 1 << 30) == []
                assert await contents(owned) == {}
            else:
                break
        assert packets > 4, "the row did not need several packets"
        left[0] = 1 << 30
        assert await owned.store.journal_events((0, 0), 1 << 30) == [PositionedEvents((1, 1), row.events)]
        place = PayloadPlace((1, 1), 29_999, 2)
        assert await owned.store.journal_payloads([place]) == {place: b"pq"}

    bench.run(story())


def test_writer_prepares_the_row_of_the_journal_and_no_more_statements_than_doctor_counts(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        for number in range(1, 4):
            await owned.write(journal_row=JournalRow(b"events", [b"payload"], (1, 1)), inserts=[make_row(number)])
        link = link_of(owned.store)
        most = PREPARED_STATEMENTS_IN_BULK if link.can_bulk else PREPARED_STATEMENTS_MAX
        assert 3 == len(link.statement_ids) <= most

    bench.run(story())


def test_statements_of_the_journal_read_only_their_ranges(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        for _ in range(40):
            await owned.write(journal_row=JournalRow(b"events", [b"p" * 9_000], (1, 1)))
        await link_of(owned.store).run(b"ANALYZE TABLE foqs_%d_journal" % SHARD)
        texts = JournalStatements(SHARD)
        for text in (
            texts.events((1, 30), 5),
            texts.events_of((1, 30)),
            texts.payload_parts(PayloadRange((1, 30), 10, 20, [])),
            texts.trim_rows(JournalRange((1, 1), (1, 9))),
        ):
            used = [step for step in await explain(owned.store, text) if "journal" in step.table]
            assert {step.key for step in used} == {"PRIMARY"}, text
            assert all(step.access in ("range", "ref") and step.rows < 40 for step in used), (text, used)
        (floor,) = await explain(owned.store, texts.floor)
        assert (floor.key, floor.more.count("filesort")) == ("PRIMARY", 0), floor

    bench.run(story())


def test_payloads_that_are_far_from_each_other_are_read_by_themselves() -> None:
    near, far, other = PayloadPlace((1, 1), 100, 10), PayloadPlace((1, 1), 1 << 20, 10), PayloadPlace((1, 2), 0, 10)
    ranges = payload_ranges([other, far, PayloadPlace((1, 1), 0, 50), near])
    assert [(each.position, each.first, each.end) for each in ranges] == [
        ((1, 1), 0, 110),
        ((1, 1), 1 << 20, (1 << 20) + 10),
        ((1, 2), 0, 10),
    ]
