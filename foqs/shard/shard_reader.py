"""The reads of one shard, beside its flushes.

One task, one connection, one read at a time; namespaces take turns by weight.
Rows may be stale when they arrive, and each read must handle that. A read that
fails is tried once more over a new connection, and then fails alone. Knows
nothing of indexes or rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Generic, Protocol, TypeVar

from foqs.core.flush.fair_queue import FairQueue
from foqs.core.flush.fence import Fence
from foqs.store.port import PayloadMissing, Reads, StoreError, StoreLost
from foqs_contract.backoff import Backoff
from foqs_contract.errors import HANDOVER_RETRY_MS, Unavailable

log = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS_MAX: Final = 2


class QueuedRead(Protocol):
    """A read that waits for its turn."""

    @property
    def is_wanted(self) -> bool:
        """Whether its result is still needed."""
        ...

    async def run(self, reads: Reads, committed: Fence) -> None:
        """Read, and handle the result. Raises `StoreLost`, `PayloadMissing`."""
        ...

    def on_failed(self, error: Unavailable) -> None:
        """Report the failure to the caller of the read."""
        ...


class ShardReader:
    """Runs reads until it is cancelled.

    Args:
        last_committed: returns the last flush known to be committed; every read shows at least that.
        weight: returns the weight of a namespace.
    """

    def __init__(
        self,
        shard: int,
        reads: Reads,
        last_committed: Callable[[], Fence],
        weight: Callable[[str], int],
        backoff: Backoff,
    ) -> None:
        self._shard = shard
        self._reads = reads
        self._last_committed = last_committed
        self._backoff = backoff
        self._waiting: FairQueue[QueuedRead] = FairQueue(weight)
        self._wake = asyncio.Event()
        self._is_ended = False
        self.failure_count = 0
        """Reads whose connection was lost."""

    @property
    def waiting_count(self) -> int:
        """Reads that wait for their turn."""
        return len(self._waiting)

    def submit(self, namespace: str, cost: float, queued: QueuedRead) -> None:
        """Queue a read. `cost` is the approximate number of rows that it reads."""
        if self._is_ended:
            # After a pause, because the caller may try again at once.
            pause_s = self._backoff.pause_s(0)
            asyncio.get_running_loop().call_later(pause_s, queued.on_failed, self._closing_error())
            return
        self._waiting.push(namespace, cost, queued)
        self._wake.set()

    async def read(self, namespace: str, query: Callable[[Reads, Fence], Awaitable[T]], cost: float = 1) -> T:
        """Run `query` and return its result; for `cost` see `submit`. Raises `Unavailable`."""
        queued = _QueryRead(query)
        self.submit(namespace, cost, queued)
        return await queued.future

    async def run(self) -> None:
        """Run reads until it is cancelled."""
        failures = 0
        queued: QueuedRead | None = None
        try:
            while True:
                while self._waiting:
                    queued = self._waiting.pop()
                    for attempt in range(_ATTEMPTS_MAX):
                        if not queued.is_wanted:
                            break
                        try:
                            await queued.run(self._reads, self._last_committed())
                            failures = 0
                            break
                        except PayloadMissing as missing:
                            await asyncio.sleep(self._backoff.pause_s(failures))  # the caller may try again at once
                            failures += 1
                            queued.on_failed(self._reading_error(missing))
                            break
                        except StoreLost as lost:
                            log.warning("shard %d: a read failed: %s", self._shard, lost)
                            await asyncio.sleep(self._backoff.pause_s(failures))
                            failures += 1
                            self.failure_count += 1
                            if attempt + 1 == _ATTEMPTS_MAX:
                                queued.on_failed(self._reading_error(lost))
                    queued = None
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._is_ended = True
            unfinished = self._waiting.remove_all()
            for unfinished_read in unfinished if queued is None else [queued, *unfinished]:
                unfinished_read.on_failed(self._closing_error())
            await self._reads.close()

    def _reading_error(self, error: StoreError) -> Unavailable:
        text = f"shard {self._shard} could not read what the call needs; try again: {error}"
        return Unavailable(text, retry_after_ms=1000)

    def _closing_error(self) -> Unavailable:
        return Unavailable(f"shard {self._shard} is closing; try again", retry_after_ms=HANDOVER_RETRY_MS)


class _QueryRead(Generic[T]):
    """A read whose caller awaits its result."""

    def __init__(self, query: Callable[[Reads, Fence], Awaitable[T]]) -> None:
        self._query = query
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    @property
    def is_wanted(self) -> bool:
        return not self.future.done()

    async def run(self, reads: Reads, committed: Fence) -> None:
        result = await self._query(reads, committed)
        if not self.future.done():
            self.future.set_result(result)

    def on_failed(self, error: Unavailable) -> None:
        if not self.future.done():
            self.future.set_exception(error)
