"""Handlers for topics, and running them all: what `foqs worker module:app` runs.

Holds `Worker`. Always true: a topic is one handler's, the first that was
registered for it; SIGTERM and Ctrl-C stop it in order, a second one at once.
Knows nothing of how items are taken.
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
from foqs_client.consumer.consumer_counts import Counts
from foqs_client.consumer.handler_runners import Handler
from foqs_client.errors import InvalidArgument

H = TypeVar("H", bound=Handler)

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True, frozen=True)
class Task:
    """A handler, its topics, and the other arguments of its `Consumer`."""

    handler: Handler
    topics: Sequence[str]
    options: Mapping[str, Any]


class Worker:
    """A registry of handlers.

    Args:
        options: of every `Consumer`, as far as a task does not say otherwise.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.tasks: list[Task] = []

    def task(self, *topics: str, **options: Any) -> Callable[[H], H]:
        """Decorates the handler of some topics and patterns; `options` are those of `Consumer`. The function stays as it is."""

        def register(handler: H) -> H:
            self.add(handler, *topics, **options)
            return handler

        return register

    def add(self, handler: Handler, *topics: str, **options: Any) -> None:
        """Registers the handler of some topics and patterns. Raises InvalidArgument where there is none."""
        if not topics or not all(isinstance(topic, str) for topic in topics):
            raise InvalidArgument('name the topics: @worker.task("mail", "sms.*"); "*" is all', field="topics")
        self.tasks.append(Task(handler, topics, options))

    def consumers(self, client: Client, **options: Any) -> list[Consumer]:
        """One for each task; `options` come before those of the tasks. Raises InvalidArgument."""
        if not self.tasks:
            raise InvalidArgument("this worker has no task; decorate a function with @worker.task(...)", field="tasks")
        made: list[Consumer] = []
        before: list[str] = []
        for task in self.tasks:
            chosen = {**self._options, **task.options, **options}
            made.append(Consumer(client, task.handler, task.topics, others=before, **chosen))
            before += task.topics
        return made

    def run(
        self, url: str = "foqs://127.0.0.1:7411", *, options: Mapping[str, Any] | None = None, **client: Any
    ) -> Counts:
        """Works until SIGTERM or Ctrl-C, and blocks; of the main thread only.

        Args:
            options: of every `Consumer`, before those of the tasks.
            client: the other arguments of `Client`: `namespace`, `token_file` and so on.
        """

        async def whole() -> Counts:
            async with Client(url, **client) as opened:
                return await run_all(self.consumers(opened, **(options or {})))

        return asyncio.run(whole())


async def run_all(consumers: Sequence[Consumer], *, signals: bool = True) -> Counts:
    """Runs consumers until they are stopped, by SIGTERM or Ctrl-C where `signals` says so. Raises what one of them does."""
    loop = asyncio.get_running_loop()
    asked = False

    def told() -> None:
        nonlocal asked
        for consumer in consumers:
            (consumer.abort if asked else consumer.stop)()
        asked = True

    if signals:
        for number in SIGNALS:
            loop.add_signal_handler(number, told)
    try:
        counts = await _run_until_one_fails([consumer.run() for consumer in consumers], consumers)
    finally:
        if signals:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
    return sum(counts, Counts())


async def _run_until_one_fails(runs: Sequence[Awaitable[Counts]], consumers: Sequence[Consumer]) -> list[Counts]:
    """One that fails stops the others; they end in order before it is told."""
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
