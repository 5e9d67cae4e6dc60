"""Does an autoscaler that follows /scale hold a target age without flapping?

Simulates a topic, consumers that take time to start, and the loop of KEDA with the
defaults of Kubernetes, second by second. The numbers of /scale come from the modules
that a host uses. Everything is drawn from a seed.

    python -m perf.scaling                  prints what happened in each phase
    python -m perf.scaling --plot FILE.svg  draws it
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace
from itertools import pairwise
from math import ceil, exp, pi, sin
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from foqs.core.items.item import State
from foqs.core.limits.scaling import ScaleTarget, TopicWork, wanted_consumers
from foqs.core.memory.topic_rates import TopicRates

POLL_S: Final = 15
"""The pause between two decisions: the sync period of Kubernetes' autoscaler."""
STABILIZATION_S: Final = 300
"""Kubernetes goes down to the highest number that was wanted in this time."""
UP_FACTOR: Final = 2
UP_PODS: Final = 4
"""In a period, Kubernetes goes up by this factor, or by this number of consumers if that is more."""
START_S: Final = 30
"""From the decision until a consumer works: its node is there, its image is pulled."""
CONSUMERS_MAX: Final = 200

TARGET: Final = ScaleTarget(items_per_s=2.0, age_s=60.0, in_flight=2)


class Phase(NamedTuple):
    """A part of the simulated day: its name, its length, and the items per second by the time since its start."""

    name: str
    seconds: int
    rate: Callable[[float], float]


DAY: Final[Sequence[Phase]] = (
    Phase("steady", 1_800, lambda t: 20.0),
    Phase("five times as much", 1_800, lambda t: 100.0),
    Phase("back", 1_800, lambda t: 20.0),
    Phase("a wave", 3_600, lambda t: 60.0 + 40.0 * sin(2 * pi * t / 1_800)),
    Phase("bursts of 1,000", 1_800, lambda t: 1_000.0 if t % 600 == 300 else 1.0),
    Phase("nothing", 1_800, lambda t: 0.0),
    Phase("one a minute", 1_800, lambda t: 1.0 if t % 60 == 0 else 0.0),
)


@dataclass(slots=True, frozen=True)
class Sample:
    """A second: the age of the oldest ready item, and consumers that work or start."""

    phase: str
    ready: int
    leased: int
    age_s: float
    wanted: int
    consumers: int


def simulate(
    seed: int,
    phases: Sequence[Phase] = DAY,
    rule: Callable[[TopicWork, ScaleTarget], int] = wanted_consumers,
    real_rate: float = TARGET.items_per_s,
) -> Iterator[Sample]:
    """Yield each second of the day.

    Args:
        rule: returns the wanted number of consumers.
        real_rate: the items that a consumer finishes in a second, whatever the target says of it.
    """
    target = TARGET
    rng = Random(seed)
    rates = TopicRates()
    scaler = _Scaler()
    consumers = _Consumers(target.in_flight, target.in_flight / real_rate, rng)
    ready: deque[int] = deque()
    now = wanted = 0
    for phase in phases:
        for second in range(phase.seconds):
            arrived = _poisson(rng, phase.rate(second))
            ready.extend([now] * arrived)
            rates.on_items_ready({("n", "t", State.READY): arrived}, now)
            consumers.work(ready, now)
            if now % POLL_S == 0:
                work = TopicWork(len(ready), consumers.leased(now), rates.rates(("n", "t"), now).ready)
                wanted = rule(work, target)
                consumers.resize(scaler.decide(wanted, consumers.count, now), now)
            age_s = float(now - ready[0]) if ready else 0.0
            yield Sample(phase.name, len(ready), consumers.leased(now), age_s, wanted, consumers.count)
            now += 1


class _Consumers:
    """Consumers that work or start. Each works on some items at once.

    Attributes:
        count: how many there are.
    """

    def __init__(self, in_flight: int, item_s: float, rng: Random) -> None:
        self._in_flight = in_flight
        self._item_s = item_s
        self._rng = rng
        self._free_at: list[float] = []
        """A heap: when each place for an item is free."""
        self.count = 0

    def work(self, ready: deque[int], now: int) -> None:
        """Take items that were ready by now, each when a place was free."""
        while ready and self._free_at and self._free_at[0] <= now:
            start = max(self._free_at[0], float(ready.popleft()), now - 1.0)
            heapreplace(self._free_at, start + self._item_s * self._rng.uniform(0.5, 1.5))

    def leased(self, now: int) -> int:
        """Return how many items are being worked on."""
        return sum(now < free_at <= now + 2 * self._item_s for free_at in self._free_at)

    def resize(self, count: int, now: int) -> None:
        """Start consumers, or end those that would be free last. Their items count as finished: they finish what they hold."""
        if count > self.count:
            for _ in range((count - self.count) * self._in_flight):
                heappush(self._free_at, float(now + START_S))
        elif count < self.count:
            self._free_at = sorted(self._free_at)[: count * self._in_flight]
        self.count = count


