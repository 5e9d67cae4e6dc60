"""The process of a relay: its queue, its database, its signals, what it logs and what it serves over HTTP.

Always true: the first signal stops the relay in order, a second one at once. Knows nothing of how rows are relayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from foqs.cli.host_session import ERROR, UNREACHABLE, CommandFailed, HostSession
from foqs.cli.output import show_fields
from foqs.telemetry import logs
from foqs_client.inbox.inbox_pruner import InboxPruner
from foqs_client.outbox.outbox_connection import OutboxConnection, TablesUnavailable
from foqs_client.outbox.outbox_sql import Dialect, outbox_table
from foqs_client.outbox.postgres_wakeups import listen_for_wakeups
from foqs_client.outbox.relay_loop import Relay
from foqs_client.outbox.relay_pauses import DEFAULT_PAUSES
from foqs_client.outbox.relay_queue import ClientQueue
from foqs_client.outbox.relay_tables import RelayTables
from foqs_client.outbox.until_signal import run_until_signal, running
from foqs_client.outbox.user_databases import UserDatabase

if TYPE_CHECKING:
    from foqs_client import Client

log: Final = logging.getLogger("foqs.relay")

_ROW_COUNTS: Final = ("sent_rows", "parked_rows", "refused_rows")


def run_relay(
    session: HostSession,
    database: UserDatabase,
    prefix: str,
    *,
    http_port: int | None,
    http_host: str,
    stop_timeout: int,
    progress: int,
    log_level: str,
    prunes_inbox: bool,
    inbox_keep: int,
) -> None:
    """Relay until a signal, and show the counts. Raises CommandFailed."""
    logs.setup_logging(log_level, "auto" if session.output_format == "table" else "json", sys.stderr)
    tables = OutboxConnection(database.connect, database.dialect, prefix)

    async def work(client: Client) -> Relay:
        relay = Relay(
            RelayTables(tables, uuid.uuid4().hex),
            ClientQueue(client),
            replace(DEFAULT_PAUSES, stop_s=stop_timeout / 1_000),
        )
        pruner = _pruner(relay, client, database, prefix, inbox_keep // 1_000) if prunes_inbox else None
        async with contextlib.AsyncExitStack() as beside:
            if pruner is not None:
                await beside.enter_async_context(running(pruner.run()))
            if http_port is not None:
                await beside.enter_async_context(_served(relay, pruner, http_host, http_port))
            if database.dialect is Dialect.POSTGRES:
                wakeups = listen_for_wakeups(database.connect, outbox_table(prefix), relay.wake)
                await beside.enter_async_context(running(wakeups))
            await beside.enter_async_context(running(_log_progress(relay, progress / 1_000)))
            await _run_until_signal(relay, database.name)
        return relay

    try:
        relay = session.run(work, runner=_run_with_uvloop)
    except TablesUnavailable as error:
        raise CommandFailed(unreadable(database.name, error), UNREACHABLE) from None
    if sys.stdout is not None:  # a service needs no output
        show_fields(_counts(relay), session.output_format)


def unreadable(name: str, error: Exception) -> str:
    """Return the sentence about an outbox that cannot be read."""
    return f"The outbox in {name} cannot be read: {error}. If it has no tables yet: foqs relay tables --create"


def _run_with_uvloop(main: Any) -> Any:
    import uvloop

    return uvloop.run(main)


async def _run_until_signal(relay: Relay, database: str) -> None:
    """Run a relay. Raises CommandFailed."""
    try:
        await run_until_signal(relay, database)
    except ValueError as error:  # not of the command line: a service must start it again
        log.exception("the relay failed")
        raise CommandFailed(f"The relay failed: {type(error).__name__}: {error}", ERROR) from None


@contextlib.asynccontextmanager
async def _served(relay: Relay, pruner: InboxPruner | None, host: str, port: int) -> AsyncIterator[None]:
    """Serve the relay's metrics and whether it is ready."""
    from foqs.telemetry.http_server import HttpServer
    from foqs.telemetry.relay_metrics import RelayMetrics

    server = HttpServer(RelayMetrics(lambda: _samples(relay, pruner)), lambda: relay.problems)
    try:
        listening = await server.start(host, port)
    except OSError as error:
        raise CommandFailed(
            f"{host}:{port} cannot be used: {error.strerror}; give another --http-port.", ERROR
        ) from None
    log.info("listening", extra={"http": f"http://{host}:{listening}"})
    try:
        yield
    finally:
        await server.stop()


def _counts(relay: Relay) -> dict[str, int]:
    return {name: getattr(relay, name) for name in (*_ROW_COUNTS, "rounds", "sweeps")}


def _pruner(relay: Relay, client: Client, database: UserDatabase, prefix: str, keep_s: int) -> InboxPruner:
    """Return what prunes the inbox. Raises InvalidArgument."""
    tables = OutboxConnection(database.connect, database.dialect, prefix)
    return InboxPruner(tables, client, lambda: relay.is_owner, keep_s)


def _samples(relay: Relay, pruner: InboxPruner | None) -> dict[str, float]:
    """Return the values of `RELAY_METRICS`. Those of the outbox are the owner's."""
    counts = {f"foqs_relay_{name}": float(value) for name, value in _counts(relay).items()}
    found = {**counts, "foqs_relay_owner": float(relay.is_owner)}
    if relay.figures is not None:
        found["foqs_relay_lag_rows"] = relay.figures.rows
        found["foqs_relay_lag_seconds"] = relay.lag_s
        found["foqs_relay_parked"] = relay.figures.parked
    if pruner is not None:
        found["foqs_relay_inbox_pruned_rows"] = pruner.pruned_rows
        found["foqs_relay_inbox_waiting_rows"] = pruner.waiting_rows
        found["foqs_relay_inbox_other_rows"] = pruner.other_rows
    return found


async def _log_progress(relay: Relay, every_s: float) -> None:
    """Log the counts if rows have moved; while the outbox is behind, also how long it will take."""
    before = _counts(relay)
    while every_s:
        await asyncio.sleep(every_s)
        now, figures = _counts(relay), relay.figures
        if any(now[name] != before[name] for name in _ROW_COUNTS):
            per_s = (now["sent_rows"] - before["sent_rows"]) / every_s
            more: dict[str, float] = {}
            if figures is not None and figures.rows and per_s:
                more = {
                    "rows_left": figures.rows,
                    "oldest_s": figures.oldest_ms // 1_000,
                    "left_s": round(figures.rows / per_s),
                }
            log.info("progress", extra={**now, "rows_per_s": round(per_s), **more})
        before = now
