"""What the hosts are to be told of items, a call at a time.

Holds `Outbox`, and `Outboxes`, of which each host has its own, so that one that
does not answer holds up nothing that the others are told. Always true: of each,
one call is under way, and what comes meanwhile goes with the next, so batches form
without a delay; what may be told again is, in the order in which it came; nothing
is told twice at a time; an error that is no host's answer costs the entries of its
call, and none that wait behind them. Knows nothing of what is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from random import Random
from typing import Final, Generic, TypeVar

from foqs_client.consumer.failure_backoff import Backoff
from foqs_client.errors import FoqsError, LimitExceeded
from foqs_client.types import Outcome

E = TypeVar("E")

ENTRIES_PER_CALL: Final = 500


class SettlementQueue(Generic[E]):
    """Entries of one kind.

    Args:
        send: tells hosts of entries; an outcome for each, in order.
        on_outcomes: takes entries and their outcomes; returns those that are to be told again.
        on_failure: told of an error that is no host's answer; the entries of that call are nobody's any more.
    """

    def __init__(
        self,
        send: Callable[[Sequence[E]], Awaitable[Sequence[Outcome]]],
        on_outcomes: Callable[[Sequence[E], Sequence[Outcome]], Sequence[E]],
        on_failure: Callable[[Exception], object],
        rng: Random,
    ) -> None:
        self._send = send
        self._on_outcomes = on_outcomes
        self._on_failure = on_failure
        self._backoff = Backoff(rng)
        self._entries_max = ENTRIES_PER_CALL
        self._entries: list[E] = []
        self._in_flight_count = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._entries) + self._in_flight_count

    def put(self, entry: E) -> None:
        """To be told with the next call, which begins at once where none is under way."""
        self._entries.append(entry)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def wait_empty(self) -> None:
        """Returns when everything is told."""
        while self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Ends what is under way; it may or may not be told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _run(self) -> None:
        try:
            while self._entries:
                batch = self._entries[: self._entries_max]
                del self._entries[: len(batch)]
                self._in_flight_count = len(batch)
                try:
                    again = await self._send_batch(batch)
                except Exception as error:
                    self._on_failure(error)
                    again = ()
                self._in_flight_count = 0
                if again:
                    self._entries[:0] = again
                    await asyncio.sleep(self._backoff.next_s())
                else:
                    self._backoff.reset()
        finally:
            self._in_flight_count = 0
            self._task = None

    async def _send_batch(self, batch: Sequence[E]) -> Sequence[E]:
        try:
            outcomes = await self._send(batch)
        except LimitExceeded as error:
            if len(batch) > 1:
                self._entries_max = max(1, len(batch) // 2)
                return batch
            outcomes = [Outcome(error)]
        except FoqsError as error:
            outcomes = [Outcome(error)] * len(batch)
        return self._on_outcomes(batch, outcomes)


class SettlementQueues(Generic[E]):
    """Entries of one kind, by where they go.

    Args:
        make_queue: an outbox more.
        host_of: an entry goes; it is asked once, when the entry is put.
    """

    def __init__(self, make_queue: Callable[[], SettlementQueue[E]], host_of: Callable[[E], Hashable]) -> None:
        self._make_queue = make_queue
        self._host_of = host_of
        self._queues: dict[Hashable, SettlementQueue[E]] = {}

    def put(self, entry: E) -> None:
        """See `Outbox.put`."""
        where = self._host_of(entry)
        box = self._queues.get(where)
        if box is None:
            # Hosts come and go: those that nothing goes to are forgotten.
            self._queues = {place: other for place, other in self._queues.items() if other}
            box = self._queues[where] = self._make_queue()
        box.put(entry)

    async def close(self) -> None:
        """See `Outbox.close`."""
        for box in self._queues.values():
            await box.close()
