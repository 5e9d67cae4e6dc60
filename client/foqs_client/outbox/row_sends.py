"""The calls of a relay that are under way, and their answers.

Holds `RowSends`, and `SendQueue`, the port of the queue. Always true: each row of a call that was started gets one answer, whatever
the queue raises; an answer is kept until it is taken. Knows nothing of what an answer means.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from foqs_client.errors import FoqsError, Unavailable, UnknownOutcome
from foqs_client.outbox.relay_memory import SendCall

log: Final = logging.getLogger("foqs.relay")

Answers = Mapping[int, FoqsError | None]
"""For each row of a call, by id: None if the queue has it, else the error."""


class SendQueue(Protocol):
    """The queue as a relay needs it."""

    async def keys_until_ms(self) -> int:
        """Return the latest end that a key may have now. Raises FoqsError."""
        ...

    async def send(self, call: SendCall) -> Answers:
        """Enqueue the rows of a call. What cannot be said is an `UnknownOutcome`."""
        ...


class RowSends:
    """The sends of one ownership.

    Attributes:
        has_answers: set by an answer, until answers are taken.
    """

    def __init__(self, queue: SendQueue) -> None:
        self._queue = queue
        self._tasks: set[asyncio.Task[None]] = set()
        self._answers: list[tuple[SendCall, Answers]] = []
        self.has_answers = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        """Whether no call is under way, and no answer is left to take."""
        return not (self._tasks or self._answers)

    def start(self, calls: Iterable[SendCall]) -> None:
        """Send each of these calls."""
        for call in calls:
            task = asyncio.ensure_future(self._send(call))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def take_answers(self) -> list[tuple[SendCall, Answers]]:
        """Return what was answered since the last time."""
        self.has_answers.clear()
        answers, self._answers = self._answers, []
        return answers

    async def close(self) -> None:
        """Give up the calls that are under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, call: SendCall) -> None:
        """Send a call. A row that is no item is refused here; the others of its run with it, but for a while."""
        answers: dict[int, FoqsError | None] = {
            row.id: row.item for row in call.rows if isinstance(row.item, FoqsError)
        }
        rest = tuple([row for row in call.rows if row.id not in answers])
        if answers and call.is_atomic:
            answers |= dict.fromkeys([row.id for row in rest], Unavailable("another row of the run is refused"))
        elif rest:
            answers |= await self._ask(replace(call, rows=rest))
        self._answers.append((call, answers))
        self.has_answers.set()

    async def _ask(self, call: SendCall) -> Answers:
        try:
            return await self._queue.send(call)
        except FoqsError as error:
            return dict.fromkeys([row.id for row in call.rows], error)
        except Exception as error:  # else the rows would stay in flight until this relay ends
            log.debug("a send has failed", exc_info=True)
            unknown = UnknownOutcome(f"the send has failed: {type(error).__name__}: {error}")
            return dict.fromkeys([row.id for row in call.rows], unknown)
