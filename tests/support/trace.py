"""System calls of real processes, in the order of the kernel.

Holds `Trace`, which runs strace on processes, and the steps that its lines show.
Always true: if a step ends before another begins in the output, it did so in the
kernel, as a traced thread continues only after the tracer has written its line.
Knows nothing of the traced program.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.support.poll import until

READS: Final = frozenset(("read", "readv", "recvfrom", "recvmsg"))
SENDS: Final = frozenset(("write", "writev", "sendto", "sendmsg"))
WRITES: Final = frozenset(("write", "writev", "pwrite64", "pwritev", "pwritev2"))
SYNCS: Final = frozenset(("fsync", "fdatasync"))

_TEXT_BYTES_MAX: Final = 4_096
_WHOLE: Final = re.compile(r"(?P<thread>\d+) +(?P<name>\w+)\((?P<fd>\d+)<(?P<target>.*?)>(?P<rest>[,)].*)")
_BEGUN: Final = re.compile(
    r"(?P<thread>\d+) +(?P<name>\w+)\((?P<fd>\d+)<(?P<target>.*?)>(?P<rest>,.*)? <unfinished \.\.\.>"
)
_RESUMED: Final = re.compile(r"(?P<thread>\d+) +<\.\.\. (?P<name>\w+) resumed>(?P<rest>.*)")


@dataclass(slots=True)
class Step:
    """One system call on a descriptor.

    `target` is the file's path, or `TCP:[here->there]`. `text` is the rest of
    the line: the data, as strace spells it, and the result. `begin` and `end`
    are places in the order; `end` is None when it did not end.
    """

    thread: str
    name: str
    target: str
    text: str
    begin: int
    end: int | None

    @property
    def succeeded(self) -> bool:
        return self.end is not None and "= -1 " not in self.text

    def ended_before(self, place: int) -> bool:
        return self.end is not None and self.end < place


class Trace:
    """Traces processes while its `with` block runs; `steps` afterwards."""

    def __init__(self, pids: Sequence[int], output: Path) -> None:
        program = shutil.which("strace")
        if program is None:
            pytest.fail("strace is not installed: apt-get install strace")
        self._pids = pids
        self._output = output
        calls = ",".join(sorted(READS | SENDS | WRITES | SYNCS))
        named = [argument for pid in pids for argument in ("-p", str(pid))]
        self._command = [program, "-f", "-yy", "-s", str(_TEXT_BYTES_MAX), "-e", f"trace={calls}", "-o", str(output)]
        self._command += named

    @property
    def steps(self) -> list[Step]:
        return list(parse(self._output.read_text(errors="replace").splitlines()))

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        until(self._attached, "strace follows every thread")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=30)

    def _attached(self) -> bool:
        if self._process.poll() is not None:
            _, output = self._process.communicate()
            if "not permitted" in output and os.geteuid() != 0:
                pytest.skip("tracing a running process needs root, or kernel.yama.ptrace_scope = 0")
            pytest.fail(f"strace ended: {output}")
        states = [status.read_text() for pid in self._pids for status in Path(f"/proc/{pid}/task").glob("*/status")]
        return all(f"TracerPid:\t{self._process.pid}\n" in state for state in states)


def parse(lines: Iterable[str]) -> Iterator[Step]:
    """The steps of strace's output; a step that others interrupted in the output is put together again."""
    open_steps: dict[str, Step] = {}
    steps: list[Step] = []
    for place, line in enumerate(lines):
        if found := _RESUMED.match(line):
            step = open_steps.pop(found["thread"], None)
            if step is not None and step.name == found["name"]:
                step.text += found["rest"]
                step.end = place
        elif found := _BEGUN.match(line):
            step = Step(found["thread"], found["name"], found["target"], found["rest"] or "", place, None)
            open_steps[found["thread"]] = step
            steps.append(step)
        elif found := _WHOLE.match(line):
            steps.append(Step(found["thread"], found["name"], found["target"], found["rest"], place, place))
    return iter(steps)


# ------------------------------------------------------------------ conclusions


@dataclass(slots=True, frozen=True)
class Exchange:
    """A request that a process read, and the first bytes it sent back."""

    asked: Step
    answered: Step


def exchanges(steps: Sequence[Step], port: int, words: str) -> list[Exchange]:
    """Return the requests to the server on `port` that contain `words`, and its replies."""
    found = []
    for asked in steps:
        if asked.name in READS and asked.target.startswith(f"TCP:[127.0.0.1:{port}->") and words in asked.text:
            assert asked.end is not None
            answers = [s for s in steps if s.name in SENDS and s.target == asked.target and s.begin > asked.end]
            assert answers, f"no answer was seen to {asked.text}"
            found.append(Exchange(asked, answers[0]))
    return found


def not_on_disk(steps: Sequence[Step], exchange: Exchange, log: str) -> str | None:
    """Why what the request wrote to the file with `log` in its path may not be on disk when its answer left; None when it is.

    Where the thread that read the request writes the log itself, what other
    threads write meanwhile is not the request's.
    """
    within = [step for step in steps if exchange.asked.begin < step.begin < exchange.answered.begin]
    written = [step for step in within if step.name in WRITES and log in step.target]
    if not written:
        return f"nothing was written to {log}"
    written = [step for step in written if step.thread == exchange.asked.thread] or written
    syncs = [step for step in within if step.name in SYNCS and step.target == written[-1].target and step.succeeded]
    for sync in syncs:
        if sync.ended_before(exchange.answered.begin) and all(step.ended_before(sync.begin) for step in written):
            return None
    return f"{log} was written {len(written)} times and not synced after the last"
