"""A call made again: of its entries those that are safe to repeat, within the call's time.

Holds `Attempts`, the plain rule, and what it means for calls by id. Always true:
an entry that was done, or refused for good, is not sent again; one that may have
been written is never said not to be, unless a later answer tells; no attempt
begins before the host wants it. Sends nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from foqs_client.errors import (
    FoqsError,
    NotFound,
    NotOwner,
    Overloaded,
    StaleLease,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.types import Outcome

AGAIN_S_MAX: Final = 60.0
"""Nothing is tried again later than this: a namespace keeps its keys for two minutes at least."""
PAUSE_S_MIN: Final = 0.02
PAUSE_S_MAX: Final = 1.0
SPREAD: Final = 0.25
"""A pause is longer by up to this part of it, so that those who were refused together do not come back together."""

_LATER: Final = (Unavailable, Overloaded, NotOwner)
"""Nothing was written, and it may work later or elsewhere."""


class _Result(Protocol):
    @property
    def error(self) -> FoqsError | None: ...


E = TypeVar("E")
R = TypeVar("R", bound=_Result)


class Attempts(Generic[E, R]):
    """One call, attempt by attempt.

    Args:
        entries: what the first attempt sends.
        untold: the result of an entry that a host's reply does not name.

    Attributes:
        sent: what the next attempt sends.
        results: what is known of each entry so far.
    """

    telling: ClassVar[tuple[type[FoqsError], ...]] = ()
    """Errors which say that no attempt was written, nor ever will be."""

    def __init__(self, entries: Sequence[E], untold: R) -> None:
        self.sent: Sequence[E] = entries
        self.results: list[R] = [untold] * len(entries)
        self._untold = untold
        self._places: Sequence[int] = range(len(entries))
        """Whose the sent entries are."""
        self._unknown: dict[int, UnknownOutcome] = {}
        """Places that may have been written, and why that is not known."""
        self._pause_s = PAUSE_S_MIN
        self._asked_ms = 0

    async def go_on(
        self,
        first: Sequence[R] | FoqsError,
        ask: Callable[[Sequence[E], int], Awaitable[Sequence[R]]],
        begun: float,
        timeout_ms: int,
        pause: Callable[[float], Awaitable[bool]],
        rng: Random,
    ) -> list[R]:
        """The results of all entries, in order, after a first attempt that did not do them all.

        Args:
            first: what that came to.
            ask: sends entries, with what time they have; a result for each, in order.
            begun: when the call began, on the loop's clock.
            timeout_ms: its time.
            pause: waits so many seconds; False when nothing is to be sent any more.
            rng: spreads the pauses.

        Raises:
            FoqsError: no attempt was answered.
        """
        loop = asyncio.get_running_loop()
        until = begun + min(timeout_ms / 1_000, AGAIN_S_MAX)
        told, answered = first, False
        while True:
            if isinstance(told, FoqsError):
                failure = told
                told = [self.failed(failure)] * len(self.sent)
            else:
                answered = True
            more = self.take(told)
            pause_s = self._next_pause_s() * (1 + SPREAD * rng.random())
            if not more or loop.time() + pause_s >= until or not await pause(pause_s):
                break
            try:
                told = await ask(self.sent, max(1, int((until - loop.time()) * 1_000)))
            except Unreachable:
                break  # nothing was sent: what was known before stands
            except FoqsError as error:
                told = error
        if not answered:
            raise self._why_unknown() or failure
        return self.results

    def take(self, told: Sequence[R]) -> bool:
        """Takes what an attempt came to, for each of the sent; True when something is to be tried again."""
        again: list[tuple[int, E]] = []
        self._asked_ms = 0
        if len(told) < len(self.sent):
            told = [*told, *[self._untold] * (len(self.sent) - len(told))]
        for place, entry, result in zip(self._places, self.sent, told, strict=False):
            error = result.error
            if error is None:
                self.results[place] = self.succeeded(place, result)
                continue
            if isinstance(error, UnknownOutcome):
                self._unknown[place] = error
            elif isinstance(error, self.telling):
                self._unknown.pop(place, None)
            known = self._unknown.get(place, error)
            self.results[place] = result if known is error else self.failed(known)
            if isinstance(error, (*_LATER, UnknownOutcome)) and self.may_repeat(entry):
                again.append((place, entry))
                self._asked_ms = max(self._asked_ms, error.retry_after_ms or 0)
        self._places = [place for place, _ in again]
        self.sent = [entry for _, entry in again]
        return bool(again)

    # ------------------------------------------------------- what calls differ in

    def failed(self, error: FoqsError) -> R:
        """The result of an entry that failed."""
        raise NotImplementedError

    def succeeded(self, place: int, result: R) -> R:
        """What the caller is told of a success."""
        return result

    def may_repeat(self, entry: E) -> bool:
        """Whether sending it twice is safe."""
        return True

    # ------------------------------------------------------------------- inside

    def _next_pause_s(self) -> float:
        pause_s = max(self._pause_s, self._asked_ms / 1_000)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return pause_s

    def _why_unknown(self) -> UnknownOutcome | None:
        """Why it is not known of some entry whether it was written; None where it is known of all."""
        return next((error for place, error in self._unknown.items() if self.results[place].error is error), None)


class ById(Attempts[Any, Outcome]):
    """A nack, extension or release: it changes an item at most once, for it ends or needs the lease that it names.

    A repeat that finds the lease over cannot tell whether the attempt before it was
    written: the outcome stays unknown.
    """

    def __init__(self, entries: Sequence[Any]) -> None:
        super().__init__(entries, _UNTOLD)

    def failed(self, error: FoqsError) -> Outcome:
        return Outcome(error)


class Deleting(ById):
    """An ack or cancel: what it does twice is done, and a repeat that is refused says that nothing was."""

    telling = (StaleLease, NotFound)


_UNTOLD: Final = Outcome(UnknownOutcome("the host's reply does not name this entry; it may have taken effect"))
