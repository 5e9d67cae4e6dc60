"""A load on a cluster that does not wait for replies: calls begin at fixed times.

Holds `OpenLoad`, which uses clients with the routing table. Always true: every call
and its end is in the history; every payload is unique; only the client retries. Half
of the calls name their shard, all shards in rotation, so the latency of each shard
is known; the client chooses for the others. Knows nothing of the faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from foqs_client import Delivery, FoqsError, Item
from tests.support.history import History
from tests.support.recording_client import RecordingClient
from tests.support.request_time_client import RequestTimeClient
from tests.support.workload import pause, wall_ms

TOPICS: Final = ("audit", "mail", "sms")
LEASE_MS: Final = 3_000
_LEASE_UNSPOILT_MS: Final = 10_000
"""Long enough that no lease ends if every delivery is acked."""
_ITEMS_PER_CALL: Final = 4
_PATIENCE_MS: Final = 10_000
_DEQUEUE_MS: Final = 3_000
_UNSPOILT_MS: Final = 30_000
"""The time of every call if every delivery is acked: such a story has no host that is frozen or dead, and no error is lawful
that only says that the machine was slow."""
_WAIT_MS: Final = 1_000
_WANT: Final = 10
_DRAIN_LEASE_MS: Final = 10_000


@dataclass(slots=True, frozen=True)
class Timed:
    """An enqueue that was sent to one shard. Seconds of the loop's clock; `took_s` from when it was to begin."""

    shard: int
    begun_s: float
    took_s: float
    done: bool


class OpenLoad:
    """Producers and consumers.

    Args:
        url: of all hosts.
        slots: by shard, one of its slots of keys.
        rate: items a second.
        spoil: the share of deliveries that are not acked: nacked, released or forgotten.
        patience_ms: the time of every call but dequeues, if some deliveries are not acked.
    """

    def __init__(
        self,
        url: str,
        history: History,
        slots: Mapping[int, int],
        rate: float,
        seed: int,
        spoil: float = 0.0,
        patience_ms: int = _PATIENCE_MS,
    ) -> None:
        self._url = url
        self._history = history
        self._slots = slots
        self._interval_s = _ITEMS_PER_CALL / rate
        self._spoil = spoil
        self._lease_ms = LEASE_MS if spoil else _LEASE_UNSPOILT_MS
        self._timeouts_ms = (patience_ms, _DEQUEUE_MS, patience_ms) if spoil else (_UNSPOILT_MS,) * 3
        self._rng = Random(seed)
        self._story = uuid.uuid4().hex[:8]
        self._calls: set[asyncio.Future[None]] = set()
        self._workers: list[asyncio.Task[None]] = []
        self._made = 0
        self._stopping = False
        self._acking: set[asyncio.Task[None]] = set()
        self._acked = asyncio.Event()
        self.acked = 0
        self.timed: list[Timed] = []

    async def play(self, story: Awaitable[None], consumers: int = 6) -> None:
        """Begins, waits for the story, and ends: returns when every call has its end."""
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(RequestTimeClient(self._url)) for _ in range(4)]
            producer = RecordingClient(clients[0], self._history, "producer", wall_ms)
            self._workers = [asyncio.ensure_future(self._produce(producer))]
            for number in range(consumers):
                client = clients[1 + number % (len(clients) - 1)]
                consumer = RecordingClient(client, self._history, f"consumer {number}", wall_ms)
                self._workers.append(asyncio.ensure_future(self._consume(consumer)))
            try:
                await self.more(20)
                await story
                await self.more(20)
            finally:
                self._stopping = True
                await asyncio.gather(*self._workers)
                await asyncio.gather(*self._calls, *self._acking)

    async def more(self, items: int) -> None:
        """Return when this many more items were acked. Raises the error that ended a worker."""
        goal = self.acked + items
        while self.acked < goal:
            self._acked.clear()
            progress = asyncio.ensure_future(self._acked.wait())
            await asyncio.wait((progress, *self._workers), return_when=asyncio.FIRST_COMPLETED)
            progress.cancel()
            for worker in self._workers:
                if worker.done():
                    worker.result()

    async def drain(self, left: Any) -> None:
        """Acks what comes until `left()` counts nothing in the tables."""
        async with RequestTimeClient(self._url) as client:
            drainer = RecordingClient(client, self._history, "drainer", wall_ms)
            while True:
                got: list[Delivery] = []
                with contextlib.suppress(FoqsError):
                    got = await drainer.dequeue(
                        dict.fromkeys(TOPICS, 100), wait_ms=200, lease_ms=_DRAIN_LEASE_MS, timeout_ms=_DEQUEUE_MS
                    )
                    if got:
                        await drainer.ack(got)
                if not got and not await asyncio.to_thread(left):
                    return

    async def _produce(self, producer: RecordingClient) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while not self._stopping:
            next_s += self._interval_s
            await pause(max(0.0, next_s - loop.time()))
            call = asyncio.ensure_future(self._put(producer, self._made, next_s))
            self._made += 1
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)

    async def _put(self, producer: RecordingClient, number: int, begun_s: float) -> None:
        shard = [*self._slots][number // 2 % len(self._slots)] if number % 2 else None
        items = []
        for place in range(_ITEMS_PER_CALL):
            name = f"{self._story}-{number}-{place}"
            key = None if shard is None else f"~{self._slots[shard]:03x}load-{name}"
            topic = TOPICS[(number + place) % len(TOPICS)]
            items.append(Item(topic, name.encode(), number % 3, lease_ms=self._lease_ms, idempotency_key=key))
        done = False
        enqueue_ms, _, _ = self._timeouts_ms
        with contextlib.suppress(FoqsError):
            results = await producer.enqueue(items, timeout_ms=enqueue_ms)
            done = all(result.id is not None for result in results)
        if shard is not None:
            took_s = asyncio.get_running_loop().time() - begun_s
            self.timed.append(Timed(shard, begun_s, took_s, done))

    async def _consume(self, consumer: RecordingClient) -> None:
        _, dequeue_ms, _ = self._timeouts_ms
        while not self._stopping:
            try:
                got = await consumer.dequeue(
                    dict.fromkeys(TOPICS, _WANT), wait_ms=_WAIT_MS, lease_ms=self._lease_ms, timeout_ms=dequeue_ms
                )
            except FoqsError:
                await pause(0.1)
                continue
            if got:
                dealing = asyncio.ensure_future(self._deal(consumer, got))
                self._acking.add(dealing)
                dealing.add_done_callback(self._acking.discard)

    async def _deal(self, consumer: RecordingClient, got: Sequence[Delivery]) -> None:
        acks: list[Delivery] = []
        _, _, ack_ms = self._timeouts_ms
        for delivery in got:
            fate = self._rng.choice(("nack", "release", "forget")) if self._rng.random() < self._spoil else "ack"
            with contextlib.suppress(FoqsError):
                if fate == "nack":
                    await consumer.nack([delivery], timeout_ms=ack_ms)
                elif fate == "release":
                    await consumer.release([delivery], timeout_ms=ack_ms)
            if fate == "ack":
                acks.append(delivery)
        if acks:
            with contextlib.suppress(FoqsError):
                outcomes = await consumer.ack(acks, timeout_ms=ack_ms)
                self.acked += sum(outcome.error is None for outcome in outcomes)
                self._acked.set()
