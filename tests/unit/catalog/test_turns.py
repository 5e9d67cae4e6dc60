"""The turns of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.catalog.turns import Turns
from tests.support.aio import run
from tests.support.method_gate import start_task


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(("wait", "cancel", "release")))))
def test_the_waiters_of_a_namespace_get_the_turn_in_order_and_cancelled_ones_leave_nothing(
    moves: Sequence[tuple[str, str]],
) -> None:
    async def story() -> None:
        turns = Turns(lambda namespace: 1)
        await turns.acquire("")
        waiting: list[tuple[str, asyncio.Future[None]]] = []
        is_held = True
        for namespace, move in moves:
            if move == "wait" and is_held:
                waiting.append((namespace, start_task(turns.acquire(namespace))))
            elif move == "cancel" and waiting:
                waiting.pop()[1].cancel()
            elif move == "release" and is_held:
                turns.release()
            for _ in range(3):
                await asyncio.sleep(0)
            if move == "release" and is_held:
                is_held = bool(waiting)
                served = [(of, task) for of, task in waiting if task.done()]
                assert len(served) == bool(waiting)
                for of, task in served:
                    assert task is next(task for other, task in waiting if other == of)
                    waiting.remove((of, task))
            assert turns.waiting_count == len(waiting)
            assert not any(task.done() for _, task in waiting)
        while waiting:
            turns.release()
            done = await asyncio.wait([task for _, task in waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting = [(of, task) for of, task in waiting if task not in done[0]]

    run(story())


def test_namespaces_take_turns_by_weight() -> None:
    async def story() -> None:
        turns = Turns({"a": 1, "b": 2}.__getitem__)
        await turns.acquire("a")
        order: list[str] = []

        async def change(namespace: str) -> None:
            await turns.acquire(namespace)
            order.append(namespace)
            turns.release()

        changes = [start_task(change(namespace)) for namespace in "aaaabbbb"]
        await asyncio.sleep(0)
        turns.release()
        await asyncio.gather(*changes)
        assert sorted(order[:3]) == ["a", "b", "b"]

    run(story())


@pytest.mark.parametrize("is_cancelled_first", [False, True])
def test_a_turn_that_comes_with_a_cancellation_goes_to_the_next_one(is_cancelled_first: bool) -> None:
    async def story() -> None:
        turns = Turns(lambda namespace: 1)
        await turns.acquire("a")
        first, second = (start_task(turns.acquire("a")) for _ in range(2))
        await asyncio.sleep(0)
        if is_cancelled_first:
            first.cancel()
        turns.release()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        assert turns.waiting_count == 0

    run(story())
