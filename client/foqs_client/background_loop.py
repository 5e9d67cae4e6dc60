"""A thread with an event loop, for callers that have none.

Holds `BackgroundLoop`. Always true: the thread starts with the first call. An
interrupt of a waiting caller cancels its call; a result that it did not read goes to
`give_back`. Closing ends every call in flight. The thread does not delay the exit of the
interpreter. Knows nothing of what it runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Generic, TypeAlias, TypeVar

T = TypeVar("T")
MakeCoroutine: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
GiveBack: TypeAlias = Callable[[T], None]

FINISH_S_MAX: Final = 2.0
"""`close` waits this long for calls to end, then cancels them."""


class LoopClosed(Exception):
    """The thread was closed before or during the call."""

    def __init__(self, *, was_started: bool) -> None:
        super().__init__("this was closed" + (" during the call" if was_started else ""))
        self.was_started = was_started


class BackgroundLoop:
    """An event loop in a thread of its own. Any other thread may use it.

    Args:
        name: the name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    def run(self, make_coroutine: MakeCoroutine[T], give_back: GiveBack[T] | None = None) -> T:
        """Run the coroutine that `make_coroutine` makes, and return its result. An interrupt cancels it.

        Args:
            give_back: gets the result, in the thread's loop, if the caller was interrupted before it read it.

        Raises:
            LoopClosed: the thread is closed; `was_started` says whether the coroutine started.
            RuntimeError: the calling thread runs an event loop, which the call would block;
                or the process was forked after the first call.
        """
        call = _LoopCall(give_back)
        try:
            self._submit(call, make_coroutine)
            return call.result.result()
        except concurrent.futures.CancelledError:
            raise LoopClosed(was_started=True) from None
        except BaseException:
            call.leave()
            raise

    def close(self, cleanup: MakeCoroutine[None]) -> None:
        """Run `cleanup`, end the calls in flight and the thread. Safe to repeat. Does nothing in a forked process."""
        with self._lock:
            loop, thread, self._closed, self._loop = self._loop, self._thread, True, None
        if loop is None or thread is None or os.getpid() != self._pid:
            return
        if thread is threading.current_thread():
            # The garbage collector runs in the thread itself, which cannot wait for itself.
            loop.create_task(cleanup()).add_done_callback(lambda _: loop.stop())
            return
        try:
            asyncio.run_coroutine_threadsafe(_finish(cleanup), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _submit(self, call: _LoopCall[T], make_coroutine: MakeCoroutine[T]) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("SyncClient would block the running event loop; use Client here")
        with self._lock:
            if self._closed:
                raise LoopClosed(was_started=False)
            if self._loop is None:
                self._start()
            elif os.getpid() != self._pid:
                raise RuntimeError(
                    "this SyncClient was used before the process was forked; make a new one in the child"
                )
            assert self._loop is not None
            call.submit(self._loop, make_coroutine())

    def _start(self) -> None:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name=self._name, daemon=True)
        self._thread.start()
        self._loop, self._pid = loop, os.getpid()


class _LoopCall(Generic[T]):
    """One coroutine in the loop, for a caller in another thread, which may be interrupted anywhere, also in `submit`.

    Attributes:
        result: the future that gets the result for the caller.
    """

    def __init__(self, give_back: GiveBack[T] | None) -> None:
        self.result: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._give_back = give_back
        self._loop: asyncio.AbstractEventLoop
        self._coroutine: Coroutine[Any, Any, T] | None = None
        """None until it is submitted."""
        self._task: asyncio.Task[T] | None = None

    def submit(self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T]) -> None:
        """Let the loop run the coroutine; called in the caller's thread."""
        self._loop, self._coroutine = loop, coroutine
        loop.call_soon_threadsafe(self._start)

    def leave(self) -> None:
        """End the call, because the caller was interrupted, or its result is an error; called in the caller's thread."""
        if not self.result.cancel():
            self.result.add_done_callback(self._on_unread)
        elif self._coroutine is not None:
            self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        if self._coroutine is not None:
            self._task = self._loop.create_task(self._coroutine)
            self._task.add_done_callback(self._on_task_done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif self._coroutine is not None:  # the caller was interrupted before the loop knew of it
            self._coroutine.close()
            self._coroutine = None

    def _on_task_done(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self.result.cancel()
        elif not self.result.set_running_or_notify_cancel():
            if task.exception() is None and self._give_back is not None:
                self._give_back(task.result())  # it was ready before it was cancelled
        elif (error := task.exception()) is not None:
            self.result.set_exception(error)
        else:
            self.result.set_result(task.result())

    def _on_unread(self, result: concurrent.futures.Future[T]) -> None:
        if self._give_back is not None and not result.cancelled() and result.exception() is None:
            with suppress(RuntimeError):  # the thread has ended meanwhile
                self._loop.call_soon_threadsafe(self._give_back, result.result())


async def _finish(cleanup: MakeCoroutine[None]) -> None:
    await cleanup()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=FINISH_S_MAX)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_others())
    finally:
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
