"""Virtual time: a loop whose time jumps to the next timer, with processes that can be killed and frozen.

Holds `SimulatedLoop`, its `Process`es, `Pause` and `run_virtual`. Always true: nothing waits in real time and nothing uses threads or sockets. The same
program runs the same callbacks in the same order, with any hash seed and any
addresses of objects. Knows nothing of queues.

This holds only for a program that keeps these rules:
- Do not iterate over a set of tasks or futures: the order depends on their
  addresses. `asyncio.wait` and `asyncio.all_tasks` return sets; sort them by
  task name or by your own list. `asyncio.TaskGroup` cancels its children in set
  order, and `asyncio.as_completed` and `asyncio.wait` add callbacks in set order
  if they get a set. So the order in which the children of one group see a
  cancellation is not fixed. `asyncio.gather` keeps a list.
- Iterate over a set of strings only through `sorted`: the order depends on the
  hash seed.
- Do not call `uuid`, `secrets`, `time.time` or module-level `random`: pass them
  in as arguments.
- Leave no work to the garbage collector, such as closing async generators.
  `run_virtual` turns the collection of cycles off.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

from foqs.testing.virtual_loop import VirtualHandle, VirtualLoop

T = TypeVar("T")
P = ParamSpec("P")

_process: ContextVar[Process | None] = ContextVar("process", default=None)


class Deadlock(Exception):
    """Tasks wait, but no callback and no timer is pending. `waiting` lists the tasks and where they stand."""

    def __init__(self, waiting: list[str]) -> None:
        super().__init__("deadlock: no callback and no timer is pending; waiting:\n" + "\n".join(waiting))
        self.waiting = waiting


class OutOfTime(Exception):
    """The program did not end by `until_s`. `waiting` lists its tasks and where they stand."""

    def __init__(self, until_s: float, waiting: list[str]) -> None:
        super().__init__(f"not done after {until_s} virtual seconds; waiting:\n" + "\n".join(waiting))
        self.waiting = waiting


class Process:
    """A part of the program that can be killed as by `kill -9`: it never runs again.

    The context shows what belongs to a process: tasks that it spawned, their
    children, and every callback and timer they registered. A kill drops all of
    these; no `finally` runs and nothing is cancelled. Processes may share only
    objects that survive them (a network, a database). A killed waiter of a
    shared `asyncio.Lock`, `Semaphore` or `Queue` would swallow its wake-up, and
    awaiting a killed task would never end.
    """

    def __init__(self, loop: SimulatedLoop, name: str) -> None:
        self.name = name
        self.alive = True
        self.runs = True
        """Whether it is alive and not frozen."""
        self._deferred: list[VirtualHandle] = []
        """The steps that came due while it was frozen, in order."""
        self._loop = loop

    def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function now, as this process."""
        return self._context().run(call, *args, **kwargs)

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str | None = None) -> asyncio.Task[T]:
        """Start a task of this process."""
        if not self.alive:
            coro.close()
            raise RuntimeError(f"process {self.name} was killed; create a new one")
        return self._loop.create_task(coro, name=name, context=self._context())

    def kill(self) -> None:
        """Stop everything that this process does, for good. Killing it twice is harmless.

        Raises:
            RuntimeError: called by the process itself, whose current callback
                cannot be stopped. Kill it from `on_step` or from outside.
        """
        if _process.get() is self:
            raise RuntimeError(f"process {self.name} cannot kill itself; kill it from on_step or from outside")
        if self.alive:
            self.alive = self.runs = False
            self._loop.discard_process(self)
            self._deferred.clear()  # a step may hold the last reference to a task

    def freeze(self) -> None:
        """Stop it as SIGSTOP does, until `thaw`: time passes, but the process does not run. Freezing it twice is harmless.

        Raises:
            RuntimeError: called by the process itself.
        """
        if _process.get() is self:
            raise RuntimeError(f"process {self.name} cannot freeze itself; freeze it from on_step or from outside")
        self.runs = False

    def thaw(self) -> None:
        """Let it continue, first with the steps that came due meanwhile. Harmless if it is not frozen, or dead."""
        if self.alive:
            self.runs = True
            self._loop.schedule_deferred(self._deferred)
            self._deferred = []

    def defer_step(self, step: VirtualHandle) -> None:
        """Keep a step that came due while the process is frozen. If the process is dead, drop it."""
        if self.alive:
            self._deferred.append(step)

    def _context(self) -> Context:
        context = copy_context()
        context.run(_process.set, self)
        return context


