"""`manage.py foqs_worker`: runs tasks until a signal.

Always true: a host has answered before the first task is taken, or one sentence says what failed.
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from foqs_client import Client, FoqsError
from foqs_client.consumer import CannotStart, Consumer, Counts, run_all
from foqs_client.consumer.handler_runners import Handler
from foqs_client.django.backend import FoqsBackend
from foqs_client.django.backend_options import check_limit
from foqs_client.django.command_backend import LastingCommand, add_backend_argument, named_backend
from foqs_client.django.task_runs import run_in_thread


class Command(LastingCommand):
    """Runs the tasks of a backend."""

    help = (
        "Run tasks until SIGTERM, SIGHUP or Ctrl-C. A stop takes nothing more and waits for running tasks; a second "
        "signal ends at once, and the tasks run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add_backend_argument(parser)
        parser.add_argument(
            "--queue", action="append", default=[], help="A queue to work on. May be repeated; all if left out."
        )
        parser.add_argument(
            "--concurrency", type=int, help="Tasks that run at a time. Replaces OPTIONS['concurrency']."
        )
        parser.add_argument("--stop-timeout", type=float, default=30.0, help="How many seconds a stop waits for tasks.")

    def handle(
        self, *, backend: str, queue: Sequence[str], concurrency: int | None, stop_timeout: float, **_options: Any
    ) -> None:
        """Run the worker. Raises CommandError."""
        try:
            found = named_backend(backend)
            unknown = sorted(set(queue) - found.queues) if found.queues else []
            if unknown:
                raise CommandError(
                    f"TASKS[{backend!r}] has no queue {unknown[0]!r}; it has: {', '.join(sorted(found.queues))}."
                )
            fault = check_limit("concurrency", concurrency)
            if fault is not None:
                raise CommandError(f"--concurrency {fault}.")
            counts = asyncio.run(_work(found, queue, concurrency or found.foqs.concurrency, stop_timeout))
        except CannotStart as error:
            raise CommandError(f"No process can be started: {error}.") from None
        except FoqsError as error:
            raise CommandError(f"{error.code}: {error.message}") from None
        ended = {name: count for name, count in asdict(counts).items() if count and name not in ("running", "waiting")}
        self.stdout.write(", ".join(f"{count} {name}" for name, count in ended.items()) or "no task")


async def _work(backend: FoqsBackend, queues: Sequence[str], concurrency: int, stop_timeout_s: float) -> Counts:
    foqs = backend.foqs
    async with Client(foqs.url, **foqs.client) as client:
        await client.topics(limit=1)  # a permanent error ends the command before the first dequeue
        consumer = Consumer(
            client,
            _process_handler() if foqs.processes else run_in_thread,
            backend.topics(queues),
            concurrency=concurrency,
            processes=foqs.processes,
            stop_timeout_s=stop_timeout_s,
        )
        counts = await run_all([consumer])
    if consumer.aborted:
        raise CommandError("Stopped at once by a second signal; the running tasks run again when their leases end.")
    return counts


def _process_handler() -> Handler:
    from foqs_client.django.process_handler import run_delivery  # its import sets Django up, as each process needs it

    return run_delivery
