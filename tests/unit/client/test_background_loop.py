"""A call in the thread of an event loop whose caller is interrupted: its result is read, or given back."""

from __future__ import annotations

import asyncio

import pytest

from foqs_client.background_loop import _LoopCall
from tests.support.virtual_time import run_virtual


async def result_after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "items"


@pytest.mark.parametrize("turns", range(5))
def test_result_of_a_caller_that_left_is_given_back(turns: int) -> None:
    """The caller leaves before the call has begun (0 turns), just before the result is there, when it is not handed over yet, and after that."""

    async def program() -> None:
        found: list[str] = []
        call = _LoopCall(asyncio.get_running_loop(), result_after(0), found.append)
        call.start()
        for _ in range(turns):
            await asyncio.sleep(0)
        call.leave()
        await asyncio.sleep(1)
        assert found == (["items"] if turns else [])

    run_virtual(program)


def test_call_of_a_caller_that_left_is_cancelled() -> None:
    async def program() -> None:
        found: list[str] = []
        call = _LoopCall(asyncio.get_running_loop(), result_after(9), found.append)
        call.start()
        await asyncio.sleep(1)
        call.leave()
        await asyncio.sleep(0.1)
        assert call.result.cancelled()
        await asyncio.sleep(10)
        assert found == []

    run_virtual(program)


def test_result_that_was_read_is_not_given_back() -> None:
    async def program() -> None:
        found: list[str] = []
        call = _LoopCall(asyncio.get_running_loop(), result_after(0), found.append)
        call.start()
        await asyncio.sleep(1)
        assert call.result.result() == "items"
        await asyncio.sleep(1)
        assert found == []

    run_virtual(program)
