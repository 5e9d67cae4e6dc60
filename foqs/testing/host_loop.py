"""A host's event loop inside the test's loop, with a time that can be advanced and a network in memory.

Holds `HostLoop` and `HostClock`. Always true: it never blocks and uses no thread or
socket; its callbacks run in turns of the outer loop; its time is the outer loop's time
plus what was advanced, and stops at every timer on its way. Knows nothing of queues.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar

from foqs.testing.memory_network import MemoryListener, ProtocolFactory, connect

T = TypeVar("T")

SINGLE_STEPS_MAX: Final = 10_000
"""An advance runs this number of timers one by one; afterwards it takes as many strides, each of which may fire several."""
IDLE_TURNS: Final = 20
"""Idle turns of the outer loop after which nothing more is expected from outside."""

_RESOLUTION_S: Final = 1e-6
"""Timers this close together fire together; a float still resolves it after centuries."""


class _NoSelector:
    """Replaces the wait for I/O, as there is none."""

    def select(self, timeout: float | None) -> list[object]:
        return []


class HostLoop(BaseEventLoop):
    """An event loop that runs within another one.

    asyncio's own `_run_once` is used, so that callbacks run in the order of a real
    loop; only the selector and the clock are replaced (private names, the same from
    3.11 to 3.14).
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, outer: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._outer = outer
        self._ahead_s = 0.0
        self._clock_resolution = _RESOLUTION_S
        self._selector = _NoSelector()
        self._is_turn_scheduled = False
        self._wake_timer: asyncio.TimerHandle | None = None
        self._turns = 0
        self._has_called_outer = False
        """Whether the outer loop was called since its last turns."""
        self._listeners: dict[tuple[str, int], MemoryListener] = {}

    def time(self) -> float:
        return self._outer.time() + self._ahead_s

    # ------------------------------------------------------------ from outside

    async def run_to_completion(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine inside to its end; advance time to whatever it waits for."""
        task = self.create_task(coro)
        while not task.done():
            await self.run_until_idle()
            if not task.done() and self._scheduled:
                self._move_time(self._scheduled[0].when())
        return task.result()

    async def advance(self, seconds: float) -> None:
        """Advance time, and run everything that is due on the way."""
        await self.run_until_idle()
        until = self.time() + seconds
        moments, stride_s = 0, 0.0
        while self._scheduled and self._scheduled[0].when() <= until:
            moments += 1
            if moments == SINGLE_STEPS_MAX:
                stride_s = (until - self.time()) / SINGLE_STEPS_MAX
            self._move_time(min(until, max(self._scheduled[0].when(), self.time() + stride_s)))
            while self._is_turn_scheduled:  # noqa: ASYNC110 - turns of another loop
                await asyncio.sleep(0)
            if self._has_called_outer:
                await self.run_until_idle()
        self._move_time(until)
        await self.run_until_idle()

    async def run_until_idle(self) -> None:
        """Wait until nothing more happens inside, or between inside and outside."""
        idle, self._has_called_outer = 0, False
        while idle < IDLE_TURNS:
            turns = self._turns
            await asyncio.sleep(0)
            idle = 0 if self._turns != turns or self._is_turn_scheduled else idle + 1

    async def finish(self) -> None:
        """Cancel the remaining tasks and close the loop."""
        left = asyncio.all_tasks(self)
        for task in left:
            task.cancel()
        await self.run_until_idle()
        if self._wake_timer is not None:
            self._wake_timer.cancel()
        self.close()

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Connect to the listener on this port inside, as the outer loop's `create_connection`."""
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
        return connect(self._call_outer, factory, self.call_soon, listener)

    def _call_outer(self, callback: Callable[[], object]) -> None:
        self._has_called_outer = True
        self._outer.call_soon(callback)

    def _move_time(self, time_s: float) -> None:
        self._ahead_s = max(self._ahead_s, time_s - self._outer.time())
        self._schedule_turn()

    # --------------------------------------------------------------- the turns

    def _schedule_turn(self) -> None:
        if not self._is_turn_scheduled and not self.is_closed():
            self._is_turn_scheduled = True
            self._outer.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        if self.is_closed():
            return
        self._turns += 1
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            self._run_once()  # type: ignore[attr-defined]
        finally:
            asyncio._set_running_loop(running)
            self._is_turn_scheduled = False
            self._schedule_next_turn()

    def _schedule_next_turn(self) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        if self._ready:
            self._schedule_turn()
        elif self._scheduled:
            self._wake_timer = self._outer.call_at(self._scheduled[0].when() - self._ahead_s, self._schedule_turn)

    # ------------------------------------------------ what asyncio asks of a loop

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = super().call_soon(callback, *args, context=context)
        self._schedule_turn()
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._schedule_turn()
        return handle

    async def create_server(  # type: ignore[override]
        self, protocol_factory: ProtocolFactory, host: str, port: int, *, start_serving: bool = True, **options: Any
    ) -> MemoryListener:
        """Accept connections from outside, without a port of the machine."""
        if options.get("ssl") is not None:
            raise ValueError("a fake host has no network that TLS could protect; omit it from the options")
        if (host, port) in self._listeners:
            raise OSError(f"{host}:{port} is in use")
        listener = MemoryListener(protocol_factory, host, port, lambda: self._listeners.pop((host, port), None))
        self._listeners[host, port] = listener
        return listener

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("there are no threads in a fake host")

    def _process_events(self, event_list: list[object]) -> None:
        """There is no I/O."""


class HostClock:
    """A host's clocks with its loop's time; the wall clock is the machine's time plus what was advanced.

    Both change to the next millisecond together, so that a shard clock has no difference to slew.
    """

    def __init__(self, loop: HostLoop) -> None:
        self._loop = loop
        self._wall_origin_ms = time.time_ns() // 1_000_000 - self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int((self._loop.time() + _RESOLUTION_S) * 1_000)

    def wall_ms(self) -> int:
        return self._wall_origin_ms + self.monotonic_ms()

    def stopwatch_s(self) -> float:
        return self._loop.time()
