"""An alarm clock with the precision of a microsecond, which an event loop's timers lack.

Holds `Alarm`. Knows nothing of what is timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import time
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm:
    """Wakes a task at a moment of the monotonic clock, more precisely than the milliseconds of an event loop's timers."""

    def __init__(self) -> None:
        self._file = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._loop.add_reader(self._file, self._rang)

    async def until(self, at_ns: int) -> None:
        if at_ns <= time.monotonic_ns():
            return
        self._waiting = self._loop.create_future()
        timer = struct.pack("qqqq", 0, 0, at_ns // 1_000_000_000, at_ns % 1_000_000_000)
        if _libc.timerfd_settime(self._file, 1, timer, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")
        await self._waiting

    def _rang(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
        waiting, self._waiting = self._waiting, None
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        os.close(self._file)
