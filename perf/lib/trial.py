"""One cell of the matrix: its parameters, and how it runs once or several times.

Always true: each run has fresh servers; the figures of several runs are medians. A
compared system that stays below nine tenths of its known rate on two cores is marked
in `valid`. Knows nothing of options or of tables.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from perf.lib import machine
from perf.lib.caller import LEASE_S
from perf.lib.race import Broken, Outcome, Race
from perf.lib.report import middle, say
from perf.lib.stage import LEAST, TEMPLATES, Stage, stage
from perf.lib.worker import Load

NUMBERS_PER_S: Final = 120_000
"""More items per second than any system here can put."""
WINDOW_CALLS: Final = 12
"""How many calls per caller the producers may run ahead of the consumers, so that the queue does not fill."""
WINDOW_ITEMS_MIN: Final = 2_000
LONG_POLL_MS: Final = 5_000
_LEAST_ONLY: Final = {
    "mode": "both", "batch": 1, "topics": 1, "backlog": 0, "processes": 1, "keyed": False, "gather": True, "priorities": 1,
}  # fmt: skip
FLOORS: Final = {
    ("postgres", 100): 52_000,
    ("postgres", 1): 2_850,
    ("mariadb-aiomysql", 100): 8_300,
    ("mariadb-aiomysql", 1): 1_290,
}
"""Items per second of the comparators, by items of a call, both roles at once, on two cores: see EVENT_METRICS."""
FLOOR_SHARE: Final = 0.9


@dataclass(slots=True, frozen=True)
class Trial:
    """The parameters of a cell.

    Attributes:
        mode: both, produce or consume.
        batch: items of a call.
        callers: callers of both roles together, at least one each.
        producers: how many of them produce; 0: a third, as a consumer makes two calls, dequeue and
            ack, for each call of a producer.
        backlog: items in the queue before the window begins.
        rate: items per second that are offered, open loop; None: as many as possible.
        processes: processes of each role.
        keyed: every item gets an automatic idempotency key.
        gather: the client coalesces calls.
        priorities: the number of different priorities.
        empty: the queue is emptied after the window, so that every item can be counted as received.
        buffer_pool_mib: the buffer pool of MariaDB.
        lease_s: how long a consumer has an item before it is delivered again, in systems that lease.
        work_s: how long a consumer works on the items of a call, in a race in which consumers are killed.
    """

    system: str = "foqs-mariadb"
    mode: str = "both"
    batch: int = 100
    callers: int = 64
    producers: int = 0
    payload_bytes: int = 1024
    topics: int = 1
    backlog: int = 0
    rate: float | None = None
    shards: int = 2
    processes: int = 1
    keyed: bool = False
    gather: bool = True
    priorities: int = 1
    seconds: float = 3.0
    warmup_s: float = 1.0
    empty: bool = True
    buffer_pool_mib: int = 1024
    lease_s: float = LEASE_S
    work_s: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


def repeated(trial: Trial, repeats: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (parameters, medians of the figures) of several runs."""
    runs = [once(trial) for _ in range(repeats)]
    return {**asdict(trial), "repeats": repeats}, medians(runs, trial)


def medians(runs: Sequence[Mapping[str, Any]], trial: Trial) -> dict[str, Any]:
    """Return the median of each figure. A value that is not a number comes from the last run."""
    figures: dict[str, Any] = {}
    for name in runs[-1]:
        values = [run[name] for run in runs if isinstance(run.get(name), int | float)]
        figures[name] = middle(values) if len(values) == len(runs) else runs[-1][name]
    figures["runs_items_per_s"] = [run["items_per_s"] for run in runs]
    floor = FLOORS.get((trial.system, trial.batch)) if trial.mode == "both" and trial.rate is None else None
    if floor and trial.payload_bytes == 1024 and not trial.backlog:
        figures["floor_items_per_s"] = floor * FLOOR_SHARE
        figures["valid"] = figures["items_per_s"] >= floor * FLOOR_SHARE
    return figures


