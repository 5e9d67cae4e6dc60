"""Runs a relay until a signal.

Always true: the first signal stops the relay in order, a second one at once. Under `nohup`, SIGHUP does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

from foqs_client.outbox.relay_loop import Relay

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


async def run_until_signal(relay: Relay) -> bool:
    """Run a relay. Return False if a second signal has stopped it at once. Raises what the relay raises."""
    loop, running = asyncio.get_running_loop(), asyncio.ensure_future(relay.run())
    is_stopping = False

    def on_signal() -> None:
        nonlocal is_stopping
        (running.cancel if is_stopping else relay.stop)()
        is_stopping = True

    heeded = [each for each in _SIGNALS if not (each == signal.SIGHUP and signal.getsignal(each) is signal.SIG_IGN)]
    for each in heeded:
        loop.add_signal_handler(each, on_signal)
    try:
        await running
    except asyncio.CancelledError:
        return False
    finally:
        for each in heeded:
            loop.remove_signal_handler(each)
    return True


@contextlib.asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run something beside a block, and cancel it at its end."""
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
