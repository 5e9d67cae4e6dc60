"""A load process: callers that produce or consume, and their records.

Always true: every item has its number in its payload. A producer records the outcome
of each number, a consumer counts each number that it received and acked; both count
in memory that the parent reads meanwhile. A latency starts at the moment at which
the call was meant to begin. Knows nothing of servers.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import uvloop

from perf.lib.alarm import Alarm
from perf.lib.caller import LEASE_S, Batch, Caller
from perf.lib.payload import HEAD_BYTES, NUMBER_BYTES
from perf.lib.systems import session

PRODUCE, CONSUME = 0, 1
"""Places of the flags in the control memory, one for each role."""

WAITING, WANTED, OVER = 0, 1, 2
"""Values of a flag, in this order: a worker that looks late sees that its work is over, and does not wait for it."""

_LOOK_AGAIN_S: Final = 0.005
_IN_FLIGHT_MAX: Final = 2_000


@dataclass(slots=True, frozen=True)
class Load:
    """The work of one process.

    Attributes:
        worker: its place in the counters, from 0.
        batch: items of a call.
        topics: the number of topics `t0`, `t1`, ...; a call is spread over them in turn.
        first, stride: it puts the numbers first, first + stride, ...
        count: the most items that it puts; None: until it is stopped.
        rate: items per second that all its callers together put; None: as fast as they can.
        window: it pauses while this many items are waiting; None: never.
        wait_ms: how long a dequeue waits.
        priorities: the number of different priorities, used in turn; 1: all the same.
        niceness: niceness of the process; above 0 it leaves the CPU to the others.
        lease_s: how long a consumer has an item before it is delivered again.
        work_s: how long a consumer has the items of a call before it acks them, if it marks how far they have come.
    """

    role: str
    worker: int
    system: str
    place: str
    callers: int
    batch: int
    payload_bytes: int
    topics: int = 1
    first: int = 0
    stride: int = 1
    count: int | None = None
    rate: float | None = None
    window: int | None = None
    wait_ms: int = 200
    namespace: str = "default"
    keyed: bool = False
    gather: bool = True
    priorities: int = 1
    niceness: int = 0
    seed: int = 0
    lease_s: float = LEASE_S
    work_s: float = 0.0


@dataclass(slots=True)
class Marks:
    """Memory in which consumers record how far each item has come, so that one of them can be killed.

    Attributes:
        own: for each number how far this consumer has come: RECEIVED, ACKING or ACKED.
        received: for each number 1 if any consumer has received it.
        again_at: for each number when it was received again, in seconds of the monotonic clock.
    """

    own: Any
    received: Any
    again_at: Any


RECEIVED, ACKING, ACKED = 1, 2, 3


@dataclass(slots=True)
class Shared:
    """Memory that the parent and all workers share: flags, connected workers, counters, a byte for each number."""

    flags: Any
    ready: Any
    put: Any
    done: Any
    fates: Any
    seen: Any
    marks: Marks | None = None


def run(load: Load, shared: Shared, results: Any) -> None:
    """Run as the process's main function. Put (worker, latencies, errors) into `results`."""
    os.nice(load.niceness)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            worker = _Worker(load, shared) if shared.marks is None else _MarkingWorker(load, shared, shared.marks)
            results.put((load.worker, *runner.run(worker.run())))
        except BaseException as error:
            results.put((load.worker, [], {f"{type(error).__name__}: {error}": 1}))
            raise


