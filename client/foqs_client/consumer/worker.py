"""A registry of handlers by topic, which `foqs worker module:app` runs.

Holds `Worker`. Always true: a topic belongs to the first handler that was
registered for it. SIGTERM, SIGHUP and Ctrl-C stop the worker in order; a second signal
stops it at once. Knows nothing of how items are dequeued.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from foqs_client.client import Client
from foqs_client.consumer.consumer import Consumer
from foqs_client.consumer.handler_outcome import Counts
from foqs_client.consumer.handler_runners import Handler
from foqs_client.errors import InvalidArgument

H = TypeVar("H", bound=Handler)

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(slots=True, frozen=True)
class Task:
    """A handler, its topics, and the options of its `Consumer`."""

    handler: Handler
    topics: Sequence[str]
    options: Mapping[str, Any]


class Worker:
    """A registry of handlers by topic.

    Example: `@worker.task("mail.*", concurrency=20)` above `async def send(job: Job) -> None:`

    Args:
        options: the options of every `Consumer`, unless a task sets its own.

    Attributes:
        tasks: the registered handlers, with their topics and options.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.tasks: list[Task] = []

    def task(self, *topics: str, **options: Any) -> Callable[[H], H]:
        """Return a decorator that registers a handler and returns it unchanged.

        Args:
            topics: topics and patterns, such as `mail.*`.
            options: options of the task's `Consumer`.

        Raises:
            InvalidArgument: there is no topic.
        """

        def register(handler: H) -> H:
            self.add(handler, *topics, **options)
            return handler

        return register

    def add(self, handler: Handler, *topics: str, **options: Any) -> None:
        """Register a handler. Arguments and errors are those of `task`."""
        if not topics or not all(isinstance(topic, str) for topic in topics):
            raise InvalidArgument('name the topics: @worker.task("mail", "sms.*"); "*" is all', field="topics")
        self.tasks.append(Task(handler, topics, options))

    def consumers(self, client: Client, **options: Any) -> list[Consumer]:
        """Return one `Consumer` for each task; `options` override the options of the tasks.

        Raises:
            InvalidArgument: there is no task, or an option is wrong.
        """
        if not self.tasks:
            raise InvalidArgument("this worker has no task; decorate a function with @worker.task(...)", field="tasks")
        consumers: list[Consumer] = []
        earlier_topics: list[str] = []
        for task in self.tasks:
            merged = {**self._options, **task.options, **options}
            consumers.append(Consumer(client, task.handler, task.topics, others=earlier_topics, **merged))
            earlier_topics += task.topics
        return consumers

    def run(
        self, url: str = "foqs://127.0.0.1:7411", *, options: Mapping[str, Any] | None = None, **client: Any
    ) -> Counts:
        """Run all handlers until SIGTERM, SIGHUP or Ctrl-C, and return the counts. Call it from the main thread; it blocks.

        Args:
            url: the addresses of the hosts.
            options: options of every `Consumer`. They override the options of the tasks.
            client: the other arguments of `Client`, such as `namespace` and `token_file`.
        """

        async def main() -> Counts:
            async with Client(url, **client) as opened:
                return await run_all(self.consumers(opened, **(options or {})))

        return asyncio.run(main())


async def run_all(consumers: Sequence[Consumer], *, signals: bool = True) -> Counts:
    """Run consumers until they are stopped, and return the sum of their counts.

    If one fails, the others are stopped in order, and its error is raised.

    Args:
        consumers: the consumers to run.
        signals: SIGTERM, SIGHUP and Ctrl-C stop them. A second signal aborts them. Under `nohup`, SIGHUP does nothing.
    """
    loop = asyncio.get_running_loop()
    is_stopping = False

    def on_signal() -> None:
        nonlocal is_stopping
        for consumer in consumers:
            (consumer.abort if is_stopping else consumer.stop)()
        is_stopping = True

    handled = [number for number in SIGNALS if not _is_ignored_hangup(number)] if signals else []
    for number in handled:
        loop.add_signal_handler(number, on_signal)
    try:
        counts = await _run_until_one_fails([consumer.run() for consumer in consumers], consumers)
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
    return sum(counts, Counts())


def _is_ignored_hangup(number: signal.Signals) -> bool:
    """Return whether this is SIGHUP and `nohup`, or the parent, has made this process ignore it."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


async def _run_until_one_fails(runs: Sequence[Awaitable[Counts]], consumers: Sequence[Consumer]) -> list[Counts]:
    """Wait for all runs. If one fails, stop the others in order before its error is raised."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for consumer in consumers:
            consumer.stop()
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]
