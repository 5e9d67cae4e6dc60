"""A client of a simulated run that repeats enqueues when the windows of their keys end.

Holds `KeyRepeater`. Always true: a repeat is the item as it was enqueued first. If a
database refuses or loses something meanwhile, the flush of the repeat begins within the
window and is written after it. An item whose key has an end is repeated after its window too. Does not judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any, Final

from foqs_client import FoqsError, Item
from tests.support.recording_client import RecordingClient

_EARLY_S: Final = (0.25, 0.12, 0.04)
"""How long before the end of its window a key is repeated, at most."""
_LATE_S: Final = (0.3, 1.0)
"""How long after the end of its window a key with an end is repeated, at most."""
WITH_END: Final = "/ends"
"""The end of the text of each key with an end."""


class KeyRepeater:
    """Enqueues items with keys, and repeats each.

    Args:
        window_s: the key window.
        wall_ms: a clock like those of the shards.
        call: counts a call.
    """

    def __init__(
        self,
        client: RecordingClient,
        rng: Random,
        topics: Sequence[str],
        window_s: float,
        wall_ms: Callable[[], float],
        call: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> None:
        self._client = client
        self._rng = rng
        self._topics = topics
        self._window_s = window_s
        self._wall_ms = wall_ms
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
                key = f"{name}/{number}"
                item = Item(topic, key.encode(), lease_ms=300, idempotency_key=key)
                if self._rng.random() < 0.5:
                    until_ms = int(self._wall_ms() + 900 * self._window_s)
                    item = replace(item, idempotency_key=key + WITH_END, key_until_ms=until_ms)
                    for late_s in _LATE_S:
                        self._repeat(now_s + self._window_s + self._rng.uniform(0, late_s), number, item)
                self._start(item)
                for early_s in _EARLY_S:
                    self._repeat(now_s + self._window_s - self._rng.uniform(0, early_s), number, item)
            while self._repeats and self._repeats[0][0] <= now_s:
                self._start(heappop(self._repeats)[2])
            await asyncio.sleep(min([next_s, *(at_s for at_s, _, _ in self._repeats[:1])]) - now_s)
        await asyncio.gather(*self._calls)
        await self._client.client.close()

    def _repeat(self, at_s: float, number: int, item: Item) -> None:
        heappush(self._repeats, (at_s, number, item))

    def _start(self, item: Item) -> None:
        task = asyncio.ensure_future(self._enqueue(item))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _enqueue(self, item: Item) -> None:
        with contextlib.suppress(FoqsError):
            await self._call(self._client.enqueue([item], timeout_ms=3_000))
