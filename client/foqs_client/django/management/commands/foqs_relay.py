"""`manage.py foqs_relay`: enqueues the committed rows of an outbox until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from argparse import ArgumentParser
from dataclasses import replace
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from foqs_client import Client, FoqsError
from foqs_client.django.backend import FoqsBackend
from foqs_client.django.command_backend import LastingCommand, add_backend_argument, named_backend
from foqs_client.django.driver_connections import connect, dialect_of, outbox_connection
from foqs_client.django.task_classes import task_backends
from foqs_client.inbox.inbox_pruner import InboxPruner
from foqs_client.outbox.outbox_connection import TablesUnavailable
from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX, Dialect, outbox_table
from foqs_client.outbox.postgres_wakeups import listen_for_wakeups
from foqs_client.outbox.relay_loop import Relay
from foqs_client.outbox.relay_pauses import DEFAULT_PAUSES
from foqs_client.outbox.relay_queue import ClientQueue
from foqs_client.outbox.relay_tables import RelayTables
from foqs_client.outbox.until_signal import run_until_signal, running


class Command(LastingCommand):
    """Relays the outbox of a backend's database."""

    help = (
        "Enqueue the tasks of committed transactions until SIGTERM, SIGHUP or Ctrl-C. One relay works on a database at a "
        "time; another one waits, and takes over when it dies."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add_backend_argument(parser)
        parser.add_argument(
            "--stop-timeout", type=float, default=30.0, help="How many seconds a stop waits for replies."
        )

    def handle(self, *, backend: str, stop_timeout: float, **_options: Any) -> None:
        """Run the relay. Raises CommandError."""
        found = named_backend(backend)
        try:
            asyncio.run(_relay(found, stop_timeout))
        except FoqsError as error:
            raise CommandError(f"{error.code}: {error.message}") from None
        except TablesUnavailable as error:
            raise CommandError(
                f"The outbox in the database {found.foqs.database!r} cannot be read: {error}. If it has no tables yet: "
                "manage.py migrate"
            ) from None


async def _relay(backend: FoqsBackend, stop_timeout_s: float) -> None:
    """Relay until a signal. Raises FoqsError, TablesUnavailable."""
    database = backend.foqs.database
    async with Client(backend.foqs.url, **backend.foqs.client) as client, contextlib.AsyncExitStack() as beside:
        relay = Relay(
            RelayTables(outbox_connection(database), uuid.uuid4().hex),
            ClientQueue(client),
            replace(DEFAULT_PAUSES, stop_s=stop_timeout_s),
        )
        if dialect_of(database) is Dialect.POSTGRES:
            wakeups = listen_for_wakeups(partial(connect, database), outbox_table(DEFAULT_PREFIX), relay.wake)
            await beside.enter_async_context(running(wakeups))
        if any(_has_inbox(each, database) for each in task_backends.all()):
            pruner = InboxPruner(outbox_connection(database), client, lambda: relay.is_owner)
            await beside.enter_async_context(running(pruner.run()))
        await run_until_signal(relay, database)


def _has_inbox(backend: Any, database: str) -> bool:
    """Return whether tasks of a backend write into the inbox of a database."""
    return isinstance(backend, FoqsBackend) and backend.foqs.atomic and backend.foqs.database == database
