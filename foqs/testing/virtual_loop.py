"""An event loop with virtual time, and clocks that show it.

Holds `VirtualLoop`, `VirtualHandle` and `VirtualClock`. Always true: the loop never blocks and
uses no thread or socket; callbacks run in the order of a real loop, and timers of one
moment in the order in which they were set. A subclass decides when turns run and how
time moves. Knows nothing of queues.
"""

from __future__ import annotations

import asyncio
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, Final

WALL_ORIGIN_MS: Final = 1_800_000_000_000
"""The time of a wall clock at second 0, if nothing else is given."""

_RESOLUTION_S: Final = 1e-6
"""Timers this close together fire together. A float still shows the difference after centuries."""


class VirtualHandle:
    """A callback that will run: an asyncio handle without the parts that only real loops need."""

    __slots__ = ("args", "call", "context", "is_cancelled", "when_s")

    def __init__(self, when_s: float, call: Callable[..., object], args: tuple[Any, ...], context: Context) -> None:
        self.when_s = when_s
        self.call = call
        self.args = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.args = ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.when_s


class VirtualLoop(BaseEventLoop):
    """The callbacks and timers of an asyncio loop, which `run_turn` runs. Time begins at 0 and passes with `move_time`."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self.due: deque[VirtualHandle] = deque()
        """The callbacks of the next turn, in order."""
        self.timers: list[tuple[float, int, VirtualHandle]] = []
        """A heap: the time, the number that keeps the order, the callback."""
        self._timer_count = 0

    # ------------------------------------------------------------ time and turns

    def time(self) -> float:
        return self._now_s

    def move_time(self, time_s: float) -> None:
        """Move the time forward to this one. Timers on the way run in the next turn."""
        self._now_s = max(self._now_s, time_s)

    def next_timer_s(self) -> float | None:
        """Return the time of the first timer; None if there is none."""
        timers = self.timers
        while timers and timers[0][2].is_cancelled:
            heappop(timers)
        return timers[0][0] if timers else None

    def run_turn(self) -> None:
        """Run the callbacks and timers that are due. Callbacks that they add wait for the next turn."""
        due, timers = self.due, self.timers
        until_s = self.time() + _RESOLUTION_S
        while timers and timers[0][0] < until_s:
            due.append(heappop(timers)[2])
        take, admit = due.popleft, self.admit
        for _ in range(len(due)):
            step = take()
            if step.is_cancelled or not admit(step):
                continue
            try:
                step.context.run(step.call, *step.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"failed: {step.call!r}", "exception": error})

    def admit(self, step: VirtualHandle) -> bool:
        """Return whether this callback runs now. A subclass may postpone it."""
        return True

    # --------------------------------------------------- what asyncio asks of a loop

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        step = VirtualHandle(0.0, callback, args, copy_context() if context is None else context)
        self.due.append(step)
        return step

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        when = self.time() + delay
        step = VirtualHandle(when, callback, args, copy_context() if context is None else context)
        self._timer_count += 1
        heappush(self.timers, (when, self._timer_count, step))
        return step

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        step = VirtualHandle(when, callback, args, copy_context() if context is None else context)
        self._timer_count += 1
        heappush(self.timers, (when, self._timer_count, step))
        return step

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("there are no threads under virtual time; pass in a function that needs none")


class VirtualClock:
    """A host's clocks with the time of a loop, in integer milliseconds. All change at one moment.

    Args:
        wall_origin_ms: the time of the wall clock at second 0 of the loop.
        boot_ms: the time of the monotonic clock at second 0 of the loop.
        rate: how fast the clocks run; 1.001 gains a millisecond a second.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        wall_origin_ms: int = WALL_ORIGIN_MS,
        boot_ms: int = 0,
        rate: float = 1.0,
    ) -> None:
        self._loop = loop
        self._wall_origin_ms = wall_origin_ms
        self._boot_ms = boot_ms
        self._rate = rate

    def monotonic_ms(self) -> int:
        return self._boot_ms + self._elapsed_ms()

    def suspend(self, passed_ms: int) -> None:
        """Let time pass since boot that the event loop does not see, as while a machine is suspended."""
        self._boot_ms += passed_ms

    def wall_ms(self) -> int:
        return self._wall_origin_ms + self._elapsed_ms()

    def stopwatch_s(self) -> float:
        return self._loop.time() * self._rate

    def _elapsed_ms(self) -> int:
        # The resolution is added so that a timer for millisecond n is never read as n - 1.
        return int((self._loop.time() + _RESOLUTION_S) * 1000 * self._rate)
