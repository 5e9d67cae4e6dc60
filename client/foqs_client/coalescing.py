"""Coalesces calls that are made in one turn of the event loop.

Holds `Coalescer`. Always true: a call is sent in the turn after its own, alone if no
other of its kind was made. Each caller gets the results of its own entries, with its
own indexes. If an error of the whole call may be caused by another caller's entries,
nothing was written, and each caller's entries are sent alone. A cancelled caller takes
nothing from the others. No call waits for others to be made: callers that one reply
woke call again together. Knows nothing of what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar

from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded, Overloaded, RateLimited
from foqs_client.types import EntryResult

ENTRIES_PER_CALLER_MAX: Final = 32
"""Limit of the entries of a call that is coalesced. A larger call shares its cost among its own entries."""
ENTRIES_PER_CALL_MAX: Final = 100
"""Limit of the entries of a coalesced call. More would save little, and a failure would affect more callers."""
BYTES_PER_CALLER_MAX: Final = 64 << 10
"""Limit of the payload of a call that is coalesced. With more, the bytes cost more than the call."""
BYTES_PER_CALL_MAX: Final = 256 << 10
"""Limit of the payload of a coalesced call, far below any host's limit on a frame."""

MAYBE_CAUSED_BY_OTHERS: Final = (InvalidArgument, LimitExceeded, RateLimited, Overloaded)
"""Errors of a whole call after which nothing was written, and which single entries may have caused."""
_CAUSED_BY_TOTAL: Final = (LimitExceeded, RateLimited)
"""Errors that a host may return for each item because all items together are too many."""


G = TypeVar("G")
A = TypeVar("A")
E = TypeVar("E")
R = TypeVar("R", bound=EntryResult)

SendResult: TypeAlias = tuple[Sequence[E], list[R] | FoqsError]
"""The entries as they were sent, with their results or with the error of the call."""


CallSize: TypeAlias = tuple[int, int, Sequence[str]]
"""The size of a call: entries, bytes of payload, and the names that a coalesced call must not contain twice."""


class Participant(Generic[G, A]):
    """One caller of a coalesced call.

    Attributes:
        request: the request of the caller.
        reply: gets the caller's reply; None: nothing was sent, and the caller must send it alone.
    """

    __slots__ = ("reply", "request")

    def __init__(self, request: G, reply: asyncio.Future[A | None]) -> None:
        self.request = request
        self.reply = reply

    @property
    def is_waiting(self) -> bool:
        """Whether it has no reply and was not cancelled."""
        return not self.reply.done()

    def set_reply(self, reply: A | None) -> None:
        """Set the reply, unless the participant has one or was cancelled."""
        if not self.reply.done():
            self.reply.set_result(reply)


Serve: TypeAlias = Callable[[Sequence[Participant[G, A]]], Coroutine[Any, Any, None]]
"""Sends the coalesced call and sets the reply of each participant."""


