"""Runs handlers in worker processes, for work that keeps a processor busy.

Holds `ProcessRunner`. Always true: a process works on one item at a time. If it dies,
only the attempt of that item is lost, and another process replaces it. Its death is
seen even if a process that the handler has started holds its pipe. No worker process
outlives this process. What a handler has started ends with its worker process, unless
it left the process group. A worker process finds the handler by name: it imports the
function's module. Knows nothing of leases and hosts.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from multiprocessing import process as multiprocessing_process
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any, Final

from foqs_client.consumer.child_process import READY, FunctionReference, main
from foqs_client.consumer.handler_outcome import describe_error
from foqs_client.consumer.handler_runners import Handler, OnDone, report_end
from foqs_client.consumer.job import Job, NotBegun
from foqs_client.errors import InvalidArgument

REPLACE_S: Final = 1.0
"""The wait before another process is started, if none can be, or if each ends before it has read an item."""
EXIT_S_MAX: Final = 2.0
"""How long a stop waits for the threads that serve the processes, which then are killed."""
DEATH_S_MAX: Final = 0.2
"""How late the death of a process is seen if another process holds its pipe. Otherwise it is seen at once."""
_SPAWN: Final = multiprocessing.get_context("spawn")


class ProcessDied(Exception):
    """The worker process ended before its item was done."""


class CannotStart(Exception):
    """No worker process can be started. The text says why."""


def reference_of(handler: Handler) -> FunctionReference:
    """Return the module and the name by which a worker process imports a function.

    Raises:
        InvalidArgument: the function cannot be imported by name.
    """
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    found: object = None
    if module and name and "<" not in name:
        with suppress(ImportError, AttributeError):
            found = attrgetter(name)(sys.modules.get(module) or import_module(module))
    if found is not handler:
        raise InvalidArgument(
            f"{name or handler!r} cannot run in processes, because they import it by name; "
            "make it a plain function at the top of a module",
            field="processes",
        )
    return FunctionReference(str(module), str(name))


class ProcessRunner:
    """Runs plain functions that can be imported.

    Args:
        handler: the function.
        processes: the number of worker processes.
        log: gets each sentence for the log.

    Raises:
        InvalidArgument: the handler is a lambda, a method of an object, or inside a function.
    """

    def __init__(self, handler: Handler, processes: int, log: Callable[[str], None]) -> None:
        self._reference = reference_of(handler)
        self._log = log
        self._jobs: queue.SimpleQueue[tuple[Job, OnDone] | None] = queue.SimpleQueue()
        self._workers = [
            _WorkerProcess(self._reference, self._jobs, self._call_in_loop, self._on_start_failed, log, n)
            for n in range(processes)
        ]
        self._loop: asyncio.AbstractEventLoop

    async def start(self) -> None:
        """Wait until all processes are ready. Raises CannotStart."""
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
        """Make the handler see `job.lost`."""
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
        """The ids of the running processes."""
        return [child.pid for child in self._workers if child.pid is not None]

    def _on_start_failed(self) -> None:
        """Give the queued jobs back if no process runs: another worker may do them. Called in the thread of a process."""
        if any(child.has_process for child in self._workers):
            return
        while True:
            try:
                work = self._jobs.get_nowait()
            except queue.Empty:
                return
            if work is None:  # the sign to stop is for the threads
                self._jobs.put(None)
                return
            job, on_done = work
            self._call_in_loop(report_end, on_done, job, NotBegun("no worker process can be started"))

    def _call_in_loop(self, call: Callable[..., object], *args: Any) -> None:
        """Make a call in the event loop, from a thread. Does nothing if the loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *args)


