"""Freezes and thaws a process.

Always true: when `freeze` returns no thread of the process runs. Knows nothing of
the process.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from tests.support.poll import until


def freeze(pid: int) -> None:
    """Stops all threads of a process where they are."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: all(state == "T" for state in _thread_states(pid)), f"process {pid} stands still")


def thaw(pid: int) -> None:
    """Lets it go on."""
    os.kill(pid, signal.SIGCONT)


def _thread_states(pid: int) -> list[str]:
    states = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return states
