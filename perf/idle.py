"""What does each process wait for while a core is idle?

Runs one cell and records every switch between threads and every system call that the
kernel makes in the window (perf record; needs root and the package linux-perf). A
moment counts as idle if at least one core runs nothing. For the idle moments the table
says what host, database and clients did: `runs`, `ready` (it waits for a core), or the
system calls in which its threads sleep. Threads that sleep for the whole window are left
out. The recording itself slows the run down by about a tenth.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from foqs.dev.server_process import stop_on_signals
from perf.lib.report import Report, header, render, say
from perf.lib.servers import ServerNotAvailable
from perf.lib.stage import PLAIN, SYSTEMS, Stage, stage
from perf.lib.trial import Trial, run_on, summary_line

_EVENTS: Final = ("sched:sched_switch", "raw_syscalls:sys_enter")
_LINE: Final = re.compile(r"\s*(\d+)/(\d+)\s+\[(\d+)\]\s+([\d.]+):\s+([\w:]+):\s+(.*)")
_SWITCH: Final = re.compile(r"prev_pid=(\d+) .*prev_state=(\S+) ==> next_comm=.* next_pid=(\d+)")
_RUNS, _READY = "runs", "ready"

State: TypeAlias = tuple[tuple[str, str], ...]
"""What each role does, in the order of the roles' names."""


@dataclass(slots=True, frozen=True)
class Event:
    """A line of the record: thread `tid` of process `pid` made system call `call`, or was switched out for `next_tid`."""

    at_s: float
    cpu: int
    pid: int
    tid: int
    call: int | None = None
    is_ready: bool = False
    next_tid: int = 0


