"""Runs a relay until a signal.

Always true: the first signal stops the relay in order, a second one at once. Under `nohup`, SIGHUP does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final

from foqs_client.outbox.relay_loop import Relay

log: Final = logging.getLogger("foqs.relay")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_AT_ONCE: Final = "Stopped at once by a second signal; the next relay sends the rows without a reply again."


async def run_until_signal(relay: Relay, database: str) -> None:
    """Run a relay of this database, when host and database have answered. A second signal ends the process with exit code 1.

    Raises what the relay raises.
    """
    loop = asyncio.get_running_loop()
    is_stopping = False

    def on_signal() -> None:
        nonlocal is_stopping
        if is_stopping:  # without waiting for a statement that runs in its thread: nothing in memory is needed
            print(_AT_ONCE, file=sys.stderr, flush=True)  # noqa: T201 - for a person
            os._exit(1)
        is_stopping = True
        relay.stop()

    heeded = [each for each in _SIGNALS if not (each == signal.SIGHUP and signal.getsignal(each) is signal.SIG_IGN)]
    for each in heeded:
        loop.add_signal_handler(each, on_signal)
    try:
        await relay.wait_for_start()
        log.info("relaying; SIGTERM, SIGHUP or Ctrl-C stops the relay", extra={"database": database})
        await relay.run()
    finally:
        for each in heeded:
            loop.remove_signal_handler(each)


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
