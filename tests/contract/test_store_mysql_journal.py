"""The journal on a server: rows that need several packets, connections that break between them, and the plans of statements."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from foqs.core.flush.fence import Position
from foqs.core.flush.journal_rows import JournalRange, JournalRow, PayloadPlace, PositionedEvents
from foqs.store.mysql import mysql_journal_sql, mysql_store
from foqs.store.mysql.journal_size import read_journal_size
from foqs.store.mysql.mysql_driver import MysqlLink, MysqlLinkLost, MysqlSettings
from foqs.store.mysql.mysql_journal_sql import (
    BYTES_OF_A_READ_MAX,
    JOINED_BYTES_MAX,
    PAYLOADS_PART_BYTES,
    RANGES_OF_A_READ_MAX,
    READS_AT_ONCE,
    JournalStatements,
    payload_reads,
)
from foqs.store.mysql.mysql_sql import PREPARED_STATEMENTS_IN_BULK, PREPARED_STATEMENTS_MAX
from foqs.store.mysql.schema_upgrade import schema_link
from foqs.store.port import StoreLost
from tests.contract.conftest import SHARD, Bench, mysql_bench
from tests.contract.test_store_mysql_plans import explain
from tests.contract.zombie import Zombie
from tests.support.inner_parts import link_of
from tests.support.stores import OTHER, contents, make_row, opened, reading

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
            texts.payload_parts(*payload_reads([PayloadPlace((1, 30), 10, 10), PayloadPlace((1, 30), 8_000, 10)])),
            texts.trim_rows(JournalRange((1, 1), (1, 9))),
        ):
            used = [step for step in await explain(owned.store, text) if "journal" in step.table]
            assert {step.key for step in used} == {"PRIMARY"}, text
            assert all(step.access in ("range", "ref") and step.rows < 40 for step in used), (text, used)
        (floor,) = await explain(owned.store, texts.floor)
        assert (floor.key, floor.more.count("filesort")) == ("PRIMARY", 0), floor

    bench.run(story())


def test_size_of_a_journal_is_read_without_an_owner(place: MysqlSettings) -> None:
    bench = mysql_bench(place)

    async def story() -> None:
        owned = await opened(bench.store())
        async with schema_link(place) as link:
            assert await read_journal_size(link, SHARD + 1) is None
            assert (await read_journal_size(link, SHARD) or (None,))[0] == 0
            for _ in range(3):
                await owned.write(
                    journal_row=JournalRow(b"e" * 200_000, [b"p" * 3_000_000], (1, 1)), journal_reserve_bytes=1 << 20
                )
            await link.run(b"ANALYZE TABLE foqs_%d_journal" % SHARD)
            flushes, size = await read_journal_size(link, SHARD) or (0, 0)
        assert flushes == 3
        assert size > 9_000_000

    bench.run(story())


def test_shard_is_taken_over_while_a_frozen_flush_changes_the_reserve(bench: Bench) -> None:
    async def story() -> None:
        former = await opened(bench.store())
        await former.write(journal_reserve_bytes=1 << 20)
        zombie = Zombie(bench, "written", make_row(1), epoch=2, nonce=OTHER, journal_reserve_bytes=0)
        await zombie.pause()
        new = await opened(bench.store(), epoch=3)
        assert isinstance(await zombie.resume(), StoreLost)
        await new.write(inserts=[make_row(2)])
        assert set(await contents(new)) == {2}

    bench.run(story())


def test_reserve_gets_the_parts_that_it_lacks_and_keeps_the_others(place: MysqlSettings) -> None:
    bench = mysql_bench(place)
    part = mysql_journal_sql.RESERVE_PART_BYTES

    async def story() -> None:
        owned = await opened(bench.store())
        async with schema_link(place) as link:

            async def parts() -> list[tuple[int, int, str]]:
                found, _ = await link.run(
                    b"SELECT part, LENGTH(payloads), LEFT(payloads, 1) FROM foqs_%d_journal WHERE position = 0 "
                    b"ORDER BY part" % SHARD,
                    b"COMMIT",
                )
                return [(int(at), int(length), first.decode()) for at, length, first in found.rows]

            await owned.write(journal_reserve_bytes=3 * part)
            assert await parts() == [(0, part, "0"), (part, part, "0"), (2 * part, part, "0")]
            shorter = b"UPDATE foqs_%d_journal SET payloads = '1' WHERE position = 0 AND part = 0" % SHARD
            await link.run(shorter, b"COMMIT")
            await owned.store.shrink_journal_reserve(owned.fence, 2 * part)
            assert await parts() == [(0, 1, "1"), (part, part, "0")]
            await owned.write(journal_reserve_bytes=3 * part + 7)
            assert await parts() == [(0, 1, "1"), (part, part, "0"), (2 * part, part, "0"), (3 * part, 7, "0")]
            await owned.write(journal_reserve_bytes=0)
            assert await parts() == []

    bench.run(story())


def test_payloads_far_from_each_other_are_read_by_one_statement_that_brings_no_other_bytes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(1)
    content = random.randbytes(2_500_000)  # three parts
    offsets = [*range(0, len(content), 50_000)]
    places = [PayloadPlace((1, 1), at, random.randint(0, 300)) for at in offsets]
    places[1] = PayloadPlace((1, 1), 50_000, 0)
    across = PayloadPlace((1, 1), PAYLOADS_PART_BYTES - 10, 20)
    beyond = PayloadPlace((1, 1), len(content) - 5, 10)
    run_packet, brought = MysqlLink.run, [0, 0]

    async def run_and_count(link: MysqlLink, *statements: Any, **options: Any) -> Any:
        results = await run_packet(link, *statements, **options)
        for statement, found in zip(statements, results, strict=True):
            if isinstance(statement, bytes) and b"SUBSTRING" in statement:
                brought[0] += 1
                brought[1] += sum(len(piece) for _, _, piece in found.rows)
        return results

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(journal_row=JournalRow(b"events", [content], (1, 1)))
        monkeypatch.setattr(MysqlLink, "run", run_and_count)
        expected = {each: content[each.offset :][: each.payload_bytes] for each in [*places, across]}
        assert await owned.store.journal_payloads([*places, across, beyond]) == expected
        assert brought == [1, sum(map(len, expected.values())) + 5]

    bench.run(story())


def test_read_of_many_far_payloads_needs_several_packets_and_has_them_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_journal_sql, "RANGES_OF_A_READ_MAX", 3)
    monkeypatch.setattr(mysql_journal_sql, "READS_AT_ONCE", 2)
    content = Random(2).randbytes(100_000)
    expected = {
        PayloadPlace((1, flush), at, 10): content[at : at + 10] for flush in (1, 2) for at in range(0, 60_000, 3_000)
    }

    async def story() -> None:
        owned = await opened(bench.store())
        for _ in range(2):
            await owned.write(journal_row=JournalRow(b"events", [content], (1, 1)))
        assert await owned.store.journal_payloads([*expected]) == expected
        async with reading(owned.store) as reads:
            assert await reads.journal_payloads(owned.past, [*expected]) == expected

    bench.run(story())


def test_places_near_each_other_are_one_range_and_ranges_of_a_flush_one_read_within_its_bounds() -> None:
    near = PayloadPlace((1, 1), 50 + JOINED_BYTES_MAX, 10)
    far, other = PayloadPlace((1, 1), 10_000, 10), PayloadPlace((1, 2), 0, 10)
    remote = PayloadPlace((1, 1), 10_011 + PAYLOADS_PART_BYTES, 10)
    assert spans([remote, other, far, PayloadPlace((1, 1), 0, 50), near]) == [
        ((1, 1), [(0, near.offset + 10), (10_000, 10_010)]),
        ((1, 1), [(remote.offset, remote.offset + 10)]),
        ((1, 2), [(0, 10)]),
    ]
    many = spans([PayloadPlace((1, 1), at * 1_000, 10) for at in range(2 * RANGES_OF_A_READ_MAX + 1)])
    assert [len(ranges) for _, ranges in many] == [RANGES_OF_A_READ_MAX, RANGES_OF_A_READ_MAX, 1]
    half = BYTES_OF_A_READ_MAX // 2
    long = spans([PayloadPlace((1, 1), at * (half + 1_000), half) for at in range(3)])
    assert [len(ranges) for _, ranges in long] == [2, 1]
    assert len(spans([PayloadPlace((1, 1), 0, 4 << 20), PayloadPlace((1, 1), 5 << 20, 1)])) == 2


def spans(places: Sequence[PayloadPlace]) -> list[tuple[Position, list[tuple[int, int]]]]:
    return [(read.position, [(each.first, each.end) for each in read.ranges]) for read in payload_reads(places)]


def test_statement_of_the_most_ranges_fits_the_shortest_packet_many_times() -> None:
    places = [PayloadPlace((1 << 20, 1), (1 << 30) + at * 1_000, 800) for at in range(RANGES_OF_A_READ_MAX)]
    (read,) = payload_reads(places)
    assert len(JournalStatements(SHARD).payload_parts(read)) * READS_AT_ONCE < 1 << 20
