"""A call in the thread of an event loop whose caller is interrupted: its result is read, or given back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from foqs_client.background_loop import BackgroundLoop, _LoopCall
from tests.support.virtual_time import run_virtual


async def result_after(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "items"


@pytest.mark.parametrize("turns", range(6))
def test_result_of_a_caller_that_left_is_given_back(turns: int) -> None:
    """The caller leaves before the call has begun (0 or 1 turns), just before the result is there, when it is not handed over yet, and after that."""

    async def program() -> None:
        found: list[str] = []
        call = _LoopCall(found.append)
        call.submit(asyncio.get_running_loop(), result_after(0))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.leave()
        await asyncio.sleep(1)
        assert found == (["items"] if turns > 1 else [])

    run_virtual(program)


def test_call_of_a_caller_that_left_is_cancelled() -> None:
    async def program() -> None:
        found: list[str] = []
        call = _LoopCall(found.append)
        call.submit(asyncio.get_running_loop(), result_after(9))
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
        call = _LoopCall(found.append)
        call.submit(asyncio.get_running_loop(), result_after(0))
        await asyncio.sleep(1)
        assert call.result.result() == "items"
        await asyncio.sleep(1)
        assert found == []

    run_virtual(program)


@pytest.mark.parametrize("is_known", [True, False], ids=["known to the loop", "not known to the loop"])
def test_call_whose_caller_is_interrupted_while_it_submits_it_does_not_go_on(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    background = BackgroundLoop("test")
    assert background.run(result_after_nothing) == "items"
    loop = background._loop
    assert loop is not None
    tell_loop, begun, found = loop.call_soon_threadsafe, threading.Event(), list[str]()

    def be_interrupted(callback: Callable[..., object], *arguments: Any) -> None:
        monkeypatch.undo()
        if is_known:
            tell_loop(callback, *arguments)
            assert begun.wait(30)
        raise KeyboardInterrupt

    async def begin() -> str:
        begun.set()
        return await result_after(3_600)

    monkeypatch.setattr(loop, "call_soon_threadsafe", be_interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            background.run(begin, found.append)
        assert background.run(count_tasks) == 1
        assert begun.is_set() is is_known
    finally:
        background.close(nothing)
    assert found == []


async def result_after_nothing() -> str:
    return "items"


async def count_tasks() -> int:
    await asyncio.sleep(0)  # a cancelled task ends
    return len(asyncio.all_tasks())


async def nothing() -> None:
    pass
