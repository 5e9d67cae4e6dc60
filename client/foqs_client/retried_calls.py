"""Retries of a call: the entries that are safe to repeat, within the call's time.

Holds `RetriedCall`, and its classes for calls by id. Always true: an entry that was
done or finally refused is not sent again. An entry that may have been written is
never reported as not written, unless a later reply proves it. No attempt begins
before `retry_after_ms`. Sends nothing itself.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, ClassVar, Final, Generic, TypeVar

from foqs_client.errors import (
    FoqsError,
    NotFound,
    StaleLease,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.types import EntryResult, Outcome
from foqs_contract.backoff import Backoff

RETRY_S_MAX: Final = 60.0
"""There is no retry after this time. A namespace remembers its keys for at least two minutes."""
BACKOFF_S_MIN: Final = 0.02
BACKOFF_S_MAX: Final = 1.0
JITTER_MAX: Final = 0.25
"""A pause is longer by up to this part of it, so that clients do not retry together."""


E = TypeVar("E")
R = TypeVar("R", bound=EntryResult)


class RetriedCall(ABC, Generic[E, R]):
    """Collects the results of a call over its attempts, and says which entries the next attempt holds.

    Args:
        entries: the entries of the first attempt.
        missing_result: the result of an entry that the reply leaves out.

    Attributes:
        unfinished_entries: the entries of the next attempt.
        results: the result of each entry so far.
    """

    not_written_errors: ClassVar[tuple[type[FoqsError], ...]] = ()
    """Errors that prove that no attempt was written or will be."""

    def __init__(self, entries: Sequence[E], missing_result: R) -> None:
        self.unfinished_entries: Sequence[E] = entries
        self.results: list[R] = [missing_result] * len(entries)
        self._missing_result = missing_result
        self._indexes: Sequence[int] = range(len(entries))
        """The indexes of the unfinished entries in the call."""
        self._unknown_outcomes: dict[int, UnknownOutcome] = {}
        """The indexes of entries that may have been written, with their errors."""
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
        """Retry the entries that the first attempt left unfinished, for at most `RETRY_S_MAX`. Return all results, in order.

        Args:
            first_result: the results of the first attempt, or its error.
            send: sends entries, with a timeout in milliseconds; returns a result for each, in order.
            started_s: the moment at which the call began, on the loop's clock.
            timeout_ms: the time limit of the call.
            sleep: waits for some seconds; returns False if nothing more may be sent.
            rng: spreads the pauses.

        Raises:
            FoqsError: every attempt failed as a whole.
        """
        loop = asyncio.get_running_loop()
        backoff = Backoff(BACKOFF_S_MIN, BACKOFF_S_MAX, rng, (1.0, 1.0 + JITTER_MAX))
        attempts = 0
        until_s = started_s + min(timeout_ms / 1_000, RETRY_S_MAX)
        result, has_reply = first_result, False
        while True:
            if isinstance(result, FoqsError):
                failure = result
                result = [self.failure_result(failure)] * len(self.unfinished_entries)
            else:
                has_reply = True
            has_unfinished = self.record_results(result)
            pause_s = backoff.pause_s(attempts, self._retry_after_ms)
            attempts += 1
            if not has_unfinished or loop.time() + pause_s >= until_s or not await sleep(pause_s):
                break
            try:
                result = await send(self.unfinished_entries, max(1, int((until_s - loop.time()) * 1_000)))
            except Unreachable:
                break  # nothing was sent: the results so far are final
            except FoqsError as error:
                result = error
        if not has_reply:
            raise self._first_unknown_outcome() or failure
        return self.results

    def record_results(self, results: Sequence[R]) -> bool:
        """Record the results of an attempt. Return whether entries are left to retry."""
        to_retry: list[tuple[int, E]] = []
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
            if error.may_succeed_elsewhere and self.is_repeatable(entry):
                to_retry.append((place, entry))
                self._retry_after_ms = max(self._retry_after_ms, error.retry_after_ms or 0)
        self._indexes = [place for place, _ in to_retry]
        self.unfinished_entries = [entry for _, entry in to_retry]
        return bool(to_retry)

    # ------------------------------------------------------ for subclasses to set

    @abstractmethod
    def failure_result(self, error: FoqsError) -> R:
        """Return the result of an entry that failed."""

    def success_result(self, index: int, result: R) -> R:
        """Return the caller's result for an entry that succeeded."""
        return result

    def is_repeatable(self, entry: E) -> bool:
        """Return whether it is safe to send the entry twice."""
        return True

    # ----------------------------------------------------------------- internals

    def _first_unknown_outcome(self) -> UnknownOutcome | None:
        """Return the first unknown outcome among the results; None if there is none."""
        return next(
            (error for place, error in self._unknown_outcomes.items() if self.results[place].error is error), None
        )


class RetriedCallById(RetriedCall[Any, Outcome]):
    """A nack, extension, update or release. It ends or needs a lease, or a repeat sets what the first attempt set.

    An extension without a token counts from the repeat on, for the consumer that has the item then.

    If a retry finds that the lease has ended, nothing shows whether the attempt before
    it was written. The outcome stays unknown.
    """

    def __init__(self, entries: Sequence[Any]) -> None:
        super().__init__(entries, _MISSING_RESULT)

    def failure_result(self, error: FoqsError) -> Outcome:
        return Outcome(error)


class RetriedDeletion(RetriedCallById):
    """An ack or cancel. A repeat does no harm, and a refused repeat proves that nothing was written."""

    not_written_errors = (StaleLease, NotFound)


_MISSING_RESULT: Final = Outcome(
    UnknownOutcome("the host's reply does not name this entry; it may have taken effect, so check before you repeat it")
)
