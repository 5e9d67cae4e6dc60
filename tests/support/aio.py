"""Runs one coroutine to its end in a fresh event loop, within a bound.

Always true: a test that hangs fails with `TimeoutError` instead of stopping the
suite. Knows nothing of what it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(coro: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
    """The coroutine's result.

    Raises:
        TimeoutError: it took longer than `timeout` seconds.
    """

    async def bounded() -> T:
        async with asyncio.timeout(timeout):
            return await coro

    return asyncio.run(bounded())