class SimulatedLoop(VirtualLoop):
    """A virtual loop that runs alone, from second 0: if nothing is due, the time jumps to the next timer.

    asyncio runs it and makes its tasks. This class replaces the inside of
    `run_forever` (private names, the same from 3.11 to 3.14).

    `on_step` is called before every callback, from step `on_step_from` on, with the
    number of the step (from 1). It may kill processes. An exception in it ends the
    run.
    """

    def __init__(self, *, on_step: Callable[[int], None] | None = None, until_s: float | None = None) -> None:
        super().__init__()
        self.steps = 0
        self.on_step = on_step
        self.on_step_from = 0
        self.failures: list[BaseException] = []
        """The exceptions of callbacks, and of tasks that were not awaited."""
        self._until_s = until_s
        self._stopping = False
        self._tasks: weakref.WeakValueDictionary[int, asyncio.Task[Any]] = weakref.WeakValueDictionary()
        self._owners: dict[int, Process] = {}
        self._task_count = 0
        self._killed_tasks: list[asyncio.Task[Any]] = []
        self.set_exception_handler(_note_failure)

    def process(self, name: str) -> Process:
        """Create a process. A restart under the same name creates another one."""
        return Process(self, name)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None, **more: Any
    ) -> asyncio.Task[T]:
        """Create a task as asyncio does, but number the task names from 1 in each loop."""
        self._task_count += 1
        number = self._task_count
        task = super().create_task(coro, name=name or f"task-{number}", context=context, **more)
        self._tasks[number] = task
        owner = _process.get() if context is None else context.get(_process)
        if owner is not None:
            self._owners[number] = owner
        return task

    def waiting(self) -> list[str]:
        """Return every unfinished task and where it stands, oldest first."""
        return [_describe(task) for task in self._unfinished()]

    def admit(self, step: VirtualHandle) -> bool:
        owner: Process | None = step.context.get(_process)
        if owner is not None and not owner.runs:
            owner.defer_step(step)
            return False
        self.steps = number = self.steps + 1
        if number >= self.on_step_from and self.on_step is not None:
            self.on_step(number)
            if owner is not None and not owner.runs:
                owner.defer_step(step)
                return False
        return True

    def _run_once(self) -> None:
        """Run turn after turn, until the loop is stopped."""
        while True:
            if not self.due and not self._stopping:
                self._jump()
            self.run_turn()
            if self._stopping:
                return

    def _jump(self) -> None:
        """Move the time to the next timer."""
        moment = self.next_timer_s()
        if moment is None:
            raise Deadlock(self.waiting())
        if self._until_s is not None and moment > self._until_s:
            raise OutOfTime(self._until_s, self.waiting())
        self.move_time(moment)

    def discard_process(self, process: Process) -> None:
        """Drop the timers of a killed process, and keep its tasks from the garbage collector, which would run their `finally`."""
        self._killed_tasks += [task for number, task in self._numbered() if self._owners.get(number) is process]
        for _, _, step in self.timers:
            if step.context.get(_process) is process:
                step.cancel()

    def schedule_deferred(self, steps: Iterable[VirtualHandle]) -> None:
        """Queue steps that came due while their process was frozen."""
        self.due.extend(steps)

    def finish(self) -> None:
        """End the remaining tasks in order of creation, and close the loop."""
        self.on_step = None
        self._until_s = None
        try:
            remaining = [task for task in self._unfinished() if task not in self._killed_tasks]
            for task in remaining:
                task.cancel()
            if remaining:
                self.run_until_complete(asyncio.gather(*remaining, return_exceptions=True))
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.set_exception_handler(lambda loop, context: None)
            for task in self._killed_tasks:
                _unwind(task)
            self.close()

    def _numbered(self) -> list[tuple[int, asyncio.Task[Any]]]:
        return [(number, task) for number, task in self._tasks.items() if not task.done()]

    def _unfinished(self) -> list[asyncio.Task[Any]]:
        return [task for number, task in self._numbered()]


