"""The cells of the table's rows, and how each is measured.

Always true: each call measures a cell once, on fresh servers, except for the deep
backlog, which is written once and drained in parts. A cell that needs a figure of
another cell uses the one of its first run. Knows nothing of comparisons.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Final

from foqs_client import Client, Item, Namespace
from perf import limit
from perf.lib import chain, machine, rows
from perf.lib.race import Broken, Race
from perf.lib.report import say
from perf.lib.stage import COORDINATED, LEAST, stage
from perf.lib.table import STEADY_RATE, Figures
from perf.lib.trial import Filled, Trial, once, summary_line
from perf.lib.worker import Load

PLAIN: Final = Trial()
BEHIND: Final = replace(PLAIN, callers=16, producers=8)
"""Producers run ahead: every item is in the queue before it is delivered. More consumers would keep up."""
SMALL: Final = replace(PLAIN, batch=1)
STEADY: Final = replace(PLAIN, rate=STEADY_RATE)
DRAIN: Final = replace(PLAIN, mode="consume", payload_bytes=100, empty=False, buffer_pool_mib=2048)
PRIORITIES: Final = 100
QUIET_RATE: Final = 100.0
"""Items per second. The cells with little load are measured for long enough to get a p99 at this rate."""
OWN_SHARE: Final = 0.25
"""The normal rate of the other namespace, as a share of the host's maximum with the same calls. Ten times this rate is
more than twice the maximum."""
NICENESS: Final = 10
"""The niceness of the other namespace's load: its processes stand for other machines and must leave the CPU free."""
SHALLOW: Final = 100_000
TINY: Final = 10_000
TOPICS_AT_REST: Final = 1_000
ON_BACKLOG: Final = ("tiny", "shallow", "deep")
ONCE: Final = ("tiny", "rest")
"""The cells that are measured in the first round only, as they should not differ."""
NEEDS: Final = {"half": "foqs-1", "limit": "behind", "flooded": "foqs", "unflooded": "foqs"}
"""The cells that take a rate or a flush size from another cell."""
_SETTLED_CORES: Final = 0.03
_SETTLE_S: Final = 60.0
_LOOK_S: Final = 0.5


