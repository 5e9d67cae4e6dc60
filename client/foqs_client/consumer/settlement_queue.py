"""Queues of settlements, each with one call in flight.

Holds `SettlementQueue`, and `SettlementQueues` with one queue for each host, so that
a slow host delays no other. Always true: a queue has at most one call in flight;
entries that arrive meanwhile form the next batch, without a delay. Retried entries
keep their order. No entry is in two calls at a time. An entry that is refused harms
no other. An internal error loses only the entries of its call. Knows nothing of the
contents of entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from random import Random
from typing import Final, Generic, TypeVar

from foqs_client.consumer.failure_backoff import BACKOFF_S_MAX, BACKOFF_S_MIN
from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded
from foqs_client.types import EntryResult, Outcome
from foqs_contract.backoff import Backoff

E = TypeVar("E")

ENTRIES_PER_CALL: Final = 500
WEIGHT_PER_CALL: Final = 512 * 1024
CALL_FIELDS: Final = ("namespace_name", "timeout_ms")
"""The fields that a call has once: if a host refuses one of them, it refuses each entry."""


class SettlementQueue(Generic[E]):
    """The entries of one kind for one host.

    Args:
        send: sends entries; returns an outcome for each, in order.
        on_outcomes: gets entries and their outcomes; returns the entries to send again.
        on_failure: gets an error that is not a FoqsError. The entries of that call are dropped.
        weigh: returns the weight of an entry; a call has at most `WEIGHT_PER_CALL`, or one entry. None: they weigh nothing.
    """

    def __init__(
        self,
        send: Callable[[Sequence[E]], Awaitable[Sequence[EntryResult]]],
        on_outcomes: Callable[[Sequence[E], Sequence[EntryResult]], Sequence[E]],
        on_failure: Callable[[Exception], object],
        rng: Random,
        weigh: Callable[[E], int] | None = None,
    ) -> None:
        self._weigh = weigh
        self._send = send
        self._on_outcomes = on_outcomes
        self._on_failure = on_failure
        self._backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, rng)
        self._failures = 0
        self._entries_max = ENTRIES_PER_CALL
        self._entries: list[E] = []
        self._in_flight_count = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._entries) + self._in_flight_count

    def put(self, entry: E) -> None:
        """Add an entry to the next call. It starts at once if no call is in flight."""
        self._entries.append(entry)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def wait_empty(self) -> None:
        """Wait until all entries are sent."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """End the call in flight. Its outcome is unknown."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while self._entries:
                batch = self._entries[: self._batch_size()]
                del self._entries[: len(batch)]
                self._in_flight_count = len(batch)
                try:
                    to_retry = await self._send_batch(batch)
                except Exception as error:
                    self._on_failure(error)
                    to_retry = ()
                self._in_flight_count = 0
                if to_retry:
                    self._entries[:0] = to_retry
                    self._failures += 1
                    await asyncio.sleep(self._backoff.pause_s(self._failures - 1))
                else:
                    self._failures = 0
        finally:
            self._in_flight_count = 0
            self._task = None

    def _batch_size(self) -> int:
        """Return how many entries the next call has."""
        if self._weigh is None:
            return self._entries_max
        weight = 0
        for count, entry in enumerate(self._entries[: self._entries_max]):
            weight += self._weigh(entry)
            if weight > WEIGHT_PER_CALL and count:
                return count
        return self._entries_max

    async def _send_batch(self, batch: Sequence[E]) -> Sequence[E]:
        try:
            outcomes: Sequence[EntryResult] = await self._send(batch)
        except LimitExceeded as error:
            if len(batch) > 1:
                self._entries_max = max(1, len(batch) // 2)
                return batch
            outcomes = [Outcome(error)]
        except InvalidArgument as error:
            if error.field not in CALL_FIELDS and (half := len(batch) // 2):
                # One entry may be wrong. It is found by halves, and the others are sent.
                return [*await self._send_batch(batch[:half]), *await self._send_batch(batch[half:])]
            outcomes = [Outcome(error)] * len(batch)
        except FoqsError as error:
            outcomes = [Outcome(error)] * len(batch)
        return self._on_outcomes(batch, outcomes)


class SettlementQueues(Generic[E]):
    """The entries of one kind, in one queue for each host.

    Args:
        make_queue: makes another queue.
        host_of: returns the host of an entry; called once, when the entry is put.
    """

    def __init__(self, make_queue: Callable[[], SettlementQueue[E]], host_of: Callable[[E], Hashable]) -> None:
        self._make_queue = make_queue
        self._host_of = host_of
        self._queues: dict[Hashable, SettlementQueue[E]] = {}

    def put(self, entry: E) -> None:
        """See `SettlementQueue.put`."""
        host = self._host_of(entry)
        queue = self._queues.get(host)
        if queue is None:
            # Hosts come and go: drop the queues that are empty.
            self._queues = {other: queue for other, queue in self._queues.items() if queue}
            queue = self._queues[host] = self._make_queue()
        queue.put(entry)

    async def close(self) -> None:
        """See `SettlementQueue.close`."""
        for queue in self._queues.values():
            await queue.close()
