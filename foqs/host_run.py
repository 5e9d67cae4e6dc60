"""The process of a host: its signals, its lock files, its exit code.

Holds `run_host`. Always true: it returns only after the host has stopped, in order, or
was never started. Knows nothing of the parts of a host.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any, Final

import uvloop

from foqs.catalog.port import CatalogError
from foqs.host import ComposedHost, StopRequested
from foqs.host_constants import HOST_CONSTANTS, HostConstants
from foqs.options.config import Config
from foqs.runtime.garbage_collection import GarbageCollection
from foqs.shard.supervisor import ShardTakenOver
from foqs.store.port import StoreUnusable
from foqs.surroundings import Surroundings
from shardmgr.process_lock import reserved
from shardmgr.registry.port import RegistryError

log = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S: Final = 2.0
"""A host that has stopped ends after this time even if its event loop does not close."""
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_host(
    config: Config, on_ready: Callable[[Config], None] | None = None, constants: HostConstants = HOST_CONSTANTS
) -> int:
    """Run one host until SIGTERM or SIGINT, and return its exit code.

    Args:
        on_ready: called once, when every shard is served, with the configuration
            and its actual ports (a port 0 is replaced).

    Raises:
        NotReserved: another host uses its files.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(serve(config, on_ready, constants))
        # Everything has stopped and is written. A look-up of a name cannot be cancelled, though, and closing the loop
        # waits until the resolver gives up, which may take longer than a supervisor waits before it kills.
        watchdog = threading.Timer(_CLOSE_TIMEOUT_S, os._exit, [code])
        watchdog.daemon = True
        watchdog.start()
    watchdog.cancel()
    return code


async def serve(
    config: Config, on_ready: Callable[[Config], None] | None = None, constants: HostConstants = HOST_CONSTANTS
) -> int:
    """Run one host in the current event loop; see `run_host`."""
    with contextlib.ExitStack() as reservations:
        for lock_file, what in config.lock_files.items():
            reservations.enter_context(reserved(lock_file, what))
        return await _run(ComposedHost(config, Surroundings.of(config), constants), on_ready)


async def _run(host: ComposedHost, on_ready: Callable[[Config], None] | None) -> int:
    """Serve until a signal (returns 0) or a failure (returns 1) stops the host."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, host.stop_requested.set)
    try:
        listening = await host.start()
    except StopRequested:
        await host.abandon()
        log.info("the host stopped before any shard was served")
        return 0
    except (CatalogError, RegistryError) as error:
        await host.abandon()
        log.error("%s", error)  # noqa: TRY400 - the text is enough
        return 1
    garbage = GarbageCollection(loop)
    garbage.start()
    stopping: asyncio.Future[Any] = asyncio.ensure_future(host.stop_requested.wait())
    announcing = asyncio.ensure_future(_notify_ready(host, listening, on_ready))
    try:
        await asyncio.wait((stopping, *host.working), return_when=asyncio.FIRST_COMPLETED)
        ended = [work for work in host.working if work.done()]
        return _exit_code(ended[0]) if ended else 0
    finally:
        announcing.cancel()
        stopping.cancel()
        await host.stop()
        garbage.stop()
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


async def _notify_ready(host: ComposedHost, listening: Config, on_ready: Callable[[Config], None] | None) -> None:
    await host.became_ready.wait()
    log.info("every shard is served")
    if on_ready is not None:
        on_ready(listening)


def _exit_code(ended: asyncio.Future[None]) -> int:
    error = ended.exception()
    if isinstance(error, ShardTakenOver | StoreUnusable):
        log.error("%s", error)
    elif error is not None:
        log.error("the host stops, because a part of it failed with an unexpected error", exc_info=error)
    return 1
