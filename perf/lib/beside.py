"""A race beside which something else uses the database: a held snapshot, or a report from time to time.

Always true: the rate, the CPU and the latencies are known for each slice of time,
from before the other begins. It has its own thread, so a slow report delays no
sample. Knows nothing of SQL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from perf.lib.race import WARMUP_S, Outcome, Race
from perf.lib.report import percentile
from perf.lib.worker import CONSUME, OVER, PRODUCE, WANTED

Act = Callable[[], float]
"""What happens beside the queue; it returns the seconds that it took."""
_STOP_S: Final = 600.0


class BesideRace(Race):
    """One race of producers and consumers at once."""

    def beside(
        self,
        slices: int,
        slice_s: float,
        acts: dict[int, Act],
        *,
        warmup_s: float = WARMUP_S,
        empty: bool = True,
        go_on: Callable[[dict[str, Any]], bool] = lambda figures: True,
    ) -> tuple[Outcome, list[dict[str, Any]]]:
        """Run for `slices` of `slice_s` seconds. Return the outcome of the whole and the figures of each slice.

        Args:
            acts: what begins at the beginning of a slice, by the slice's number.
            go_on: gets the figures of each slice at its end, without latencies; if it returns False, this was the last.
        """
        return self._guarded(lambda: self._beside(slices, slice_s, acts, warmup_s, empty, go_on))

    def _beside(
        self,
        slices: int,
        slice_s: float,
        acts: dict[int, Act],
        warmup_s: float,
        empty: bool,
        go_on: Callable[[dict[str, Any]], bool],
    ) -> tuple[Outcome, list[dict[str, Any]]]:
        self._flags[CONSUME] = self._flags[PRODUCE] = WANTED
        self._sleep(warmup_s, lambda: False)
        samples = [self._sample()]
        windows = []
        running: dict[int, Future[float]] = {}
        with ThreadPoolExecutor(1) as other:
            for number in range(slices):
                if number in acts:
                    running[number] = other.submit(acts[number])
                due = samples[0]["at"] + (number + 1) * slice_s
                self._sleep(due - time.monotonic(), lambda: False)
                samples.append(self._sample())
                windows.append(self._changes(samples[-2], samples[-1]))
                if not go_on(_figures(windows[-1])):
                    break
            self._flags[PRODUCE] = OVER
            took = {number: act.result(_STOP_S) for number, act in running.items()}
        self._collect("produce")
        outcome = self._end(self._changes(samples[0], samples[-1]), empty)
        found = []
        for number, window in enumerate(windows):
            figures = {**_figures(window), **self._latencies_of(window)}
            if number in took:
                figures["act_s"] = took[number]
            found.append(figures)
        return outcome, found

    def _latencies_of(self, window: dict[str, Any]) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for role, name in (("produce", "enqueue"), ("consume", "delivery")):
            # A call counts in the slice in which it ended: a slow one began before.
            values = sorted(
                latency
                for worker in self._running(role)
                for at, latency in self._found[worker]
                if window["from"] <= at + latency <= window["to"]
            )
            p99 = percentile(values, 0.99)
            found[f"{name}_p99_ms"] = None if p99 is None else p99 * 1e3
        return found


def _figures(window: dict[str, Any]) -> dict[str, Any]:
    seconds, done = window["to"] - window["from"], sum(window["done"])
    costs = {f"{name}_us": used / done * 1e6 if done else None for name, used in window["cpu"].items()}
    return {"items_per_s": done / seconds, **costs}


def against(slices: Sequence[dict[str, Any]], name: str, number: int, base: int) -> float | None:
    """Return a figure of one slice divided by the same figure of another."""
    if not -len(slices) <= number < len(slices) or not -len(slices) <= base < len(slices):
        return None
    above, below = slices[number].get(name), slices[base].get(name)
    return above / below if above is not None and below else None
