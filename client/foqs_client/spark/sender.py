"""Calls of a task: several under way at once, each tried until it is taken or its time is over.

Holds `Sender`. Always true: no more calls are under way than are allowed, so that
what is held is bounded; items are sent again with the same keys only; the first
failure ends the task, and what is under way then is dropped, to be found again
by its keys when the task is repeated. Knows nothing of rows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from random import Random
from types import TracebackType
from typing import Final, Protocol, Self

from foqs_client.client import Client
from foqs_client.credentials import Tls
from foqs_client.errors import (
    DeadlineExceeded,
    FoqsError,
    NotOwner,
    Overloaded,
    RateLimited,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.spark.item_columns import COLUMNS, SinkError
from foqs_client.spark.options import SinkOptions
from foqs_client.types import Enqueued, Item

NAMESPACES_MAX: Final = 64
"""Of one task: each has a client of its own."""
BACKOFF_S_MIN: Final = 0.1
BACKOFF_S_MAX: Final = 5.0
RETRYABLE: Final = (
    Unavailable,
    Overloaded,
    RateLimited,
    NotOwner,
    DeadlineExceeded,
    UnknownOutcome,
    Unreachable,
)
"""It may work later, and with keys it does no harm to try."""


class EnqueueClient(Protocol):
    """What is used of a `Client`."""

    async def enqueue(self, items: Sequence[Item], *, timeout_ms: int) -> list[Enqueued]: ...

    async def close(self) -> None: ...


class Sender:
    """Of one task.

    Args:
        open_client: makes the client of a namespace.
        calls_max: under way at once.
        timeout_ms: how long an item is tried.
        rng: spreads the pauses.

    Attributes:
        taken: items that are durable.
        repeated: those of them that an earlier attempt had enqueued.
    """

    def __init__(
        self, open_client: Callable[[str], EnqueueClient], calls_max: int, timeout_ms: int, rng: Random
    ) -> None:
        self.enqueued_count = 0
        self.repeated_count = 0
        self._open_client = open_client
        self._clients: dict[str, EnqueueClient] = {}
        self._room = asyncio.Semaphore(calls_max)
        self._timeout_s = timeout_ms / 1_000
        self._rng = rng
        self._calls: dict[asyncio.Task[None], None] = {}
        self._failure: BaseException | None = None
        """What the first call that failed raised."""

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
        """Begins a call when there is room for it. Every item has a key. Raises what an earlier call failed with."""
        client = self._client(namespace)
        await self._room.acquire()
        if self._failure is not None:
            self._room.release()
            raise self._failure
        call = asyncio.ensure_future(self._send(client, namespace, items))
        self._calls[call] = None
        call.add_done_callback(self._on_call_ended)

    async def wait_all_enqueued(self) -> None:
        """Returns when every item is durable. Raises what a call failed with."""
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
        pause_s = BACKOFF_S_MIN
        while True:
            left_ms = max(1, int((deadline - loop.time()) * 1_000))
            try:
                results = await client.enqueue(items, timeout_ms=left_ms)
            except RETRYABLE as error:
                results = [Enqueued(error=error)] * len(items)
            except FoqsError as error:
                raise SinkError(f"the namespace {namespace!r} took none of its rows: {error}") from None
            again = self._record_results(namespace, items, results)
            if not again:
                return
            items = [item for item, _ in again]
            first = again[0][1]
            asked_ms = max(error.retry_after_ms or 0 for _, error in again)
            wait_s = max(pause_s, asked_ms / 1_000) * self._rng.uniform(1.0, 1.25)
            pause_s = min(2 * pause_s, BACKOFF_S_MAX)
            if loop.time() + wait_s >= deadline:
                raise SinkError(
                    f"{len(items)} items for the namespace {namespace!r} were not taken within "
                    f"{self._timeout_s:g} s (option timeout_ms): {first}"
                )
            await asyncio.sleep(wait_s)

    def _record_results(
        self, namespace: str, items: Sequence[Item], results: Sequence[Enqueued]
    ) -> list[tuple[Item, FoqsError]]:
        """Counts what was taken; returns what is to be tried again, and why. Raises SinkError."""
        again: list[tuple[Item, FoqsError]] = []
        for item, result in zip(items, results, strict=True):
            error = result.error
            if error is None:
                self.enqueued_count += 1
                self.repeated_count += result.repeated
            elif isinstance(error, RETRYABLE):
                again.append((item, error))
            else:
                raise SinkError(_refusal_text(namespace, item, error))
        return again


def open_client(options: SinkOptions, namespace: str) -> Client:
    """A client of the namespace. Raises SinkError where a file or an option cannot be used."""
    token, token_file = options.token, options.token_file
    if token is None and token_file is None:
        token_file = os.environ.get("FOQS_TOKEN_FILE") or None
        if token_file is None:
            token = os.environ.get("FOQS_TOKEN") or None
    files = options.ca_file, options.cert_file, options.key_file
    try:
        return Client(
            options.url,
            namespace=namespace,
            timeout_ms=options.timeout_ms,
            token=token,
            token_file=token_file,
            tls=Tls(*files) if any(files) else None,
        )
    except FoqsError as error:
        raise SinkError(f"the hosts cannot be called: {error}") from None


def _refusal_text(namespace: str, item: Item, error: FoqsError) -> str:
    """Why an item was not taken, as a sentence; the column is named where the host named a field."""
    column = (error.field or "").rpartition(".")[2]
    what = f"the column {column} of a row" if column in COLUMNS else "a row"
    return (
        f"{what} was refused: {error.code}: {error.message} "
        f"(topic {item.topic!r}, namespace {namespace!r}, payload of {len(item.payload)} bytes)"
    )