class CoalescedCall:
    """The calls of one kind in one turn of the event loop. The first participant leads it."""

    __slots__ = ("_entries", "_loop", "_payload_bytes", "_unique_names", "kind", "participants")

    def __init__(self, kind: Hashable, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self.participants: list[Participant[Any, Any]] = []
        self._entries = self._payload_bytes = 0
        self._unique_names: set[str] = set()
        self._loop = loop

    def add(self, request: object, size: CallSize) -> asyncio.Future[Any] | None:
        """Add a participant and return its reply; None if there is no room for it."""
        entries, payload_bytes, names = size
        entries += self._entries
        payload_bytes += self._payload_bytes
        if entries > ENTRIES_PER_CALL_MAX or payload_bytes > BYTES_PER_CALL_MAX:
            return None
        if names:
            if not self._unique_names.isdisjoint(names):
                return None
            self._unique_names.update(names)
        self._entries, self._payload_bytes = entries, payload_bytes
        reply: asyncio.Future[Any] = self._loop.create_future()
        self.participants.append(Participant(request, reply))
        return reply


class Coalescer:
    """The coalesced calls of one client."""

    def __init__(self) -> None:
        self._open_calls: dict[Hashable, CoalescedCall] = {}
        """The calls of this turn, which further participants can join."""
        self._serving: set[asyncio.Task[None]] = set()

    @property
    def in_flight_count(self) -> int:
        """The number of coalesced calls that are open to further callers or have no reply."""
        return len(self._open_calls) + len(self._serving)

    async def call(
        self,
        kind: Hashable,
        entries: Sequence[E],
        size: CallSize,
        send: Callable[[Sequence[E]], Awaitable[SendResult[E, R]]],
    ) -> SendResult[E, R]:
        """Send entries, coalesced with other calls of the same kind, and return their results.

        Args:
            kind: calls of one kind can be sent as one, by the `send` of any of them.
            send: makes one attempt; returns a result for each entry, in order. It raises no FoqsError.
        """
        reply, led_call = self.join(kind, entries, size)
        attempt: SendResult[E, R] | None
        if led_call is None:
            attempt = await reply
        else:
            attempt = await self.lead(led_call, partial(_send_shared, send))
        return await send(entries) if attempt is None else attempt

    def join(self, kind: Hashable, request: object, size: CallSize) -> tuple[asyncio.Future[Any], CoalescedCall | None]:
        """Join the open call of a kind, or open one. Return the reply, and the call if the caller must `lead` it."""
        call = self._open_calls.get(kind)
        reply = None if call is None else call.add(request, size)
        if reply is not None:
            return reply, None
        call = self._open_calls[kind] = CoalescedCall(kind, asyncio.get_running_loop())
        reply = call.add(request, size)
        assert reply is not None, "a size fits into an empty call"
        return reply, call

    async def lead(self, call: CoalescedCall, serve: Serve[G, A]) -> A | None:
        """Wait one turn for others to join, send the joined call, and return the reply; None if none joined."""
        participants = call.participants
        reply: asyncio.Future[A | None] = participants[0].reply
        try:
            await asyncio.sleep(0)  # one turn
        except BaseException:
            reply.cancel()
            raise
        finally:
            if self._open_calls.get(call.kind) is call:
                del self._open_calls[call.kind]
            if len(participants) > 1:
                self._start_serving(participants, serve)
        return await reply if len(participants) > 1 else None

    async def close(self) -> None:
        """Wait for all coalesced calls to end. They end when the connections are closed."""
        if self._serving:
            await asyncio.wait(self._serving)

    def _start_serving(self, participants: Sequence[Participant[G, A]], serve: Serve[G, A]) -> None:
        task = asyncio.ensure_future(_serve_waiting(participants, serve))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)


async def _serve_waiting(participants: Sequence[Participant[G, A]], serve: Serve[G, A]) -> None:
    """Serve the participants that still wait. After it, no reply is pending, also if it fails."""
    try:
        await serve([participant for participant in participants if participant.is_waiting])
    except Exception as error:  # an internal error: every caller gets it
        for participant in participants:
            if participant.is_waiting:
                participant.reply.set_exception(error)
    finally:
        for participant in participants:
            participant.reply.cancel()


async def _send_shared(
    send: Callable[[Sequence[E]], Awaitable[SendResult[E, R]]],
    participants: Sequence[Participant[Sequence[E], SendResult[E, R]]],
) -> None:
    """Send the entries of all participants in one call, and give each its own results."""
    sent, result = await send([entry for participant in participants for entry in participant.request])
    all_done = not isinstance(result, FoqsError) and [one.error for one in result].count(None) == len(result)
    end = 0
    for participant in participants:
        start, end = end, end + len(participant.request)
        if isinstance(result, FoqsError):
            # A copy for each caller, because raising an error changes it.
            participant.set_reply(
                None if isinstance(result, MAYBE_CAUSED_BY_OTHERS) else (sent[start:end], result.with_shifted_index())
            )
        elif all_done:
            participant.set_reply((sent[start:end], result[start:end]))
        else:
            participant.set_reply(_own_results(sent[start:end], result[start:end], start))


def _own_results(sent: Sequence[E], results: list[R], start: int) -> SendResult[E, R] | None:
    """Return results with the indexes of the participant; None if they might differ had it been sent alone."""
    errors = [result.error for result in results]
    if errors and all(isinstance(error, _CAUSED_BY_TOTAL) for error in errors):
        return None
    return sent, [
        result if result.error is None else replace(result, error=result.error.with_shifted_index(start))  # type: ignore[type-var]
        for result in results
    ]
