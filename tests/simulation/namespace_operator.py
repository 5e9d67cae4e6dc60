"""The operator of a simulated run: it creates and deletes a namespace, exports and imports.

Holds `NamespaceOperator`. Always true: nobody else works in that namespace. After
the work the namespace exists, so that its items can be drained. Does not judge.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final, TypeVar

from foqs_client import FoqsError, Item, Namespace
from tests.support.recording_admin import RecordingAdmin

T = TypeVar("T")

BRIEF: Final = "brief"
"""The namespace that is created and deleted."""
TOPIC: Final = "errand"
_USED_KEPT: Final = 6


class NamespaceOperator:
    """Works in the namespace `BRIEF`, which is its client's."""

    def __init__(self, client: RecordingAdmin, rng: Random, called: Callable[[], None]) -> None:
        self._client = client
        self._rng = rng
        self._called = called
        self._made = 0
        self._used: list[Item] = []
        """Items with keys. Some are enqueued again, also after the namespace was created again."""
        self._exported: str | None = None

    async def work(self, is_over: Callable[[], bool]) -> None:
        """Make random calls until the work is over."""
        deeds = (
            self._make,
            self._make,
            self._fill,
            self._fill,
            self._work_off,
            self._delete,
            self._delete,
            self._export_or_import,
        )
        while not is_over():
            with contextlib.suppress(FoqsError):
                await self._rng.choice(deeds)()
            await asyncio.sleep(self._rng.expovariate(6))

    async def restore(self) -> None:
        """Create the namespace again, and retry until it succeeds."""
        while True:
            with contextlib.suppress(FoqsError):
                await self._client.create(Namespace(BRIEF))
                return
            await asyncio.sleep(0.1)

    async def carry_over(self) -> None:
        """Import an export again after a change, without faults."""
        client = self._client
        document = await client.export_config()
        await client.grant("somebody", ["enqueue"])
        await client.import_config(document)
        await asyncio.sleep(0.1)
        await client.export_config()

    async def close(self) -> None:
        await self._client.client.close()

    # ------------------------------------------------------------------ calls

    async def _make(self) -> None:
        await self._call(self._client.create(Namespace(BRIEF)))

    async def _fill(self, delays_ms: Sequence[int | None] = (None, 100, 3_000)) -> None:
        """Enqueue ready and deferred items, some deferred for longer than the namespace may exist."""
        items = []
        for _ in range(self._rng.randint(1, 3)):
            self._made += 1
            name = f"{BRIEF}/{self._made}"
            key = name if self._rng.random() < 0.6 else None
            items.append(Item(TOPIC, name.encode(), delay_ms=self._rng.choice(delays_ms), idempotency_key=key))
        repeats = self._rng.sample(self._used, min(len(self._used), self._rng.choice((0, 1, 2))))
        self._used = [*self._used, *(item for item in items if item.idempotency_key is not None)][-_USED_KEPT:]
        items += repeats
        await self._call(self._client.enqueue(items, timeout_ms=500))

    async def _work_off(self) -> None:
        deliveries = await self._call(self._client.dequeue({TOPIC: 3}, lease_ms=300))
        if deliveries and self._rng.random() < 0.8:
            await self._call(self._client.ack(deliveries))

    async def _delete(self) -> None:
        """Delete the namespace, which is refused unless it is empty: often purge it before, or leave only deferred items."""
        asked: list[Awaitable[object]] = []
        if self._rng.random() < 0.6:
            await self._call(self._client.purge_topic(TOPIC))
            if self._rng.random() < 0.3:
                await self._fill((3_000,))
        if self._rng.random() < 0.3:
            asked.append(self._fill())
        asked.append(self._call(self._client.delete()))
        await asyncio.gather(*asked, return_exceptions=True)
        if self._rng.random() < 0.5:
            await self._fill()

    async def _export_or_import(self) -> None:
        """Export the configuration, or import an earlier export."""
        if self._exported is None or self._rng.random() < 0.6:
            self._exported = await self._call(self._client.export_config())
        else:
            document, self._exported = self._exported, None
            await self._call(self._client.import_config(document))

    async def _call(self, asked: Awaitable[T]) -> T:
        self._called()
        return await asked
