"""Rows in every store: exactness, order, paging, refusal. Run on all three stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from foqs.core.flush.fence import Fence, Owner, ownership_nonce
from foqs.core.flush.writes import LeaseUpdate, Writes
from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX, DeliveryPolicy, Row, State
from foqs.store.port import ANY_LENGTH, DueRow, FencedOut, OtherCluster, StoreLost, Superseded, WriteRefused
from tests.contract.conftest import BENCHES, WITHOUT_BULK, Bench, make_bench
from tests.support.stores import NONCE, OTHER, TOPIC, Ownership, contents, make_row, opened, reading, without_payload

INT63_MAX = (1 << 63) - 1
HOURS_MS = 3 * 3_600_000


@pytest.fixture(params=[*BENCHES, pytest.param(WITHOUT_BULK, marks=pytest.mark.mysql)])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Each of `BENCHES`, and a MariaDB as old as to have no bulk execution."""
    return make_bench(str(request.param), request, tmp_path)


@pytest.mark.rows_only("a host that has not taken a shard over does not know its journal")
def test_new_shard_has_no_owner_and_no_rows(bench: Bench) -> None:
    async def story() -> None:
        store = bench.store()
        await store.open()
        owner = await store.read_owner()
        assert (owner.epoch, owner.nonce, owner.flush, owner.clock_ms) == (0, "", 0, 0)
        assert await contents(Ownership(store, 0, "", 1)) == {}
        assert await store.topics() == []
        assert await store.next_due_ms(-1, TIME_MS_MAX + 1) is None
        assert await store.due_rows(None, TIME_MS_MAX, None, 10) == []

    bench.run(story())


def test_database_clock_is_in_milliseconds_and_does_not_go_back(bench: Bench) -> None:
    async def story() -> None:
        store = bench.store()
        await store.open()
        first = await store.now_ms()
        second = await store.now_ms()
        assert 1_600_000_000_000 < first <= second < first + 60_000

    bench.run(story())


def test_inserted_rows_are_read_exactly_as_written(bench: Bench) -> None:
    rows = [
        make_row(1, payload=b"", metadata=b""),
        make_row(2, payload=bytes(range(256)) * 4096, metadata=bytes(range(256)) * 4),
        make_row(
            INT63_MAX,
            priority=PRIORITY_MIN,
            deliver_after_ms=TIME_MS_MAX,
            enqueued_at_ms=TIME_MS_MAX,
            lease_ms=TIME_MS_MAX,
            ttl_ms=TIME_MS_MAX,
            expires_at_ms=TIME_MS_MAX,
            due_ms=TIME_MS_MAX,
            attempts_max=PRIORITY_MAX,
            token=INT63_MAX,
            attempt=PRIORITY_MAX,
            policy=DeliveryPolicy.AT_MOST_ONCE,
            state=State.DEAD,
        ),
        make_row(4, priority=PRIORITY_MAX, deliver_after_ms=0, enqueued_at_ms=0, lease_ms=0, ttl_ms=0, due_ms=0),
    ]

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=rows)
        async with reading(owned.store) as reads:
            found = await reads.rows(owned.past, [row.id for row in rows] + [77, 1, 1])
        assert sorted(found, key=lambda row: row.id) == sorted(rows, key=lambda row: row.id)
        assert all(type(row.policy) is DeliveryPolicy and type(row.state) is State for row in found)
        assert await contents(owned) == {row.id: row for row in rows}

    bench.run(story())


