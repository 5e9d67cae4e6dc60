"""Names the handler that blocks the event loop.

Holds `LoopWatch`. A coroutine that does not wait, such as one that calls `time.sleep`,
stops every other handler, and no lease is renewed. Always true: one thread watches
one event loop, for all its consumers. The thread only reads, and writes the log.
Knows nothing of leases.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final

from foqs_client.consumer.job import Job

BLOCKED_S: Final = 2.0
"""An event loop that ran no timer for this long is blocked. A lease of a few seconds would be lost soon."""
LOG_AGAIN_S: Final = 60.0
"""The time between two log lines about handlers that block: they may block often."""
FRAMES_MAX: Final = 4

RunningTasks = Mapping[Job, "asyncio.Task[None]"]

log = logging.getLogger("foqs.consumer")
_watches: Final[dict[int, LoopWatch]] = {}
"""The watch of each thread's event loop."""


def watch_loop(running: RunningTasks) -> Callable[[], None]:
    """Watch the running event loop, and return a function that ends this.

    Args:
        running: the jobs whose handlers run, with their tasks.
    """
    thread_id = threading.get_ident()
    watch = _watches.get(thread_id)
    if watch is None or watch.loop is not asyncio.get_running_loop():
        watch = _watches[thread_id] = LoopWatch(asyncio.get_running_loop(), thread_id)
    watch.running.append(running)

    def end() -> None:
        watch.running[:] = [other for other in watch.running if other is not running]  # equal ones are not the same
        if not watch.running:
            watch.stop()
            if _watches.get(thread_id) is watch:
                del _watches[thread_id]

    return end


class LoopWatch:
    """Watches one event loop for a handler that blocks it.

    Args:
        thread_id: the thread that runs the loop.

    Attributes:
        running: for each consumer, the jobs whose handlers run, with their tasks.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self.loop = loop
        self.running: list[RunningTasks] = []
        self._thread_id = thread_id
        self._beat_count = 0
        self._stopped = threading.Event()
        self._beat()
        # If no thread can be started, the worker works without this watch.
        with suppress(RuntimeError):
            threading.Thread(target=self._watch, name="foqs-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """End the thread and the timer."""
        self._stopped.set()
        self._timer.cancel()

    def _beat(self) -> None:
        self._beat_count += 1
        self._timer = self.loop.call_later(BLOCKED_S / 4, self._beat)

    def _watch(self) -> None:
        last_count, log_again_s = 0, 0.0
        while not self._stopped.wait(BLOCKED_S) and not self.loop.is_closed():
            count, task = self._beat_count, asyncio.current_task(self.loop)
            # Without a task the whole process stood still, as after a suspension.
            if count == last_count and task is not None and time.monotonic() >= log_again_s:
                self._log_blocked(task)
                log_again_s = time.monotonic() + LOG_AGAIN_S
            last_count = count

    def _log_blocked(self, task: asyncio.Task[Any]) -> None:
        jobs = [job for running in self.running for job, other in list(running.items()) if other is task]
        what = "a task that is not a handler" if not jobs else f"the handler of item {jobs[0].id} of {jobs[0].topic}"
        log.warning(
            "the event loop has run nothing else for about %g s because of %s, at %s: other handlers stand still and "
            "leases are not renewed; make the handler a plain function, which runs in a thread, or await what blocks",
            BLOCKED_S,
            what,
            _place(sys._current_frames().get(self._thread_id)),
        )


def _place(frame: FrameType | None) -> str:
    """Return where a thread is, the innermost function first."""
    places: list[str] = []
    while frame is not None and len(places) < FRAMES_MAX:
        places.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}")
        frame = frame.f_back
    return ", called from ".join(places) or "an unknown place"
