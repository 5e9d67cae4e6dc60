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

RETRY_S_MAX: Final = 60.0
"""Nothing is tried again later than this: a namespace keeps its keys for two minutes at least."""
BACKOFF_S_MIN: Final = 0.02
BACKOFF_S_MAX: Final = 1.0
JITTER_MAX: Final = 0.25
"""A pause is longer by up to this part of it, so that those who were refused together do not come back together."""

_RETRYABLE: Final = (Unavailable, Overloaded, NotOwner)
"""Nothing was written, and it may work later or elsewhere."""


class _Result(Protocol):
    @property
    def error(self) -> FoqsError | None: ...


E = TypeVar("E")
R = TypeVar("R", bound=_Result)


class RetriedCall(Generic[E, R]):
    """One call, attempt by attempt.

    Args:
        entries: what the first attempt sends.
        missing_result: the result of an entry that a host's reply does not name.

    Attributes:
        sent: what the next attempt sends.
        results: what is known of each entry so far.
    """

    not_written_errors: ClassVar[tuple[type[FoqsError], ...]] = ()
    """Errors which say that no attempt was written, nor ever will be."""

    def __init__(self, entries: Sequence[E], missing_result: R) -> None:
        self.unfinished_entries: Sequence[E] = entries
        self.results: list[R] = [missing_result] * len(entries)
        self._missing_result = missing_result
        self._indexes: Sequence[int] = range(len(entries))
        """Whose the sent entries are."""
        self._unknown_outcomes: dict[int, UnknownOutcome] = {}
        """Places that may have been written, and why that is not known."""
        self._backoff_s = BACKOFF_S_MIN
        self._retry_after_ms = 0

    async def retry_until_done(
        self,
        first_result: Sequence[R] | FoqsError,
        send: Callable[[Sequence[E], int], Awaitable[Sequence[R]]],
        started_s: float,
        timeout_ms: int,
        sleep: Callable[[float], Awaitable[bool]],
        rng: Random,
    ) -> list[R]:
        """The results of all entries, in order, after a first attempt that did not do them all.

        Args:
            first_result: what that came to.
            send: sends entries, with what time they have; a result for each, in order.
            started_s: when the call began, on the loop's clock.
            timeout_ms: its time.
            sleep: waits so many seconds; False when nothing is to be sent any more.
            rng: spreads the pauses.

        Raises:
            FoqsError: no attempt was answered.
        """
        loop = asyncio.get_running_loop()
        until = started_s + min(timeout_ms / 1_000, RETRY_S_MAX)
        told, answered = first_result, False
        while True:
            if isinstance(told, FoqsError):
                failure = told
                told = [self.failure_result(failure)] * len(self.unfinished_entries)
            else:
                answered = True
            more = self.record_results(told)
            pause_s = self._next_backoff_s() * (1 + JITTER_MAX * rng.random())
            if not more or loop.time() + pause_s >= until or not await sleep(pause_s):
                break
            try:
                told = await send(self.unfinished_entries, max(1, int((until - loop.time()) * 1_000)))
            except Unreachable:
                break  # nothing was sent: what was known before stands
            except FoqsError as error:
                told = error
        if not answered:
            raise self._first_unknown_outcome() or failure
        return self.results

    def record_results(self, results: Sequence[R]) -> bool:
        """Takes what an attempt came to, for each of the sent; True when something is to be tried again."""
        again: list[tuple[int, E]] = []
        self._retry_after_ms = 0
        if len(results) < len(self.unfinished_entries):
            results = [*results, *[self._missing_result] * (len(self.unfinished_entries) - len(results))]
        for place, entry, result in zip(self._indexes, self.unfinished_entries, results, strict=False):
            error = result.error
            if error is None:
                self.results[place] = self.success_result(place, result)
                continue
            if isinstance(error, UnknownOutcome):
                self._unknown_outcomes[place] = error
            elif isinstance(error, self.not_written_errors):
                self._unknown_outcomes.pop(place, None)
            known = self._unknown_outcomes.get(place, error)
            self.results[place] = result if known is error else self.failure_result(known)
            if isinstance(error, (*_RETRYABLE, UnknownOutcome)) and self.is_repeatable(entry):
                again.append((place, entry))
                self._retry_after_ms = max(self._retry_after_ms, error.retry_after_ms or 0)
        self._indexes = [place for place, _ in again]
        self.unfinished_entries = [entry for _, entry in again]
        return bool(again)

    # ------------------------------------------------------- what calls differ in

    def failure_result(self, error: FoqsError) -> R:
        """The result of an entry that failed."""
        raise NotImplementedError

    def success_result(self, index: int, result: R) -> R:
        """What the caller is told of a success."""
        return result

    def is_repeatable(self, entry: E) -> bool:
        """Whether sending it twice is safe."""
        return True

    # ------------------------------------------------------------------- inside

    def _next_backoff_s(self) -> float:
        pause_s = max(self._backoff_s, self._retry_after_ms / 1_000)
        self._backoff_s = min(2 * self._backoff_s, BACKOFF_S_MAX)
        return pause_s

    def _first_unknown_outcome(self) -> UnknownOutcome | None:
        """Why it is not known of some entry whether it was written; None where it is known of all."""
        return next(
            (error for place, error in self._unknown_outcomes.items() if self.results[place].error is error), None
        )


class RetriedCallById(RetriedCall[Any, Outcome]):
    """A nack, extension or release: it changes an item at most once, for it ends or needs the lease that it names.

    A repeat that finds the lease over cannot tell whether the attempt before it was
    written: the outcome stays unknown.
    """

    def __init__(self, entries: Sequence[Any]) -> None:
        super().__init__(entries, _MISSING_RESULT)

    def failure_result(self, error: FoqsError) -> Outcome:
        return Outcome(error)


class RetriedDeletion(RetriedCallById):
    """An ack or cancel: what it does twice is done, and a repeat that is refused says that nothing was."""

    not_written_errors = (StaleLease, NotFound)


_MISSING_RESULT: Final = Outcome(UnknownOutcome("the host's reply does not name this entry; it may have taken effect"))
