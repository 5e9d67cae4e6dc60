"""A client of a simulated run that repeats enqueues shortly before the windows of their keys end.

Holds `KeyRepeater`. Always true: a repeat is the item as it was enqueued first. If a
database refuses or loses something meanwhile, the flush of the repeat begins within the
window and is written after it. Does not judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from foqs_client import FoqsError, Item
from tests.support.recording_client import RecordingClient

_EARLY_S: Final = (0.25, 0.12, 0.04)
"""How long before the end of its window a key is repeated, at most."""


class KeyRepeater:
    """Enqueues items with keys, and repeats each.

    Args:
        window_s: the key window.
        call: counts a call.
    """

    def __init__(
        self,
        client: RecordingClient,
        rng: Random,
        topics: Sequence[str],
        window_s: float,
        call: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> None:
        self._client = client
        self._rng = rng
        self._topics = topics
        self._window_s = window_s
        self._call = call
        self._repeats: list[tuple[float, int, Item]] = []
        """A heap: when to repeat which item."""
        self._calls: set[asyncio.Task[None]] = set()

    async def work(self, name: str, is_over: Callable[[], bool]) -> None:
        """Enqueue and repeat until the work is over. `name` makes keys unique."""
        loop, number, next_s = asyncio.get_running_loop(), 0, 0.0
        while not is_over():
            now_s = loop.time()
            if now_s >= next_s:
                number += 1
                next_s = now_s + self._rng.expovariate(7)
                topic = self._rng.choice(self._topics)
                item = Item(topic, f"{name}/{number}".encode(), lease_ms=300, idempotency_key=f"{name}/{number}")
                self._start(item)
                for early_s in _EARLY_S:
                    heappush(self._repeats, (now_s + self._window_s - self._rng.uniform(0, early_s), number, item))
            while self._repeats and self._repeats[0][0] <= now_s:
                self._start(heappop(self._repeats)[2])
            await asyncio.sleep(min([next_s, *(at_s for at_s, _, _ in self._repeats[:1])]) - now_s)
        await asyncio.gather(*self._calls)
        await self._client.client.close()

    def _start(self, item: Item) -> None:
        task = asyncio.ensure_future(self._enqueue(item))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _enqueue(self, item: Item) -> None:
        with contextlib.suppress(FoqsError):
            await self._call(self._client.enqueue([item], timeout_ms=3_000))
