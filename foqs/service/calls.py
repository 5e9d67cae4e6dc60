"""Calls of one or more works: who is told what, when the last of them is done.

Always true: a call is done once, when its works are, or at its deadline with
what it knows then; its outcomes stand in the order of its entries. Knows nothing
of where works go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from foqs.core.batch import Inserts, Recall, Work
from foqs.core.errors import FoqsError, KeyConflict
from foqs.core.flush import outcome
from foqs.core.life import Verdict
from foqs.core.underway import UnderWay
from foqs.deadlines import Deadlines
from foqs.service.api import Enqueued, Outcome, Repeated


class Call:
    """A call, and its works, each of which answers for some of its entries."""

    __slots__ = ("_deadlines", "_done", "_open", "_parts", "_slot", "outcomes", "taken")

    def __init__(self, deadlines: Deadlines, count: int, done: Callable[[list[Any]], None]) -> None:
        self.outcomes: list[Any] = [None] * count
        self._deadlines = deadlines
        self._done: Callable[[list[Any]], None] | None = done
        self._slot = 0
        self._parts: list[tuple[Work, Sequence[int], int]] = []
        self._open = 1
        self.taken = 0
        """So many of its entries are in works."""

    def add(self, work: Work, places: Sequence[int], shard: int) -> None:
        """One more work of a shard, with the places of its entries in the call."""
        self._parts.append((work, places, shard))
        self._open += 1
        self.taken += len(places)

    def refuse(self, places: Iterable[int], error: FoqsError) -> None:
        """There is no work for these."""
        for place in places:
            self.outcomes[place] = error

    def begin(self, deadline: float) -> None:
        """All works are added."""
        self._slot = self._deadlines.add(deadline, self)
        self.finished()

    def abandon(self) -> None:
        """Nobody waits for the outcome; the work goes on, and is withdrawn at its deadline like any other."""
        self._done = None

    def expire(self) -> None:
        for work, _, _ in self._parts:
            if work.is_open:
                work.expire()

    def finished(self) -> None:
        """One of the works has all its results."""
        self._open -= 1
        if self._open:
            return
        for work, places, shard in self._parts:
            told = self._told(work, shard)
            if len(told) == len(self.outcomes):
                self.outcomes = told
            else:
                for place, result in zip(places, told, strict=True):
                    self.outcomes[place] = result
        self._end(self.outcomes)

    def _end(self, results: list[Any]) -> None:
        self._deadlines.remove(self._slot, self)
        done, self._done = self._done, None
        if done is not None:
            done(results)

    def _told(self, work: Work, shard: int) -> list[Any]:
        """What the caller is told of a work's entries."""
        raise NotImplementedError


class Enqueue(Call):
    """Results of an enqueue: ids and errors.

    Attributes:
        under_way: counts its items until they have their results; None where nobody asks.
        dated: some of its items have both an absolute time and a TTL.
        repeated: told how many of those that were taken in named no new item; None likewise.
    """

    __slots__ = ("dated", "repeated", "under_way")

    def __init__(self, deadlines: Deadlines, count: int, done: Callable[[list[Any]], None]) -> None:
        super().__init__(deadlines, count, done)
        self.dated = False
        self.under_way: UnderWay | None = None
        self.repeated: Callable[[int], None] | None = None

    def _told(self, work: Work, shard: int) -> list[Enqueued]:
        results = work.results
        if isinstance(work, Recall):
            return [Repeated(f"{shard}-{result}") if type(result) is int else result for result in results]
        if isinstance(work, Inserts) and work.keyed:
            if self.repeated is not None:
                self.repeated(sum([type(result) is int or isinstance(result, KeyConflict) for result in results]))
            results = [Repeated(f"{shard}-{result}") if type(result) is int else result for result in results]
        return [
            f"{shard}-{number}" if result is None else result
            for number, result in zip(work.numbers, results, strict=True)
        ]


class Apply(Call):
    """Outcomes of events."""

    __slots__ = ()

    def _told(self, work: Work, shard: int) -> list[Outcome]:
        return [outcome(result) if type(result) is Verdict else result for result in work.results]
