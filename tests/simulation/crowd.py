"""Many callers of one client with one item per call, as in a service that enqueues or acks items one by one.

Holds `Crowd`. Always true: all its calls use one client, most of them in the same
turn of the loop, so the client coalesces them. Each caller records its own
results. Some cancel their calls. Does not judge.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, Final

from foqs_client import FoqsError, Item
from tests.support.recording_client import RecordingClient

CALLERS: Final = 8


class Crowd:
    """The callers of one namespace.

    Args:
        callers: they share one client.
        topics: a round uses one of these.
        item: makes an item of a topic with this payload.
        call: counts a call.
    """

    def __init__(
        self,
        callers: Sequence[RecordingClient],
        rng: Random,
        topics: Sequence[str],
        item: Callable[[Random, str, bytes], Item],
        call: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> None:
        self._callers = callers
        self._rng = rng
        self._topics = topics
        self._item = item
        self._call = call
        self._items = 0

    async def work(self, name: str, stopping: Callable[[], bool]) -> None:
        """Let several callers call at once, and some cancel, round after round."""
        rng = self._rng
        while not stopping():
            topic, timeout_ms = rng.choice(self._topics), rng.choice((300, 1_000, 3_000))
            wait_ms, lease_ms = rng.choice((0, 30, 400)), rng.choice((None, None, rng.randint(30, 900)))
            puts = rng.random() < 0.4
            tasks = []
            for caller in rng.sample(self._callers, rng.randint(2, len(self._callers))):
                if puts:
                    self._items += 1
                    item = self._item(rng, topic, f"{name}/{self._items}".encode())
                    asked: Awaitable[None] = self._enqueue(caller, item, timeout_ms)
                else:
                    asked = self._dequeue(caller, topic, wait_ms, lease_ms, timeout_ms)
                tasks.append(asyncio.ensure_future(asked))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice((0.0, 0.0, rng.uniform(0.0, 0.05))))
                for task in rng.sample(tasks, rng.randint(1, len(tasks))):
                    task.cancel()
            for error in await asyncio.gather(*tasks, return_exceptions=True):
                if error is not None and not isinstance(error, FoqsError | asyncio.CancelledError):
                    raise error
            await asyncio.sleep(rng.expovariate(20))
        await self._callers[0].client.close()

    async def _enqueue(self, caller: RecordingClient, item: Item, timeout_ms: int) -> None:
        await self._call(caller.enqueue([item], timeout_ms=timeout_ms))

    async def _dequeue(
        self, caller: RecordingClient, topic: str, wait_ms: int, lease_ms: int | None, timeout_ms: int
    ) -> None:
        asked = caller.dequeue({topic: 1}, wait_ms=wait_ms, lease_ms=lease_ms, timeout_ms=timeout_ms)
        found = await self._call(asked)
        if found:
            await self._call(caller.ack(found))
