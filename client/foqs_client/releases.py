"""The releases of items that no caller gets.

Holds `Releases`. Always true: a release runs in the background; if it fails, its items
come back when their leases end. Knows nothing of where the items come from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from foqs_client.errors import FoqsError
from foqs_client.types import Delivery

Release: TypeAlias = Callable[[Sequence[Delivery]], Awaitable[object]]


class Releases:
    """The releases of one client that run in the background.

    Args:
        release: releases items. Raises FoqsError.
    """

    def __init__(self, release: Release) -> None:
        self._release = release
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, deliveries: Sequence[Delivery]) -> None:
        """Start to release items, and return at once."""
        if deliveries:
            task = asyncio.ensure_future(self._try_release(deliveries))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def finish(self, until_s: float) -> None:
        """Wait for all releases until this moment on the loop's clock, then cancel the rest."""
        loop = asyncio.get_running_loop()
        while self._tasks and (left_s := until_s - loop.time()) > 0:
            await asyncio.wait(list(self._tasks), timeout=left_s)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _try_release(self, deliveries: Sequence[Delivery]) -> None:
        try:
            await self._release(deliveries)
        except FoqsError:
            return  # they come back when their leases end
