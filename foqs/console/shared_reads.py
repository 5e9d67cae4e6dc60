"""Reads that several pages share, each for a while.

Always true: one read runs at a time; the result of a read serves all pages until it is
`ttl_s` old; few results are kept. A page waits a limited time for a result, and the read
goes on without it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Final

ENTRIES_MAX: Final = 32
TIMEOUT_S: Final = 10.0


class _SharedRead:
    __slots__ = ("ended_at_s", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.ended_at_s: float | None = None


class SharedReads:
    """The reads of one console and their results, by key.

    Args:
        ttl_s: a result is read again when it is older.
    """

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._entries: OrderedDict[Hashable, _SharedRead] = OrderedDict()
        self._turn = asyncio.Lock()

    async def get(self, key: Hashable, read: Callable[[], Awaitable[Any]], wait_s: float) -> Any:
        """Return the result of a read; None if there is none within `wait_s`. Raises the error of the read."""
        loop = asyncio.get_running_loop()
        entry = self._entries.get(key)
        if entry is not None and (entry.ended_at_s is None or loop.time() - entry.ended_at_s < self._ttl_s):
            self._entries.move_to_end(key)
        else:
            entry = self._start(key, read)
        await asyncio.wait((entry.task,), timeout=wait_s)
        return entry.task.result() if entry.task.done() and not entry.task.cancelled() else None

    def _start(self, key: Hashable, read: Callable[[], Awaitable[Any]]) -> _SharedRead:
        loop = asyncio.get_running_loop()
        entry = self._entries[key] = _SharedRead(loop.create_task(self._run(read)))
        self._entries.move_to_end(key)
        while len(self._entries) > ENTRIES_MAX:
            _, dropped = self._entries.popitem(last=False)
            dropped.task.cancel()

        def on_ended(task: asyncio.Task[Any]) -> None:
            entry.ended_at_s = loop.time()
            # A failed read is repeated at the next request. Its error was raised to the pages that waited.
            if (task.cancelled() or task.exception() is not None) and self._entries.get(key) is entry:
                del self._entries[key]

        entry.task.add_done_callback(on_ended)
        return entry

    async def _run(self, read: Callable[[], Awaitable[Any]]) -> Any:
        async with self._turn, asyncio.timeout(TIMEOUT_S):
            return await read()

    async def close(self) -> None:
        """Cancel the reads."""
        tasks = [entry.task for entry in self._entries.values()]
        self._entries.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
