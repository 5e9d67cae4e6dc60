"""Waits for conditions without a signal, of other processes or of this one.

Always true: `until` and `eventually` end, with success or an error that names the
condition; `soon` ends with the time limit of its test. `pass_ms` is for the clocks of
other processes, which a test cannot advance.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

PAUSE_S: Final = 0.02
TIMEOUT_S: Final = 120.0
"""A guard against hanging: a busy machine may need ten seconds to start a Python."""
_SOON_S: Final = 0.002


def until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S, pause_s: float = PAUSE_S) -> None:
    """Returns once `condition` holds, which is asked for again after each pause.

    Raises:
        TimeoutError: it did not within `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(pause_s)


async def eventually(condition: Callable[[], Awaitable[bool]], what: str, timeout_s: float = TIMEOUT_S) -> None:
    """Wait like `until`, in an event loop."""
    deadline = time.monotonic() + timeout_s
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        await asyncio.sleep(PAUSE_S)


async def soon(condition: Callable[[], bool]) -> None:
    """Returns once `condition` holds, of something in this very process that gives no signal."""
    while not condition():  # noqa: ASYNC110 - see above
        await asyncio.sleep(_SOON_S)


async def pass_ms(ms: int) -> None:
    """Return when this time has passed on every clock of this machine."""
    await asyncio.sleep(ms / 1_000 + 0.005)