@dataclass(slots=True)
class RecordedStage(Stage):
    """A stage whose window is recorded: a race reads the CPU time when its window begins and when it ends."""

    target: Path = Path()
    recorder: subprocess.Popen[bytes] | None = None
    clients: dict[int, str] = field(default_factory=dict)
    """The roles of the clients by process id. A race starts its producers first."""

    def cpu_s(self) -> dict[str, float]:
        if self.recorder is None:
            workers = sorted(process.pid or 0 for process in multiprocessing.active_children())
            self.clients = dict.fromkeys(workers[: len(workers) // 2], "producers")
            self.clients |= dict.fromkeys(workers[len(workers) // 2 :], "consumers")
            events = [word for event in _EVENTS for word in ("-e", event)]
            self.recorder = subprocess.Popen(
                ["perf", "record", "-q", "-a", "-m", "4096", *events, "-o", str(self.target)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        elif self.recorder.poll() is None:
            self.recorder.send_signal(signal.SIGINT)
            self.recorder.wait()
        return Stage.cpu_s(self)


def main() -> int:
    options = _parser().parse_args()
    if shutil.which("perf") is None or os.geteuid() != 0:
        say("perf.idle needs root and the program perf: apt-get install linux-perf")
        return 2
    trial = Trial(system=options.system, batch=options.batch, seconds=options.seconds, shards=options.shards)
    say(f"idle: {summary_line(trial)}")
    report = Report("idle")
    try:
        figures, moments = _measure(trial)
    except ServerNotAvailable as error:
        say(f"  no figure: {error}")
        return 1
    whole_s = sum(moments.values())
    idle = {state: seconds for (is_idle, state), seconds in moments.items() if is_idle}
    idle_s = sum(idle.values())
    top = sorted(idle.items(), key=lambda entry: -entry[1])[: options.top]
    by_role: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for state, seconds in idle.items():
        for role, what in state:
            by_role[role][what] += seconds
    report.add(
        asdict(trial),
        {
            "items_per_s": figures["items_per_s"],
            "cores_used": figures["cores_used"],
            "idle_share": idle_s / whole_s,
            "roles": {role: {what: s / idle_s for what, s in found.items()} for role, found in by_role.items()},
            "moments": [[dict(state), seconds / idle_s] for state, seconds in top],
        },
    )
    say(
        f"\n{header()}\n{summary_line(trial)}: {figures['items_per_s']:,.0f} items/s, {figures['cores_used']:.2f} cores used"
    )
    say(f"a core was idle for {idle_s / whole_s:.0%} of the time; of that time:\n")
    roles = sorted(by_role)
    rows = [[f"{seconds / idle_s:.1%}", *(dict(state).get(role, "-") for role in roles)] for state, seconds in top]
    say(render(["share", *roles], rows))
    say("")
    rows = [
        [role, f"{seconds / idle_s:.1%}", what]
        for role in roles
        for what, seconds in sorted(by_role[role].items(), key=lambda entry: -entry[1])[:6]
    ]
    say(render(["process", "share", "what it did"], rows))
    say(f"lines: {report.path}")
    return 0


def _measure(trial: Trial) -> tuple[dict[str, Any], Mapping[tuple[bool, State], float]]:
    with TemporaryDirectory(prefix="foqs-perf-idle-") as folder:
        target = Path(folder) / "perf.data"
        with stage(trial.system, trial.shards, trial.options) as found:
            given = {each.name: getattr(found, each.name) for each in fields(Stage)}
            recorded = RecordedStage(**given, target=target)
            roles = {}
            if found.host is not None:
                roles[found.host.pid] = "host"
            if found.mariadb is not None:
                roles[found.mariadb.pid] = "database"
            try:
                figures = run_on(recorded, trial)
            finally:
                if recorded.recorder is not None and recorded.recorder.poll() is None:
                    recorded.recorder.kill()
        text = subprocess.run(
            ["perf", "script", "-i", str(target), "-F", "pid,tid,cpu,time,event,trace", "--ns"],
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
        ).stdout
        return figures, time_by_state(
            list(parse(text.splitlines())), {**roles, **recorded.clients}, os.cpu_count() or 1
        )


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Read the output of `perf script`; other lines are left out."""
    for line in lines:
        found = _LINE.match(line)
        if found is None:
            continue
        pid, tid, cpu, at_s, name, rest = found.groups()
        if name == _EVENTS[0]:
            switch = _SWITCH.search(rest)
            if switch is not None:
                prev, state, after = switch.groups()
                yield Event(
                    float(at_s), int(cpu), int(pid), int(prev), is_ready=state.startswith("R"), next_tid=int(after)
                )
        else:
            call = re.match(r"NR (-?\d+)", rest)
            if call is not None:
                yield Event(float(at_s), int(cpu), int(pid), int(tid), call=int(call[1]))


def time_by_state(events: list[Event], roles: Mapping[int, str], cores: int) -> Mapping[tuple[bool, State], float]:
    """Return the seconds of each state, by whether a core was idle.

    Args:
        roles: names by process id; other processes are left out.
    """
    known = {event.tid: roles.get(event.pid, "") for event in events}
    what: dict[int, str] = {}
    last_call: dict[int, str] = {}
    running: dict[int, int] = {}
    spent_s: dict[tuple[bool, State], float] = defaultdict(float)
    last_s = events[0].at_s
    for event in events:
        is_idle = len(running) == cores and any(tid == 0 for tid in running.values())
        if event.call is not None:
            last_call[event.tid] = _call_name(event.call)
            continue
        spent_s[is_idle, _state(what, known)] += event.at_s - last_s
        last_s = event.at_s
        what[event.tid] = _READY if event.is_ready else last_call.get(event.tid, "sleeps")
        what[event.next_tid] = _RUNS
        running[event.cpu] = event.next_tid
    return spent_s


def _state(what: Mapping[int, str], known: Mapping[int, str]) -> State:
    by_role: dict[str, set[str]] = defaultdict(set)
    for tid, doing in what.items():
        role = known.get(tid, "")
        if role:
            by_role[role].add(doing)
    return tuple(sorted((role, _most_active(doing)) for role, doing in by_role.items()))


def _most_active(doing: set[str]) -> str:
    for active in (_RUNS, _READY, *_DISK_CALLS):
        if active in doing:
            return active
    return "+".join(sorted(doing))


_CALLS: Final = {
    0: "read", 1: "write", 7: "poll", 17: "pread", 18: "pwrite", 20: "writev", 23: "select", 35: "nanosleep", 44: "sendto",
    45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 74: "fsync", 75: "fdatasync", 202: "futex", 208: "io_getevents",
    209: "io_submit", 230: "clock_nanosleep", 232: "epoll_wait", 270: "pselect", 271: "ppoll", 281: "epoll_pwait",
    24: "sched_yield", 219: "restart", 296: "pwritev", 328: "pwritev2", 426: "io_uring_enter", 441: "epoll_pwait2",
}  # fmt: skip
"""Names of system calls on x86-64."""

_DISK_CALLS: Final = ("fdatasync", "fsync", "pwrite", "pwritev", "pread")


def _call_name(number: int) -> str:
    return _CALLS.get(number, f"call {number}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m perf.idle", description=__doc__)
    parser.add_argument("--system", choices=SYSTEMS, default=PLAIN)
    parser.add_argument("--batch", type=int, default=100, help="items per call")
    parser.add_argument("--shards", type=int, default=Trial().shards)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured and recorded")
    parser.add_argument("--top", type=int, default=15, help="states to show")
    return parser


if __name__ == "__main__":
    with stop_on_signals():
        sys.exit(main())
