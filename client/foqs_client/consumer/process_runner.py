"""Running handlers in processes of their own, for work that keeps a processor busy.

Holds `ProcessRunner`. Always true: a process does one item at a time; one that
dies takes that item's attempt with it and nothing else, and another takes its
place; none outlives this process. Handlers are found by name: a child imports
the module of the function. Knows nothing of leases and hosts.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any, Final

from foqs_client.consumer.child_process import READY, FunctionReference, main
from foqs_client.consumer.handler_outcome import describe_error
from foqs_client.consumer.handler_runners import Handler, OnDone
from foqs_client.consumer.job import Job
from foqs_client.errors import InvalidArgument

REPLACE_S: Final = 1.0
"""A process that did not even start is tried again after so long."""
EXIT_S_MAX: Final = 2.0
"""An idle process that was told to leave is killed after so long."""
_SPAWN: Final = multiprocessing.get_context("spawn")


class ProcessDied(Exception):
    """The worker process that did the item ended before it was done."""


class CannotStart(Exception):
    """No worker process can be started: what is wrong."""


def reference_of(handler: Handler) -> FunctionReference:
    """Where a child finds a function. Raises InvalidArgument where it cannot."""
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    found: object = None
    if module and name and "<" not in name:
        with suppress(ImportError, AttributeError):
            found = attrgetter(name)(sys.modules.get(module) or import_module(module))
    if found is not handler:
        raise InvalidArgument(
            f"{name or handler!r} cannot be run in processes, which import it by name: "
            "make it a plain function at the top of a module",
            field="processes",
        )
    return FunctionReference(str(module), str(name))


class ProcessRunner:
    """Plain functions that can be imported.

    Args:
        processes: how many.
        log: a sentence for the log.

    Raises:
        InvalidArgument: the handler is a lambda, a method of an object, or within a function.
    """

    def __init__(self, handler: Handler, processes: int, log: Callable[[str], None]) -> None:
        self._reference = reference_of(handler)
        self._log = log
        self._jobs: queue.SimpleQueue[tuple[Job, OnDone] | None] = queue.SimpleQueue()
        self._workers = [
            _WorkerProcess(self._reference, self._jobs, self._call_in_loop, log, n) for n in range(processes)
        ]
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Raises CannotStart."""
        self._loop = asyncio.get_running_loop()
        started: list[asyncio.Future[str | None]] = [self._loop.create_future() for _ in self._workers]
        for child, future in zip(self._workers, started, strict=True):
            child.start(lambda error, future=future: self._call_in_loop(_resolve, future, error))  # type: ignore[misc]
        for error in await asyncio.gather(*started):
            if error is not None:
                await self.close()
                raise CannotStart(error)

    def submit(self, job: Job, on_done: OnDone) -> None:
        self._jobs.put((job, on_done))

    def interrupt(self, job: Job) -> None:
        for child in self._workers:
            if child.job is job:
                child.kill()

    def on_lost(self, job: Job, *, interrupt: bool) -> None:
        """The handler sees it in `job.lost`."""
        for child in self._workers:
            if child.job is job:
                child.send_lost(job)

    async def close(self) -> None:
        for child in self._workers:
            child.stop_replacing()
        for _ in self._workers:
            self._jobs.put(None)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + EXIT_S_MAX
        while any(child.is_alive for child in self._workers) and loop.time() < until_s:  # noqa: ASYNC110 - threads
            await asyncio.sleep(0.01)
        for child in self._workers:
            child.kill()

    @property
    def pids(self) -> list[int]:
        """Of the processes that are there."""
        return [child.pid for child in self._workers if child.pid is not None]

    def _call_in_loop(self, call: Callable[..., object], *args: Any) -> None:
        """From a thread to the loop, which may be closed by now."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)


class _WorkerProcess:
    """One place for a process, and the thread that waits for it.

    Attributes:
        job: what its process does.
    """

    def __init__(
        self,
        reference: FunctionReference,
        jobs: queue.SimpleQueue[tuple[Job, OnDone] | None],
        call_in_loop: Callable[..., None],
        log: Callable[[str], None],
        number: int,
    ) -> None:
        self.job: Job | None = None
        self._reference = reference
        self._jobs = jobs
        self._call_in_loop = call_in_loop
        self._log = log
        self._is_stopping = False
        self._lock = threading.Lock()
        """Of which process there is. Nothing that can block is done under it: the event loop takes it."""
        self._send_lock = threading.Lock()
        """Of what is sent. A process that does not read holds it up, so only threads take it."""
        self._process: Any = None
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._serve, name=f"foqs-worker-process-{number}", daemon=True)
        self._on_started: Callable[[str | None], None]

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def pid(self) -> int | None:
        process = self._process
        return None if process is None else process.pid

    def start(self, on_started: Callable[[str | None], None]) -> None:
        """`on_started` is called by the thread: None, or why the process cannot work."""
        self._on_started = on_started
        self._thread.start()

    def send_lost(self, job: Job) -> None:
        """Has a thread of its own send it: the process may not read."""
        message = ("lost", job._delivery.id, job._delivery.token)
        threading.Thread(target=self._send, args=(message,), daemon=True).start()

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def stop_replacing(self) -> None:
        """No process replaces the one that is there."""
        self._is_stopping = True

    # --------------------------------------------------------------- the thread

    def _serve(self) -> None:
        error = self._start_process()
        self._on_started(error)
        if error is not None:
            return
        while (work := self._jobs.get()) is not None:
            if self._process is not None and not self._process.is_alive():
                self._end_process()  # it died with nothing to do
            while self._connection is None and not self._is_stopping:
                error = self._start_process()
                if error is not None:
                    self._call_in_loop(self._log, f"a worker process cannot be started: {error}")
                    threading.Event().wait(REPLACE_S)
            job, done = work
            self.job = job
            try:
                raised = self._run_job(job)
            except Exception as unreadable:
                self.kill()
                self._end_process()
                raised = ProcessDied(f"what the worker process sent cannot be read: {describe_error(unreadable)}")
            self.job = None
            self._call_in_loop(done, job, raised)
            if self._connection is None and not self._is_stopping:
                self._start_process()  # before it is needed
        self._end_process()

    def _run_job(self, job: Job) -> BaseException | None:
        line = self._connection
        if line is None:
            return ProcessDied("the worker stopped before it was begun")
        try:
            with self._send_lock:
                if job.lost:  # the process ignores a loss that arrives before its job
                    return ProcessDied("its lease was lost before it was begun")
                line.send(("job", job._delivery))
            while True:
                what, value = line.recv()
                if what == "extend":
                    job.extend(value)
                else:
                    return value  # type: ignore[no-any-return]
        except (OSError, EOFError):
            return ProcessDied(f"the worker process {self._end_process()} while it did this item")

    def _send(self, message: tuple[object, ...]) -> None:
        with suppress(OSError), self._send_lock:
            if self._connection is not None:
                self._connection.send(message)

    def _start_process(self) -> str | None:
        """Starts a process; returns why it cannot work."""
        here, there = _SPAWN.Pipe()
        process = _SPAWN.Process(target=main, args=(there, self._reference), daemon=True, name="foqs-worker-process")
        try:
            # Ctrl-C at a terminal goes to every process of the group; ending them is this one's task.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                there.close()
            with self._lock:
                self._process, self._connection = process, here
            what, text = here.recv()
        except (OSError, EOFError):
            return f"it {self._end_process()} before it was ready"
        if what == READY:
            return None
        self._end_process()
        return str(text)

    def _end_process(self) -> str:
        """Ends the process, and says how it ended."""
        process, line = self._process, self._connection
        if line is not None:
            with self._send_lock:
                self._connection = None
                line.close()
        if process is None:
            return "was not there"
        process.join(EXIT_S_MAX)
        if process.is_alive():
            process.kill()
            process.join()
        with self._lock:
            self._process = None
        code = process.exitcode
        process.close()
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _resolve(future: asyncio.Future[str | None], error: str | None) -> None:
    if not future.done():
        future.set_result(error)
