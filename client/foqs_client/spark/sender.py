"""Sends the items of a task in parallel calls, and retries each until its time ends.

Holds `Sender`, and the client of a task. Always true: the number of calls in flight is
bounded, and so is memory. Items are retried only with the same keys. The first failure
ends the task; calls in flight are dropped, and the keys find their items again when
the task is repeated. A row that a host refuses is left to `RowErrors`. Knows nothing of
rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from foqs_client.client import Client
from foqs_client.errors import FoqsError, KeyConflict
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.job_client import make_client
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.row_errors import DeadLetter, RowErrors, refused_column
from foqs_client.types import Enqueued, Item
from foqs_contract.backoff import Backoff
from foqs_contract.plurals import counted

T = TypeVar("T")

NAMESPACES_MAX: Final = 64
"""Limit of the namespaces of a task. Each has its own client."""
BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 5.0


class EnqueueClient(Protocol):
    """The part of a `Client` that the sender uses."""

    async def enqueue(self, items: Sequence[Item], *, timeout_ms: int) -> list[Enqueued]: ...

    async def close(self) -> None: ...


class Sender:
    """Sends the items of one task.

    Args:
        open_client: makes the client of a namespace.
        calls_max: the maximum number of calls in flight.
        timeout_ms: how long an item is retried.
        rng: spreads the pauses.
        errors: decides on the treatment of items that a host refuses.

    Attributes:
        enqueued_count: the number of durable items, dead letters included.
        repeated_count: how many of these items an earlier attempt had enqueued.
    """

    def __init__(
        self,
        open_client: Callable[[str], EnqueueClient],
        calls_max: int,
        timeout_ms: int,
        rng: Random,
        errors: RowErrors,
    ) -> None:
        self.enqueued_count = 0
        self.repeated_count = 0
        self._open_client = open_client
        self._errors = errors
        self._clients: dict[str, EnqueueClient] = {}
        self._room = asyncio.Semaphore(calls_max)
        self._timeout_s = timeout_ms / 1_000
        self._backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, rng, (1.0, 1.25))
        self._calls: dict[asyncio.Task[None], None] = {}
        self._failure: BaseException | None = None
        """The error of the first call that failed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*(client.close() for client in self._clients.values()))

    async def submit(self, namespace: str, items: Sequence[Item]) -> None:
        """Start a call when there is room for it. Every item has a key. Raises the error of an earlier call."""
        client = self._client(namespace)
        await self._room.acquire()
        if self._failure is not None:
            self._room.release()
            raise self._failure
        call = asyncio.ensure_future(self._send(client, namespace, items))
        self._calls[call] = None
        call.add_done_callback(self._on_call_ended)

    async def call(self, namespace: str, attempt: Callable[[Any, int], Awaitable[T]]) -> T:
        """Make a call that may be repeated, retry it until its time ends, and return its result.

        Args:
            namespace: the namespace of the client.
            attempt: called with a client and the milliseconds that are left. Raises FoqsError.

        Raises:
            FoqsError: a later attempt cannot succeed, or the time ended.
        """
        client = self._client(namespace)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        attempts = 0
        while True:
            try:
                return await attempt(client, max(1, int((deadline - loop.time()) * 1_000)))
            except FoqsError as error:
                wait_s = self._backoff.pause_s(attempts, error.retry_after_ms or 0)
                if not error.may_succeed_later or loop.time() + wait_s >= deadline:
                    raise
            attempts += 1
            await asyncio.sleep(wait_s)

    async def wait_all_enqueued(self) -> None:
        """Wait until every item is durable. Raises the error of the first call that failed."""
        while self._calls and self._failure is None:
            await asyncio.wait(list(self._calls), return_when=asyncio.FIRST_COMPLETED)
        if self._failure is not None:
            raise self._failure

    def _client(self, namespace: str) -> EnqueueClient:
        client = self._clients.get(namespace)
        if client is None:
            if len(self._clients) >= NAMESPACES_MAX:
                raise SinkError(
                    f"a partition has rows of more than {NAMESPACES_MAX} namespaces; repartition the frame by namespace"
                )
            client = self._clients[namespace] = self._open_client(namespace)
        return client

    def _on_call_ended(self, call: asyncio.Task[None]) -> None:
        del self._calls[call]
        self._room.release()
        if not call.cancelled() and self._failure is None:
            self._failure = call.exception()

    async def _send(self, client: EnqueueClient, namespace: str, items: Sequence[Item]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        attempts = 0
        while True:
            left_ms = max(1, int((deadline - loop.time()) * 1_000))
            try:
                results = await client.enqueue(items, timeout_ms=left_ms)
            except FoqsError as error:
                if error.may_succeed_later:  # it is safe, because the items have keys
                    results = [Enqueued(error=error)] * len(items)
                else:
                    raise SinkError(f"the namespace {namespace!r} accepted none of its rows: {error}") from None
            again = self._record_results(namespace, items, results)
            if not again:
                return
            items = [item for item, _ in again]
            first_error = again[0][1]
            if not any(error.may_succeed_later for _, error in again):
                continue  # dead letters, which were not sent yet
            wait_s = self._backoff.pause_s(attempts, max(error.retry_after_ms or 0 for _, error in again))
            attempts += 1
            if loop.time() + wait_s >= deadline:
                raise SinkError(
                    f"{counted(len(items), 'item')} for the namespace {namespace!r} could not be enqueued within "
                    f"{self._timeout_s:g} s (option timeout_ms): {first_error}"
                )
            await asyncio.sleep(wait_s)

    def _record_results(
        self, namespace: str, items: Sequence[Item], results: Sequence[Enqueued]
    ) -> list[tuple[Item, FoqsError]]:
        """Count the enqueued items. Return the items to send again, with their errors. Raises SinkError."""
        again: list[tuple[Item, FoqsError]] = []
        for item, result in zip(items, results, strict=True):
            error = result.error
            if error is None:
                self.enqueued_count += 1
                self.repeated_count += result.repeated
            elif error.may_succeed_later:
                again.append((item, error))
            elif isinstance(error, KeyConflict) and isinstance(item, DeadLetter):
                # An earlier attempt enqueued it with another text of the reason.
                self.enqueued_count += 1
                self.repeated_count += 1
            else:
                dead_letter = self._errors.refused(namespace, item, error, _refusal_text(namespace, item, error))
                if dead_letter is not None:
                    again.append((dead_letter, error))
        return again


def open_client(options: SinkOptions, namespace: str) -> Client:
    """Return a client of the namespace. Raises SinkError if a file or an option cannot be used."""
    return make_client(Client, options, namespace, SinkError)


def _refusal_text(namespace: str, item: Item, error: FoqsError) -> str:
    """Return why an item was refused, as a sentence. It names the column if the host named a field."""
    column = refused_column(error)
    subject = f"the column {column} of a row" if column else "a row"
    return (
        f"{subject} was refused: {error.code}: {error.message} "
        f"(topic {item.topic!r}, namespace {namespace!r}, payload of {len(item.payload)} bytes)"
    )