def run_virtual(
    coro_factory: Callable[[], Coroutine[Any, Any, T]],
    *,
    on_step: Callable[[int], None] | None = None,
    until_s: float | None = None,
) -> T:
    """Run a program to its end under virtual time and return its result.

    Tasks that still run then are cancelled, oldest first.

    Raises:
        Deadlock: the program waits, but no callback and no timer is pending.
        OutOfTime: the program did not end by `until_s`.
        ExceptionGroup: the program ended, but callbacks or tasks that nobody awaited failed.
    """
    collecting = gc.isenabled()
    gc.disable()
    loop = SimulatedLoop(on_step=on_step, until_s=until_s)
    try:
        try:
            result = loop.run_until_complete(loop.create_task(coro_factory(), name="main"))
            failures = [failure for failure in loop.failures if isinstance(failure, Exception)]
        finally:
            loop.finish()
    finally:
        if collecting:
            gc.enable()
    if failures:
        raise ExceptionGroup("callbacks failed under virtual time", failures)
    return result


class Pause:
    """An awaitable that lets `seconds` pass: `asyncio.sleep` in one step of the loop instead of two.

    It has only the parts of a future that a task needs: to be woken and to be cancelled. It can be awaited once.
    """

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_loop", "_seconds", "_step", "_wake")

    def __init__(self, loop: SimulatedLoop, seconds: float) -> None:
        self._loop = loop
        self._seconds = seconds
        self._asyncio_future_blocking = False
        self._cancelled = False

    def __await__(self) -> Generator[Pause, None, None]:
        self._asyncio_future_blocking = True
        yield self

    def get_loop(self) -> SimulatedLoop:
        return self._loop

    def add_done_callback(self, wake: Callable[[Pause], object], *, context: Context) -> None:
        self._wake = wake
        self._step = self._loop.call_later(self._seconds, wake, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        if self._cancelled:
            return False
        self._cancelled = True
        self._step.cancel()
        self._loop.call_soon(self._wake, self, context=self._step.context)
        return True

    def result(self) -> None:
        if self._cancelled:
            raise asyncio.CancelledError


def current_process() -> Process | None:
    """Return the process whose code runs now; None outside of all processes."""
    return _process.get()


def _note_failure(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, SimulatedLoop)
    failure = context.get("exception")
    loop.failures.append(failure if failure is not None else RuntimeError(context["message"]))


def _describe(task: asyncio.Task[Any]) -> str:
    coro = task.get_coro()
    stack = task.get_stack()
    where = f" at {stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else ""
    return f"{task.get_name()}: {getattr(coro, '__qualname__', 'a coroutine')}{where}"


class _Unwound(BaseException):
    """Ends a killed task after the run. Not a GeneratorExit, which would not reach the innermost await."""


def _unwind(task: asyncio.Task[Any]) -> None:
    """End the coroutine of a killed task after the run, when its effects cannot be seen any more.

    Otherwise the garbage collector would run its `finally` later.
    """
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coro = task.get_coro()
    silenced = logging.root.manager.disable
    logging.disable()  # a killed process logs nothing
    try:
        with contextlib.suppress(BaseException):
            for _ in range(100):
                coro.throw(_Unwound())
    finally:
        logging.disable(silenced)
