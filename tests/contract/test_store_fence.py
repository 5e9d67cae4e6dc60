"""Every store under faults: lost connections, cancels, former owners, takeovers. Run on all three stores."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from foqs.core.flush.fence import CommitOutcome, Owner, commit_outcome
from foqs.core.flush.writes import Writes
from foqs.core.items.item import Row
from foqs.store.port import FAULT_POINTS, FencedOut, Store, StoreError, StoreLost, Superseded
from tests.contract.conftest import Bench
from tests.contract.zombie import Zombie
from tests.support.stores import NONCE, OTHER, Ownership, contents, make_row, opened


class Fault:
    """A hook that breaks the connection once at a point, when armed."""

    def __init__(self, point: str) -> None:
        self._point = point
        self.armed = False
        self.passed: list[str] = []

    def __call__(self, point: str) -> None:
        self.passed.append(point)
        if self.armed and point == self._point:
            self.armed = False
            raise StoreLost(f"broken at {point}")


async def assert_lost(store: Store) -> None:
    """Check that every call but read_owner, open and close raises StoreLost."""
    with pytest.raises(StoreLost):
        await store.now_ms()
    with pytest.raises(StoreLost):
        await store.topics()
    with pytest.raises(StoreLost):
        await store.key_slots()
    with pytest.raises(StoreLost):
        await store.due_rows(None, 1, None, 1)
    with pytest.raises(StoreLost):
        await store.rows([1])
    with pytest.raises(StoreLost):
        await store.next_due_ms(1, 9)
    with pytest.raises(StoreLost):
        await store.take_over(9, NONCE)
    with pytest.raises(StoreLost):
        await Ownership(store).write()


def test_flush_calls_the_fault_points_in_order(bench: Bench) -> None:
    fault = Fault("none")

    async def story() -> None:
        owned = await opened(bench.store(faults=fault))
        await owned.write(inserts=[make_row(1)])
        assert tuple(fault.passed) == FAULT_POINTS

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_lost_connection_is_resolved_by_the_owner_row_and_replayed(bench: Bench, point: str) -> None:
    fault = Fault(point)

    async def story() -> None:
        owned = await opened(bench.store(faults=fault))
        await owned.write(inserts=[make_row(1), make_row(2)])
        fault.armed = True
        fence = owned.fence
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(3)], deletes=[1])
        await assert_lost(owned.store)

        outcome = commit_outcome(fence, await owned.store.read_owner())
        assert outcome is (CommitOutcome.COMMITTED if point == "committed" else CommitOutcome.NOT_COMMITTED)
        assert set(await contents(owned)) == ({2, 3} if point == "committed" else {1, 2})
        if outcome is CommitOutcome.NOT_COMMITTED:
            await owned.write(inserts=[make_row(3)], deletes=[1])
        else:
            with pytest.raises(FencedOut):
                await owned.write(inserts=[make_row(3)], deletes=[1])
            owned.number += 1
        assert set(await contents(owned)) == {2, 3}
        await owned.write(deletes=[2])
        assert set(await contents(owned)) == {3}

    bench.run(story())


def test_lost_store_may_be_reopened_with_open(bench: Bench) -> None:
    fault = Fault("written")

    async def story() -> None:
        owned = await opened(bench.store(faults=fault))
        fault.armed = True
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(1)])
        await owned.store.open()
        await owned.write(inserts=[make_row(1)])

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_read_owner_after_a_loss_shows_the_new_owner(bench: Bench, point: str) -> None:
    fault = Fault(point)

    async def story() -> None:
        owned = await opened(bench.store(faults=fault))
        fence = owned.fence
        fault.armed = True
        with pytest.raises(StoreLost):
            await owned.write(inserts=[make_row(1)])
        new = await opened(bench.store(), epoch=2, nonce=OTHER)
        assert commit_outcome(fence, await owned.store.read_owner()) is CommitOutcome.FENCED
        with pytest.raises(FencedOut):
            await owned.write(inserts=[make_row(1)])
        await new.write(inserts=[make_row(5)])
        assert set(await contents(new)) == ({1, 5} if point == "committed" else {5})

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_owner_paused_in_a_flush_commits_nothing_after_a_takeover(bench: Bench, point: str) -> None:
    async def story() -> None:
        zombie = Zombie(bench, point, make_row(1, payload=b"zombie"))
        await zombie.pause()
        if bench.kind == "sqlite" and point not in ("begin", "committed"):
            await _sqlite_takeover_waits(zombie, bench.impatient_store())
            return
        store = bench.store()
        await store.open()
        taken = await store.take_over(2, OTHER)
        assert (taken.epoch, taken.nonce, taken.flush) == (2, OTHER, 0)
        owned = Ownership(store, 2, OTHER)
        seen = await contents(owned)
        assert set(seen) == ({1} if point == "committed" else set())
        error = await zombie.resume()
        if point == "begin":
            assert isinstance(error, FencedOut)
        elif point == "committed":
            assert error is None or isinstance(error, StoreLost)
        else:
            assert isinstance(error, StoreLost)
        assert await contents(owned) == seen
        await owned.write(inserts=[make_row(2)])

    bench.run(story())


async def _sqlite_takeover_waits(zombie: Zombie, store: Store) -> None:
    """A process cannot take a file's write lock from another, so the takeover fails while it is held."""
    with pytest.raises(StoreLost, match="lock"):
        await store.open()
    assert await zombie.resume() is None
    await store.open()
    await store.take_over(2, OTHER)
    assert set(await contents(Ownership(store, 2, OTHER))) == {1}


