"""Calls that are made in one turn of the event loop, sent as one.

Holds `Gatherer`. Always true: a call is sent in the turn after its own, by itself
where no other of its kind came; each caller gets the answers to its own entries,
in its own words; an error of the whole that another's entries may have caused is
nobody's: each is then sent by itself; a caller that has gone takes nothing away
from the others. Nothing waits for others to come: callers that one reply woke
call again together. Knows nothing of what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from foqs_client.errors import FoqsError, InvalidArgument, LimitExceeded, Overloaded, RateLimited

ENTRIES_PER_CALLER_MAX: Final = 32
"""Entries of a call that is gathered: larger ones share their cost among their own."""
ENTRIES_PER_CALL_MAX: Final = 100
"""Entries of all calls of a gathering: larger ones save little more, and what befalls one befalls fewer."""
BYTES_PER_CALLER_MAX: Final = 64 << 10
"""Payload of a call that is gathered: with more, it is bytes and not calls that cost."""
BYTES_PER_CALL_MAX: Final = 256 << 10
"""Payload of all calls of a gathering: far below any host's limit on a frame."""

MAYBE_CAUSED_BY_OTHERS: Final = (InvalidArgument, LimitExceeded, RateLimited, Overloaded)
"""Errors of a whole call which promise that nothing was written, and which it may owe to some of its entries alone."""
_CAUSED_BY_TOTAL: Final = (LimitExceeded, RateLimited)
"""What a host may tell of each item because all of them together are too many."""


class _Result(Protocol):
    @property
    def error(self) -> FoqsError | None: ...


G = TypeVar("G")
A = TypeVar("A")
E = TypeVar("E")
R = TypeVar("R", bound=_Result)

SendResult: TypeAlias = tuple[Sequence[E], list[R] | FoqsError]
"""What was sent for some entries, and what came of each; or why nothing did."""


CallSize: TypeAlias = tuple[int, int, Sequence[str]]
"""Of a call that is small enough: entries, bytes of payload, and the names that must not stand in one call twice."""


class Participant(Generic[G, A]):
    """One caller of a gathering.

    Attributes:
        request: what it asks for.
        reply: what it gets; None: nothing was sent for it, and it is to be sent by itself.
    """

    __slots__ = ("reply", "request")

    def __init__(self, request: G, reply: asyncio.Future[A | None]) -> None:
        self.request = request
        self.reply = reply

    @property
    def is_waiting(self) -> bool:
        """It has no answer yet, and has not gone."""
        return not self.reply.done()

    def set_reply(self, reply: A | None) -> None:
        """Its answer, if it still waits."""
        if not self.reply.done():
            self.reply.set_result(reply)


Serve: TypeAlias = Callable[[Sequence[Participant[G, A]]], Coroutine[Any, Any, None]]
"""Tells each of some parts its answer."""


