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

from foqs_client.consumer.backoff import Backoff
from foqs_client.errors import FoqsError, LimitExceeded
from foqs_client.types import Outcome

E = TypeVar("E")

ENTRIES_PER_CALL: Final = 500


class Outbox(Generic[E]):
    """Entries of one kind.

    Args:
        call: tells hosts of entries; an outcome for each, in order.
        told: takes entries and their outcomes; returns those that are to be told again.
        failed: told of an error that is no host's answer; the entries of that call are nobody's any more.
    """

    def __init__(
        self,
        call: Callable[[Sequence[E]], Awaitable[Sequence[Outcome]]],
        told: Callable[[Sequence[E], Sequence[Outcome]], Sequence[E]],
        failed: Callable[[Exception], object],
        rng: Random,
    ) -> None:
        self._call = call
        self._told = told
        self._failed = failed
        self._backoff = Backoff(rng)
        self._entries_max = ENTRIES_PER_CALL
        self._entries: list[E] = []
        self._under_way = 0
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._entries) + self._under_way

    def put(self, entry: E) -> None:
        """To be told with the next call, which begins at once where none is under way."""
        self._entries.append(entry)
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())

    async def empty(self) -> None:
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
                self._under_way = len(batch)
                try:
                    again = await self._tell(batch)
                except Exception as error:
                    self._failed(error)
                    again = ()
                self._under_way = 0
                if again:
                    self._entries[:0] = again
                    await asyncio.sleep(self._backoff.next_s())
                else:
                    self._backoff.reset()
        finally:
            self._under_way = 0
            self._task = None

    async def _tell(self, batch: Sequence[E]) -> Sequence[E]:
        try:
            outcomes = await self._call(batch)
        except LimitExceeded as error:
            if len(batch) > 1:
                self._entries_max = max(1, len(batch) // 2)
                return batch
            outcomes = [Outcome(error)]
        except FoqsError as error:
            outcomes = [Outcome(error)] * len(batch)
        return self._told(batch, outcomes)


class Outboxes(Generic[E]):
    """Entries of one kind, by where they go.

    Args:
        make: an outbox more.
        where: an entry goes; it is asked once, when the entry is put.
    """

    def __init__(self, make: Callable[[], Outbox[E]], where: Callable[[E], Hashable]) -> None:
        self._make = make
        self._where = where
        self._boxes: dict[Hashable, Outbox[E]] = {}

    def put(self, entry: E) -> None:
        """See `Outbox.put`."""
        where = self._where(entry)
        box = self._boxes.get(where)
        if box is None:
            # Hosts come and go: those that nothing goes to are forgotten.
            self._boxes = {place: other for place, other in self._boxes.items() if other}
            box = self._boxes[where] = self._make()
        box.put(entry)

    async def close(self) -> None:
        """See `Outbox.close`."""
        for box in self._boxes.values():
            await box.close()
