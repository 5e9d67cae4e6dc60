"""A host's event loop inside the test's loop, with a time that can be advanced.

Holds `HostLoop`. Always true: its turns are callbacks of the outer loop, so it never
blocks; its time is the outer loop's time plus what was advanced, and stops at every
timer on its way; its network is in memory. Knows nothing of queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar

from foqs.testing.memory_network import Listener, MemoryNetwork, ProtocolFactory
from foqs.testing.virtual_loop import VirtualHandle, VirtualLoop

T = TypeVar("T")

SINGLE_STEPS_MAX: Final = 10_000
"""An advance runs this number of timers one by one; afterwards it takes as many strides, each of which may fire several."""
IDLE_TURNS: Final = 20
"""Idle turns of the outer loop after which nothing more is expected from outside."""


class HostLoop(VirtualLoop):
    """A virtual loop that runs within another loop.

    Args:
        outer: the loop in whose turns it runs.
        network: the network in which `create_server` listens.
    """

    def __init__(self, outer: asyncio.AbstractEventLoop, network: MemoryNetwork) -> None:
        super().__init__()
        self._outer = outer
        self._network = network
        self._ahead_s = 0.0
        self._is_in_turn = False
        self._is_turn_scheduled = False
        self._wake_timer: asyncio.TimerHandle | None = None
        self._turns = 0

    # ------------------------------------------------------------ from outside

    async def run_to_completion(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine inside to its end. Time advances as far as the coroutine waits."""
        task = self.create_task(coro)
        while not task.done():
            await self.run_until_idle()
            next_s = self.next_timer_s()
            if not task.done() and next_s is not None:
                self.move_time(next_s)
        return task.result()

    async def advance(self, seconds: float) -> None:
        """Advance time, and run everything that is due on the way."""
        await self.run_until_idle()
        until = self.time() + seconds
        moments, stride_s = 0, 0.0
        while (next_s := self.next_timer_s()) is not None and next_s <= until:
            moments += 1
            if moments == SINGLE_STEPS_MAX:
                stride_s = (until - self.time()) / SINGLE_STEPS_MAX
            carried = self._network.carried
            self.move_time(min(until, max(next_s, self.time() + stride_s)))
            while self._is_turn_scheduled:  # noqa: ASYNC110 - turns of another loop
                await asyncio.sleep(0)
            if self._network.carried != carried:
                await self.run_until_idle()
        self.move_time(until)
        await self.run_until_idle()

    async def run_until_idle(self) -> None:
        """Wait until nothing more happens inside, or between inside and outside."""
        idle = 0
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

    def time(self) -> float:
        """Return the outer loop's time plus what was advanced. It stands still during a turn."""
        if not self._is_in_turn:
            self._follow_outer()
        return super().time()

    def move_time(self, time_s: float) -> None:
        self._ahead_s = max(self._ahead_s, time_s - self._outer.time())
        self._schedule_turn()

    def _follow_outer(self) -> None:
        super().move_time(self._outer.time() + self._ahead_s)

    # --------------------------------------------------------------- the turns

    def _schedule_turn(self) -> None:
        if not self._is_turn_scheduled and not self.is_closed():
            self._is_turn_scheduled = True
            self._outer.call_soon(self._run_inside)

    def _run_inside(self) -> None:
        """Run a turn as a part of the outer loop's turn."""
        if self.is_closed():
            return
        self._turns += 1
        self._follow_outer()
        self._is_in_turn = True
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            self.run_turn()
        finally:
            asyncio._set_running_loop(running)
            self._is_in_turn = self._is_turn_scheduled = False
            self._schedule_next_turn()

    def _schedule_next_turn(self) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        if self.due:
            self._schedule_turn()
        elif (next_s := self.next_timer_s()) is not None:
            self._wake_timer = self._outer.call_later(max(0.0, next_s - self.time()), self._schedule_turn)

    # ------------------------------------------------ what asyncio asks of a loop

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        self._schedule_turn()
        return super().call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        self._schedule_turn()
        return super().call_later(delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> VirtualHandle:
        self._schedule_turn()
        return super().call_at(when, callback, *args, context=context)

    async def create_server(  # type: ignore[override]
        self, protocol_factory: ProtocolFactory, host: str, port: int, *, start_serving: bool = True, **options: Any
    ) -> Listener:
        """Accept connections from outside, without a port of the machine. Return the listener.

        Raises ValueError if TLS is asked for.
        """
        if options.get("ssl") is not None:
            raise ValueError("a fake host has no network that TLS could protect; omit it from the options")
        return await self._network.listen(host, port, protocol_factory)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("there are no threads in a fake host; use the store in memory, `store.url` = memory:")