class CoalescedCall:
    """Parts of one kind, for the turn in which they come. The one that began it leads it."""

    __slots__ = ("_entries", "_loop", "_payload_bytes", "_unique_names", "kind", "participants")

    def __init__(self, kind: Hashable, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self.participants: list[Participant[Any, Any]] = []
        self._entries = self._payload_bytes = 0
        self._unique_names: set[str] = set()
        self._loop = loop

    def add(self, request: Any, size: CallSize) -> asyncio.Future[Any] | None:
        """The answer of one more part; None where there is no room for it."""
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
        answer: asyncio.Future[Any] = self._loop.create_future()
        self.participants.append(Participant(request, answer))
        return answer


class Coalescer:
    """Those of one client."""

    def __init__(self) -> None:
        self._open_calls: dict[Hashable, CoalescedCall] = {}
        """What gathers in this turn."""
        self._serving: set[asyncio.Task[None]] = set()

    async def call(
        self,
        kind: Hashable,
        entries: Sequence[E],
        size: CallSize,
        send: Callable[[Sequence[E]], Awaitable[SendResult[E, R]]],
    ) -> SendResult[E, R]:
        """What `send` brings for these entries, asked together with those of other calls of the same kind.

        Args:
            kind: calls of one kind may be sent as one, by the `send` of any of them.
            send: one attempt; a result for each entry, in order. It raises no FoqsError.
        """
        answer, begun = self.join(kind, entries, size)
        attempt: SendResult[E, R] | None
        if begun is None:
            attempt = await answer
        else:
            attempt = await self.lead(begun, partial(_send_shared, send))
        return await send(entries) if attempt is None else attempt

    def join(self, kind: Hashable, request: Any, size: CallSize) -> tuple[asyncio.Future[Any], CoalescedCall | None]:
        """The answer of a part of what others of its kind have begun in this turn; else of what it begins itself, and has to `lead`."""
        begun = self._open_calls.get(kind)
        answer = None if begun is None else begun.add(request, size)
        if answer is not None:
            return answer, None
        begun = self._open_calls[kind] = CoalescedCall(kind, asyncio.get_running_loop())
        answer = begun.add(request, size)
        assert answer is not None, "a size fits into an empty gathering"
        return answer, begun

    async def lead(self, call: CoalescedCall, serve: Serve[G, A]) -> A | None:
        """The answer of the part that began this, when it and those that joined it in this turn are served; None: it is alone, and to be sent by itself."""
        parts = call.participants
        answer: asyncio.Future[A | None] = parts[0].reply
        try:
            await asyncio.sleep(0)  # one turn
        except BaseException:
            answer.cancel()
            raise
        finally:
            if self._open_calls.get(call.kind) is call:
                del self._open_calls[call.kind]
            if len(parts) > 1:
                self._start_serving(parts, serve)
        return await answer if len(parts) > 1 else None

    async def close(self) -> None:
        """Returns when all that was gathered has ended, as it does when the connections are gone."""
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _start_serving(self, participants: Sequence[Participant[G, A]], serve: Serve[G, A]) -> None:
        task = asyncio.ensure_future(_serve_waiting(participants, serve))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)


async def _serve_waiting(participants: Sequence[Participant[G, A]], serve: Serve[G, A]) -> None:
    """Serves those that still wait; whatever happens, they are told."""
    try:
        await serve([part for part in participants if part.is_waiting])
    except Exception as error:  # no error of a call: each of the callers sees it
        for part in participants:
            if part.is_waiting:
                part.reply.set_exception(error)
    finally:
        for part in participants:
            part.reply.cancel()


async def _send_shared(
    send: Callable[[Sequence[E]], Awaitable[SendResult[E, R]]],
    participants: Sequence[Participant[Sequence[E], SendResult[E, R]]],
) -> None:
    """Asks for the entries of all parts, and tells each of its own."""
    sent, told = await send([entry for part in participants for entry in part.request])
    well = not isinstance(told, FoqsError) and [result.error for result in told].count(None) == len(told)
    end = 0
    for part in participants:
        start, end = end, end + len(part.request)
        if isinstance(told, FoqsError):
            # A copy for each: an error that is raised is changed by it.
            part.set_reply(
                None if isinstance(told, MAYBE_CAUSED_BY_OTHERS) else (sent[start:end], told.with_shifted_index())
            )
        elif well:
            part.set_reply((sent[start:end], told[start:end]))
        else:
            part.set_reply(_own_results(sent[start:end], told[start:end], start))


def _own_results(sent: Sequence[E], results: list[R], start: int) -> SendResult[E, R] | None:
    """An attempt as if its entries had been sent alone; None where that may have come to something else."""
    errors = [result.error for result in results]
    if errors and all(isinstance(error, _CAUSED_BY_TOTAL) for error in errors):
        return None
    return sent, [
        result if result.error is None else replace(result, error=result.error.with_shifted_index(start))  # type: ignore[type-var]
        for result in results
    ]
