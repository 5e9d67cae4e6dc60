"""The results of operations, for a task that waits for them.

A call gets its results by `on_operation_finished`, because a task for each call
would cost too much. The tasks of a shard, and calls that are tasks already, await this.
"""

from __future__ import annotations

import asyncio
from typing import Any

from foqs.core.flush.operation import Operation


class AwaitedResults:
    """The `OperationCaller` of `operation_count` operations whose results a task awaits.

    Attributes:
        future: gets the results of all of them, in the order in which they finish.
    """

    __slots__ = ("_open_count", "_results", "future")

    def __init__(self, operation_count: int = 1) -> None:
        self.future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._open_count = operation_count
        self._results: list[Any] = []

    def on_operation_finished(self, operation: Operation) -> None:
        self._results += operation.results
        self._open_count -= 1
        if not self._open_count and not self.future.done():
            self.future.set_result(self._results)