class _Worker:
    def __init__(self, load: Load, shared: Shared) -> None:
        self._load = load
        # Read and written with each call: views cost a third of the shared arrays themselves.
        self._flags = memoryview(shared.flags).cast("B")
        self._ready = shared.ready
        self._put = memoryview(shared.put).cast("B").cast("q")
        self._done = memoryview(shared.done).cast("B").cast("q")
        self._fates = memoryview(shared.fates).cast("B")
        self._seen = memoryview(shared.seen).cast("B")
        self._latencies: list[tuple[float, float]] = []
        self._errors: dict[str, int] = {}
        last = len(self._fates) if load.count is None else min(len(self._fates), load.first + load.count * load.stride)
        self._numbers = range(load.first, last, load.stride)
        self._begun = 0
        self._tail = b"x" * (load.payload_bytes - HEAD_BYTES)
        rng = random.Random(load.seed)
        self._topics = [f"t{number}" for number in range(load.topics)]
        rng.shuffle(self._topics)
        # Longer than a call, so that the topics of a call are one slice of it.
        self._topics_in_turn = self._topics * (load.batch // load.topics + 2)
        self._turn = load.worker
        order = rng.sample(range(load.priorities), load.priorities)
        self._priorities_in_turn = order * (load.batch // load.priorities + 2)

    async def run(self) -> tuple[list[tuple[float, float]], dict[str, int]]:
        """Return (moment, latency) of each call or item in seconds, and errors by name."""
        load = self._load
        found = await session(
            load.system,
            load.place,
            load.namespace,
            load.batch,
            keyed=load.keyed,
            gather=load.gather,
            topics=load.topics,
            lease_s=load.lease_s,
            consumers=load.callers if load.role == "consume" else 0,
        )
        flag = PRODUCE if load.role == "produce" else CONSUME
        callers = [await found.caller() for _ in range(load.callers)]
        if load.role == "produce" and load.rate is not None:
            work = [self._produce_at_rate(callers, load.rate)]
        else:
            role = self._produce if load.role == "produce" else self._consume
            work = [role(caller) for caller in callers]
        self._ready[load.worker] = 1
        while self._flags[flag] == WAITING:  # noqa: ASYNC110 - another process sets the flag
            await asyncio.sleep(_LOOK_AGAIN_S)
        try:
            await asyncio.gather(*work)
        finally:
            await found.close()
        return self._latencies, self._errors

    # -------------------------------------------------------------- producing

    def _items(self, stamp_ns: int) -> tuple[range, Batch]:
        """Return the numbers and items of the next call; none if no numbers are left."""
        load = self._load
        numbers = self._numbers[self._begun : self._begun + load.batch]
        rest = b"%020d" % stamp_ns + self._tail
        topic = self._turn % load.topics
        count = len(numbers)
        priorities = None
        if load.priorities > 1:
            priority = self._begun % load.priorities
            priorities = self._priorities_in_turn[priority : priority + count]
        self._begun += count
        self._turn += count
        payloads = [b"%016d%b" % (number, rest) for number in numbers]
        return numbers, Batch(self._topics_in_turn[topic : topic + count], payloads, priorities)

    async def _produce(self, caller: Caller) -> None:
        window = self._load.window
        while self._flags[PRODUCE] == WANTED:
            if window is not None and sum(self._put) - sum(self._done) > window:
                await asyncio.sleep(_LOOK_AGAIN_S)
                continue
            begun_ns = time.monotonic_ns()
            numbers, batch = self._items(begun_ns)
            if not numbers:
                break
            await self._put_one(caller, numbers, batch, begun_ns)
        await caller.close()

    async def _put_one(self, caller: Caller, numbers: range, batch: Batch, meant_ns: int) -> None:
        put = await caller.put(batch)
        ended_ns = time.monotonic_ns()
        self._fates[numbers.start : numbers.stop : numbers.step] = put.fates
        self._put[self._load.worker] += put.fates.count(1)
        if put.errors:
            for name, count in put.errors.items():
                self._errors[name] = self._errors.get(name, 0) + count
        self._latencies.append((meant_ns / 1e9, (ended_ns - meant_ns) / 1e9))

    async def _produce_at_rate(self, idle: list[Caller], rate: float) -> None:
        """Start calls at random moments of the given mean rate, whether or not earlier calls have ended (open loop)."""
        load = self._load
        rng = random.Random(load.seed)
        free = asyncio.Semaphore(load.callers)
        tasks: set[asyncio.Task[None]] = set()
        alarm = Alarm()
        at_ns = time.monotonic_ns()
        mean_ns = load.batch / rate * 1e9

        async def one(meant_ns: int) -> None:
            async with free:
                caller = idle.pop()
                numbers, batch = self._items(meant_ns)
                if numbers:
                    await self._put_one(caller, numbers, batch, meant_ns)
                idle.append(caller)

        while self._flags[PRODUCE] == WANTED:
            at_ns += round(rng.expovariate(1) * mean_ns)
            await alarm.until(at_ns)
            if len(tasks) >= _IN_FLIGHT_MAX:
                self._errors["behind"] = self._errors.get("behind", 0) + 1
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(one(at_ns))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        alarm.close()
        for caller in idle:
            await caller.close()

    # -------------------------------------------------------------- consuming

    def _wants(self) -> dict[str, int]:
        """Return the topics of the next dequeue: spread in the same way as a producer's call."""
        load = self._load
        if load.topics == 1:
            return {self._topics[0]: load.batch}
        count = min(load.batch, load.topics, 100)
        start, self._turn = self._turn, self._turn + count
        return {self._topics[(start + step) % load.topics]: max(1, load.batch // count) for step in range(count)}

    async def _consume(self, caller: Caller) -> None:
        wait_ms = self._load.wait_ms if self._load.topics <= self._load.batch else 0
        while self._flags[CONSUME] == WANTED:
            begun_ns = time.monotonic_ns()
            handles, payloads = await caller.take(self._wants(), wait_ms)
            received_ns = time.monotonic_ns()
            if not payloads:
                if received_ns - begun_ns < 1_000_000:
                    await asyncio.sleep(0.001)
                continue
            self._check(payloads, received_ns)
            await self._finish(caller, handles, payloads)
        await caller.close()

    async def _finish(self, caller: Caller, handles: Sequence[Any], payloads: Sequence[bytes]) -> None:
        await caller.done(handles)
        self._done[self._load.worker] += len(payloads)

    def _check(self, payloads: Sequence[bytes], received_ns: int) -> None:
        """Count each number, and record the latency since the item was due to be sent."""
        seen, tail, size = self._seen, self._tail, self._load.payload_bytes
        for payload in payloads:
            if len(payload) != size or not payload.endswith(tail):
                raise AssertionError("an item came back with other bytes")
            seen[int(payload[:NUMBER_BYTES])] += 1
        # One item stands for all of the call: with many items per call only throughput is measured.
        stamp_ns = int(payloads[0][NUMBER_BYTES:HEAD_BYTES])
        # Items of a backlog that the database wrote have no moment.
        if stamp_ns:
            self._latencies.append((stamp_ns / 1e9, (received_ns - stamp_ns) / 1e9))


class _MarkingWorker(_Worker):
    """Also records how far each item has come."""

    def __init__(self, load: Load, shared: Shared, marks: Marks) -> None:
        super().__init__(load, shared)
        self._own = memoryview(marks.own).cast("B")
        self._received = memoryview(marks.received).cast("B")
        self._again_at = memoryview(marks.again_at).cast("B").cast("d")

    def _check(self, payloads: Sequence[bytes], received_ns: int) -> None:
        super()._check(payloads, received_ns)
        for payload in payloads:
            number = int(payload[:NUMBER_BYTES])
            if self._received[number]:
                self._again_at[number] = received_ns / 1e9
            self._received[number] = 1
            self._own[number] = RECEIVED

    async def _finish(self, caller: Caller, handles: Sequence[Any], payloads: Sequence[bytes]) -> None:
        if self._load.work_s:
            await asyncio.sleep(self._load.work_s)
        numbers = [int(payload[:NUMBER_BYTES]) for payload in payloads]
        for number in numbers:
            self._own[number] = ACKING
        await super()._finish(caller, handles, payloads)
        for number in numbers:
            self._own[number] = ACKED
