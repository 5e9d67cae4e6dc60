"""Reads of every store beside its flushes: they show whole flushes, at least the given one. Run on all three stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from foqs.core.flush.fence import Fence
from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, OrderKey, Row, State, pack_order_key
from foqs.core.items.row_filter import RowFilter
from foqs.store.port import IdRange, Reads, StoreLost, TopicCount
from tests.contract.conftest import Bench
from tests.contract.zombie import Zombie
from tests.support.stores import NONCE, OTHER, TOPIC, Ownership, make_row, opened, reading

CALLS: dict[str, Callable[[Reads, Fence], Awaitable[object]]] = {
    "rows": lambda reads, committed: reads.rows(committed, [1]),
    "due_rows": lambda reads, committed: reads.due_rows(committed, 1, None, 1),
    "leases_in": lambda reads, committed: reads.leases_in(committed, [(1, 2)], 1),
    "leases_of": lambda reads, committed: reads.leases_of(committed, [(TOPIC, None)], 1),
    "ready_order_keys": lambda reads, committed: reads.ready_order_keys(committed, TOPIC, None, 1),
    "list_rows": lambda reads, committed: reads.list_rows(committed, TOPIC, State.READY, None, 1, with_payload=True),
    "rows_by_id": lambda reads, committed: reads.rows_by_id(committed, "n", RowFilter(), IdRange(0, 9, 1, 1)),
    "idempotency_keys_of": lambda reads, committed: reads.idempotency_keys_of(committed, {1: 1_000}),
    "begin_snapshot": lambda reads, committed: reads.begin_snapshot(committed),
}


def test_names_are_kept_byte_for_byte(bench: Bench) -> None:
    names = ["a", "A", "a ", " a", "ä", "a\u0308", "😀", "'; --", '"\\', "\\'", "%_%s", "\n", "\0", "x" * 255]

    async def story() -> None:
        owned = await opened(bench.store())
        rows = [make_row(number, topic=name, namespace="n" + name[:254]) for number, name in enumerate(names, 1)]
        await owned.write(inserts=rows)
        async with reading(owned.store) as reads:
            for row in rows:
                topic = (row.namespace, row.topic)
                assert await reads.ready_order_keys(owned.past, topic, None, 10) == [row.order_key]
                assert await reads.list_rows(owned.past, topic, State.READY, None, 10, with_payload=True) == [row]
            await reads.begin_snapshot(owned.past)
            counted = await reads.counts()
        assert sorted(counted, key=lambda count: count.topic) == sorted(
            (TopicCount(row.namespace, row.topic, State.READY, 1, row.payload_bytes) for row in rows),
            key=lambda count: count.topic,
        )

    bench.run(story())


def test_ready_keys_pages_in_key_order_through_ties(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [
            make_row(number, priority=priority, deliver_after_ms=after)
            for number, (priority, after) in enumerate(
                ((p, a) for p in (PRIORITY_MIN, -1, 0, 0, PRIORITY_MAX) for a in (5, 5, 6)), 1
            )
        ]
        noise = [
            make_row(101, state=State.LEASED, due_ms=1),
            make_row(102, topic="u"),
            make_row(103, namespace="other"),
        ]
        await owned.write(inserts=[*reversed(rows), *noise])
        keys = sorted(row.order_key for row in rows)
        async with reading(owned.store) as reads:
            for limit in (1, 2, 4, 100):
                paged: list[OrderKey] = []
                while page := await reads.ready_order_keys(owned.past, TOPIC, paged[-1] if paged else None, limit):
                    assert len(page) <= limit
                    paged += page
                assert paged == keys
            between = pack_order_key(0, 5, 0)
            assert (
                await reads.ready_order_keys(owned.past, TOPIC, between, 3)
                == [key for key in keys if key > between][:3]
            )
            assert await reads.ready_order_keys(owned.past, TOPIC, None, 0) == []

    bench.run(story())


def test_list_rows_pages_rows_of_one_state_in_key_order(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        dead = [
            make_row(number, state=State.DEAD, due_ms=number, priority=number % 3, payload=b"%d" % number)
            for number in range(1, 12)
        ]
        await owned.write(inserts=[*dead, *(make_row(number) for number in range(20, 30))])
        expected = sorted(dead, key=lambda row: row.order_key)
        paged: list[Row] = []
        async with reading(owned.store) as reads:
            while page := await reads.list_rows(
                owned.past, TOPIC, State.DEAD, paged[-1].order_key if paged else None, 4, with_payload=True
            ):
                paged += page
            assert await reads.list_rows(owned.past, TOPIC, State.DEFERRED, None, 4, with_payload=True) == []
            bare = await reads.list_rows(owned.past, TOPIC, State.DEAD, None, 3, with_payload=False)
            bare += await reads.list_rows(owned.past, TOPIC, State.DEAD, bare[-1].order_key, 99, with_payload=False)
        assert paged == expected
        assert bare == [replace(row, payload=None) for row in expected]

    bench.run(story())


async def paged_by_id(owned: Ownership, only: RowFilter, ids: IdRange) -> tuple[list[Row], int]:
    """Read all pages of the range from `ids`. Return the rows and the number of pages."""
    rows: list[Row] = []
    pages = 0
    async with reading(owned.store) as reads:
        while True:
            page = await reads.rows_by_id(owned.past, NAMESPACE, only, ids)
            assert len(page.rows) <= ids.limit
            rows, pages = rows + page.rows, pages + 1
            if page.last_id is None:
                return rows, pages
            assert page.last_id > ids.after
            ids = replace(ids, after=page.last_id)


NAMESPACE = TOPIC[0]
LAST = 1_000


@pytest.mark.parametrize(("limit", "rows_max"), [(100, 100), (4, 100), (100, 5), (3, 7), (1, 1)])
def test_rows_by_id_pages_rows_of_every_state_in_id_order(bench: Bench, limit: int, rows_max: int) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [
            make_row(30 * number, state=State(number % 4 + 1), due_ms=number, payload=b"%d" % number)
            for number in range(1, 16)
        ]
        noise = [make_row(number, namespace="other") for number in range(100, 115)]
        beyond = [make_row(number) for number in (LAST + 1, LAST + 2)]
        await owned.write(inserts=[*reversed(rows), *noise, make_row(5, topic="u"), *beyond])
        everything, read_pages = await paged_by_id(owned, RowFilter(), IdRange(5, LAST, limit, rows_max))
        assert everything == [replace(row, payload=None) for row in rows]
        assert read_pages <= 1 + len(rows) // limit + (len(rows) + len(noise)) // rows_max

    bench.run(story())


@pytest.mark.parametrize(
    "only",
    [
        RowFilter(topic="t1"),
        RowFilter(topics=("t0", "t2", "it's")),
        RowFilter(states=(State.DEAD, State.DEFERRED)),
        RowFilter(priority_min=1, priority_max=2),
        RowFilter(at_ms=1_010, age_min_ms=2, age_max_ms=5),
        RowFilter(topics=("t1", "none"), states=(State.READY,), priority_max=0),
        RowFilter(topic="none"),
        RowFilter(group=b"it's \xc3\xbc"),
        RowFilter(topic="t1", group=b"g"),
        RowFilter(group=b"G"),
    ],
)
def test_rows_by_id_are_those_that_the_filter_matches(bench: Bench, only: RowFilter) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [
            make_row(
                number,
                topic="it's" if number % 7 == 0 else f"t{number % 3}",
                state=State(number % 4 + 1),
                due_ms=number,
                priority=number % 5 - 1,
                enqueued_at_ms=1_000 + number % 11,
                item_group=(None, b"g", b"it's \xc3\xbc", b"gg")[number % 4],
            )
            for number in range(1, 61)
        ]
        await owned.write(inserts=rows)
        found, _ = await paged_by_id(owned, only, IdRange(0, LAST, 3, 7))
        assert found == [replace(row, payload=None) for row in rows if only.matches(row)]

    bench.run(story())


def test_a_read_of_no_rows_connects_and_a_snapshot_may_follow(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        async with reading(owned.store) as reads:
            assert await reads.rows(owned.past, []) == []
            await reads.begin_snapshot(owned.past)
            await owned.write(inserts=[make_row(2)])
            assert [count.rows for count in await reads.counts()] == [1]

    bench.run(story())


def test_counts_distinguish_topics_and_states(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        rows = [
            make_row(number, topic=f"t{number % 2}", state=State(number % 4 + 1), due_ms=number)
            for number in range(1, 13)
        ]
        await owned.write(inserts=rows)
        expected: dict[tuple[str, State], int] = {}
        for row in rows:
            expected[row.topic, row.state] = expected.get((row.topic, row.state), 0) + 1
        async with reading(owned.store) as reads:
            await reads.begin_snapshot(owned.past)
            counted = await reads.counts()
        assert {(count.topic, count.state): count.rows for count in counted} == expected

    bench.run(story())


def test_read_shows_every_flush_that_was_committed_when_it_began(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        async with reading(owned.store) as reads:
            for number in range(1, 10):
                await owned.write(inserts=[make_row(number)])
                assert [row.id for row in await reads.rows(owned.past, [number])] == [number]
                assert len(await reads.ready_order_keys(owned.past, TOPIC, None, 100)) == number

    bench.run(story())


def test_read_shows_all_of_a_flush_or_nothing_of_it(bench: Bench) -> None:
    """Each flush writes the same number into more rows than one statement holds."""
    numbers = range(1, 1_201)

    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(number, payload=b"") for number in numbers])
        writing = True

        async def write() -> None:
            nonlocal writing
            for attempt in range(1, 9):
                await owned.write(updates=[make_row(number, payload=b"", attempt=attempt) for number in numbers])
            writing = False

        async def read() -> None:
            async with reading(owned.store) as reads:
                while writing:
                    past = owned.past
                    rows = await reads.rows(past, numbers)
                    assert len(rows) == len(numbers)
                    (attempt,) = {row.attempt for row in rows}
                    assert attempt >= past.flush - 1

        await asyncio.gather(write(), read())

    bench.run(story())


@pytest.mark.rows_only("a host that has not taken a shard over does not know its journal")
def test_reads_beside_an_open_flush_wait_for_nothing_and_see_nothing_of_it(bench: Bench) -> None:
    async def story() -> None:
        zombie = Zombie(bench, "written", make_row(1))
        await zombie.pause()
        async with reading(bench.store()) as reads:
            before = Fence(1, NONCE, 0, 0)
            assert await reads.rows(before, [1]) == []
            assert await reads.ready_order_keys(before, TOPIC, None, 9) == []
            assert await reads.list_rows(before, TOPIC, State.READY, None, 9, with_payload=True) == []
            async with reading(bench.store()) as others:
                await others.begin_snapshot(before)
                assert await others.counts() == []
            assert await zombie.resume() is None
            assert await reads.rows(Fence(1, NONCE, 1, 0), [1]) == [make_row(1)]

    bench.run(story())


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("past", [Fence(1, NONCE, 2, 0), Fence(2, NONCE, 1, 0), Fence(1, OTHER, 1, 0)])
def test_reads_of_a_lagging_or_foreign_database_raise_and_may_be_repeated(bench: Bench, call: str, past: Fence) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        async with reading(owned.store) as reads:
            with pytest.raises(StoreLost, match="owner row shows epoch 1, flush 1"):
                await CALLS[call](reads, past)
            with pytest.raises(StoreLost):
                await reads.counts()
            assert await reads.rows(owned.past, [1]) == [make_row(1)]
            await CALLS[call](reads, replace(owned.past, flush=0))

    bench.run(story())


def test_former_owner_reads_nothing_after_a_takeover(bench: Bench) -> None:
    async def story() -> None:
        former = await opened(bench.store())
        async with reading(former.store) as reads:
            assert await reads.rows(former.past, [1]) == []
            new = await opened(bench.store(), epoch=2, nonce=OTHER)
            await new.write(inserts=[make_row(1)])
            with pytest.raises(StoreLost):
                await reads.rows(former.past, [1])

    bench.run(story())


def test_counts_include_the_payload_bytes_of_each_topic_and_state(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        sizes = (0, 1, 300, 100_000)
        rows = [make_row(number, payload=bytes(size)) for number, size in enumerate(sizes, 1)]
        rows += [make_row(9, payload=b"dead", state=State.DEAD), make_row(10, payload=b"u", topic="u")]
        await owned.write(inserts=rows)
        async with reading(owned.store) as reads:
            await reads.begin_snapshot(owned.past)
            counted = await reads.counts()
        assert sorted(counted, key=lambda count: (count.topic, count.state)) == [
            TopicCount(*TOPIC, State.READY, 4, sum(sizes)),
            TopicCount(*TOPIC, State.DEAD, 1, 4),
            TopicCount("default", "u", State.READY, 1, 1),
        ]

    bench.run(story())


def test_snapshot_does_not_show_later_writes(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1), make_row(2)])
        async with reading(owned.store) as reads, reading(owned.store) as others:
            await reads.begin_snapshot(owned.past)
            await owned.write(inserts=[make_row(3), make_row(4, topic="u")], deletes=[1])
            assert await reads.counts() == [TopicCount(*TOPIC, State.READY, 2, 14)]
            await owned.write(deletes=[2, 3, 4])
            assert await reads.counts() == [TopicCount(*TOPIC, State.READY, 2, 14)]
            await others.begin_snapshot(owned.past)
            assert await others.counts() == []
            with pytest.raises(RuntimeError, match="snapshot"):
                await reads.rows(owned.past, [1])

    bench.run(story())


def test_counting_without_a_snapshot_is_lost(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        async with reading(owned.store) as reads:
            with pytest.raises(StoreLost, match="the snapshot was lost"):
                await reads.counts()
            await reads.rows(owned.past, [1])
            with pytest.raises(StoreLost, match="the snapshot was lost"):
                await reads.counts()

    bench.run(story())


def test_several_reads_and_a_flush_run_at_once(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(number, payload=b"%d" % number) for number in range(1, 21)])
        past = owned.past
        async with reading(owned.store) as one, reading(owned.store) as other:

            async def ask(reads: Reads, numbers: range) -> None:
                for number in numbers:
                    assert [row.payload for row in await reads.rows(past, [number])] == [b"%d" % number]

            await asyncio.gather(ask(one, range(1, 11)), ask(other, range(11, 21)), owned.write(inserts=[make_row(99)]))

    bench.run(story())


@pytest.mark.parametrize("call", ["rows", "ready_order_keys", "list_rows"])
def test_reads_are_correct_after_a_cancelled_one(bench: Bench, call: str) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1), make_row(2)])
        async with reading(owned.store) as reads:
            for steps in range(12):
                read = asyncio.ensure_future(CALLS[call](reads, owned.past))
                for _ in range(steps):
                    await asyncio.sleep(0)
                read.cancel()
                await asyncio.wait([read])
                assert await reads.rows(owned.past, [2]) == [make_row(2)]

    bench.run(story())


def test_cancelled_count_can_be_repeated(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        for steps in range(12):
            async with reading(owned.store) as reads:
                await reads.begin_snapshot(owned.past)
                count = asyncio.ensure_future(reads.counts())
                for _ in range(steps):
                    await asyncio.sleep(0)
                count.cancel()
                await asyncio.wait([count])
                try:
                    counted = await reads.counts()
                except StoreLost:
                    await reads.begin_snapshot(owned.past)
                    counted = await reads.counts()
                assert counted == [TopicCount(*TOPIC, State.READY, 1, 7)]

    bench.run(story())


def test_closed_reads_are_lost_and_may_be_closed_again(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        reads = owned.store.reads()
        await reads.rows(owned.past, [1])
        await reads.close()
        await reads.close()
        with pytest.raises(StoreLost):
            await reads.rows(owned.past, [1])
        never_used = owned.store.reads()
        await never_used.close()
        with pytest.raises(StoreLost):
            await never_used.begin_snapshot(owned.past)

    bench.run(story())


def test_reads_outlive_the_loss_of_the_writers_connection(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)])
        async with reading(owned.store) as reads:
            await reads.rows(owned.past, [1])
            await owned.store.close()
            assert await reads.rows(owned.past, [1]) == [make_row(1)]

    bench.run(story())
