"""The thread in which a relay runs its statements.

Holds `StatementThread`. Always true: one call runs at a time, so each connection has one user. Knows nothing of SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class StatementThread:
    """One thread, and how long its call has been running.

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._threads = ThreadPoolExecutor(1, "foqs-relay")
        self._began_s: float | None = None
        """When the call under way began."""

    @property
    def running_s(self) -> float:
        """How long the call under way has been running; 0: there is none."""
        return 0.0 if self._began_s is None else self._clock() - self._began_s

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function that blocks. Raises what it raises."""
        self._began_s = self._clock()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        finally:
            self._began_s = None

    def close(self) -> None:
        """Wait for the call under way, and end the thread."""
        self._threads.shutdown()