def once(trial: Trial, command: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the figures of one run. Raise Broken, ServerNotAvailable."""
    lacking = [name for name, only in _LEAST_ONLY.items() if getattr(trial, name) != only]
    if trial.system == LEAST and lacking:
        raise Broken("the minimal queue supports only " + ", ".join(f"{name} {_LEAST_ONLY[name]}" for name in lacking))
    say(f"  {summary_line(trial)}")
    with stage(trial.system, trial.shards, trial.options, command, trial.buffer_pool_mib, trial.topics) as found:
        return run_on(found, trial)


def run_on(found: Stage, trial: Trial) -> dict[str, Any]:
    """Return the figures of one run on an empty stage."""
    if trial.backlog and trial.topics == 1 and trial.backlog > found.shards * TEMPLATES:
        return Filled(found, trial).run()
    if trial.backlog and trial.mode == "both":
        _enqueue(found, trial)
        return _race(found, trial, b"\1" * trial.backlog)[0]
    return _race(found, trial, b"")[0]


class Filled:
    """A system on a backlog that its database wrote, where it has one. It can serve several races.

    `figures` are those of the filling and the start.
    """

    def __init__(self, found: Stage, trial: Trial) -> None:
        begun = time.monotonic()
        self._found = found
        self._trial = trial
        self._there = b"\1" * trial.backlog
        start_s = found.fill(trial.backlog, trial.payload_bytes)
        self.figures: dict[str, Any] = {
            "start_to_delivery_s": start_s,
            "fill_s": time.monotonic() - begun - start_s,
        }
        if found.host is not None:
            self.figures["started_mib"] = machine.resident_mib(found.host.pid)

    def run(self) -> dict[str, Any]:
        """Return the figures of a run on the rest of the backlog."""
        figures, race = _race(self._found, self._trial, self._there)
        if not self._trial.empty:
            self._there = race.left()
        if self._found.host is not None:
            figures["host_peak_mib"] = machine.peak_mib(self._found.host.pid)
        return {**self.figures, **figures}


def _race(found: Stage, trial: Trial, there: bytes) -> tuple[dict[str, Any], Race]:
    numbers = trial.backlog + round((trial.seconds + trial.warmup_s + 2) * NUMBERS_PER_S)
    race = Race(found, loads(found, trial, len(there)), numbers, there)
    if trial.mode == "produce":
        outcome = race.producers(trial.seconds, warmup_s=trial.warmup_s)
    elif trial.mode == "consume":
        outcome = race.consumers(trial.seconds, warmup_s=trial.warmup_s, empty=trial.empty)
    else:
        outcome = race.both(trial.seconds, warmup_s=trial.warmup_s, empty=trial.empty)
    return summary(found, trial, outcome), race


def loads(found: Stage, trial: Trial, filled: int) -> list[Load]:
    """Return the loads of a trial, one per process."""
    both = trial.mode == "both"
    putting = max(1, trial.producers or trial.callers // 3) if both else trial.callers
    taking = max(1, trial.callers - putting) if both else trial.callers
    window = max(WINDOW_ITEMS_MIN, WINDOW_CALLS * putting * trial.batch) + trial.backlog if both else None
    count = (trial.backlog or round(trial.seconds * NUMBERS_PER_S / 6)) if trial.mode == "consume" else None
    base = Load(
        role="produce",
        worker=0,
        system=found.system,
        place=found.place,
        callers=max(1, putting // trial.processes),
        batch=trial.batch,
        payload_bytes=trial.payload_bytes,
        topics=trial.topics,
        stride=trial.processes,
        count=None if count is None else max(0, count - filled) // trial.processes,
        rate=None if trial.rate is None else trial.rate / trial.processes,
        window=None if trial.rate is not None or window is None else window,
        keyed=trial.keyed,
        gather=trial.gather,
        priorities=trial.priorities,
        lease_s=trial.lease_s,
        work_s=trial.work_s,
    )
    if trial.mode == "consume":
        # The filling is not measured, so its calls may be faster than the measured ones.
        base = replace(base, callers=8, batch=100)
    made = [replace(base, worker=number, first=filled + number, seed=number) for number in range(trial.processes)]
    each = max(1, taking // trial.processes)
    consumer = replace(base, role="consume", callers=each, batch=trial.batch, rate=None, window=None, count=None)
    if trial.rate is not None:
        # Latency is measured: idle consumers use long polls.
        consumer = replace(consumer, wait_ms=LONG_POLL_MS)
    return made + [replace(consumer, worker=trial.processes + number) for number in range(trial.processes)]


def summary(found: Stage, trial: Trial, outcome: Outcome) -> dict[str, Any]:
    """Return the figures of an outcome: rates per second, CPU microseconds per item, latencies in milliseconds."""
    put, done = sum(outcome.put), sum(outcome.done)
    items = put if trial.mode == "produce" else done
    figures: dict[str, Any] = {
        "items_per_s": items / outcome.seconds,
        "put_per_s": put / outcome.seconds,
        "seconds": outcome.seconds,
    }
    for name, used_s in outcome.cpu_s.items():
        figures[f"{name}_us"] = used_s / items * 1e6 if items else None
    figures["cores_used"] = sum(outcome.cpu_s.values()) / outcome.seconds
    if trial.mode != "consume":
        figures |= outcome.latency_ms("produce")
    if trial.mode == "both":
        figures |= outcome.latency_ms("consume")
    if found.host is not None:
        figures |= {"host_mib": outcome.host_mib, **flush_figures(found)}
    return figures | {"errors": outcome.errors, "left": outcome.left, "versions": found.versions}


def flush_figures(found: Stage) -> dict[str, Any]:
    """Return the mean size of the host's flushes over its whole life."""
    assert found.host is not None
    metrics = found.host.metrics()
    flushes = sum(value for name, value in metrics.items() if name.startswith("foqs_flush_duration_seconds_count"))
    entries = sum(value for name, value in metrics.items() if name.startswith("foqs_flush_items_sum"))
    return {"flushes": flushes, "flush_entries": entries / flushes if flushes and entries else None}


def summary_line(trial: Trial) -> str:
    """Return a trial in one line: its differences from the plain one."""
    words = [trial.system, trial.mode, f"{trial.batch} a call", f"{trial.callers} callers"]
    plain = Trial()
    for name in (
        "producers",
        "payload_bytes",
        "topics",
        "backlog",
        "rate",
        "shards",
        "processes",
        "keyed",
        "gather",
        "priorities",
    ):
        if getattr(trial, name) != getattr(plain, name):
            words.append(f"{name} {getattr(trial, name)}")
    return ", ".join(words)


def _enqueue(found: Stage, trial: Trial) -> None:
    """Enqueue a small backlog."""
    load = replace(loads(found, replace(trial, mode="consume"), 0)[0], count=trial.backlog, stride=1)
    Race(found, [load], trial.backlog).fill()
