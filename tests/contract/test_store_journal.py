"""The journal of every store: rows of flushes, their floor, trimming, payloads, and what a fault leaves. Run on all stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from foqs.core.flush.fence import CommitOutcome, Owner, Position, commit_outcome
from foqs.core.flush.journal_rows import JournalRange, JournalRow, PayloadPlace, PositionedEvents, check_journal_writes
from foqs.core.flush.writes import LeaseUpdate
from foqs.core.items.item import SEQUENCE_MAX, State
from foqs.store.port import FAULT_POINTS, FencedOut, StoreLost, WriteRefused
from tests.contract.conftest import SHARD, Bench
from tests.contract.test_store_fence import Fault
from tests.contract.zombie import Zombie
from tests.support.stores import OTHER, Ownership, contents, make_row, opened, reading

pytestmark = pytest.mark.rows_only("it writes journal rows by itself")

ALL = 1 << 30


def journal_row(text: str, floor: Position = (1, 1), payloads: Sequence[bytes] = ()) -> JournalRow:
    return JournalRow(text.encode(), payloads, floor)


async def journal_of(owned: Ownership, first: Position = (0, 0)) -> dict[Position, str]:
    """Return the events of all journal rows at or above a position."""
    found: dict[Position, str] = {}
    while page := await owned.store.journal_events(first, ALL):
        assert [each.position for each in page] == sorted(each.position for each in page)
        found |= {position: events.decode() for position, events in page}
        first = (page[-1].position[0], page[-1].position[1] + 1)
    return found


def test_rows_of_the_journal_are_read_in_the_order_of_their_flushes(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        assert await owned.store.journal_floor() is None
        assert await owned.store.journal_events((0, 0), ALL) == []
        await owned.write(journal_row=journal_row("a"))
        await owned.write()
        await owned.write(journal_row=journal_row("b", (1, 3)))
        assert await owned.store.journal_floor() == (1, 3)
        new = await opened(bench.store(), 7, OTHER)
        await new.write(journal_row=journal_row("c", (1, 3)))
        assert await journal_of(new) == {(1, 1): "a", (1, 3): "b", (7, 1): "c"}
        assert await journal_of(new, (1, 2)) == {(1, 3): "b", (7, 1): "c"}
        assert await journal_of(new, (1, 4)) == {(7, 1): "c"}
        assert await new.store.journal_floor() == (1, 3)

    bench.run(story())


def test_greatest_position_and_any_bytes_are_kept(bench: Bench) -> None:
    events = bytes(range(256)) + b"'\\\"\0"

    async def story() -> None:
        owned = await opened(bench.store(), (1 << 20) - 1)
        await owned.write(journal_row=JournalRow(events, [events, b"", events], (owned.epoch, 1)))
        place = PayloadPlace((owned.epoch, 1), len(events), len(events))
        assert await owned.store.journal_events((0, 0), ALL) == [PositionedEvents((owned.epoch, 1), events)]
        assert await owned.store.journal_payloads([place]) == {place: events}
        assert await owned.store.journal_events((owned.epoch, SEQUENCE_MAX), ALL) == []

    bench.run(story())


def test_page_of_events_has_at_least_one_row_and_no_more_than_its_bytes(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        for size in (300_000, 10, 200_000, 100_000, 10):
            await owned.write(journal_row=JournalRow(b"x" * size, [b"payload"], (1, 1)))
        first, sizes = (1, 1), []
        while page := await owned.store.journal_events(first, 250_000):
            assert len(page) == 1 or sum(len(each.events) for each in page) <= 250_000
            sizes += [len(each.events) for each in page]
            first = (1, page[-1].position[1] + 1)
        assert sizes == [300_000, 10, 200_000, 100_000, 10]

    bench.run(story())


def test_payloads_are_read_at_their_places_in_rows_of_any_length(bench: Bench) -> None:
    random = Random(1)
    lengths = [0, 1, 5_000, 900_000, 1 << 20, 2_500_000, *[random.randint(0, 2_000) for _ in range(300)]]
    payloads = [random.randbytes(length) for length in lengths]

    async def story() -> None:
        owned = await opened(bench.store())
        expected: dict[PayloadPlace, bytes] = {}
        for flush in (1, 2):
            random.shuffle(payloads)
            await owned.write(journal_row=JournalRow(b"events", payloads, (1, 1)))
            at = 0
            for payload in payloads:
                expected[PayloadPlace((1, flush), at, len(payload))] = payload
                at += len(payload)
        missing = PayloadPlace((1, 3), 0, 1)
        async with reading(owned.store) as reads:
            for count in (1, 1, 3, 50, len(expected)):
                places = random.sample([*expected], count)
                found = {place: expected[place] for place in places}
                assert await owned.store.journal_payloads([missing, *places]) == found
                assert await reads.journal_payloads(owned.past, [missing, *places]) == found
        assert await owned.store.journal_payloads([]) == {}

    bench.run(story())


def test_empty_payload_of_a_row_without_others_is_read(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(journal_row=journal_row("a", payloads=[b"", b""]))
        place = PayloadPlace((1, 1), 0, 0)
        assert await owned.store.journal_payloads([place]) == {place: b""}

    bench.run(story())


@pytest.mark.parametrize(("offset", "size"), [(0, 8), (4, 4), (7, 1), (1 << 21, 5)])
def test_place_beyond_its_row_has_no_payload_and_harms_no_other(bench: Bench, offset: int, size: int) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(journal_row=journal_row("a", payloads=[b"1234", b"567"]))
        whole, beyond = PayloadPlace((1, 1), 4, 3), PayloadPlace((1, 1), offset, size)
        async with reading(owned.store) as reads:
            assert await reads.journal_payloads(owned.past, [whole, beyond]) == {whole: b"567"}
        assert await owned.store.journal_payloads([beyond, whole]) == {whole: b"567"}

    bench.run(story())


def test_reserve_is_no_row_of_the_journal_and_goes_when_it_is_given_up_or_the_journal_is_emptied(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        for size in (3_000_000, 100):
            await owned.write(journal_reserve_bytes=size)
            assert (await owned.store.journal_floor(), await journal_of(owned)) == (None, {})
        await owned.write(journal_row=journal_row("a", (1, 3)), journal_reserve_bytes=5_000)
        await owned.write(journal_row=journal_row("b", (1, 4)), journal_trimmed=JournalRange((1, 3), (1, 4)))
        assert (await owned.store.journal_floor(), await journal_of(owned)) == ((1, 4), {(1, 4): "b"})
        await owned.write(journal_reserve_bytes=0)
        await owned.write(journal_row=journal_row("c", (1, 6)), journal_reserve_bytes=5_000)
        await owned.write(journal_trimmed=JournalRange((0, 0), (1, 7)))
        assert (await owned.store.journal_floor(), await journal_of(owned)) == (None, {})

    bench.run(story())


def test_reserve_is_shortened_between_flushes_by_the_owner(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(journal_row=journal_row("a"), journal_reserve_bytes=1 << 20)
        await owned.store.shrink_journal_reserve(owned.fence, 1 << 19)
        await owned.write(journal_row=journal_row("b"))
        assert await journal_of(owned) == {(1, 1): "a", (1, 2): "b"}
        new = await opened(bench.store(), 2, OTHER)
        await new.store.shrink_journal_reserve(owned.fence, 0)  # of an owner that was replaced
        if bench.memory is not None:
            assert bench.memory.tables[SHARD].journal_reserve_bytes == 1 << 19
        await new.store.shrink_journal_reserve(new.fence, 0)
        await new.write(journal_row=journal_row("c"))
        assert await journal_of(new) == {(1, 1): "a", (1, 2): "b", (2, 1): "c"}

    bench.run(story())


def test_emptied_row_keeps_its_events_and_loses_its_payloads(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(journal_row=journal_row("a", payloads=[b"p" * 3_000_000]))
        await owned.write(journal_row=JournalRow(b"b" * 200_000, [b"q"], (1, 1)))
        await owned.write(journal_row=journal_row("c", payloads=[b"r"]))
        await owned.write(journal_row=journal_row("d", payloads=[b"s"]), journal_emptied=[(1, 1), (1, 2), (9, 9)])
        gone = [PayloadPlace((1, 1), 0, 1), PayloadPlace((1, 1), 2_500_000, 1), PayloadPlace((1, 2), 0, 1)]
        kept = {PayloadPlace((1, 3), 0, 1): b"r", PayloadPlace((1, 4), 0, 1): b"s"}
        assert await owned.store.journal_payloads([*gone, *kept]) == kept
        assert await journal_of(owned) == {(1, 1): "a", (1, 2): "b" * 200_000, (1, 3): "c", (1, 4): "d"}
        await owned.write(journal_row=journal_row("e", (1, 5)), journal_trimmed=JournalRange((1, 1), (1, 5)))
        assert await journal_of(owned) == {(1, 5): "e"}

    bench.run(story())


def test_read_of_payloads_fails_on_a_database_that_lacks_the_flush(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(journal_row=journal_row("a", payloads=[b"p"]))
        async with reading(owned.store) as reads:
            with pytest.raises(StoreLost):
                await reads.journal_payloads(owned.fence, [PayloadPlace((1, 1), 0, 1)])

    bench.run(story())


def test_trimming_deletes_a_prefix_and_keeps_the_newest_row(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        for _ in range(4):
            await owned.write(journal_row=journal_row("a", payloads=[b"p"]))
        new = await opened(bench.store(), 2, OTHER)
        await new.write(journal_row=journal_row("b", (1, 3)), journal_trimmed=JournalRange((0, 0), (1, 3)))
        assert [*await journal_of(new)] == [(1, 3), (1, 4), (2, 1)]
        gone, kept = PayloadPlace((1, 2), 0, 1), PayloadPlace((1, 3), 0, 1)
        assert await new.store.journal_payloads([gone, kept]) == {kept: b"p"}
        await new.write(journal_row=journal_row("c", (2, 2)), journal_trimmed=JournalRange((1, 3), (2, 2)))
        assert await journal_of(new) == {(2, 2): "c"}
        assert await new.store.journal_floor() == (2, 2)

    bench.run(story())


def test_flush_without_a_row_empties_the_journal(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(journal_row=journal_row("a"))
        await owned.write(inserts=[make_row(1)], journal_trimmed=JournalRange((0, 0), (1, 2)))
        assert await journal_of(owned) == {}
        assert await owned.store.journal_floor() is None
        await owned.write(journal_row=journal_row("b", (1, 3)))
        assert await journal_of(owned) == {(1, 3): "b"}

    bench.run(story())


def test_write_back_writes_rows_and_the_journal_in_one_flush(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(journal_row=journal_row("added 1 2 3"), timers_added=[(9, 3)])
        await owned.write(
            journal_row=journal_row("current 1 2 3", (1, 2)),
            inserts=[make_row(1), make_row(2), make_row(3, state=State.DEFERRED, due_ms=9)],
        )
        await owned.write(journal_row=journal_row("ended 1, leased 2", (1, 3)))
        await owned.write(
            journal_row=journal_row("current 1 2", (1, 4)),
            deletes=[1],
            leases=[LeaseUpdate(50, 7, 1, [2])],
            journal_trimmed=JournalRange((1, 1), (1, 4)),
        )
        rows = await contents(owned)
        assert {number: row.state for number, row in rows.items()} == {2: State.LEASED, 3: State.DEFERRED}
        assert await journal_of(owned) == {(1, 4): "current 1 2"}

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_flush_that_broke_left_all_of_its_journal_row_and_rows_or_nothing(bench: Bench, point: str) -> None:
    fault = Fault(point)

    async def story() -> None:
        owned = await opened(bench.store(faults=fault))
        await owned.write(journal_row=journal_row("a"), inserts=[make_row(1)])
        fault.armed = True
        fence = owned.fence
        write: dict[str, Any] = {
            "journal_row": journal_row("b", (1, 2), [b"p" * 3_000_000]),
            "journal_trimmed": JournalRange((1, 1), (1, 2)),
            "deletes": [1],
            "inserts": [make_row(2)],
        }
        with pytest.raises(StoreLost):
            await owned.write(**write)
        with pytest.raises(StoreLost):
            await owned.store.journal_floor()
        outcome = commit_outcome(fence, await owned.store.read_owner())
        before, after = ({(1, 1): "a"}, {1}), ({(1, 2): "b"}, {2})
        assert outcome is (CommitOutcome.COMMITTED if point == "committed" else CommitOutcome.NOT_COMMITTED)
        owned.number = 3 if point == "committed" else 2
        assert await journal_of(owned) == (after if point == "committed" else before)[0]
        assert set(await contents(owned)) == (after if point == "committed" else before)[1]
        owned.number = 2
        if point == "committed":
            with pytest.raises(FencedOut):
                await owned.write(**write)
            owned.number = 3
        else:
            await owned.write(**write)
        assert (await journal_of(owned), set(await contents(owned))) == after

    bench.run(story())


def test_refused_flush_leaves_no_journal_row(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        await owned.write(inserts=[make_row(1)], journal_row=journal_row("a"))
        with pytest.raises(WriteRefused):
            await owned.write(inserts=[make_row(1)], journal_row=journal_row("b"))
        assert await journal_of(owned) == {(1, 1): "a"}
        await owned.write(journal_row=journal_row("c"))
        assert await journal_of(owned) == {(1, 1): "a", (1, 2): "c"}

    bench.run(story())


def test_former_owner_adds_no_row_after_a_takeover(bench: Bench) -> None:
    async def story() -> None:
        former = await opened(bench.store())
        await former.write(journal_row=journal_row("a"))
        new = await opened(bench.store(), 2, OTHER)
        for _ in range(2):
            with pytest.raises((FencedOut, StoreLost)):
                await former.write(journal_row=journal_row("late"), journal_trimmed=JournalRange((0, 0), (1, 1)))
            await former.store.read_owner()
        await new.write(journal_row=journal_row("b"))
        with pytest.raises(FencedOut):
            await former.write(journal_row=journal_row("late"))
        assert await journal_of(new) == {(1, 1): "a", (2, 1): "b"}

    bench.run(story())


def test_copy_without_the_last_flush_refuses_the_next_one(bench: Bench) -> None:
    """The owner has committed three flushes, and its database is replaced by a copy that has two of them."""

    async def story() -> None:
        owner, copy = await opened(bench.store()), await opened(bench.store(SHARD + 1))
        for owned, flushes in ((owner, 3), (copy, 2)):
            for _ in range(flushes):
                await owned.write(journal_row=journal_row("a"))
        copy.number = owner.number
        with pytest.raises(FencedOut):
            await copy.write(journal_row=journal_row("b", (1, 4)), journal_trimmed=JournalRange((1, 1), (1, 4)))
        assert [*await journal_of(copy)] == [(1, 1), (1, 2)]

    bench.run(story())


@pytest.mark.parametrize("point", ["begin", "fenced", "read", "written"])
def test_attempt_that_arrives_after_its_outcome_was_read_changes_nothing(bench: Bench, point: str) -> None:
    """An attempt is stopped on its way. The owner row says that nothing was committed, and the flush is repeated."""

    async def story() -> None:
        owned = await opened(bench.store())
        late = Zombie(bench, point, make_row(1), journal_row=journal_row("late"))
        await late.pause()
        if bench.kind == "sqlite" and point != "begin":
            assert await late.resume() is None  # a process cannot take a file's write lock from another
            return
        assert commit_outcome(owned.fence, await owned.store.read_owner()) is CommitOutcome.NOT_COMMITTED
        await owned.write(journal_row=journal_row("repeated"), inserts=[make_row(2)])
        assert isinstance(await late.resume(), FencedOut if point == "begin" else StoreLost)
        await owned.write(journal_row=journal_row("next"))
        assert await journal_of(owned) == {(1, 1): "repeated", (1, 2): "next"}
        assert set(await contents(owned)) == {2}

    bench.run(story())


def test_journal_of_racing_owners_has_the_acknowledged_flushes_and_no_other(bench: Bench) -> None:
    """Four owners, one after another, all still flushing: each row of the journal is one that its owner saw committed.

    A takeover waits a second for a flush, and then ends its connection: if the machine stands still, such a flush may have
    been committed.
    """
    unknown: set[Position] = set()

    async def live(epoch: int) -> list[Position]:
        nonce = f"nonce-{epoch}"
        store = bench.store()
        await store.open()
        await store.take_over(epoch, nonce)
        owned = Ownership(store, epoch, nonce)
        committed: list[Position] = []
        for _ in range(8):
            try:
                await owned.write(journal_row=journal_row(nonce))
            except FencedOut:
                break
            except StoreLost:
                if epoch == 5:  # nobody supersedes the last one
                    raise
                unknown.add((epoch, owned.number))
                break
            committed.append((epoch, owned.number - 1))
        return committed

    async def story() -> None:
        await opened(bench.store())
        results = await asyncio.gather(*(live(epoch) for epoch in range(2, 6)), return_exceptions=True)
        reader = bench.store()
        await reader.open()
        acknowledged = {position for result in results if isinstance(result, list) for position in result}
        assert isinstance(results[-1], list) and len(results[-1]) == 8
        found = [*await journal_of(Ownership(reader))]
        assert found == sorted(found)
        assert acknowledged <= {*found} <= acknowledged | unknown
        owner = await reader.read_owner()
        assert isinstance(owner, Owner) and owner.epoch == 5

    bench.run(story())


@pytest.mark.parametrize(
    ("row", "trimmed"),
    [
        (journal_row("a", (1, 6)), None),
        (JournalRow(b"", (), (1, 1)), None),
        (journal_row("a", (1, 4)), JournalRange((1, 1), (1, 5))),
        (None, JournalRange((1, 1), (1, 4))),
        (None, JournalRange((1, 1), (1, 6))),
    ],
)
def test_flush_that_would_trim_what_is_needed_is_found(row: JournalRow | None, trimmed: JournalRange | None) -> None:
    with pytest.raises(AssertionError):
        check_journal_writes((1, 5), row, trimmed)


def test_flushes_that_trim_up_to_the_floor_are_right() -> None:
    check_journal_writes((1, 5), journal_row("a", (1, 5)), JournalRange((0, 0), (1, 5)))
    check_journal_writes((1, 5), journal_row("a", (1, 3)), JournalRange((1, 1), (1, 2)))
    check_journal_writes((1, 5), None, JournalRange((0, 0), (1, 5)))
    check_journal_writes((1, 5), None, None)
