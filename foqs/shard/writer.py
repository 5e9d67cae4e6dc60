"""The writer of one shard: the only one that talks to its store.

Does one thing at a time: a flush, then the reads that were asked for, then the
next flush; while one commits, the next gathers. So nothing that is read is
stale, and after a flush of unknown outcome nothing runs until the owner row
has told. Always true: `flush_number` is the last flush known to be committed.
Knows the protocol of a flush, not what its events mean to the shard's memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from foqs.core.batch import Entry, Intake, Work
from foqs.core.errors import FoqsError, NotOwner, Unavailable, UnknownOutcome
from foqs.core.fence import Fence, Owner, Standing, standing
from foqs.core.flush import Decision, judge_flush, rows_to_read
from foqs.core.item import Row
from foqs.core.life import Event, Fate, Kind, Moment, Policy
from foqs.core.rows import RowCache
from foqs.core.shardtime import ShardTime
from foqs.core.timers import Timers
from foqs.shard.facts import Facts
from foqs.store.port import FencedOut, Store, StoreError, StoreLost, WriteRefused, Writes

log = logging.getLogger(__name__)

T = TypeVar("T")


class ShardLost(Exception):
    """This host may write to the shard no more. `owner` is its owner row as last seen."""

    def __init__(self, reason: str, owner: Owner | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.owner = owner


@dataclass(slots=True)
class Flush:
    """A committed flush: its entries, the rows they found, and what was decided."""

    events: list[Entry]
    inserts: list[Entry]
    found: Mapping[int, Row]
    decision: Decision


@dataclass(slots=True, frozen=True)
class Retry:
    """Pause between attempts against a store in trouble: doubles from min to max, in milliseconds."""

    ms_min: int
    ms_max: int

    def pause_s(self, attempt: int, rng: Random) -> float:
        ceiling = min(self.ms_max, self.ms_min << min(attempt, 30))
        return float(ceiling * (0.5 + rng.random() / 2) / 1000)


class Writer:
    """Runs flushes and reads against one store until it is closed or fenced.

    Args:
        store: open, and taken over with `fence.epoch` and `fence.nonce` at flush 0.
        applied: called right after a flush is known to be committed.
        refused: called for each entry that the database refused for good.
        answers_again: called when the store answers after it had not.
    """

    def __init__(
        self,
        shard: int,
        store: Store,
        owner: Owner,
        time: ShardTime,
        intake: Intake,
        cache: RowCache,
        timers: Timers,
        policies: Mapping[str, Policy],
        retry: Retry,
        rng: Random,
        seconds: Callable[[], float],
        facts: Facts,
        applied: Callable[[Flush], None],
        refused: Callable[[Work, int], None],
        answers_again: Callable[[], None],
    ) -> None:
        self.flush_number = owner.flush
        self.trouble: str | None = None
        """Why the store does not answer just now, None when it does."""
        self._shard = shard
        self._store = store
        self._epoch = owner.epoch
        self._nonce = owner.nonce
        self._time = time
        self._intake = intake
        self._cache = cache
        self._timers = timers
        self._policies = policies
        self._retry = retry
        self._rng = rng
        self._seconds = seconds
        self._facts = facts
        self._applied = applied
        self._refused = refused
        self._answers_again = answers_again
        self._suspects: deque[list[Entry]] = deque()
        self._begun: list[Entry] = []
        """What this turn sealed; those of it that are in the flush under way are also in `_current`."""
        self._current: list[Entry] = []
        self._maybe_written = False
        self._reads: deque[tuple[Callable[[Store], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._given_up: str | None = None
        self._beat = False
        self.ended = False
        """Nothing that comes now would ever be written."""

    def poke(self) -> None:
        """There is something in the intake."""
        self._wake.set()

    def beat(self) -> None:
        """Writes a flush even if nothing waits: saves the shard's time, and finds out whether we still own it."""
        self._beat = True
        self._wake.set()

    def close(self) -> None:
        """Lets `run` return once nothing waits."""
        self._closing = True
        self._wake.set()

    def give_up(self, reason: str) -> None:
        """This ownership is of no more use: `run` ends as if another owner had come."""
        self._given_up = reason
        self.beat()

    async def read(self, what: Callable[[Store], Awaitable[T]]) -> T:
        """Runs `what` between two flushes and returns its result.

        Raises:
            NotOwner, Unavailable: the shard was lost or closed first.
        """
        if self.ended:
            raise self._closed()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._reads.append((what, future))
        self._wake.set()
        return await future

    async def run(self) -> None:
        """Serves until `close`.

        Raises:
            ShardLost: another owner, or an unknown past, was found in the owner row, or it was given up.
        """
        try:
            while True:
                while self._intake or self._suspects or self._reads or self._beat:
                    await self._turn()
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
        except ShardLost as lost:
            self._facts.fenced(self._shard)
            self._end(NotOwner(f"this host does not own shard {self._shard} any more: {lost.reason}"))
            raise
        finally:
            self._end(self._closed())

    def _closed(self) -> Unavailable:
        return Unavailable(f"shard {self._shard} is closing; try again", retry_after_ms=500)

    async def _turn(self) -> None:
        if self._given_up is not None:
            raise ShardLost(self._given_up, None)
        events = self._intake.seal_events()
        inserts = [] if self._suspects else self._intake.seal_inserts()
        self._begun = [*events, *inserts]
        if events or inserts or self._beat:
            self._beat = False
            await self._commit(events, inserts)
        if self._suspects:
            self._begun = _sealed_again(self._suspects.popleft())
            if self._begun:
                await self._commit([], self._begun)
        self._begun = []
        for _ in range(len(self._reads)):
            what, future = self._reads[0]
            if not future.done():
                await self._read_one(what, future)
            self._reads.popleft()

    async def _commit(self, events: list[Entry], inserts: list[Entry]) -> None:
        """Commits the entries; those that the database refuses are found by halving and failed alone.

        Inserts that were refused are suspects: each turn tries some of them, alone
        and after its events, so that a bad row or a full disk never holds back an ack.
        """
        refusal = await self._attempt(events, inserts)
        if refusal is None:
            return
        if events and inserts:
            self._suspect(inserts)
            await self._commit(events, [])
        elif len(inserts) > 1:
            middle = len(inserts) // 2
            self._suspect(inserts[middle:])
            self._suspect(inserts[:middle])
        elif len(events) > 1:
            middle = len(events) // 2
            await self._commit(events[:middle], [])
            await self._commit(events[middle:], [])
        elif events or inserts:
            log.warning("shard %d: the database refused a single write: %s", self._shard, refusal)
            for work, index in events or inserts:
                work.settle(index, Unavailable(f"the database refused this: {refusal}", retry_after_ms=1000))
                self._refused(work, index)

    def _suspect(self, inserts: list[Entry]) -> None:
        """Puts inserts that are not written before all other suspects; their callers may withdraw them."""
        for work, index in inserts:
            work.unseal(index)
        self._suspects.appendleft(inserts)

    async def _attempt(self, events: list[Entry], inserts: list[Entry]) -> WriteRefused | None:
        """Runs one flush until it is committed; returns why when the database refused it for good."""
        self._current = [*events, *inserts]
        started_s = self._seconds()
        attempt = 0
        while True:
            try:
                flush = await self._flush_once(events, inserts)
                break
            except WriteRefused as refused:
                if not refused.again:
                    self._current = []
                    return refused
            except FencedOut as fenced:
                raise ShardLost(str(fenced), await self._look_at_owner()) from fenced
            self._facts.flush_retried(self._shard)
            await asyncio.sleep(self._retry.pause_s(attempt, self._rng))
            attempt += 1
        self.flush_number += 1
        self._current = []
        self._maybe_written = False
        self._remember(flush)
        self._applied(flush)
        self._facts.flushed(self._shard, len(events) + len(inserts), self._seconds() - started_s)
        return None

    def _remember(self, flush: Flush) -> None:
        cache = self._cache
        for (work, index), verdict in zip(flush.events, flush.decision.verdicts, strict=True):
            if verdict.fate is Fate.GONE:
                cache.drop(work.events[index].id)
            elif verdict.row is not None:
                cache.keep(verdict.row)
        for row in flush.decision.inserted:
            cache.keep(row)

    async def _flush_once(self, events: list[Entry], inserts: list[Entry]) -> Flush:
        """One transaction. When its outcome is unknown, finds out; raises `WriteRefused(again)` when it was not written."""
        now_ms = self._time.now_ms()
        fence = Fence(self._epoch, self._nonce, self.flush_number + 1, now_ms)
        moment = Moment(now_ms, fence.token, self._policies)
        the_events = [work.events[index] for work, index in events]
        the_inserts = [work.inserts[index] for work, index in inserts]
        result: list[Flush] = []
        touched, loaded = rows_to_read(the_events)
        known: dict[int, Row] = {}
        touched = self._cache.find(touched, known, payload=False)
        loaded = self._cache.find(loaded, known, payload=True)

        def decide(read: Mapping[int, Row]) -> Writes:
            found = {**known, **read} if read else known
            decision = judge_flush(the_events, the_inserts, found, moment, self._timers)
            result[:] = [Flush(events, inserts, found, decision)]
            return _writes(the_events, decision)

        try:
            await self._store.flush(fence, touched, loaded, decide)
        except StoreLost as lost:
            self._maybe_written = True
            self._facts.unknown_commit(self._shard)
            if await self._resolve(fence, str(lost)) is not Standing.COMMITTED:
                raise WriteRefused(str(lost), again=True) from lost
        return result[0]

    async def _resolve(self, fence: Fence, why: str) -> Standing:
        """Asks the owner row, until the database answers, what became of `fence`'s flush.

        Raises:
            ShardLost: the row is not ours, or its flush is neither this one nor the one before.
        """
        log.warning("shard %d: flush %d may or may not be written: %s", self._shard, fence.flush, why)
        self.trouble = why
        attempt = 0
        while True:
            try:
                owner = await self._store.owner()
                break
            except StoreLost as lost:
                self.trouble = str(lost)
                await asyncio.sleep(self._retry.pause_s(attempt, self._rng))
                attempt += 1
        self.trouble = None
        found = standing(fence, owner)
        log.info("shard %d: flush %d is %s", self._shard, fence.flush, found.value)
        if found is Standing.FENCED:
            raise ShardLost(f"the owner row shows epoch {owner.epoch}, flush {owner.flush}", owner)
        if found is Standing.NOT_COMMITTED:
            self._maybe_written = False
        self._answers_again()
        return found

    async def _read_one(self, what: Callable[[Store], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        """Reads once, and after a lost connection once more: a read that breaks every connection fails alone."""
        why = ""
        for _ in range(2):
            try:
                result = await what(self._store)
            except StoreLost as lost:
                why = str(lost)
                fence = Fence(self._epoch, self._nonce, self.flush_number, 0)
                if await self._resolve(fence, why) is not Standing.COMMITTED:
                    raise ShardLost("the owner row is behind the last committed flush", None) from lost
            else:
                if not future.done():
                    future.set_result(result)
                return
            if future.done():
                return
        future.set_exception(Unavailable(f"shard {self._shard} could not read this: {why}", retry_after_ms=1000))

    async def _look_at_owner(self) -> Owner | None:
        try:
            return await self._store.owner()
        except StoreError:
            return None

    def _end(self, error: FoqsError) -> None:
        """Settles everything that waits: what may be written as unknown, the rest with `error`."""
        self.ended = True
        unknown = UnknownOutcome("the shard was lost while this was being written; it may be written")
        for work, index in self._current:
            work.settle(index, unknown if self._maybe_written or not isinstance(error, NotOwner) else error)
        self._current = []
        for work, index in [*self._begun, *(entry for group in self._suspects for entry in group)]:
            work.settle(index, error)
        self._begun = []
        self._suspects.clear()
        for work in self._intake.drain():
            work.fail(unsealed=error, sealed=error)
        while self._reads:
            _, future = self._reads.popleft()
            if not future.done():
                future.set_exception(error)


def _sealed_again(suspects: list[Entry]) -> list[Entry]:
    """Those that their callers have not withdrawn meanwhile."""
    left = [(work, index) for work, index in suspects if work.results[index] is None]
    for work, index in left:
        work.seal(index)
    return left


def _writes(events: Sequence[Event], decision: Decision) -> Writes:
    writes = Writes(inserts=decision.inserted)
    for event, verdict in zip(events, decision.verdicts, strict=True):
        if verdict.fate is Fate.GONE:
            writes.deletes.append(event.id)
        elif verdict.row is not None:
            (writes.leases if event.kind is Kind.HAND_OUT else writes.updates).append(verdict.row)
    return writes
