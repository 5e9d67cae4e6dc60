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

ENTRIES_EACH_MAX: Final = 32
"""Entries of a call that is gathered: larger ones share their cost among their own."""
ENTRIES_MAX: Final = 100
"""Entries of all calls of a gathering: larger ones save little more, and what befalls one befalls fewer."""
BYTES_EACH_MAX: Final = 64 << 10
"""Payload of a call that is gathered: with more, it is bytes and not calls that cost."""
BYTES_MAX: Final = 256 << 10
"""Payload of all calls of a gathering: far below any host's limit on a frame."""

PERHAPS_ANOTHERS: Final = (InvalidArgument, LimitExceeded, RateLimited, Overloaded)
"""Errors of a whole call which promise that nothing was written, and which it may owe to some of its entries alone."""
_OF_ALL: Final = (LimitExceeded, RateLimited)
"""What a host may tell of each item because all of them together are too many."""


class _Result(Protocol):
    @property
    def error(self) -> FoqsError | None: ...


G = TypeVar("G")
A = TypeVar("A")
E = TypeVar("E")
R = TypeVar("R", bound=_Result)

Attempt: TypeAlias = tuple[Sequence[E], list[R] | FoqsError]
"""What was sent for some entries, and what came of each; or why nothing did."""


Size: TypeAlias = tuple[int, int, Sequence[str]]
"""Of a call that is small enough: entries, bytes of payload, and the names that must not stand in one call twice."""


class Part(Generic[G, A]):
    """One caller of a gathering.

    Attributes:
        given: what it asks for.
        answer: what it gets; None: nothing was sent for it, and it is to be sent by itself.
    """

    __slots__ = ("answer", "given")

    def __init__(self, given: G, answer: asyncio.Future[A | None]) -> None:
        self.given = given
        self.answer = answer

    @property
    def waits(self) -> bool:
        """It has no answer yet, and has not gone."""
        return not self.answer.done()

    def tell(self, answer: A | None) -> None:
        """Its answer, if it still waits."""
        if not self.answer.done():
            self.answer.set_result(answer)


Serve: TypeAlias = Callable[[Sequence[Part[G, A]]], Coroutine[Any, Any, None]]
"""Tells each of some parts its answer."""


class Gathering:
    """Parts of one kind, for the turn in which they come. The one that began it leads it."""

    __slots__ = ("_entries", "_loop", "_names", "_payload_bytes", "kind", "parts")

    def __init__(self, kind: Hashable, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        self.parts: list[Part[Any, Any]] = []
        self._entries = self._payload_bytes = 0
        self._names: set[str] = set()
        self._loop = loop

    def add(self, given: Any, size: Size) -> asyncio.Future[Any] | None:
        """The answer of one more part; None where there is no room for it."""
        entries, payload_bytes, names = size
        entries += self._entries
        payload_bytes += self._payload_bytes
        if entries > ENTRIES_MAX or payload_bytes > BYTES_MAX:
            return None
        if names:
            if not self._names.isdisjoint(names):
                return None
            self._names.update(names)
        self._entries, self._payload_bytes = entries, payload_bytes
        answer: asyncio.Future[Any] = self._loop.create_future()
        self.parts.append(Part(given, answer))
        return answer


class Gatherer:
    """Those of one client."""

    def __init__(self) -> None:
        self._open: dict[Hashable, Gathering] = {}
        """What gathers in this turn."""
        self._serving: set[asyncio.Task[None]] = set()

    async def call(
        self,
        kind: Hashable,
        entries: Sequence[E],
        size: Size,
        ask: Callable[[Sequence[E]], Awaitable[Attempt[E, R]]],
    ) -> Attempt[E, R]:
        """What `ask` brings for these entries, asked together with those of other calls of the same kind.

        Args:
            kind: calls of one kind may be sent as one, by the `ask` of any of them.
            ask: one attempt; a result for each entry, in order. It raises no FoqsError.
        """
        answer, begun = self.join(kind, entries, size)
        attempt: Attempt[E, R] | None
        if begun is None:
            attempt = await answer
        else:
            attempt = await self.lead(begun, partial(_shared, ask))
        return await ask(entries) if attempt is None else attempt

    def join(self, kind: Hashable, given: Any, size: Size) -> tuple[asyncio.Future[Any], Gathering | None]:
        """The answer of a part of what others of its kind have begun in this turn; else of what it begins itself, and has to `lead`."""
        begun = self._open.get(kind)
        answer = None if begun is None else begun.add(given, size)
        if answer is not None:
            return answer, None
        begun = self._open[kind] = Gathering(kind, asyncio.get_running_loop())
        answer = begun.add(given, size)
        assert answer is not None, "a size fits into an empty gathering"
        return answer, begun

    async def lead(self, begun: Gathering, serve: Serve[G, A]) -> A | None:
        """The answer of the part that began this, when it and those that joined it in this turn are served; None: it is alone, and to be sent by itself."""
        parts = begun.parts
        answer: asyncio.Future[A | None] = parts[0].answer
        try:
            await asyncio.sleep(0)  # one turn
        except BaseException:
            answer.cancel()
            raise
        finally:
            if self._open.get(begun.kind) is begun:
                del self._open[begun.kind]
            if len(parts) > 1:
                self._begin(parts, serve)
        return await answer if len(parts) > 1 else None

    async def close(self) -> None:
        """Returns when all that was gathered has ended, as it does when the connections are gone."""
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _begin(self, parts: Sequence[Part[G, A]], serve: Serve[G, A]) -> None:
        task = asyncio.ensure_future(_served(parts, serve))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)


async def _served(parts: Sequence[Part[G, A]], serve: Serve[G, A]) -> None:
    """Serves those that still wait; whatever happens, they are told."""
    try:
        await serve([part for part in parts if part.waits])
    except Exception as error:  # no error of a call: each of the callers sees it
        for part in parts:
            if part.waits:
                part.answer.set_exception(error)
    finally:
        for part in parts:
            part.answer.cancel()


async def _shared(
    ask: Callable[[Sequence[E]], Awaitable[Attempt[E, R]]], parts: Sequence[Part[Sequence[E], Attempt[E, R]]]
) -> None:
    """Asks for the entries of all parts, and tells each of its own."""
    sent, told = await ask([entry for part in parts for entry in part.given])
    well = not isinstance(told, FoqsError) and [result.error for result in told].count(None) == len(told)
    end = 0
    for part in parts:
        start, end = end, end + len(part.given)
        if isinstance(told, FoqsError):
            # A copy for each: an error that is raised is changed by it.
            part.tell(None if isinstance(told, PERHAPS_ANOTHERS) else (sent[start:end], told.moved()))
        elif well:
            part.tell((sent[start:end], told[start:end]))
        else:
            part.tell(_own(sent[start:end], told[start:end], start))


def _own(sent: Sequence[E], results: list[R], start: int) -> Attempt[E, R] | None:
    """An attempt as if its entries had been sent alone; None where that may have come to something else."""
    errors = [result.error for result in results]
    if errors and all(isinstance(error, _OF_ALL) for error in errors):
        return None
    return sent, [
        result if result.error is None else replace(result, error=result.error.moved(start))  # type: ignore[type-var]
        for result in results
    ]