def test_update_changes_the_mutable_columns_and_no_others(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        first, second = make_row(1, payload=b"first"), make_row(2, payload=b"second")
        await owned.write(inserts=[first, second])
        new = replace(
            first,
            priority=PRIORITY_MIN,
            deliver_after_ms=7,
            expires_at_ms=8,
            metadata=b"\x00'\\m",
            state=State.LEASED,
            due_ms=9,
            token=INT63_MAX,
            attempt=PRIORITY_MAX,
        )
        wild = replace(
            new,
            namespace="x",
            topic="y",
            enqueued_at_ms=5,
            lease_ms=6,
            ttl_ms=7,
            attempts_max=8,
            payload=None,
            trace_context=b"other",
        )
        await owned.write(updates=[wild])
        assert await contents(owned) == {1: new, 2: second}
        back = replace(second, expires_at_ms=None, due_ms=None, metadata=b"", attempt=3)
        await owned.write(updates=[replace(new, due_ms=None, expires_at_ms=None), back])
        assert await contents(owned) == {1: replace(new, due_ms=None, expires_at_ms=None), 2: back}

    bench.run(story())


def test_move_gives_a_row_another_id_and_topic_and_keeps_its_payload(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [make_row(number, payload=b"p" * number, trace_context=b"trace") for number in range(1, 300)]
        rows[6].payload, rows[6].payload_bytes = bytes(range(256)) * 4096, 1 << 20
        await owned.write(inserts=rows)
        new = [
            replace(
                row,
                id=row.id + 1_000,
                topic="other '\\ topic",
                deliver_after_ms=7,
                expires_at_ms=None if row.id % 2 else 9,
                state=State.READY,
                due_ms=None if row.id % 2 else 9,
                token=0,
                attempt=0,
                first_delivered_at_ms=None,
            )
            for row in rows[:-9]
        ]
        unread = [without_payload(replace(row, lease_ms=1, enqueued_at_ms=2)) for row in new]
        await owned.write(moves=[(row.id - 1_000, row) for row in unread])
        assert await contents(owned) == {row.id: row for row in (*new, *rows[-9:])}

    bench.run(story())


def test_move_of_a_row_that_does_not_exist_writes_nothing(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        await owned.write(moves=[(7, make_row(8))])
        assert await contents(owned) == {1: make_row(1)}

    bench.run(story())


def test_move_to_an_id_that_exists_is_refused(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1), make_row(2)])
        with pytest.raises(WriteRefused):
            await owned.write(moves=[(1, make_row(2, topic="other"))])
        assert await contents(owned) == {1: make_row(1), 2: make_row(2)}

    bench.run(story())


def test_leases_change_state_due_token_and_attempt_and_no_other_column(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = {number: make_row(number, payload=b"p" * number, metadata=b"m") for number in range(1, 31)}
        await owned.write(list(rows.values()))
        odd, even = list(range(1, 20, 2)), list(range(20, 0, -2))
        over = list(range(21, 26))
        leases = [
            LeaseUpdate(5_000, 77, 1, odd),
            LeaseUpdate(6_000, INT63_MAX, PRIORITY_MAX, [*even, 99]),
            LeaseUpdate(None, 5, 2, over, State.READY),
            LeaseUpdate(7_000, 5, 2, [26], State.DEAD),
            LeaseUpdate(8_000, 78, 1, [27, 28], first_delivered_at_ms=4_000),
        ]
        await owned.write(leases=leases)
        expected = rows | {
            number: replace(
                rows[number],
                state=lease.state,
                due_ms=lease.due_ms,
                token=lease.token,
                attempt=lease.attempt,
                first_delivered_at_ms=lease.first_delivered_at_ms,
            )
            for lease in leases
            for number in lease.ids
            if number in rows
        }
        assert await contents(owned) == expected
        await owned.write(leases=[LeaseUpdate(1, 1, 1, [99]), LeaseUpdate(1, 1, 1, [])])
        assert await contents(owned) == expected
        await owned.write(leases=[LeaseUpdate(9_000, 79, 2, [27])])
        assert (await contents(owned))[27].first_delivered_at_ms == 4_000

    bench.run(story())


def test_update_or_delete_of_a_missing_row_changes_nothing(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        kept = make_row(1)
        await owned.write(inserts=[kept])
        await owned.write(updates=[make_row(2)], deletes=[3])
        assert await contents(owned) == {1: kept}

    bench.run(story())


def test_flush_passes_decide_the_row_ids_without_payload_and_the_payload_limits_with_it(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = {number: make_row(number, payload=b"%d" % number) for number in (1, 2, 3)}
        await owned.write(inserts=list(rows.values()))
        seen: list[Mapping[int, Row]] = []

        def decide(found: Mapping[int, Row], keys: object) -> Writes:
            seen.append(dict(found))
            return Writes()

        await owned.store.flush(owned.fence, [1, 8], {3: 10_000, 9: 10_000}, [], decide)
        assert seen == [{1: without_payload(rows[1]), 3: rows[3]}]

    bench.run(story())


def test_a_payload_above_its_limit_is_not_read(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        lengths = {1: 0, 2: 3, 3: 4, 4: 100_000}
        rows = {number: make_row(number, payload=b"p" * size) for number, size in lengths.items()}
        await owned.write(inserts=list(rows.values()))
        seen: list[Mapping[int, Row]] = []

        def decide(found: Mapping[int, Row], keys: object) -> Writes:
            seen.append(dict(found))
            return Writes()

        await owned.store.flush(owned.fence, [], {1: 0, 2: 3, 3: 3, 4: ANY_LENGTH, 9: 3}, [], decide)
        assert seen == [{1: rows[1], 2: rows[2], 3: without_payload(rows[3]), 4: rows[4]}]
        owned.number += 1
        async with reading(owned.store) as reads:
            found = {row.id: row for row in await reads.rows(owned.past, [4, 3, 2, 9, 1], 4)}
        assert found == {1: rows[1], 2: rows[2], 3: rows[3], 4: without_payload(rows[4])}

    bench.run(story())


def test_one_flush_deletes_updates_and_inserts(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [make_row(number) for number in range(1, 7)]
        await owned.write(inserts=rows)
        changed = [replace(rows[2], attempt=1), replace(rows[3], attempt=2)]
        found = await owned.write(inserts=[make_row(9)], updates=changed, deletes=[2, 1])
        assert set(found) == {1, 2, 3, 4}
        expected = [*changed, rows[4], rows[5], make_row(9)]
        assert await contents(owned) == {row.id: row for row in expected}

    bench.run(story())


def test_large_flush_is_written_completely(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [make_row(number, payload=b"x" * 6_000) for number in range(1, 1_301)]
        await owned.write(inserts=rows)
        changed = [replace(row, state=State.DEAD, due_ms=row.id, attempt=1) for row in rows[:1_250]]
        assert len(await owned.write(updates=changed)) == 1_250
        leased = [replace(row, state=State.LEASED, due_ms=9, token=8, attempt=7) for row in rows[:1_249]]
        await owned.write(leases=[LeaseUpdate(9, 8, 7, [row.id for row in reversed(leased)])])
        assert await contents(owned) == {row.id: row for row in [*leased, changed[-1], *rows[1_250:]]}
        async with reading(owned.store) as reads:
            assert len(await reads.rows(owned.past, [row.id for row in rows])) == 1_300
        await owned.write(deletes=[row.id for row in changed])
        assert await contents(owned) == {row.id: row for row in rows[1_250:]}

    bench.run(story())


def test_empty_flush_counts_and_saves_the_clock(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        owned.clock_ms = TIME_MS_MAX
        await owned.write()
        owner = await owned.store.read_owner()
        assert (owner.epoch, owner.nonce, owner.flush, owner.clock_ms) == (1, NONCE, 1, TIME_MS_MAX)

    bench.run(story())


@pytest.mark.rows_only("a row that is journaled meets the table at its write-back")
def test_duplicate_insert_refuses_the_whole_flush_and_the_next_one_may_use_its_number(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        kept, other = make_row(1, payload=b"kept"), make_row(2)
        await owned.write(inserts=[kept, other])
        with pytest.raises(WriteRefused) as refused:
            await owned.write(inserts=[make_row(3), make_row(1)], updates=[replace(other, attempt=5)], deletes=[2_000])
        assert (refused.value.is_retryable, refused.value.is_bad_value) == (False, False)
        assert await contents(owned) == {1: kept, 2: other}
        with pytest.raises(WriteRefused):
            await owned.write(inserts=[make_row(4), make_row(4)])
        await owned.write(inserts=[make_row(3)])
        assert set(await contents(owned)) == {1, 2, 3}

    bench.run(story())


def test_error_of_decide_propagates_and_nothing_is_written(bench: Bench) -> None:
    def decide(found: Mapping[int, Row], keys: object) -> Writes:
        raise ZeroDivisionError("a bug")

    async def story() -> None:
        owned = await opened(bench.store())
        with pytest.raises(ZeroDivisionError):
            await owned.store.flush(owned.fence, [], {}, [], decide)
        await owned.write(inserts=[make_row(1)])
        assert (await owned.store.read_owner()).flush == 1

    bench.run(story())


@pytest.mark.rows_only("timer entries without items are not journaled")
def test_due_rows_pages_between_both_bounds_in_order_through_ties(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        moments = [10, 10, 10, 11, 12, 12, 20, 20, 21, TIME_MS_MAX]
        everything = [(at, n) for n, at in enumerate(moments, 1)]
        await owned.write(inserts=[make_row(1, due_ms=5)], timers_added=[*everything[5:], *everything[:6]])
        reads = owned.store.reads()
        for low, high in [(None, TIME_MS_MAX), (None, 20), (11, 20), (20, 20), (13, 19), (22, 5), (10, 10)]:
            for limit in (1, 3, 50):
                paged: list[DueRow] = []
                while page := await owned.store.due_rows(low, high, paged[-1] if paged else None, limit):
                    assert len(page) <= limit
                    paged += page
                assert [(due.due_ms, due.id) for due in paged] == [
                    (at, n) for at, n in everything if (low is None or low <= at) and at <= high
                ]
                if low is None:
                    assert await reads.due_rows(owned.past, high, None, 50) == paged
                    assert await reads.due_rows(owned.past, high, paged[0], 2) == paged[1:3]
        assert await owned.store.due_rows(12, 50, DueRow(10, 1), 2) == [DueRow(12, 5), DueRow(12, 6)]
        assert await owned.store.next_due_ms(9, TIME_MS_MAX + 1) == 10
        assert await owned.store.next_due_ms(10, TIME_MS_MAX + 1) == 11
        assert await owned.store.next_due_ms(21, TIME_MS_MAX + 1) == TIME_MS_MAX
        assert await owned.store.next_due_ms(TIME_MS_MAX, TIME_MS_MAX + 1) is None
        assert await owned.store.next_due_ms(10, 11) is None
        assert await owned.store.next_due_ms(10, 12) == 11
        assert await owned.store.next_due_ms(21, TIME_MS_MAX) is None
        await reads.close()

    bench.run(story())


@pytest.mark.rows_only("timer entries without items are not journaled")
def test_timers_are_removed_before_others_are_added_and_both_may_be_repeated(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())

        async def entries() -> list[tuple[int, int]]:
            return [(due.due_ms, due.id) for due in await owned.store.due_rows(None, TIME_MS_MAX, None, 5_000)]

        many = [(7 + n % 3, n) for n in range(1, 2_000)]
        await owned.write(timers_added=[(5, 1), (5, 2), (TIME_MS_MAX, 1), *many])
        assert await entries() == sorted([(5, 1), (5, 2), (TIME_MS_MAX, 1), *many])
        await owned.write(
            timers_removed=[(5, 1), (6, 1), (5, 9), (TIME_MS_MAX, 1), *many], timers_added=[(5, 1), (5, 2)]
        )
        assert await entries() == [(5, 1), (5, 2)]
        await owned.write(
            timers_removed=[(5, number) for number in range(3, 2_000)] + [(at, 2) for at in range(5, 2_000)]
        )
        assert await entries() == [(5, 1)]

    bench.run(story())


def test_leases_are_found_by_ranges_of_ids_and_by_topics(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        other = ("n\u00e9", "t'")
        leased = [
            make_row(n, state=State.LEASED, due_ms=100 + n, priority=-n % 3, namespace=topic[0], topic=topic[1])
            for n, topic in enumerate([TOPIC, TOPIC, other, TOPIC, other, TOPIC, TOPIC], 1)
        ]
        others = [make_row(n, state=state, due_ms=1) for n, state in enumerate(State, 20) if state is not State.LEASED]
        await owned.write(inserts=[*leased, *others], timers_added=[(1, row.id) for row in others])
        async with reading(owned.store) as reads:

            async def found(*ranges: tuple[int, int], last_ms: int = 1_000) -> list[tuple[int, int]]:
                return sorted((each.id, each.due_ms) for each in await reads.leases_in(owned.past, ranges, last_ms))

            assert await found((1, 99)) == [(n, 100 + n) for n in range(1, 8)]
            assert await found((2, 3), (5, 5), (7, 90), last_ms=105) == [(2, 102), (3, 103), (5, 105)]
            assert await found((8, 19), (20, 30)) == []
            keys = {
                topic: sorted((row.order_key, row.due_ms or 0) for row in leased if (row.namespace, row.topic) == topic)
                for topic in (TOPIC, other)
            }
            wanted = [(other, None), (TOPIC, None), (("none", "t"), None)]
            assert await reads.leases_of(owned.past, wanted, 3) == [keys[other], keys[TOPIC][:3], []]
            assert await reads.leases_of(owned.past, [(TOPIC, keys[TOPIC][2][0])], 9) == [keys[TOPIC][3:]]
            assert await reads.leases_of(owned.past, [(TOPIC, keys[TOPIC][-1][0])], 9) == [[]]

    bench.run(story())


def test_rows_are_read_without_payload_and_missing_rows_are_left_out(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [make_row(n, namespace="n\u00e9", metadata=b"m", payload=b"p" * n, due_ms=n) for n in range(1, 600)]
        await owned.write(inserts=rows)
        await owned.write(deletes=[7])
        found = await owned.store.rows([600, *range(9, 0, -1), *range(10, 600)])
        assert sorted(found, key=lambda row: row.id) == [replace(row, payload=None) for row in rows if row.id != 7]

    bench.run(story())


def test_shards_do_not_see_each_other(bench: Bench) -> None:
    async def story() -> None:
        first, second = await opened(bench.store(1)), await opened(bench.store(2), epoch=5)
        await first.write(inserts=[make_row(1)])
        await second.write(inserts=[make_row(1, payload=b"other")])
        await first.write(deletes=[1])
        assert await contents(first) == {}
        assert await contents(second) == {1: make_row(1, payload=b"other")}
        assert (await first.store.read_owner()).epoch == 1

    bench.run(story())


@pytest.mark.rows_only("a host that has not taken a shard over does not know its journal")
def test_reopening_sees_rows_owner_and_clock(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store(), epoch=4)
        owned.clock_ms, owned.offset_ms, owned.arrival_ms = 99, -HOURS_MS, HOURS_MS
        await owned.write(inserts=[make_row(1)])
        await owned.store.close()
        again = bench.store()
        await again.open()
        assert await contents(Ownership(again, 4)) == {1: make_row(1)}
        before = await again.take_over(5, OTHER)
        assert (before.epoch, before.nonce, before.flush) == (5, OTHER, 0)
        assert (before.clock_ms, before.offset_ms, before.arrival_ms) == (99, -HOURS_MS, HOURS_MS)
        assert replace(await again.read_owner(), connection=before.connection) == before

    bench.run(story())


def test_closed_store_is_lost_and_may_be_closed_again(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.store.close()
        await owned.store.close()
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(1)])
        with pytest.raises(StoreLost):
            await owned.store.topics()

    bench.run(story())


def test_takeover_is_idempotent_and_keeps_the_flush_number(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        first = await owned.store.take_over(1, NONCE)
        assert (first.epoch, first.nonce, first.flush) == (1, NONCE, 0)
        await owned.write(inserts=[make_row(1)])
        assert (await owned.store.take_over(1, NONCE)).flush == 1
        await owned.write(inserts=[make_row(2)])

    bench.run(story())


@pytest.mark.rows_only("a host that has not taken a shard over does not know its journal")
def test_takeover_needs_a_higher_epoch_and_reports_the_current_one(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store(), epoch=7)
        other = bench.store()
        await other.open()
        for epoch, nonce in ((7, OTHER), (6, OTHER), (6, NONCE)):
            with pytest.raises(Superseded) as superseded:
                await other.take_over(epoch, nonce)
            assert superseded.value.seen_epoch == 7
        await owned.write(inserts=[make_row(1)])
        assert await contents(Ownership(other, 7)) == {1: make_row(1)}
        taken = await other.take_over(8, NONCE)
        assert (taken.epoch, taken.flush) == (8, 0)

    bench.run(story())


def test_shard_of_a_cluster_is_taken_over_by_no_other_and_by_no_host_alone(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store(), nonce=ownership_nonce("aaaa", "one"))
        await owned.write(inserts=[make_row(1)])
        for nonce in (ownership_nonce("bbbb", "two"), OTHER):
            other = bench.store()
            await other.open()
            with pytest.raises(OtherCluster, match="belong to the cluster aaaa") as refused:
                await other.take_over(9, nonce)
            assert refused.value.cluster == "aaaa"
            await other.close()
        await owned.write(inserts=[make_row(2)])
        other = bench.store()
        await other.open()
        assert (await other.take_over(9, ownership_nonce("aaaa", "three"))).epoch == 9

    bench.run(story())


def test_tables_that_name_no_cluster_belong_to_the_first_one(bench: Bench) -> None:
    """So are those of a host alone, and of hosts of an earlier version, also in the middle of an upgrade."""

    async def story() -> None:
        await (await opened(bench.store())).store.close()
        store = bench.store()
        await store.open()
        named = ownership_nonce("aaaa", "one")
        assert (await store.take_over(2, named)).nonce == (await store.read_owner()).nonce == named
        with pytest.raises(OtherCluster):
            await store.take_over(3, ownership_nonce("bbbb", "two"))

    bench.run(story())


@pytest.mark.rows_only("the item is in memory, so the flush is decided before its fence")
@pytest.mark.parametrize(
    "fence",
    [
        Fence(1, NONCE, 1, 0),
        Fence(1, NONCE, 3, 0),
        Fence(1, NONCE, 0, 0),
        Fence(1, OTHER, 2, 0),
        Fence(2, NONCE, 2, 0),
        Fence(1, NONCE.upper(), 2, 0),
    ],
)
def test_flush_with_another_fence_is_fenced_out_and_writes_nothing(bench: Bench, fence: Fence) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        called: list[object] = []

        def decide(found: Mapping[int, Row], keys: object) -> Writes:
            called.append(found)
            return Writes(deletes=[1])

        with pytest.raises(FencedOut):
            await owned.store.flush(fence, [1], {}, [], decide)
        assert called == []
        assert await contents(owned) == {1: make_row(1)}
        owner = await owned.store.read_owner()
        assert (owner.epoch, owner.nonce, owner.flush) == (1, NONCE, 1)
        await owned.write(deletes=[1])

    bench.run(story())


def test_owner_row_records_only_the_connection_of_the_owner(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        taken: Owner = await owned.store.read_owner()
        zombie = owned.store
        new = await opened(bench.store(), epoch=2, nonce=OTHER)
        recorded = (await new.store.read_owner()).connection
        assert recorded != 0
        assert (await zombie.read_owner()).connection == recorded
        assert (await new.store.read_owner()).nonce == OTHER
        assert taken.nonce == NONCE
        with pytest.raises(FencedOut):
            await Ownership(zombie).write()

    bench.run(story())
