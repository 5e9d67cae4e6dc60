"""Ends a task after its time: a coroutine is cancelled, a process is interrupted and then killed.

Always true: a coroutine also ends when its lease is lost; a thread is never ended from outside.
"""

from __future__ import annotations

import asyncio
import faulthandler
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

LOST_POLL_S: Final = 1.0
"""How late a coroutine learns that its lease was lost."""
KILL_AFTER_S: Final = 5.0
"""A process that still works on its task so long after it was interrupted is killed."""


class TimeLimitExceeded(TimeoutError):
    """The task did not end in its time."""


async def run_coroutine(work: Coroutine[Any, Any, Any], timeout_s: float | None, is_lost: Callable[[], bool]) -> Any:
    """Return what a coroutine returns. It is cancelled when its time or its lease ends.

    Raises:
        TimeLimitExceeded: its time has ended.
    """
    running = asyncio.ensure_future(work)
    try:
        async with asyncio.timeout(timeout_s):
            while not running.done():
                await asyncio.wait([running], timeout=LOST_POLL_S)
                if is_lost():
                    running.cancel()
    except TimeoutError:
        running.cancel()
        await asyncio.wait([running])
        raise _exceeded(timeout_s) from None
    return running.result()


@contextmanager
def process_limit(timeout_s: float) -> Iterator[None]:
    """Interrupt this process, which runs nothing but its task, after a time; kill it if that does not end the task.

    Call it in the main thread.
    """

    def interrupt(_number: int, _frame: object) -> None:
        raise _exceeded(timeout_s)

    former = signal.signal(signal.SIGALRM, interrupt)
    faulthandler.dump_traceback_later(timeout_s + KILL_AFTER_S, exit=True)  # also if the task never returns from C
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, former)


def _exceeded(timeout_s: float | None) -> TimeLimitExceeded:
    return TimeLimitExceeded(f"the task did not end within {timeout_s:g} s")
