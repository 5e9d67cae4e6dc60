"""The command that runs handlers: `foqs worker module:app`.

Always true: before the first dequeue the program is imported, a host has answered
and the namespace exists, or one sentence says what failed; messages and the log are
written to standard error, the final counts to standard output. Knows nothing of
how consumers dequeue.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from foqs.cli.host_session import USAGE, CommandFailed, HostSession, host_call_options
from foqs.cli.output import show_fields
from foqs.cli.values import DURATION

if TYPE_CHECKING:
    from foqs_client import Client
    from foqs_client.consumer import Consumer, Counts, Worker

log: Final = logging.getLogger("foqs.worker")


def _refuse_drain_timeout(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError("The option --drain-timeout is now called --stop-timeout.")


@click.command(
    epilog="\b\nExamples:\n  foqs worker shop.jobs:worker\n  foqs worker shop.jobs:send --topic mail --topic 'sms.*' --concurrency 50\n"
    "  foqs worker shop.jobs:resize --prefix images. --processes 4"
)
@click.argument("app", metavar="MODULE:APP")
@click.option("--topic", "topics", multiple=True, help="For a function: a topic, or a pattern such as 'sms.*'.")
@click.option("--prefix", "prefixes", multiple=True, help="For a function: all topics with this prefix.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=None, help="Handlers that run at the same time.  [default: 10]"
)
@click.option(
    "--in-flight",
    type=click.IntRange(1),
    default=None,
    help="Items that run or wait for a handler.  [default: the concurrency, so none waits]",
)
@click.option(
    "--processes",
    type=click.IntRange(0),
    default=None,
    help="Worker processes, for functions that need much CPU.",
)
@click.option(
    "--group-leases-max",
    type=click.IntRange(1),
    default=None,
    help="The most leased items of a group that the handler is made for; the policies must allow no more.",
)
@click.option("--lease", type=DURATION, default=None, help="Overrides the leases of the items.")
@click.option(
    "--stop-timeout",
    type=DURATION,
    default=None,
    help="How long a stop waits for running handlers.  [default: 30s]",
)
@click.option("--drain-timeout", hidden=True, expose_value=False, callback=_refuse_drain_timeout)
@click.option(
    "--progress", type=DURATION, default="10s", show_default=True, help="How often counts are logged; 0: never."
)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info")
@host_call_options
def worker(
    session: HostSession,
    app: str,
    topics: Sequence[str],
    prefixes: Sequence[str],
    progress: int,
    log_level: str,
    **options: Any,
) -> None:
    """Dequeue items and run handlers for them until SIGTERM, SIGHUP or Ctrl-C.

    APP is a Worker with tasks, or a function of a Job for the topics given here. MODULE is imported from the working
    directory.

    A stop dequeues nothing more, releases items that no handler works on, and waits for running handlers. A second
    signal ends at once.
    """
    from foqs.telemetry import logs

    logs.setup_logging(log_level, "auto" if session.output_format == "table" else "json", sys.stderr)
    found = _worker_of(_import_app(app), app, topics, prefixes)
    chosen = {name: value for name, value in options.items() if value is not None}
    if "lease" in chosen:
        chosen["lease_ms"] = chosen.pop("lease")
    if "stop_timeout" in chosen:
        chosen["stop_timeout_s"] = chosen.pop("stop_timeout") / 1_000

    async def work(client: Client) -> Counts:
        # A permanent error ends the command before the first dequeue.
        await client.topics(limit=1)
        return await _run_consumers(found.consumers(client, **chosen), progress / 1_000)

    from foqs_client.consumer import CannotStart

    try:
        counts = session.run(work, runner=_run_with_uvloop)
    except CannotStart as error:
        raise CommandFailed(f"No worker process can be started: {error}.") from None
    if sys.stdout is None:  # a service needs no output
        return
    show_fields(
        {name: value for name, value in asdict(counts).items() if name not in ("running", "waiting")},
        session.output_format,
    )


async def _run_consumers(consumers: Sequence[Consumer], progress_s: float) -> Counts:
    from foqs_client.consumer import run_all

    reporting = asyncio.ensure_future(_log_progress(consumers, progress_s))
    log.info("working; SIGTERM, SIGHUP or Ctrl-C stops the worker")
    try:
        counts = await run_all(consumers)
    finally:
        reporting.cancel()
    if any(consumer.aborted for consumer in consumers):
        raise CommandFailed(
            "Stopped at once by a second signal; the items in flight are delivered again when their leases end."
        )
    return counts


async def _log_progress(consumers: Sequence[Consumer], every_s: float) -> None:
    """Log the counts if they changed."""
    from foqs_client.consumer import Counts

    before = Counts()
    while every_s:
        await asyncio.sleep(every_s)
        now = sum((consumer.counts for consumer in consumers), Counts())
        if now != before:
            log.info("progress", extra=asdict(now))
        before = now


def _run_with_uvloop(main: Any) -> Any:
    """Run a coroutine on uvloop."""
    import uvloop

    return uvloop.run(main)


def _import_app(app: str) -> Any:
    """Import the object that `module:name` names. Raises CommandFailed."""
    module, colon, name = app.partition(":")
    if not (module and colon and name):
        raise click.UsageError(f"{app!r} is not MODULE:APP, such as shop.jobs:worker.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise CommandFailed(f"{module} cannot be imported: {error}.", USAGE) from None
        raise CommandFailed(
            f"There is no module {module!r} in {here} or among the installed ones; run this where it can be imported.",
            USAGE,
        ) from None
    except Exception as error:
        log.debug("%s cannot be imported", module, exc_info=error)
        raise CommandFailed(
            f"{module} cannot be imported: {type(error).__name__}: {error} (--log-level debug shows where).", USAGE
        ) from None
    try:
        return attrgetter(name)(found)
    except AttributeError:
        raise CommandFailed(f"The module {module} has no {name!r}; {_describe_workers_in(found)}", USAGE) from None


def _describe_workers_in(module: Any) -> str:
    """Return a sentence about the workers of the module."""
    from foqs_client.consumer import Worker

    names = [name for name, value in vars(module).items() if isinstance(value, Worker)]
    return f"it has {', '.join(names)}." if names else "give it a Worker, or name a function of it."


def _worker_of(found: Any, app: str, topics: Sequence[str], prefixes: Sequence[str]) -> Worker:
    """Return the worker to run. Raises UsageError, CommandFailed."""
    from foqs_client.consumer import Worker, prefix_pattern

    named = [*topics, *(prefix_pattern(prefix) for prefix in prefixes)]
    if isinstance(found, Worker):
        if named:
            raise click.UsageError("The tasks of a Worker name their topics; omit --topic and --prefix.")
        if not found.tasks:
            raise CommandFailed(
                f"{app} has no task; decorate a function with @{app.partition(':')[2]}.task(...).", USAGE
            )
        return found
    if not callable(found):
        raise CommandFailed(f"{app} is neither a Worker nor a function, but {type(found).__name__}.", USAGE)
    if not named:
        raise click.UsageError("Name the topics of a function with --topic or --prefix; --topic '*' is all.")
    worker = Worker()
    worker.add(found, *named)
    return worker
