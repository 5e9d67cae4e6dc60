"""Calls of one or more works: who is told what, when the last of them is done.

Always true: a call is done once, when its works are, or at its deadline with
what it knows then; its outcomes stand in the order of its entries. Knows nothing
of where works go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from foqs.core.errors import FoqsError, KeyConflict
from foqs.core.flush.decision import entry_result
from foqs.core.flush.replay_lookup import ReplayLookup
from foqs.core.flush.work import Inserts, Work
from foqs.core.items.life import Transition
from foqs.core.limits.in_flight import InFlight
from foqs.queue.port import EnqueueOutcome, Outcome, Repeated
from foqs.runtime.deadlines import Deadlines


class FanOutCall:
    """A call, and its works, each of which answers for some of its entries."""

    __slots__ = ("_deadline_bucket", "_deadlines", "_on_done", "_open_count", "_works", "accepted_count", "outcomes")

    def __init__(self, deadlines: Deadlines, entry_count: int, on_done: Callable[[list[Any]], None]) -> None:
        self.outcomes: list[Any] = [None] * entry_count
        self._deadlines = deadlines
        self._on_done: Callable[[list[Any]], None] | None = on_done
        self._deadline_bucket = 0
        self._works: list[tuple[Work, Sequence[int], int]] = []
        self._open_count = 1
        self.accepted_count = 0
        """So many of its entries are in works."""

    def add_work(self, work: Work, positions: Sequence[int], shard: int) -> None:
        """One more work of a shard, with the places of its entries in the call."""
        self._works.append((work, positions, shard))
        self._open_count += 1
        self.accepted_count += len(positions)

    def refuse(self, positions: Iterable[int], error: FoqsError) -> None:
        """There is no work for these."""
        for place in positions:
            self.outcomes[place] = error

    def start(self, deadline: float) -> None:
        """All works are added."""
        self._deadline_bucket = self._deadlines.add(deadline, self)
        self.on_work_finished()

    def abandon(self) -> None:
        """Nobody waits for the outcome; the work goes on, and is withdrawn at its deadline like any other."""
        self._on_done = None

    def expire(self) -> None:
        for work, _, _ in self._works:
            if work.is_open:
                work.abandon()

    def on_work_finished(self) -> None:
        """One of the works has all its results."""
        self._open_count -= 1
        if self._open_count:
            return
        for work, places, shard in self._works:
            told = self._outcomes_of(work, shard)
            if len(told) == len(self.outcomes):
                self.outcomes = told
            else:
                for place, result in zip(places, told, strict=True):
                    self.outcomes[place] = result
        self._complete(self.outcomes)

    def _complete(self, results: list[Any]) -> None:
        self._deadlines.remove(self._deadline_bucket, self)
        done, self._on_done = self._on_done, None
        if done is not None:
            done(results)

    def _outcomes_of(self, work: Work, shard: int) -> list[Any]:
        """What the caller is told of a work's entries."""
        raise NotImplementedError


class EnqueueCall(FanOutCall):
    """Results of an enqueue: ids and errors.

    Attributes:
        under_way: counts its items until they have their results; None where nobody asks.
        dated: some of its items have both an absolute time and a TTL.
        repeated: told how many of those that were taken in named no new item; None likewise.
    """

    __slots__ = ("has_absolute_times", "in_flight", "on_repeats")

    def __init__(self, deadlines: Deadlines, entry_count: int, on_done: Callable[[list[Any]], None]) -> None:
        super().__init__(deadlines, entry_count, on_done)
        self.has_absolute_times = False
        self.in_flight: InFlight | None = None
        self.on_repeats: Callable[[int], None] | None = None

    def _outcomes_of(self, work: Work, shard: int) -> list[EnqueueOutcome]:
        results = work.results
        if isinstance(work, ReplayLookup):
            return [Repeated(f"{shard}-{result}") if type(result) is int else result for result in results]
        if isinstance(work, Inserts) and work.has_keys:
            if self.on_repeats is not None:
                self.on_repeats(sum([type(result) is int or isinstance(result, KeyConflict) for result in results]))
            results = [Repeated(f"{shard}-{result}") if type(result) is int else result for result in results]
        return [
            f"{shard}-{number}" if result is None else result
            for number, result in zip(work.numbers, results, strict=True)
        ]


class ApplyCall(FanOutCall):
    """Outcomes of events."""

    __slots__ = ()

    def _outcomes_of(self, work: Work, shard: int) -> list[Outcome]:
        return [entry_result(result) if type(result) is Transition else result for result in work.results]
