"""Running handlers: as tasks of the loop, or in threads.

Holds the port `Runner`, and two of its implementations. Always true: `done` is
called once for each job that was begun, in the loop, with None or with what the
handler raised; nothing is begun after `close`. Knows nothing of leases and hosts.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, TypeAlias

from foqs_client.consumer.job import Job

Handler: TypeAlias = Callable[[Job], Any]
Done: TypeAlias = Callable[[Job, BaseException | None], None]


class Runner(Protocol):
    """Where handlers run."""

    async def start(self) -> None:
        """Makes ready; raises what keeps it from working at all."""
        ...

    def begin(self, job: Job, done: Done) -> None:
        """Runs the handler; no more at a time than the runner was made for."""
        ...

    def interrupt(self, job: Job) -> None:
        """Ends the handler as soon as can be, where it can be ended; `done` is called as ever."""
        ...

    def lose(self, job: Job, *, interrupt: bool) -> None:
        """The job's lease is over: has the handler know, and ends it where that is wanted and costs nobody else."""
        ...

    async def close(self) -> None:
        """Ends at once whatever is left."""
        ...


class TaskRunner:
    """Coroutine functions: a task for each job."""

    def __init__(self, handler: Callable[[Job], Coroutine[Any, Any, object]]) -> None:
        self._handler = handler
        self._running: dict[asyncio.Task[object], tuple[Job, Done]] = {}
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def begin(self, job: Job, done: Done) -> None:
        task = self._loop.create_task(self._handler(job))
        self._running[task] = (job, done)
        task.add_done_callback(self._ended)

    def interrupt(self, job: Job) -> None:
        for task, (other, _) in self._running.items():
            if other is job:
                task.cancel()

    def lose(self, job: Job, *, interrupt: bool) -> None:
        if interrupt:
            self.interrupt(job)

    async def close(self) -> None:
        for task in self._running:
            task.cancel()

    def _ended(self, task: asyncio.Task[object]) -> None:
        job, done = self._running.pop(task)
        done(job, asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception())


class ThreadRunner:
    """Plain functions, in threads that keep no interpreter from exiting.

    Args:
        threads: how many.
    """

    def __init__(self, handler: Handler, threads: int) -> None:
        self._handler = handler
        self._count = threads
        self._started = 0
        self._idle = 0
        self._loop: asyncio.AbstractEventLoop
        self._jobs: queue.SimpleQueue[tuple[Job, Done] | None] = queue.SimpleQueue()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def begin(self, job: Job, done: Done) -> None:
        self._jobs.put((job, done))
        if self._idle:
            self._idle -= 1
        elif self._started < self._count:
            self._started += 1
            threading.Thread(target=self._work, name=f"foqs-worker-{self._started}", daemon=True).start()

    def interrupt(self, job: Job) -> None:
        """No thread can be ended from outside."""

    def lose(self, job: Job, *, interrupt: bool) -> None:
        """The handler sees it in `job.lost`."""

    async def close(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        """A thread."""
        while (work := self._jobs.get()) is not None:
            job, done = work
            error: BaseException | None = None
            try:
                call_plain(self._handler, job)
            except BaseException as raised:
                error = raised
            # The loop is closed where nobody waited for this handler.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended, done, job, error)
            del work, job, done, error

    def _ended(self, done: Done, job: Job, error: BaseException | None) -> None:
        self._idle += 1
        done(job, error)


def call_plain(handler: Handler, job: Job) -> None:
    """Runs a plain function. Raises what it raises, and TypeError where it turns out to be a coroutine function."""
    result = handler(job)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("this handler returned a coroutine, which nobody awaited; declare it with: async def")


def is_async(handler: Handler) -> bool:
    """Calling it gives a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
