"""Runs one coroutine to its end in a new event loop, with a time limit.

Always true: a test that hangs fails with `TimeoutError` instead of stopping the
suite. Knows nothing of what it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from foqs.queue.port import LeasedItems, PendingCall

T = TypeVar("T")

TIMEOUT_S: Final = 240.0
"""A guard against hanging: many times what the longest test takes on an idle machine."""


def run(coro: Coroutine[Any, Any, T], timeout: float = TIMEOUT_S) -> T:
    """The coroutine's result.

    Raises:
        TimeoutError: it took longer than `timeout` seconds.
    """

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await coro

    return asyncio.run(bounded())


async def call_result(start: Callable[[Callable[[Any], None]], PendingCall]) -> Any:
    """Wait for a call by callback. Cancelling this abandons the call."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    pending = start(lambda result: release_unwanted(result) if future.done() else future.set_result(result))
    try:
        return await future
    except asyncio.CancelledError:
        pending.abandon()
        if future.done() and not future.cancelled():
            release_unwanted(future.result())
        raise


def release_unwanted(result: Any) -> None:
    """Nobody takes a call's result any more."""
    if isinstance(result, LeasedItems):
        result.give_back()