class Cells:
    """Measures cells by name."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._items = options.items
        self._idle_s = options.idle_seconds
        self._warmup_s = options.warmup
        self._first: dict[str, Figures] = {}
        self._open = ExitStack()
        self._deep: tuple[Filled, int] | None = None
        timed = {"seconds": options.seconds, "warmup_s": options.warmup}
        idle = {"seconds": options.idle_seconds, "warmup_s": options.warmup}
        self.trials: dict[str, Trial] = {
            "foqs": replace(PLAIN, **timed),
            "postgres": replace(PLAIN, system="postgres", **timed),
            "keyed": replace(PLAIN, keyed=True, **timed),
            "aiomysql": replace(PLAIN, system="mariadb-aiomysql", **timed),
            "prebuilt": replace(PLAIN, system="mariadb-prebuilt", **timed),
            "foqs-1": replace(SMALL, **timed),
            "foqs-1-apart": replace(SMALL, gather=False, **timed),
            "postgres-1": replace(SMALL, system="postgres", **timed),
            "least-1": replace(SMALL, system=LEAST, **timed),
            "sqlite": replace(PLAIN, system="foqs-sqlite", **timed),
            "behind": replace(BEHIND, **timed),
            "postgres-behind": replace(BEHIND, system="postgres", **timed),
            "aiomysql-behind": replace(BEHIND, system="mariadb-aiomysql", **timed),
            "topics": replace(BEHIND, topics=10_000, **timed),
            "shards-2": replace(STEADY, **timed),
            "shards-32": replace(STEADY, shards=32, **timed),
            "mixed-2": replace(STEADY, priorities=PRIORITIES, **timed),
            "mixed-32": replace(STEADY, priorities=PRIORITIES, shards=32, **timed),
            "idle": replace(SMALL, rate=rows.IDLE_RATE, **idle),
            "half": replace(SMALL, callers=256, **timed),
            "zookeeper": replace(PLAIN, system=COORDINATED, **timed),
            "zookeeper-1": replace(SMALL, system=COORDINATED, **timed),
            "deep": replace(DRAIN, backlog=options.deep, **timed),
            "shallow": replace(DRAIN, backlog=min(options.deep, SHALLOW), **timed),
            "tiny": replace(DRAIN, backlog=min(options.deep, TINY), **timed),
        }
        self._system = COORDINATED if options.zookeeper else PLAIN.system
        if options.zookeeper:
            self.trials = {
                name: replace(trial, system=COORDINATED) if trial.system == PLAIN.system else trial
                for name, trial in self.trials.items()
            }
        self._special: dict[str, Callable[[], Figures]] = {
            "limit": self._limit,
            "bare": self._bare,
            "rested": self._rested,
            "chain": self._chain,
            "half": self._half,
            "rest": self._rest,
            "deep": self._drain_deep,
            "flooded": lambda: self._beside(10.0),
            "unflooded": lambda: self._beside(1.0),
        }

    def measure(self, name: str) -> Figures:
        """Return the figures of one run. Raise Broken, ServerNotAvailable, or the error of a client."""
        if self._deep is not None:
            _settle(self._deep[1])
        figures = self._special[name]() if name in self._special else once(self.trials[name])
        if name != "rest" and not figures["items_per_s"]:
            raise Broken(f"no item was acked: {figures.get('errors')}")
        self._first.setdefault(name, figures)
        return figures

    def close(self) -> None:
        """End the servers that still run."""
        self._deep = None
        self._open.close()

    # ------------------------------------------------------------- special cells

    def _limit(self) -> Figures:
        """Measure the combined shape, in flushes as large as those of the host."""
        entries = self._of("behind")["flush_entries"] or 300
        size = max(10, round(entries / 3))
        return {**self._bare_limit("combined", size, max(5, self._items // size)), "flush_items": size}

    def _bare(self) -> Figures:
        return self._bare_limit("bare-commit", 1, max(5, self._items // 30))

    def _rested(self) -> Figures:
        """Measure at the rate of the idle cell."""
        return self._bare_limit("rested-commit", 1, max(5, round(self._idle_s * rows.IDLE_RATE)))

    def _chain(self) -> Figures:
        return {**chain.once(rows.IDLE_RATE, self._idle_s, PLAIN.payload_bytes)}

    def _bare_limit(self, name: str, size: int, flushes: int) -> Figures:
        return {**limit.once("mariadb", rows.shape(name), size, flushes, PLAIN.payload_bytes)}

    def _half(self) -> Figures:
        """Measure at half of the host's maximum with the same calls."""
        self.trials["half"] = replace(self.trials["half"], rate=self._of("foqs-1")["items_per_s"] / 2)
        return once(self.trials["half"])

    def _drain_deep(self) -> Figures:
        trial = self.trials["deep"]
        if self._deep is None:
            say(f"  {summary_line(trial)}")
            found = self._open.enter_context(stage(trial.system, trial.shards, buffer_pool_mib=trial.buffer_pool_mib))
            filled = Filled(found, trial)
            assert found.mariadb is not None
            self._deep = filled, found.mariadb.pid
            say(f"  filled in {filled.figures['fill_s']:.0f} s")
        return self._deep[0].run()

    def _beside(self, times: float) -> Figures:
        """Measure a quiet namespace with waiting consumers, beside one that offers `times` its normal rate."""
        own = self._of("foqs")["items_per_s"] * OWN_SHARE
        with stage(self._system, 2) as found:
            asyncio.run(_create(found.place, "quiet", "other"))
            quiet = Load(
                "produce", 0, found.system, found.place, 64, 1, 1024, stride=2, namespace="quiet", rate=QUIET_RATE
            )
            other = replace(
                quiet, worker=1, first=1, namespace="other", batch=100, rate=own * times, niceness=NICENESS, seed=1
            )
            loads = [
                quiet,
                other,
                replace(quiet, role="consume", worker=2, callers=16, rate=None),
                replace(other, role="consume", worker=3, callers=8, rate=None),
            ]
            race = Race(found, loads, round((self._idle_s + self._warmup_s + 1) * own * times * 4) + 100_000)
            outcome = race.both(self._idle_s, warmup_s=self._warmup_s)
        return {
            "items_per_s": sum(outcome.done) / outcome.seconds,
            "other_offered_per_s": own * times,
            "other_put_per_s": outcome.put[1] / outcome.seconds,
            "quiet_put_per_s": outcome.put[0] / outcome.seconds,
            "quiet_items": len(outcome.latencies_s[2]),
            "cores_used": sum(outcome.cpu_s.values()) / outcome.seconds,
            **outcome.latency_ms("produce", "quiet"),
            **outcome.latency_ms("consume", "quiet"),
            "errors": outcome.errors,
        }

    def _rest(self) -> Figures:
        """Measure an idle host with an item in each of many topics."""
        with stage(self._system, 2) as found:
            assert found.host is not None and found.mariadb is not None
            asyncio.run(_one_in_each(found.host.address, TOPICS_AT_REST))
            time.sleep(self._warmup_s)
            pids = found.host.pid, found.mariadb.pid
            before, begun = list(map(machine.cpu_s, pids)), time.monotonic()
            time.sleep(self._idle_s)
            after, seconds = list(map(machine.cpu_s, pids)), time.monotonic() - begun
        host, database = ((new - old) / seconds * 100 for new, old in zip(after, before, strict=True))
        return {"items_per_s": 0.0, "core_percent": host, "database_core_percent": database, "seconds": seconds}

    def _of(self, name: str) -> Figures:
        if name not in self._first:
            raise Broken(f"it needs a figure of {name}, which has none")
        return self._first[name]


def _settle(pid: int) -> None:
    """Wait until a database has done the work that its last load left behind."""
    deadline = time.monotonic() + _SETTLE_S
    used = machine.cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        before, used = used, machine.cpu_s(pid)
        if used - before < _SETTLED_CORES * _LOOK_S:
            return


async def _create(address: str, *namespaces: str) -> None:
    async with Client(address) as client:
        for name in namespaces:
            await client.create_namespace(Namespace(name))


async def _one_in_each(address: str, topics: int) -> None:
    async with Client(address, automatic_keys=False) as client:
        for start in range(0, topics, 100):
            for result in await client.enqueue([Item(f"t{start + number}", b"x" * 100) for number in range(100)]):
                result.require()
