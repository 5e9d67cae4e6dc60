"""A load on a real host: producers and consumers that make all client calls and record them.

Always true: every payload is unique; every call is recorded; failed calls and calls of
unknown outcome are not retried; a worker draws from its own seeded generator. Does
not judge, and knows nothing of kills.

The items are of several topics and priorities; some are delayed, have a TTL, are
at-most-once, or have few attempts, with short leases. Consumers ack, nack with and
without delay, extend, release, cancel, ack too late, and forget. A few items are due
much later: they must still exist at the end.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, Final

from foqs_client import Client, Delivery, FoqsError, Item, Nack
from tests.support.history import History
from tests.support.recording_client import RecordingClient

TOPICS: Final = ("audit", "mail", "sms")
FAR_TOPIC: Final = "much later"
"""The topic of items that no consumer gets to see."""
_FAR_DELAY_MS: Final = 3_600_000
_BACKLOG_MAX: Final = 300
"""Producers wait beyond it, so that a run can be drained quickly."""
_DRAIN_LEASE_MS: Final = 10_000
_TIMEOUTS_MS: Final = (200, 500, 800)


def wall_ms() -> float:
    return time.time_ns() / 1_000_000


class Load:
    """The clients of one run.

    Args:
        address: of the host, or of several that serve the same shards one after the other.
        seed: of every choice.
        patience_ms: the time of every call; None: short times, so that each new
            call starts with short backoffs.
    """

    def __init__(
        self,
        address: str,
        history: History,
        seed: int,
        *,
        producers: int = 3,
        consumers: int = 4,
        patience_ms: int | None = None,
    ) -> None:
        self._address = address
        self._history = history
        self._seed = seed
        self._producers = producers
        self._consumers = consumers
        self._timeouts_ms = _TIMEOUTS_MS if patience_ms is None else (patience_ms,)
        self._tasks: list[asyncio.Task[None]] = []
        self.leases: deque[Delivery] = deque(maxlen=100)
        """The last deliveries, whatever became of them."""
        self._stopping = False
        self._items = 0
        self._backlog = 0
        self._acked = 0
        self._progress = asyncio.Event()

    @property
    def clients(self) -> int:
        return self._producers + self._consumers

    def start(self) -> None:
        """Sets every worker to work."""
        work = [self._produce(f"producer {number}") for number in range(self._producers)]
        work += [self._consume(f"consumer {number}") for number in range(self._consumers)]
        self._tasks = [asyncio.ensure_future(each) for each in work]

    async def acked(self, items: int) -> None:
        """Return when this many more items were acked.

        Raises:
            Exception: what ended a worker, as nothing should.
        """
        goal = self._acked + items
        while self._acked < goal:
            self._progress.clear()
            progress = asyncio.ensure_future(self._progress.wait())
            await asyncio.wait((progress, *self._tasks), return_when=asyncio.FIRST_COMPLETED)
            progress.cancel()
            for task in self._tasks:
                if task.done():
                    task.result()

    async def stop(self) -> None:
        """Begins no more calls; returns when those under way have ended."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def drain(self, quiet_s: float = 30.0) -> bool:
        """Dequeue and ack until only dead items and items of a much later time are left.

        Return False if others are left, and none of them came for `quiet_s`: a slow machine may need long for all. A call
        that fails, as one whose time is over there, is made again.
        """
        deadline = time.monotonic() + quiet_s
        async with Client(self._address) as client:
            drainer = RecordingClient(client, self._history, "drainer", wall_ms)
            while time.monotonic() < deadline:
                try:
                    got = await drainer.dequeue(
                        dict.fromkeys(TOPICS, 100), wait_ms=100, lease_ms=_DRAIN_LEASE_MS, timeout_ms=5_000
                    )
                    if got:
                        await drainer.ack(got)
                        deadline = time.monotonic() + quiet_s
                        continue
                    page = await client.topics(states=["deferred", "ready", "leased"])
                except FoqsError as error:
                    if not error.may_succeed_later:
                        raise
                    await pause(_wait_s(error))
                    continue
                if {topic.topic for topic in page.topics} <= {FAR_TOPIC}:
                    return True
        return False

    # ---------------------------------------------------------------- producers

    async def _produce(self, name: str) -> None:
        rng = Random(f"{self._seed} {name}")
        async with Client(self._address) as client:
            producer = RecordingClient(client, self._history, name, wall_ms)
            while not self._stopping:
                if self._backlog > _BACKLOG_MAX:
                    await pause(0.01)
                    # Items that expired, died or were lost are not waited for.
                    self._backlog = int(self._backlog * 0.95)
                    continue
                items = [self._item(rng, name) for _ in range(rng.randint(1, 12))]
                try:
                    results = await producer.enqueue(items, timeout_ms=rng.choice(self._timeouts_ms))
                except FoqsError as error:
                    await pause(_wait_s(error))
                    continue
                ids = [result.id for result in results if result.id is not None]
                self._backlog += len(ids)
                if ids and rng.random() < 0.05:
                    await _succeeded(producer.cancel(ids[: rng.randint(1, 3)], timeout_ms=self._timeouts_ms[-1]))

    def _item(self, rng: Random, name: str) -> Item:
        self._items += 1
        payload = f"{name} {self._items} ".encode() + rng.randbytes(rng.choice((0, 20, 200, 2_000)))
        if rng.random() < 0.02:
            return Item(FAR_TOPIC, payload, delay_ms=_FAR_DELAY_MS)
        delay_ms = deliver_after_ms = None
        when = rng.random()
        if when < 0.2:
            delay_ms = rng.randint(1, 600)
        elif when < 0.25:
            deliver_after_ms = int(wall_ms()) + rng.randint(-100, 600)
        return Item(
            topic=rng.choice(TOPICS),
            payload=payload,
            priority=rng.randint(-3, 3),
            metadata=rng.randbytes(8) if rng.random() < 0.2 else b"",
            delay_ms=delay_ms,
            deliver_after_ms=deliver_after_ms,
            lease_ms=rng.randint(200, 2_000) if rng.random() < 0.8 else None,
            ttl_ms=rng.randint(300, 3_000) if rng.random() < 0.1 else None,
            at_most_once=rng.random() < 0.1,
            attempts_max=rng.choice((None, None, None, 0, 1, 2, 5)),
            trace_context=rng.randbytes(55) if rng.random() < 0.3 else None,
        )

    # ---------------------------------------------------------------- consumers

    async def _consume(self, name: str) -> None:
        rng = Random(f"{self._seed} {name}")
        async with Client(self._address) as client, asyncio.TaskGroup() as late:
            consumer = RecordingClient(client, self._history, name, wall_ms)
            while not self._stopping:
                wants = {topic: rng.randint(1, 10) for topic in rng.sample(TOPICS, rng.randint(1, len(TOPICS)))}
                lease_ms = rng.randint(200, 2_000) if rng.random() < 0.2 else None
                try:
                    got = await consumer.dequeue(
                        wants,
                        wait_ms=rng.choice((0, 100, 300)),
                        lease_ms=lease_ms,
                        timeout_ms=rng.choice(self._timeouts_ms),
                    )
                except FoqsError as error:
                    await pause(_wait_s(error))
                    continue
                self.leases.extend(got)
                await self._work(rng, consumer, got, late)

    async def _work(
        self, rng: Random, consumer: RecordingClient, got: Sequence[Delivery], late: asyncio.TaskGroup
    ) -> None:
        """Deals with deliveries; each choice now and then."""
        todo: dict[str, list[Delivery]] = {}
        choices = ("ack", "nack", "extend", "release", "late", "forget", "dead")
        for delivery in got:
            [choice] = rng.choices(choices, (75, 7, 6, 4, 4, 3, 1))
            todo.setdefault(choice, []).append(delivery)
        if "extend" in todo:
            longer = rng.choice((None, 300, 1_500))
            if await _succeeded(consumer.extend(todo["extend"], lease_ms=longer, timeout_ms=self._timeouts_ms[-1])):
                todo.setdefault("ack", []).extend(todo["extend"])
        if "ack" in todo:
            await self._ack(consumer, todo["ack"])
            if rng.random() < 0.03:
                await self._ack(consumer, todo["ack"])
        nacks = [_nack(rng, delivery) for delivery in todo.get("nack", ())]
        nacks += [Nack(delivery.id, delivery.token, dead=True) for delivery in todo.get("dead", ())]
        if nacks:
            await _succeeded(consumer.nack(nacks, timeout_ms=self._timeouts_ms[-1]))
        if "release" in todo:
            await _succeeded(consumer.release(todo["release"], timeout_ms=self._timeouts_ms[-1]))
        if "late" in todo:
            late.create_task(self._ack_late(rng.uniform(0.05, 0.3), consumer, todo["late"]))

    async def _ack(self, consumer: RecordingClient, leases: Sequence[Delivery]) -> None:
        try:
            outcomes = await consumer.ack(leases, timeout_ms=self._timeouts_ms[-1])
        except FoqsError:
            return
        self._acked += sum(outcome.error is None for outcome in outcomes)
        self._backlog -= len(outcomes)
        self._progress.set()

    async def _ack_late(self, over_s: float, consumer: RecordingClient, leases: Sequence[Delivery]) -> None:
        """Ack after the end of the leases. The ack fails if another consumer has the item by then."""
        await pause(leases[0].lease_remaining_ms / 1_000 + over_s)
        await self._ack(consumer, leases)


def _nack(rng: Random, delivery: Delivery) -> Nack:
    metadata = rng.randbytes(8) if rng.random() < 0.3 else None
    return Nack(delivery.id, delivery.token, delay_ms=rng.choice((None, 0, 50, 400)), metadata=metadata)


async def _succeeded(call: Coroutine[Any, Any, Any]) -> bool:
    """Whether the call as a whole succeeded; its history is written anyhow."""
    try:
        await call
    except FoqsError:
        return False
    return True


def _wait_s(error: FoqsError) -> float:
    """Return the time that a polite client waits after an error."""
    return max(10, error.retry_after_ms or 0) / 1_000


async def pause(seconds: float) -> None:
    """Lets time pass for a client that has nothing to do."""
    await asyncio.sleep(seconds)
