"""Runs a load against a stage: a measured window, then a count of all items.

Always true: a figure is returned only if every acknowledged item was received and
acked exactly once, or is known to remain because the load does not empty the queue;
otherwise `Broken` is raised. Rates and CPU are of the window only. Knows nothing of
the questions that are asked.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from perf.lib import machine
from perf.lib.report import percentile
from perf.lib.stage import Stage
from perf.lib.worker import CONSUME, OVER, PRODUCE, WANTED, Load, Shared, run

WARMUP_S: Final = 1.0
_POLL_S: Final = 0.01
_START_TIMEOUT_S: Final = 60.0
_DRAIN_TIMEOUT_S: Final = 120.0
SPAWN: Final = multiprocessing.get_context("spawn")


T = TypeVar("T")


class Broken(Exception):
    """Items were lost, doubled or changed, or a load failed: there is no figure."""


@dataclass(slots=True)
class Outcome:
    """The results of a race.

    Attributes:
        seconds: the length of the window.
        put, done: items acknowledged as durable and as gone, in the window, by worker.
        cpu_s: CPU seconds of host, database and clients, in the window.
        latencies_s: latencies in the window, sorted, by worker.
        errors: the count of refusals by name, over the whole race.
    """

    seconds: float
    put: list[int]
    done: list[int]
    cpu_s: dict[str, float]
    latencies_s: list[list[float]]
    errors: dict[str, int]
    host_mib: float | None
    left: int
    loads: Sequence[Load] = field(default_factory=list)

    def latency_ms(self, role: str, namespace: str | None = None) -> dict[str, float | None]:
        """Return percentiles over the workers of a role."""
        values = sorted(
            value
            for load, found in zip(self.loads, self.latencies_s, strict=True)
            if load.role == role and namespace in (None, load.namespace)
            for value in found
        )
        name = "enqueue" if role == "produce" else "delivery"
        shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999, "max": 1.0}
        found = {key: percentile(values, share) for key, share in shares.items()}
        return {f"{name}_{key}_ms": None if value is None else value * 1e3 for key, value in found.items()}


class Race:
    """One race, over the item numbers from 0.

    Args:
        numbers: the count of numbers that may be used.
        there: a byte for each of the first numbers: 1 if its item is in the queue already.
    """

    def __init__(self, stage: Stage, loads: Sequence[Load], numbers: int, there: bytes = b"") -> None:
        self._stage = stage
        self._loads = loads
        self._filled = there.count(1)
        self._flags = SPAWN.RawArray("b", 2)
        self._ready = SPAWN.RawArray("b", len(loads))
        self._put = SPAWN.RawArray("q", len(loads))
        self._done = SPAWN.RawArray("q", len(loads))
        self._fates = SPAWN.RawArray("B", numbers)
        memoryview(self._fates).cast("B")[: len(there)] = there
        self._seen = [SPAWN.RawArray("B", numbers if load.role == "consume" else 1) for load in loads]
        self._queue: Any = SPAWN.Queue()
        self._processes: list[Any] = []
        self._found: dict[int, list[tuple[float, float]]] = {}
        self._errors: dict[str, int] = {}
        self._cpu_s: dict[int, float] = {}
        """By process id."""

    def both(self, seconds: float, *, warmup_s: float = WARMUP_S, empty: bool = True) -> Outcome:
        """Run producers and consumers at once for `seconds`. Then empty the queue if `empty` is set."""
        return self._guarded(lambda: self._both(seconds, warmup_s, empty))

    def producers(self, seconds: float, *, warmup_s: float = WARMUP_S) -> Outcome:
        """Run producers for `seconds`. Then the consumers empty the queue, which is not timed."""
        return self._guarded(lambda: self._producers(seconds, warmup_s))

    def consumers(self, seconds: float, *, warmup_s: float = 0.0, empty: bool = True) -> Outcome:
        """Run producers until they have put their count, then consumers.

        The window is the middle of the emptying: from a tenth of the queue, or
        `warmup_s`, to nine tenths, or `seconds`.
        """
        return self._guarded(lambda: self._consumers(seconds, warmup_s, empty))

    def fill(self) -> None:
        """Run producers until they have put their count. Nothing is measured, and the items stay."""

        def work() -> None:
            self._flags[PRODUCE] = WANTED
            self._collect("produce")
            if sum(self._put) != len(self._fates):
                raise Broken(f"of {len(self._fates)} items only {sum(self._put)} could be put: {self._errors}")

        self._guarded(work)

    def left(self) -> bytes:
        """Return a byte for each number after a race: 1 if its item is still in the queue."""
        fates, seen = self._reckoned()
        gone = int.from_bytes(_sum(seen), "little")
        return (int.from_bytes(fates, "little") & ~gone).to_bytes(len(fates), "little")

    # ------------------------------------------------------------- the races

    def _both(self, seconds: float, warmup_s: float, empty: bool) -> Outcome:
        self._flags[CONSUME] = self._flags[PRODUCE] = WANTED
        window = self._window(warmup_s, seconds, lambda: False)
        self._flags[PRODUCE] = OVER
        self._collect("produce")
        return self._end(window, empty)

    def _producers(self, seconds: float, warmup_s: float) -> Outcome:
        self._flags[PRODUCE] = WANTED
        window = self._window(warmup_s, seconds, lambda: False)
        self._flags[PRODUCE] = OVER
        self._collect("produce")
        self._flags[CONSUME] = WANTED
        return self._end(window, empty=True)

    def _consumers(self, seconds: float, warmup_s: float, empty: bool) -> Outcome:
        self._flags[PRODUCE] = WANTED
        self._collect("produce")
        self._flags[PRODUCE] = OVER
        self._flags[CONSUME] = WANTED
        total = self._total()
        self._sleep(warmup_s, lambda: sum(self._done) >= total * 0.1)
        window = self._window(0.0, seconds, lambda: sum(self._done) >= total * 0.9)
        return self._end(window, empty)

    def _guarded(self, race: Callable[[], T]) -> T:
        try:
            self._start()
            return race()
        finally:
            self._flags[PRODUCE] = self._flags[CONSUME] = OVER
            for process in self._processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()

    def _start(self) -> None:
        self._launch(range(len(self._loads)))

    def _launch(self, workers: Sequence[int]) -> None:
        """Start the processes of these workers and wait until all are connected."""
        for worker in workers:
            process = SPAWN.Process(
                target=run, args=(self._loads[worker], self._shared(worker), self._queue), daemon=True
            )
            process.start()
            self._processes.append(process)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not all(self._ready[worker] for worker in workers):
            if time.monotonic() > deadline:
                raise Broken("a load did not connect in time")
            self._watch()
            time.sleep(_POLL_S)

    def _shared(self, worker: int) -> Shared:
        return Shared(self._flags, self._ready, self._put, self._done, self._fates, self._seen[worker])

    def _window(self, warmup_s: float, seconds: float, over: Callable[[], bool]) -> dict[str, Any]:
        """Wait through the window. Return the changes of all counters in it."""
        self._sleep(warmup_s, over)
        before = self._sample()
        self._sleep(seconds, over)
        return self._changes(before, self._sample())

    def _changes(self, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
        return {
            "from": before["at"],
            "to": after["at"],
            "put": [new - old for new, old in zip(after["put"], before["put"], strict=True)],
            "done": [new - old for new, old in zip(after["done"], before["done"], strict=True)],
            "cpu": {name: after["cpu"][name] - before["cpu"][name] for name in after["cpu"]},
            "host_mib": after["host_mib"],
        }

    def _sample(self) -> dict[str, Any]:
        host = self._stage.host
        return {
            "cpu": {**self._stage.cpu_s(), "clients": self._clients_cpu_s()},
            "put": list(self._put),
            "done": list(self._done),
            "host_mib": machine.resident_mib(host.pid) if host else None,
            "at": time.monotonic(),
        }

    def _clients_cpu_s(self) -> float:
        """Return the CPU seconds of all loads. A load that has ended counts with its last reading."""
        for process in self._processes:
            self._cpu_s[process.pid] = max(self._cpu_s.get(process.pid, 0.0), machine.cpu_s(process.pid))
        return sum(self._cpu_s.values())

    def _sleep(self, seconds: float, over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not over():
            self._watch()
            time.sleep(min(_POLL_S, max(0.0, deadline - time.monotonic())))

    def _end(self, window: dict[str, Any], empty: bool) -> Outcome:
        if empty:
            deadline = time.monotonic() + self._drain_timeout_s()
            while not self._is_empty() and time.monotonic() < deadline:
                self._watch()
                time.sleep(_POLL_S)
        self._flags[CONSUME] = OVER
        self._collect("consume")
        left = self._count(empty)
        latencies = [
            sorted(latency for at, latency in self._found.get(load.worker, ()) if window["from"] <= at <= window["to"])
            for load in self._loads
        ]
        return Outcome(
            seconds=window["to"] - window["from"],
            put=window["put"],
            done=window["done"],
            cpu_s=window["cpu"],
            latencies_s=latencies,
            errors=self._errors,
            host_mib=window["host_mib"],
            left=left,
            loads=self._loads,
        )

    def _drain_timeout_s(self) -> float:
        return _DRAIN_TIMEOUT_S

    def _is_empty(self) -> bool:
        return bool(sum(self._done) >= self._total())

    def _total(self) -> int:
        return self._filled + sum(map(int, self._put))

    # ------------------------------------------------------------- the count of items

    def _collect(self, role: str) -> None:
        """Wait for the results of all workers of a role."""
        workers = self._running(role)
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        while not workers <= self._found.keys():
            if time.monotonic() > deadline:
                raise Broken(f"a load of role {role} does not end")
            self._watch()
            time.sleep(_POLL_S)

    def _running(self, role: str) -> set[int]:
        return {load.worker for load in self._loads if load.role == role}

    def _watch(self) -> None:
        """Read the results that have arrived. Raise Broken if a load failed."""
        while not self._queue.empty():
            worker, latencies, errors = self._queue.get()
            self._found[worker] = latencies
            for name, count in errors.items():
                self._errors[name] = self._errors.get(name, 0) + count
            if any(": " in name for name in errors):
                raise Broken(f"load {worker} failed: {'; '.join(errors)}")
        for process in self._processes:
            if process.exitcode not in (None, 0) and self._queue.empty():
                raise Broken(f"a load ended with exit code {process.exitcode}")

    def _count(self, empty: bool) -> int:
        """Return the number of items that are left. Raise Broken."""
        fates, seen = self._reckoned()
        return reckon(fates, seen, sum(map(int, self._done)), empty=empty)

    def _reckoned(self) -> tuple[bytes, list[bytes]]:
        consumers = [load.worker for load in self._loads if load.role == "consume"]
        return bytes(memoryview(self._fates).cast("B")), [bytes(self._seen[worker]) for worker in consumers]


def reckon(fates: bytes, seen: Sequence[bytes], acked: int, *, empty: bool) -> int:
    """Return the number of acknowledged items that no consumer received.

    Args:
        fates: for each number: 1 acknowledged as durable, 0 not, 2 not known.
        seen: for each consumer, how often it received each number.
        acked: the number of items whose ack was confirmed.
        empty: whether the queue was emptied, so that none may be left.

    Raises:
        Broken: an item was lost, received twice, received but never acknowledged, or not acked.
    """
    times = _sum(seen)
    received = len(times) - times.count(0)
    if times == fates and acked == received:
        return 0
    pairs = Counter(zip(fates, times, strict=True))
    left = pairs[1, 0]
    doubled = sum(count for (_, often), count in pairs.items() if often > 1)
    phantom = sum(count for (fate, often), count in pairs.items() if fate == 0 and often)
    if doubled or phantom or acked != received or (left and empty):
        raise Broken(
            f"{left} items not received, {doubled} received twice, {phantom} received that were not acknowledged, "
            f"{received - acked} received and not acked"
        )
    return left


def _sum(seen: Sequence[bytes]) -> bytes:
    """Return how often each number was received, by all consumers together."""
    return seen[0] if len(seen) == 1 else bytes(min(255, sum(counts)) for counts in zip(*seen, strict=True))
