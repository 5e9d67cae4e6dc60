"""Runs handlers as tasks of the event loop, or in threads.

Holds the port `HandlerRunner` and two of its implementations. Always true: `on_done`
is called once for each submitted job, in the event loop, with None or with the
handler's exception, whatever a handler raises. An error of `on_done` is logged and
harms no other job. Nothing starts after `close`. Knows nothing of leases and hosts.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any, Final, Protocol, TypeAlias

from foqs_client.consumer.job import Job
from foqs_client.consumer.loop_watch import watch_loop

TURN_S: Final = 0.005
"""How long a task runs handlers that never wait before it lets other tasks of the event loop run."""

Handler: TypeAlias = Callable[[Job], Any]
OnDone: TypeAlias = Callable[[Job, BaseException | None], None]

log = logging.getLogger("foqs.consumer")


class HandlerRunner(Protocol):
    """Runs the handlers of one consumer, each with its job."""

    async def start(self) -> None:
        """Wait until it is ready. Raises an error if it cannot work at all."""
        ...

    def submit(self, job: Job, on_done: OnDone) -> None:
        """Run the handler. The caller submits at most as many at a time as the runner was made for."""
        ...

    def interrupt(self, job: Job) -> None:
        """End the handler as soon as possible, if it can be ended. `on_done` is called as always."""
        ...

    def on_lost(self, job: Job, *, interrupt: bool) -> None:
        """Let the handler see that its lease has ended. With `interrupt`, end it if that harms no other job."""
        ...

    async def close(self) -> None:
        """End all handlers at once."""
        ...


class TaskRunner:
    """Runs coroutine functions in tasks. A task runs one job after the other.

    One task starts alone, so that handlers that never wait share it. If jobs are left
    after its turn, each gets its own task. A task whose job was cancelled or changed a
    context variable runs no further job, so that no job sees this of another one.
    """

    def __init__(self, handler: Callable[[Job], Coroutine[Any, Any, object]]) -> None:
        self._handler = handler
        self._jobs: deque[tuple[Job, OnDone]] = deque()
        """The jobs that no task has started."""
        self._running: dict[Job, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._will_start = False
        self._loop: asyncio.AbstractEventLoop
        self._context: Context
        self._end_watch: Callable[[], None] = _nothing

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._end_watch = watch_loop(self._running)

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
        self._end_watch()
        self._end_watch = _nothing
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
        task = asyncio.current_task()
        assert task is not None
        context = copy_context()
        until_s = self._loop.time() + TURN_S
        while self._jobs:
            job, on_done = self._jobs.popleft()
            self._running[job] = task
            error: BaseException | None = None
            try:
                await self._handler(job)
            except asyncio.CancelledError:
                error = _cancelled()
            except BaseException as raised:
                error = raised
            finally:
                del self._running[job]
            report_end(on_done, job, error)
            # Unlike `sys.exit()` in a handler, these end the program or the event loop.
            ending = error if isinstance(error, KeyboardInterrupt | GeneratorExit) else None
            del error  # its traceback refers to this frame
            if ending is not None or task.cancelling() or copy_context() != context:
                if self._jobs and not self._will_start:
                    self._will_start = True
                    self._loop.call_soon(self._start_all)
                if ending is not None:
                    raise ending
                return
            if self._loop.time() >= until_s:
                await asyncio.sleep(0)
                until_s = self._loop.time() + TURN_S


class ThreadRunner:
    """Runs plain functions in daemon threads, which do not delay the exit of the interpreter.

    If the machine has fewer threads to spare, jobs wait for a thread. They count as running, and their leases are renewed.

    Args:
        handler: the function.
        threads: the maximum number of threads.
    """

    def __init__(self, handler: Handler, threads: int) -> None:
        self._handler = handler
        self._thread_count_max = threads
        self._thread_count = 0
        self._job_count = 0
        """Submitted jobs whose `on_done` the event loop has not called."""
        self._loop: asyncio.AbstractEventLoop
        self._jobs: queue.SimpleQueue[tuple[Job, OnDone] | None] = queue.SimpleQueue()
        self._finished: deque[tuple[OnDone, Job, BaseException | None]] = deque()
        """Finished jobs whose `on_done` the event loop has not called."""
        self._is_notify_scheduled = False

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    def submit(self, job: Job, on_done: OnDone) -> None:
        self._job_count += 1
        if self._thread_count < min(self._job_count, self._thread_count_max):
            try:
                name = f"foqs-worker-{self._thread_count + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._thread_count += 1
            except RuntimeError as error:  # the machine has no thread to spare: the others do this job later
                if not self._thread_count:
                    self._loop.call_soon(self._end, on_done, job, error)
                    return
        self._jobs.put((job, on_done))

    def interrupt(self, job: Job) -> None:
        """Do nothing: no thread can be ended from outside."""

    def on_lost(self, job: Job, *, interrupt: bool) -> None:
        """Do nothing: the handler sees `job.lost`."""

    async def close(self) -> None:
        for _ in range(self._thread_count):
            self._jobs.put(None)

    def _work(self) -> None:
        while (work := self._jobs.get()) is not None:
            job, on_done = work
            error: BaseException | None = None
            if job.lost:  # released or lost while it waited for a thread: another worker may have the item
                error = _cancelled()
            else:
                try:
                    call_sync(self._handler, job)
                except BaseException as raised:
                    error = raised
            self._finished.append((on_done, job, error))
            if not self._is_notify_scheduled:
                self._is_notify_scheduled = True
                # The event loop is closed if nobody waited for this handler.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._notify_finished)
            del work, job, on_done, error

    def _notify_finished(self) -> None:
        """Report all finished jobs, with those that finish meanwhile. A later one schedules this again."""
        self._is_notify_scheduled = False
        while self._finished:
            self._end(*self._finished.popleft())

    def _end(self, on_done: OnDone, job: Job, error: BaseException | None) -> None:
        self._job_count -= 1
        report_end(on_done, job, error)


def report_end(on_done: OnDone, job: Job, error: BaseException | None) -> None:
    """Call `on_done` in the event loop. Its error is logged, so that the task or thread can do the next job."""
    try:
        on_done(job, error)
    except Exception:
        log.exception("the outcome of the handler of item %s could not be recorded, for an unexpected error", job.id)


def _nothing() -> None:
    """Do nothing."""


def _cancelled() -> asyncio.CancelledError:
    return asyncio.CancelledError("the handler was cancelled")


def call_sync(handler: Handler, job: Job) -> None:
    """Run a plain function. Raises its exception, and TypeError if it returns a coroutine."""
    result = handler(job)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("this handler returned a coroutine, which was not awaited; declare the handler with: async def")


def is_async(handler: Handler) -> bool:
    """Return whether a call of the handler returns a coroutine."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)
