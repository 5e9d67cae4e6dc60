"""An owner that pauses during a flush until it is resumed, as a stopped process or a long garbage collection would.

With SQLite and MySQL it runs in its own thread and loop, and the pause blocks
both. With memory it runs in the test's loop and is held at its next await.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from foqs.core.items.item import Row
from foqs.store.port import StoreError
from tests.contract.conftest import SHARD, Bench
from tests.support.aio import run
from tests.support.stores import NONCE, opened

_PAUSE_S_MAX = 30.0


class Zombie:
    """Takes the shard over and inserts `row` in its first flush, which pauses at `point`. It also does the `writes`."""

    def __init__(self, bench: Bench, point: str, row: Row, epoch: int = 1, nonce: str = NONCE, **writes: Any) -> None:
        self._bench = bench
        self._point = point
        self._row = row
        self._epoch = epoch
        self._nonce = nonce
        self._writes = writes
        self._reached = threading.Event()
        self._go = threading.Event()
        self._held: asyncio.Task[object] | None = None
        self._thread = ThreadPoolExecutor(1)
        self._run: asyncio.Future[StoreError | None] | None = None

    async def pause(self) -> None:
        """Start it, and return when it pauses."""
        loop = asyncio.get_running_loop()
        if self._bench.kind == "memory":
            self._hold_in_memory()
            self._run = asyncio.ensure_future(self._flush())
        else:
            self._run = loop.run_in_executor(self._thread, lambda: run(self._flush()))
        assert await asyncio.to_thread(self._reached.wait, _PAUSE_S_MAX), "the zombie never reached its pause"

    async def resume(self) -> StoreError | None:
        """Resume it, and return the error of its flush."""
        assert self._run is not None
        self._go.set()
        try:
            return await self._run
        finally:
            self._thread.shutdown()

    async def _flush(self) -> StoreError | None:
        store = self._bench.make(SHARD, self._hook)
        try:
            owned = await opened(store, self._epoch, self._nonce)
            await owned.write(inserts=[self._row], **self._writes)
        except StoreError as error:
            return error
        finally:
            await store.close()
        return None

    def _hook(self, point: str) -> None:
        if point != self._point:
            return
        if self._bench.kind == "memory":
            self._held = asyncio.current_task()
        else:
            self._stop()

    def _stop(self) -> None:
        self._reached.set()
        assert self._go.wait(_PAUSE_S_MAX), "the zombie was never resumed"

    def _hold_in_memory(self) -> None:
        database = self._bench.memory
        assert database is not None
        original = database.latency

        async def latency() -> None:
            await original()
            if self._held is not None and asyncio.current_task() is self._held:
                self._held = None
                await asyncio.to_thread(self._stop)

        database.latency = latency
