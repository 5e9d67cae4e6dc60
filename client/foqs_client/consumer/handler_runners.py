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
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final, Protocol, TypeAlias

from foqs_client.consumer.job import Job

TURN_S: Final = 0.005
"""So long a task does jobs whose handlers end at once before others of the loop have their turn."""

Handler: TypeAlias = Callable[[Job], Any]
OnDone: TypeAlias = Callable[[Job, BaseException | None], None]


class HandlerRunner(Protocol):
    """Where handlers run."""

    async def start(self) -> None:
        """Makes ready; raises what keeps it from working at all."""
        ...

    def submit(self, job: Job, on_done: OnDone) -> None:
        """Runs the handler; no more at a time than the runner was made for."""
        ...

    def interrupt(self, job: Job) -> None:
        """Ends the handler as soon as can be, where it can be ended; `done` is called as ever."""
        ...

    def on_lost(self, job: Job, *, interrupt: bool) -> None:
        """The job's lease is over: has the handler know, and ends it where that is wanted and costs nobody else."""
        ...

    async def close(self) -> None:
        """Ends at once whatever is left."""
        ...


class TaskRunner:
    """Coroutine functions, in tasks that do one job after the other while there are some.

    One task is tried alone, so that handlers that end at once share it; when jobs are
    left after its turn, each gets a task. A job sees no cancellation and no context
    variable of another one: a task that has either does no further job.
    """

    def __init__(self, handler: Callable[[Job], Coroutine[Any, Any, object]]) -> None:
        self._handler = handler
        self._jobs: deque[tuple[Job, OnDone]] = deque()
        """Those that no task does yet."""
        self._running: dict[Job, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._will_start = False
        self._loop: asyncio.AbstractEventLoop
        self._context: Context

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    def submit(self, job: Job, on_done: OnDone) -> None:
        self._jobs.append((job, on_done))
        if not self._will_start:
            self._will_start = True
            self._loop.call_soon(self._start_one)

    def interrupt(self, job: Job) -> None:
        task = self._running.get(job)
        if task is not None:
            task.cancel()
            return
        for entry in self._jobs:
            if entry[0] is job:
                self._jobs.remove(entry)
                self._loop.call_soon(entry[1], job, _cancelled())
                return

    def on_lost(self, job: Job, *, interrupt: bool) -> None:
        if interrupt:
            self.interrupt(job)

    async def close(self) -> None:
        self._jobs.clear()
        for task in self._tasks:
            task.cancel()

    def _start_one(self) -> None:
        if self._jobs:
            self._start_task()
            self._loop.call_soon(self._start_all)  # after that task's turn
        else:
            self._will_start = False

    def _start_all(self) -> None:
        self._will_start = False
        for _ in self._jobs:
            self._start_task()

    def _start_task(self) -> None:
        task = self._loop.create_task(self._work(), context=self._context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _work(self) -> None:
        """A task."""
        task = asyncio.current_task()
        assert task is not None
        context = copy_context()
        until_s = self._loop.time() + TURN_S
        while self._jobs:
            job, done = self._jobs.popleft()
            self._running[job] = task
            error: BaseException | None = None
            try:
                await self._handler(job)
            except asyncio.CancelledError:
                error = _cancelled()
            except Exception as raised:
                error = raised
            finally:
                del self._running[job]
            done(job, error)
            del error  # its traceback holds this frame
            if task.cancelling() or copy_context() != context:
                if self._jobs and not self._will_start:
                    self._will_start = True
                    self._loop.call_soon(self._start_all)
                return
            if self._loop.time() >= until_s:
                await asyncio.sleep(0)
                until_s = self._loop.time() + TURN_S


class ThreadRunner:
    """Plain functions, in threads that keep no interpreter from exiting.

    Args:
        threads: how many.
    """

    def __init__(self, handler: Handler, threads: int) -> None:
        self._handler = handler
        self._thread_count_max = threads
        self._thread_count = 0
        self._idle_count = 0
        self._loop: asyncio.AbstractEventLoop
        self._jobs: queue.SimpleQueue[tuple[Job, OnDone] | None] = queue.SimpleQueue()
        self._finished: deque[tuple[OnDone, Job, BaseException | None]] = deque()
        """Of which the loop has not been told."""
        self._is_notify_scheduled = False

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def submit(self, job: Job, on_done: OnDone) -> None:
        self._jobs.put((job, on_done))
        if self._idle_count:
            self._idle_count -= 1
        elif self._thread_count < self._thread_count_max:
            self._thread_count += 1
            threading.Thread(target=self._work, name=f"foqs-worker-{self._thread_count}", daemon=True).start()

    def interrupt(self, job: Job) -> None:
        """No thread can be ended from outside."""

    def on_lost(self, job: Job, *, interrupt: bool) -> None:
        """The handler sees it in `job.lost`."""

    async def close(self) -> None:
        for _ in range(self._thread_count):
            self._jobs.put(None)

    def _work(self) -> None:
        """A thread."""
        while (work := self._jobs.get()) is not None:
            job, done = work
            error: BaseException | None = None
            try:
                call_sync(self._handler, job)
            except BaseException as raised:
                error = raised
            self._finished.append((done, job, error))
            if not self._is_notify_scheduled:
                self._is_notify_scheduled = True
                # The loop is closed where nobody waited for this handler.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._notify_finished)
            del work, job, done, error

    def _notify_finished(self) -> None:
        """All that are over, those too that end meanwhile; whoever ends later has this called again."""
        self._is_notify_scheduled = False
        while self._finished:
            done, job, error = self._finished.popleft()
            self._idle_count += 1
            done(job, error)


def _cancelled() -> asyncio.CancelledError:
    return asyncio.CancelledError("it was cancelled")


def call_sync(handler: Handler, job: Job) -> None:
    """Runs a plain function. Raises what it raises, and TypeError where it turns out to be a coroutine function."""
    result = handler(job)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("this handler returned a coroutine, which nobody awaited; declare it with: async def")


def is_async(handler: Handler) -> bool:
    """Calling it gives a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
