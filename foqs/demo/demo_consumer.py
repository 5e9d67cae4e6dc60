"""The consumer: finds topics with items, dequeues, works in worker processes, and acks or nacks.

Always true: the lease of an item is extended while a worker is busy with it; the item
is acked only after the work is done. Knows the topics only by their prefix, as a real
consumer does.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from typing import Final

from foqs.demo.file_work import FileResult, FileTask, process_all
from foqs.demo.ledger import RunLedger
from foqs_client import Client, Delivery, Nack

IN_FLIGHT_PER_WORKER: Final = 128
IN_FLIGHT_MAX: Final = 500
CHUNK_ITEMS: Final = 16
CHUNK_BYTES: Final = 1 << 20
WAIT_MS: Final = 100
LEASE_MS: Final = 3_000
RETRY_DELAY_MS: Final = 200
IDLE_TIMEOUT_S: Final = 30.0
REASON_LENGTH_MAX: Final = 150


class DemoConsumer:
    """Processes the items of the topics with this prefix.

    Args:
        pool: the pool of `workers` processes that process files.
        idle_timeout_s: when everything is enqueued and nothing is in flight, the wait for an
            item before the rest counts as lost.
    """

    def __init__(
        self,
        client: Client,
        ledger: RunLedger,
        prefix: str,
        pool: Executor,
        workers: int,
        lease_ms: int = LEASE_MS,
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._prefix = prefix
        self._pool = pool
        self._in_flight_max = min(IN_FLIGHT_MAX, workers * IN_FLIGHT_PER_WORKER)
        self._lease_ms = lease_ms
        self._idle_timeout_s = idle_timeout_s
        self._in_flight: dict[tuple[str, int], float] = {}
        """The leases, with the moment at which each began."""
        self._foreign_items: list[Delivery] = []
        self._has_room = asyncio.Event()

    async def run(self) -> None:
        """Run until every file is settled, or the idle timeout is over.

        Raises:
            FoqsError: a call failed.
        """
        loop = asyncio.get_running_loop()
        idle_since = loop.time()
        async with asyncio.TaskGroup() as group:
            renewing = group.create_task(self._renew())
            while not self._ledger.is_finished:
                deliveries = await self._dequeue()
                for chunk in chunks(self._with_tasks(deliveries)):
                    group.create_task(self._work_on(chunk))
                await self._refuse_foreign_items()
                if deliveries or self._in_flight or self._ledger.complete_at is None:
                    idle_since = loop.time()
                elif loop.time() - idle_since > self._idle_timeout_s:
                    break
            renewing.cancel()

    async def _dequeue(self) -> list[Delivery]:
        """Wait for room, and return items of the active topics, the same number of each."""
        while len(self._in_flight) > self._in_flight_max // 2:
            self._has_room.clear()
            await self._has_room.wait()
        topics = [topic.topic for topic in (await self._client.topics(prefix=self._prefix)).topics]
        if not topics:
            await asyncio.sleep(WAIT_MS / 1_000)
            return []
        share = max(1, (self._in_flight_max - len(self._in_flight)) // len(topics))
        return await self._client.dequeue(dict.fromkeys(topics, share), wait_ms=WAIT_MS, lease_ms=self._lease_ms)

    def _with_tasks(self, deliveries: Sequence[Delivery]) -> Iterator[tuple[Delivery, FileTask]]:
        """Yield the deliveries with their tasks; they are in flight from now on."""
        now = asyncio.get_running_loop().time()
        for delivery in deliveries:
            task = _parse_task(delivery.payload)
            if task is None or task.path not in self._ledger.entries:
                self._foreign_items.append(delivery)
                continue
            self._in_flight[delivery.id, delivery.token] = now
            self._ledger.delivered(task.path, delivery.id, now)
            yield delivery, task

    async def _refuse_foreign_items(self) -> None:
        """Nack items that others enqueued into these topics as dead: they are no tasks of this run."""
        foreign_items, self._foreign_items = self._foreign_items, []
        if foreign_items:
            metadata = _nack_metadata("not an item of this run", foreign_items[0].attempt)
            await self._client.nack([Nack(item.id, item.token, dead=True, metadata=metadata) for item in foreign_items])
            self._ledger.foreign_items += len(foreign_items)

    async def _work_on(self, chunk: Sequence[tuple[Delivery, FileTask]]) -> None:
        tasks = [task for _, task in chunk]
        results = await asyncio.get_running_loop().run_in_executor(self._pool, process_all, tasks)
        done: list[tuple[Delivery, FileTask, FileResult]] = []
        failed: list[tuple[Delivery, FileTask, str]] = []
        for (delivery, task), result in zip(chunk, results, strict=True):
            self._ledger.processed(result)
            if result.error is None:
                done.append((delivery, task, result))
            else:
                failed.append((delivery, task, result.error))
        await self._ack(done)
        await self._nack(failed)
        for delivery, _ in chunk:
            del self._in_flight[delivery.id, delivery.token]
        self._has_room.set()

    async def _ack(self, done: Sequence[tuple[Delivery, FileTask, FileResult]]) -> None:
        if not done:
            return
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        outcomes = await self._client.ack([delivery for delivery, _, _ in done])
        now = loop.time()
        self._ledger.ack_calls_s.append(now - sent_at)
        for (_, task, result), outcome in zip(done, outcomes, strict=True):
            if outcome.error is None:
                self._ledger.acked(task.path, result, now)
            else:
                self._ledger.stale_leases += 1

    async def _nack(self, failed: Sequence[tuple[Delivery, FileTask, str]]) -> None:
        """Nack items for another attempt, with the reason in the metadata."""
        if not failed:
            return
        nacks = [
            Nack(
                delivery.id, delivery.token, delay_ms=RETRY_DELAY_MS, metadata=_nack_metadata(reason, delivery.attempt)
            )
            for delivery, _, reason in failed
        ]
        outcomes = await self._client.nack(nacks)
        now = asyncio.get_running_loop().time()
        for (delivery, task, reason), outcome in zip(failed, outcomes, strict=True):
            if outcome.error is None:
                self._ledger.nacked(task.path, reason, delivery.attempt == delivery.attempts_max, now)
            else:
                self._ledger.stale_leases += 1

    async def _renew(self) -> None:
        """Extend leases with less than two thirds of their time left, twice per third."""
        third_s = self._lease_ms / 3_000
        while True:
            await asyncio.sleep(third_s / 2)
            now = asyncio.get_running_loop().time()
            aging = [lease for lease, begun_at in self._in_flight.items() if now - begun_at > third_s]
            if not aging:
                continue
            outcomes = await self._client.extend(aging, lease_ms=self._lease_ms)
            for lease, outcome in zip(aging, outcomes, strict=True):
                if outcome.error is None and lease in self._in_flight:
                    self._in_flight[lease] = now
                    self._ledger.extensions += 1


def chunks(pairs: Iterator[tuple[Delivery, FileTask]]) -> Iterator[list[tuple[Delivery, FileTask]]]:
    """Yield groups that keep a worker busy for a moment: at most CHUNK_ITEMS, and CHUNK_BYTES unless it is one file."""
    chunk: list[tuple[Delivery, FileTask]] = []
    size = 0
    for delivery, task in pairs:
        if chunk and (len(chunk) == CHUNK_ITEMS or size + task.size > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append((delivery, task))
        size += task.size
    if chunk:
        yield chunk


def _parse_task(payload: bytes) -> FileTask | None:
    try:
        return FileTask(**json.loads(payload))
    except (ValueError, TypeError):
        return None


def _nack_metadata(reason: str, attempt: int) -> bytes:
    return json.dumps({"reason": reason[:REASON_LENGTH_MAX], "attempt": attempt}).encode()