class _WorkerProcess:
    """One worker process, which is replaced when it dies, and the thread that serves it.

    Attributes:
        job: the current job of its process.
    """

    def __init__(
        self,
        reference: FunctionReference,
        jobs: queue.SimpleQueue[tuple[Job, OnDone] | None],
        call_in_loop: Callable[..., None],
        on_start_failed: Callable[[], None],
        log: Callable[[str], None],
        number: int,
    ) -> None:
        self.job: Job | None = None
        self._reference = reference
        self._jobs = jobs
        self._call_in_loop = call_in_loop
        self._on_start_failed = on_start_failed
        self._log = log
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        """Protects `_process` and `_connection`. The event loop takes it, so no code may block while holding it."""
        self._send_lock = threading.Lock()
        """Serializes sends. A process that does not read blocks a send, so only threads take it."""
        self._process: Any = None
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._serve, name=f"foqs-worker-process-{number}", daemon=True)
        self._on_started: Callable[[str | None], None]

    @property
    def has_process(self) -> bool:
        return self._connection is not None

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def pid(self) -> int | None:
        with self._lock:
            return None if self._process is None else self._process.pid

    def start(self, on_started: Callable[[str | None], None]) -> None:
        """Start the thread, which calls `on_started` with None or with why the process cannot work."""
        self._on_started = on_started
        self._thread.start()

    def send_lost(self, job: Job) -> None:
        # In a thread of its own, because a process that does not read blocks the send.
        message = ("lost", job._delivery.id, job._delivery.token)
        threading.Thread(target=self._send, args=(message,), daemon=True).start()

    def kill(self) -> None:
        with self._lock:
            if self._process is not None:
                _kill_group(self._process)

    def stop_replacing(self) -> None:
        """Do not replace the process when it ends."""
        self._stopping.set()

    # --------------------------------------------------------------- the thread

    def _serve(self) -> None:
        error = self._start_process()
        self._on_started(error)
        if error is not None:
            return
        idle_deaths = 0
        while not self._stopping.is_set():
            if self._connection is None and (error := self._start_process()) is not None:
                self._call_in_loop(self._log, f"a worker process cannot be started: {error}")
                self._on_start_failed()
                self._stopping.wait(REPLACE_S)
                continue
            work = self._jobs.get()
            if work is None:
                break
            if not _has_ended(self._process) and self._do_job(*work):
                idle_deaths = 0
                continue
            # No item is at fault.
            self._call_in_loop(self._log, f"a worker process {self._end_process()} while it had no item")
            idle_deaths += 1
            if idle_deaths == 1:  # another process may be free before this one is replaced
                self._jobs.put(work)
            else:
                job, on_done = work
                self._call_in_loop(report_end, on_done, job, NotBegun("a worker process ends before it reads an item"))
                self._stopping.wait(REPLACE_S)
        self._end_process()

    def _do_job(self, job: Job, on_done: OnDone) -> bool:
        """Do a job and report its end. Return False if the process ended before it had read the job."""
        self.job = job
        try:
            raised = self._run_job(job)
        except (BrokenPipeError, ConnectionResetError):  # a pipe is reset if its other end closes with bytes unread
            return False
        except Exception as unreadable:
            self._end_process()
            raised = ProcessDied(f"the message of the worker process is unreadable: {describe_error(unreadable)}")
        finally:
            self.job = None
        self._call_in_loop(report_end, on_done, job, raised)
        return True

    def _run_job(self, job: Job) -> BaseException | None:
        connection = self._connection
        assert connection is not None
        try:
            with self._send_lock:
                if job.lost:  # the process ignores a loss that arrives before its job
                    return ProcessDied("the lease ended before the item was started")
                connection.send(("job", job._delivery))
            while True:
                kind, value = self._receive(connection)
                if kind == "extend":
                    job.extend(value)
                else:
                    raised, job.then = value
                    return raised  # type: ignore[no-any-return]
        except (BrokenPipeError, ConnectionResetError):
            raise
        except (OSError, EOFError):
            return ProcessDied(f"the worker process {self._end_process()} while it worked on this item")

    def _receive(self, connection: Connection) -> Any:
        """Return the next message. Raises EOFError if the process has ended, also if another one holds its pipe."""
        has_ended = False
        while not connection.poll(0 if has_ended else DEATH_S_MAX):
            if has_ended:  # and what it had sent before is read
                raise EOFError
            has_ended = _has_ended(self._process)
        return connection.recv()

    def _send(self, message: tuple[object, ...]) -> None:
        with suppress(OSError), self._send_lock:
            if self._connection is not None:
                self._connection.send(message)

    def _start_process(self) -> str | None:
        """Start a process. Return why it cannot work, or None."""
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=main, args=(theirs, self._reference), daemon=True, name="foqs-worker-process")
        try:
            # Ctrl-C at a terminal reaches every process of the group, but this process ends the others.
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            except OSError as error:
                ours.close()
                return f"the system refuses a process ({error.strerror})"
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                theirs.close()
            _keep_until_joined(process)
            with self._lock:
                self._process, self._connection = process, ours
            kind, text = self._receive(ours)
        except (OSError, EOFError):
            return f"it {self._end_process()} before it was ready"
        except Exception as error:
            self._end_process()
            return describe_error(error)
        if kind == READY:
            return None
        self._end_process()
        return str(text)

    def _end_process(self) -> str:
        """End the process, with those that its handler has started. Return how it ended, as the end of a sentence."""
        process, connection = self._process, self._connection
        if connection is not None:
            with self._send_lock:
                self._connection = None
                connection.close()
        if process is None:
            return "was not running"
        _kill_group(process)
        process.join()
        with self._lock:
            self._process = None
        code = process.exitcode
        if code is None:  # another part of the program has joined it
            return "ended"
        process.close()
        if code < 0:
            with suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"


def _keep_until_joined(process: Any) -> None:
    """Keep the id of a process until it is joined here.

    The start of any process of `multiprocessing` reaps all its children that have ended. The id of the process would be
    free then, and the processes of its group could not be killed any more.
    """
    multiprocessing_process._children.discard(process)  # type: ignore[attr-defined]


def _has_ended(process: Any) -> bool:
    """Return whether a process has ended. It keeps its id until it is joined."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it was joined
        return True


def _kill_group(process: Any) -> None:
    """Kill a process and those of its group, also if only these are left."""
    with suppress(ChildProcessError, ProcessLookupError):
        # Fails for a process that was joined: another one may have its id by now.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()  # it may have no group yet


def _resolve(future: asyncio.Future[str | None], error: str | None) -> None:
    if not future.done():
        future.set_result(error)
