"""Handlers that worker processes import: a child finds a handler by module and name.

Holds plain functions of a job; some start processes or die. Knows nothing of the tests that use them.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from foqs_client import Item
from foqs_client.consumer import Dead, Job, NotBegun, Retry
from tests.support.poison import POISON


def work(job: Job) -> None:
    """Does what the metadata says; without any, nothing."""
    if job.metadata == b"unreadable exception":
        raise Retry(metadata=OfOneProcess())  # type: ignore[arg-type]
    if job.metadata == b"not begun":
        raise NotBegun("no database")
    if job.metadata == b"unreadable extension":
        job.extend(OfOneProcess())  # type: ignore[arg-type]


def follow_up(job: Job) -> None:
    """Gives an item that follows, first another one."""
    job.done([Item("wrong")])
    job.done(then=[Item("next", job.payload + b"-next")])
    if job.metadata == b"fails":
        raise Dead


def die_and_leave_a_holder(job: Job) -> None:
    """Dies. A process of another session, whose id is written to the file in the payload, holds all its descriptors."""
    if job.attempt > 1:
        return
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of the listing is closed
            os.set_inheritable(int(path.name), True)
    _note(job, subprocess.Popen(["sleep", "600"], close_fds=False, start_new_session=True).pid)
    os.kill(os.getpid(), signal.SIGKILL)


def die_of_poison(job: Job) -> None:
    """Dies as if memory was short, if the item is the poison."""
    if job.payload == POISON:
        os.kill(os.getpid(), signal.SIGKILL)


def start_processes(job: Job) -> None:
    """Starts processes, which end by SIGTERM."""
    forked = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    forked.start()
    forked.terminate()
    forked.join()
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    if (ends := (forked.exitcode, program.wait())) != (-signal.SIGTERM, -signal.SIGTERM):
        raise AssertionError(f"the processes ended with {ends}")


def wait_for_a_program(job: Job) -> None:
    """Starts a program, writes its process id to the file in the payload, and waits for it."""
    program = subprocess.Popen(["sleep", "600"])
    _note(job, program.pid)
    program.wait()


def leave_a_program(job: Job) -> None:
    """Starts a program and notes its process id as above. Ends when there is also a file with the suffix `.go`."""
    _note(job, subprocess.Popen(["sleep", "600"]).pid)
    while not Path(job.payload.decode()).with_suffix(".go").exists():
        time.sleep(0.01)


def _note(job: Job, pid: int) -> None:
    path = Path(job.payload.decode())
    path.with_suffix(".new").write_text(str(pid))
    path.with_suffix(".new").rename(path)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _dead_with_a_file_name(job: Job) -> None:
    raise Dead("cannot read caf\udce9.txt")


def _unreadable(job: Job) -> None:
    raise Unreadable


def _exit(job: Job) -> None:
    sys.exit("no more")


def _retry_with_a_fraction(job: Job) -> None:
    raise Retry(1.5 * 100)  # type: ignore[arg-type]


def _changed_retry(job: Job) -> None:
    retry = Retry(100)
    retry.delay_ms = 0.5  # type: ignore[assignment]
    raise retry


def _extend_by_a_text(job: Job) -> None:
    job.extend("x")  # type: ignore[arg-type]


WRONG_ENDS: Final = (
    _dead_with_a_file_name, _unreadable, _exit, _retry_with_a_fraction, _changed_retry, _extend_by_a_text,
)  # fmt: skip


def wrong_end(job: Job) -> None:
    if job.attempt == 1 and job.payload != b"good":
        WRONG_ENDS[int(job.payload)](job)


class OfOneProcess:
    """Can be pickled, and unpickled only where it was made."""

    def __reduce__(self) -> tuple[object, ...]:
        return _here, (os.getpid(),)


def _here(pid: int) -> OfOneProcess:
    if pid != os.getpid():
        raise ModuleNotFoundError("no module named 'of_another_process'")
    return OfOneProcess()