def test_read_owner_of_a_fenced_owner_does_not_disturb_the_new_owner(bench: Bench) -> None:
    """A former owner reads the row during a flush of the new one, which is slow or paused."""

    async def story() -> None:
        former = await opened(bench.impatient_store())
        zombie = Zombie(bench, "written", make_row(1), epoch=2, nonce=OTHER)
        await zombie.pause()
        if bench.kind == "sqlite":
            with pytest.raises(StoreLost, match="lock"):
                await former.store.read_owner()
        else:
            assert (await former.store.read_owner()).epoch == 2
        assert await zombie.resume() is None
        assert (await former.store.read_owner()).flush == 1
        assert set(await contents(await opened(bench.store(), epoch=3))) == {1}

    bench.run(story())


def test_concurrent_takeovers_with_one_epoch_have_one_winner(bench: Bench) -> None:
    async def story() -> None:
        stores = [bench.store() for _ in range(4)]
        await asyncio.gather(*(store.open() for store in stores))
        results = await asyncio.gather(
            *(store.take_over(1, f"nonce-{n}") for n, store in enumerate(stores)), return_exceptions=True
        )
        won = [n for n, result in enumerate(results) if isinstance(result, Owner)]
        assert len(won) == 1
        assert all(isinstance(result, Superseded) for n, result in enumerate(results) if n not in won)
        for n, store in enumerate(stores):
            owned = Ownership(store, 1, f"nonce-{n}")
            if n in won:
                await owned.write(inserts=[make_row(n + 1)])
            else:
                with pytest.raises(FencedOut):
                    await owned.write(inserts=[make_row(n + 1)])
        assert set(await contents(await opened(bench.store(), epoch=2))) == {won[0] + 1}

    bench.run(story())