class _Scaler:
    """The decisions of KEDA and Kubernetes' autoscaler with their defaults."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque()

    def decide(self, wanted: int, present: int, now: int) -> int:
        """Return the number of consumers from now on."""
        self._recent.append((now, wanted))
        while self._recent[0][0] <= now - STABILIZATION_S:
            self._recent.popleft()
        limit = max(present * UP_FACTOR, present + UP_PODS)
        highest = max(number for _, number in self._recent)
        return min(wanted, limit, CONSUMERS_MAX) if wanted > present else min(highest, present)


def _poisson(rng: Random, rate: float) -> int:
    """Return a random number of events with this mean."""
    if rate > 30:
        return max(0, round(rng.gauss(rate, rate**0.5)))
    limit, product, count = exp(-rate), rng.random(), 0
    while product > limit:
        product *= rng.random()
        count += 1
    return count


# ------------------------------------------------------------------ what happened


@dataclass(slots=True, frozen=True)
class Summary:
    """A phase in numbers.

    Attributes:
        late_s: the seconds in which an item waited longer than the target.
        turns: how often the number of consumers went down after it had gone up, or up after down.
    """

    name: str
    late_s: int
    age_max_s: float
    consumers_mean: float
    consumers_last: int
    turns: int


def summarize(samples: Sequence[Sample], age_s: float = TARGET.age_s) -> list[Summary]:
    """Return a summary of each phase, in order."""
    found: list[Summary] = []
    for name in dict.fromkeys(sample.phase for sample in samples):
        own = [sample for sample in samples if sample.phase == name]
        found.append(
            Summary(
                name,
                sum(sample.age_s > age_s for sample in own),
                max(sample.age_s for sample in own),
                sum(sample.consumers for sample in own) / len(own),
                own[-1].consumers,
                _turns([sample.consumers for sample in own]),
            )
        )
    return found


def _turns(numbers: Sequence[int]) -> int:
    steps = [after > before for before, after in pairwise(numbers) if after != before]
    return sum(one != other for one, other in pairwise(steps))


# ------------------------------------------------------------------------- the plot

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 900, 150, 60, 30, 50


def draw(samples: Sequence[Sample]) -> str:
    """Return an SVG with the age of the oldest item, and the consumers."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {2 * _HEIGHT + _TOP + _GAP + 40}" '
        'font-family="sans-serif" font-size="12">',
        "<title>The age of the oldest ready item and the number of consumers in a simulated day</title>",
        f'<rect width="{_LEFT + _WIDTH + 20}" height="{2 * _HEIGHT + _TOP + _GAP + 40}" fill="#ffffff"/>',
    ]
    lines += _chart("age of the oldest ready item, seconds", [sample.age_s for sample in samples], _TOP, TARGET.age_s)
    lines += _chart("consumers", [float(sample.consumers) for sample in samples], _TOP + _HEIGHT + _GAP, None)
    bottom = _TOP + 2 * _HEIGHT + _GAP
    for name in dict.fromkeys(sample.phase for sample in samples):
        at = _LEFT + _WIDTH * next(n for n, sample in enumerate(samples) if sample.phase == name) / len(samples)
        lines.append(f'<line x1="{at:.1f}" y1="{_TOP}" x2="{at:.1f}" y2="{bottom}" stroke="#cccccc"/>')
        lines.append(f'<text x="{at + 3:.1f}" y="{bottom + 16}" fill="#555555" font-size="10">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _chart(title: str, values: Sequence[float], top: int, limit: float | None) -> list[str]:
    highest = max([*values, limit or 0]) * 1.05
    step = ceil(len(values) / _WIDTH)

    def y(value: float) -> float:
        return top + _HEIGHT * (1 - value / highest)

    columns = [max(values[n : n + step]) for n in range(0, len(values), step)]
    points = " ".join(f"{_LEFT + _WIDTH * n / len(columns):.1f},{y(value):.1f}" for n, value in enumerate(columns))
    lines = [
        f'<text x="{_LEFT}" y="{top - 8}" fill="#222222">{title}</text>',
        f'<text x="{_LEFT - 8}" y="{top + 10}" text-anchor="end" fill="#222222">{highest:.0f}</text>',
        f'<text x="{_LEFT - 8}" y="{top + _HEIGHT}" text-anchor="end" fill="#222222">0</text>',
        f'<line x1="{_LEFT}" y1="{top + _HEIGHT}" x2="{_LEFT + _WIDTH}" y2="{top + _HEIGHT}" stroke="#222222"/>',
        f'<polyline points="{points}" fill="none" stroke="#1f5fa8" stroke-width="1.2"/>',
    ]
    if limit is not None:
        lines += [
            f'<line x1="{_LEFT}" y1="{y(limit):.1f}" x2="{_LEFT + _WIDTH}" y2="{y(limit):.1f}" stroke="#b03030" stroke-dasharray="4 3"/>',
            f'<text x="{_LEFT - 8}" y="{y(limit) + 4:.1f}" text-anchor="end" fill="#b03030">{limit:.0f}</text>',
        ]
    return lines


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Simulates an autoscaler that follows /scale.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="the SVG to write")
    options = parser.parse_args(arguments)
    samples = list(simulate(options.seed))
    for one in summarize(samples):
        print(
            f"{one.name:20} late {one.late_s:5} s   oldest {one.age_max_s:5.0f} s   consumers {one.consumers_mean:6.1f} "
            f"on average, {one.consumers_last:4} at the end, {one.turns} turns"
        )
    if options.plot is not None:
        options.plot.write_text(draw(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
