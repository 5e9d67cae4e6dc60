"""Counts the work in one turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")


async def calls_per_turn(patch: pytest.MonkeyPatch, owner: Any, method: str, work: Awaitable[T]) -> tuple[T, int, int]:
    """(what `work` returns, how often it called the method in all, and in one turn at most).

    `work` must not wait for time to pass: the loop is kept busy.
    """
    loop = asyncio.get_running_loop()
    original = getattr(owner, method)
    calls = [0]
    over = False

    def counted(*arguments: Any) -> Any:
        calls[-1] += 1
        return original(*arguments)

    def turn() -> None:
        if not over:
            calls.append(0)
            loop.call_soon(turn)

    turn()
    with patch.context() as patched:
        patched.setattr(owner, method, counted)
        try:
            result = await work
        finally:
            over = True
    return result, sum(calls), max(calls)