def test_racing_takeovers_and_flushes_leave_one_history(bench: Bench) -> None:
    """Four owners, one after another, all still flushing: the rows are exactly the acknowledged ones.

    A takeover waits a second for a flush, and then ends its connection: if the machine stands still, such a flush may have
    been committed.
    """
    unknown: set[int] = set()

    async def live(store: Store, epoch: int) -> list[int]:
        nonce = f"nonce-{epoch}"
        await store.open()
        await store.take_over(epoch, nonce)
        owned = Ownership(store, epoch, nonce)
        committed: list[int] = []
        for n in range(8):
            number = epoch * 100 + n
            try:
                await owned.write(inserts=[make_row(number)])
            except FencedOut:
                break
            except StoreLost:
                if epoch == 4:  # nobody supersedes the last one
                    raise
                unknown.add(number)
                break
            committed.append(number)
        return committed

    async def story() -> None:
        results = await asyncio.gather(*(live(bench.store(), epoch) for epoch in range(1, 5)), return_exceptions=True)
        for result in results:
            assert isinstance(result, list | Superseded), result
        assert isinstance(results[-1], list) and len(results[-1]) == 8
        acknowledged = {number for result in results if isinstance(result, list) for number in result}
        reader = bench.store()
        await reader.open()
        assert (await reader.read_owner()).epoch == 4
        assert acknowledged <= set(await contents(await opened(reader, epoch=5))) <= acknowledged | unknown

    bench.run(story())


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_caller_cancelled_at_a_point_leaves_all_or_nothing_and_a_usable_store(bench: Bench, point: str) -> None:
    flushing: list[asyncio.Task[Mapping[int, Row]]] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()

        def cancel(reached: str) -> None:
            if flushing and reached == point:
                if bench.kind == "sqlite":
                    loop.call_soon_threadsafe(flushing[0].cancel)
                else:
                    flushing[0].cancel()

        owned = await opened(bench.store(faults=cancel))
        await owned.write(inserts=[make_row(1)])
        fence = owned.fence
        flushing.append(asyncio.ensure_future(owned.write(inserts=[make_row(2)], deletes=[1])))
        await asyncio.wait(flushing)
        flushing.clear()
        outcome = commit_outcome(fence, await owned.store.read_owner())
        assert outcome is not CommitOutcome.FENCED
        committed = outcome is CommitOutcome.COMMITTED
        assert set(await contents(owned)) == ({2} if committed else {1})
        owned.number = fence.flush + committed
        await owned.write(inserts=[make_row(3)])
        assert set(await contents(owned)) == ({2, 3} if committed else {1, 3})

    bench.run(story())


def test_caller_cancelled_after_any_number_of_steps_leaves_all_or_nothing(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        expected: set[int] = set()
        for steps in range(25):
            number = steps + 1
            flush = asyncio.ensure_future(owned.write(inserts=[make_row(number)]))
            for _ in range(steps):
                await asyncio.sleep(0)
            flush.cancel()
            await asyncio.wait([flush])
            before = owned.number
            owner = await owned.store.read_owner()
            if owner.flush == before or (not flush.cancelled() and flush.exception() is None):
                expected.add(number)
            owned.number = owner.flush + 1
            assert set(await contents(owned)) == expected

    bench.run(story())


def test_after_a_cancelled_flush_only_read_owner_is_allowed(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        flush = asyncio.ensure_future(owned.write(inserts=[make_row(1)]))
        await asyncio.sleep(0)
        flush.cancel()
        await asyncio.wait([flush])
        assert flush.cancelled()
        await assert_lost(owned.store)
        await owned.store.read_owner()
        assert await owned.store.now_ms() > 0

    bench.run(story())


def test_former_owner_is_fenced_out_of_every_later_flush(bench: Bench) -> None:
    async def story() -> None:
        former = await opened(bench.store())
        await former.write(inserts=[make_row(1)])
        new = await opened(bench.store(), epoch=2, nonce=OTHER)
        errors: list[StoreError] = []
        for number in (2, 3):
            try:
                await former.store.flush(former.fence, [1], {}, [], lambda found, keys: Writes(deletes=[1]))
            except StoreError as error:
                errors.append(error)
            former.number = number
        assert [type(error) for error in errors] == [FencedOut, FencedOut]
        assert set(await contents(new)) == {1}

    bench.run(story())
