"""The writer of one shard: the only one that writes to its store.

Does one thing at a time: a flush, then the reads that must lie between two, then
the next flush; while one commits, the next gathers. So nothing that it reads is
stale, and after a flush of unknown outcome nothing runs until the owner row
has told. Always true: `flush_number` is the last flush known to be committed.
Knows the protocol of a flush, not what its events mean to the shard's memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

from foqs.core.batch import Batch, Inserts, Part
from foqs.core.errors import HANDOVER_MS, FoqsError, NotOwner, Unavailable, UnknownOutcome
from foqs.core.fence import Fence, Owner, Standing, standing
from foqs.core.flush import Find, find_in, judge_batch
from foqs.core.intake import SHARES, Intake
from foqs.core.item import Row
from foqs.core.keys import KeyName, KeyRow
from foqs.core.life import Moment, Policy
from foqs.core.pace import LeaseCost, Pace
from foqs.core.rows import RowCache
from foqs.core.shardtime import ShardTime
from foqs.core.timers import Timers
from foqs.core.work import Lane
from foqs.shard.breaker import ShardBreaker
from foqs.shard.facts import Facts
from foqs.shard.flush import Flush, Memory
from foqs.shard.retry import Retry
from foqs.store.port import ANY_LENGTH, FencedOut, KeyTaken, Store, StoreError, StoreLost, WriteRefused, Writes

log = logging.getLogger(__name__)

T = TypeVar("T")

KEYS_READ_FLUSHES: Final = 32
"""So many flushes read their keys before they write, after one was refused because it had not: repeats come in swarms."""


_NOTHING: Final = Batch()
"""Stands where no batch is; nothing is ever added to it."""

LATE_S: Final = 1.0
"""A shard whose writer has waited for the database for so long hands nothing out meanwhile: others may have items."""

_REFUSALS_TOLD_S: Final = 1.0
"""Between two lines of the log about single writes that were refused."""


class ShardLost(Exception):
    """This host may write to the shard no more. `owner` is its owner row as last seen."""

    def __init__(self, reason: str, owner: Owner | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.owner = owner


class GivenUp(Exception):
    """This ownership is of no more use, though nobody has taken the shard: it can be taken over anew."""


class Writer:
    """Runs flushes against one store until it is closed or fenced.

    Args:
        store: open, and taken over with `owner.epoch` and `owner.nonce` at flush 0.
        pace: how large flushes may be.
        breaker: told of every wait for the store.
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
        memory: Memory,
        pace: Pace,
        breaker: ShardBreaker,
    ) -> None:
        self.flush_number = owner.flush
        self.lease_cost = LeaseCost()
        self.flush_s = 0.0
        """What the last committed flush took, with all its attempts."""
        self._leases = 0
        """In the flush under way, where more of them wait."""
        self._waits_s: float | None = None
        """Since when it waits for the database, also where it tries again; None when it does not."""
        self._troubled_s = 0.0
        """Since when there is trouble, where there is."""
        self.trouble: str | None = None
        """Why the store does not answer just now, or writes nothing more for us; None when it does both."""
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
        self._memory = memory
        self._pace = pace
        self._breaker = breaker
        self._suspects: deque[Batch] = deque()
        self._begun = _NOTHING
        """What this turn sealed; what of it is in the flush under way is also in `_current`."""
        self._current = _NOTHING
        self._maybe_written = False
        self._tells: deque[Callable[[], None]] = deque()
        """Who is to hear of what is committed, and has not yet: metrics and callers."""
        self._flushing = False
        self._between: deque[Callable[[], None]] = deque()
        self._reads: deque[tuple[Callable[[Store], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._wake = asyncio.Event()
        self._closing = False
        self._given_up: str | None = None
        self._beat = False
        self._keys_read = 0
        """So many flushes with keys are still to read them first."""
        self._keys_over_ms: int | None = None
        self._slots: Sequence[int] = ()
        """Waiting to be written."""
        self._held: Callable[[], None] = _nothing
        self._slots_refused = False
        """They are tried again after a pause."""
        self.ended = False
        """Nothing that comes now would ever be written."""
        self.refused_writes = 0
        """Single entries that the database refused for good."""
        self._tell_again_s = 0.0
        self.key_reruns = 0
        self.key_clearings = 0
        """Flushes that cleared keys away."""
        self.reconnects = 0

    def poke(self) -> None:
        """There is something in the intake."""
        self._wake.set()

    def beat(self) -> None:
        """Writes a flush even if nothing waits: saves the shard's time, and finds out whether we still own it."""
        self._beat = True
        self._wake.set()

    def clear_keys(self, now_ms: int) -> None:
        """The next flush clears away some rows of keys that are over."""
        self._keys_over_ms = now_ms
        self.beat()

    def hold(self, slots: Sequence[int], held: Callable[[], None]) -> None:
        """Writes down that the shard holds these slots, and calls `held` when that is committed."""
        self._slots = slots
        self._held = held
        self._slots_refused = False
        self.beat()

    @property
    def suspects(self) -> int:
        """Parts of batches that were refused and wait to be tried alone."""
        return len(self._suspects)

    @property
    def taking(self) -> Sequence[int]:
        """Slots that are still to be written."""
        return self._slots

    def refuse_inserts(self, error: Unavailable) -> None:
        """New items that wait for a flush, or to be tried again, are not written; their callers are told why."""
        parts = [*self._intake.drop_inserts(), *(part for batch in self._suspects for part in batch.parts)]
        self._suspects.clear()
        for part in parts:
            part.fail(error)

    def close(self) -> None:
        """Lets `run` return once nothing waits."""
        self._closing = True
        self._wake.set()

    def drop(self) -> None:
        """Ends at once: what is being written as unknown, the rest as not ours; the caller cancels `run` too."""
        self._end(NotOwner(f"this host does not own shard {self._shard} any more; ask for the routing"), True)

    def give_up(self, reason: str, fault: BaseException | None = None) -> None:
        """This ownership is of no more use: `run` raises `GivenUp` when the flush under way has ended. `fault`: ours."""
        if fault is not None:
            log.error("shard %d: %s", self._shard, reason, exc_info=fault)
        self._given_up = reason
        self.beat()

    @property
    def past(self) -> Fence:
        """The last flush known to be committed."""
        return Fence(self._epoch, self._nonce, self.flush_number, 0)

    @property
    def trouble_ms(self) -> int:
        """How long the trouble has lasted, where there is some."""
        return int((self._seconds() - self._troubled_s) * 1000)

    @property
    def is_late(self) -> bool:
        """It waits for the database, and has for long."""
        return self._waits_s is not None and self._seconds() - self._waits_s > LATE_S

    def is_writing(self, call: Inserts) -> bool:
        """Items of this call are in the flush under way."""
        return any(part.work is call for part in self._begun.inserts)

    def between(self, then: Callable[[], None]) -> None:
        """Calls `then` while no flush is under way: now, or after this one. Never, once the writer has ended."""
        if not self._flushing:
            then()
        elif not self.ended:
            self._between.append(then)

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
            ShardLost: another owner, or an unknown past, was found in the owner row.
            GivenUp: see `give_up`.
        """
        try:
            while True:
                while self._intake or self._suspects or self._reads or self._beat:
                    await self._turn()
                if self._tells:
                    self._tell()
                    continue
                if self._closing:
                    return
                self._wake.clear()
                await self._wake.wait()
        except ShardLost as lost:
            self._facts.fenced(self._shard)
            self._end(
                NotOwner(f"this host does not own shard {self._shard} any more: {lost.reason}"), self._maybe_written
            )
            raise
        finally:
            self._end(self._closed(), True)

    def _closed(self) -> Unavailable:
        return Unavailable(f"shard {self._shard} is closing; try again", retry_after_ms=HANDOVER_MS)

    async def _turn(self) -> None:
        if self._given_up is not None:
            raise GivenUp(self._given_up)
        if self._slots and not self._slots_refused:
            await self._write_slots()
        batch = self._begun = self._intake.seal(inserts=not self._suspects)
        self._leases = len(batch.leased) if self._intake.leases_wait else 0
        self._memory.makes_room()
        if batch or self._beat:
            self._beat = False
            if batch.inserts or batch.dues:
                batch.claims = self._memory.claims(batch)
            if batch.purging:
                self._memory.place_cuts(batch)
            await self._commit(batch)
            self._intake.written(batch)
        if self._suspects:
            self._begun = _sealed_again(self._suspects.popleft())
            if self._begun:
                await self._commit(self._begun)
        self._begun = _NOTHING
        for _ in range(len(self._reads)):
            what, future = self._reads[0]
            if not future.done():
                await self._read_one(what, future)
            self._reads.popleft()

    async def _write_slots(self) -> None:
        """In a flush of their own, so that what the database has against them holds up nothing else."""
        await self._commit(Batch(slots=self._slots))
        if self._slots:
            self._slots_refused = True
            asyncio.get_running_loop().call_later(self._retry.ms_max / 1000, self.hold, self._slots, self._held)
        else:
            self._held()

    async def _commit(self, batch: Batch) -> None:
        """Commits a batch; the entries that the database refuses are found by halving and failed alone.

        Inserts that were refused are suspects: each turn tries some of them, alone
        and after its events, so that a bad row or a full disk never holds back an ack.
        """
        refusal = await self._attempt(batch)
        if refusal is None:
            return
        for claim in batch.claims:
            claim.settle(0, [None] * len(claim))
        if batch.inserts and self._breaker.is_open:
            # Halving them would only go on asking a database that is not well.
            for part in batch.inserts:
                part.fail(self._breaker.refusal())
            batch = Batch(_events(batch))
            if batch:
                await self._commit(batch)
            return
        inserts: list[Part[Any]] = [*batch.inserts]
        events = _events(batch)
        if events and inserts:
            self._suspect(Batch(inserts))
            await self._commit(Batch(events))
        elif len(batch) > 1 and inserts:
            for half in reversed(batch.split()):
                self._suspect(half)
        elif len(batch) > 1:
            for half in batch.split():
                await self._commit(half)
        else:
            self._tell_refusal(refusal)
            for part in batch.parts:
                part.fail(Unavailable(f"the database refused this: {refusal}", retry_after_ms=1000))
                self._memory.refused(part)

    def _tell_refusal(self, refusal: WriteRefused) -> None:
        """A full disk refuses everything that comes: the log, perhaps on the same disk, is told now and then."""
        self.refused_writes += 1
        if self._seconds() >= self._tell_again_s:
            self._tell_again_s = self._seconds() + _REFUSALS_TOLD_S
            log.warning(
                "shard %d: the database refused a single write, the %d. of this ownership: %s",
                self._shard,
                self.refused_writes,
                refusal,
            )

    def _suspect(self, batch: Batch) -> None:
        """Puts inserts that are not written before all other suspects; their callers may withdraw them."""
        for part in batch.inserts:
            part.work.unseal(part.start, part.stop)
        self._suspects.appendleft(batch)

    async def _attempt(self, batch: Batch) -> WriteRefused | None:
        """Runs one flush until it is committed.

        Returns why when the database refused it for good, or at all while the breaker keeps new items away.
        """
        self._current = batch
        self._flushing = True
        started_s = self._waits_s = self._seconds()
        begun_ms: int | None = None
        attempt = 0
        while True:
            now_ms, offset_ms = self._time.now_and_offset_ms()
            if begun_ms is None:
                begun_ms = now_ms
            try:
                flush = await self._flush_once(batch, begun_ms, now_ms, offset_ms)
                break
            except WriteRefused as refused:
                if isinstance(refused, KeyTaken) and not self._keys_read:
                    self._keys_read = KEYS_READ_FLUSHES
                    self.key_reruns += 1
                    continue
                if refused.again:
                    self._breaker.tried_in_vain(started_s)
                if not refused.again or (batch.inserts and self._breaker.is_open):
                    self._current = _NOTHING
                    self._answered()
                    self._quiet()
                    return refused
            except FencedOut as fenced:
                self._in_trouble(str(fenced))  # nobody need wait here for who the owner is
                raise ShardLost(str(fenced), await self._look_at_owner()) from fenced
            self._facts.flush_retried(self._shard)
            await asyncio.sleep(self._retry.pause_s(attempt, self._rng))
            attempt += 1
        self.flush_number += 1
        self.flush_s = self._seconds() - started_s
        self._maybe_written = True
        if batch.slots:
            self._slots = ()
        if not self._tells:
            # As soon as the next flush is on its way to the database: until then nothing is awaited.
            asyncio.get_running_loop().call_soon(self._tell)
        self._memory.committed(flush, self._tells)
        if flush.may_be_told_first and not (self._intake or self._suspects or self._reads or self._beat):
            # No next flush waits for the memory, nor do callers then: they see it as it was during the flush.
            # The reply to a hand-out, though, tells what is left, and one that got less than it wants looks again.
            self._tell()
            self._memory.told()
        self._flushing = False
        self._memory.applied(flush, self._tells)
        self._current = _NOTHING
        self._maybe_written = False
        entries, seconds = len(batch), self._seconds() - started_s
        items_max = self._pace.after(entries, seconds, self._intake.is_express, started_s + seconds)
        self._intake.pace(items_max)
        self.lease_cost.learn(self._leases or items_max * SHARES[Lane.LEASE].most / 100, seconds)
        self._tells.append(partial(self._facts.flushed, self._shard, entries, seconds))
        self._answered()
        self._quiet()
        return None

    def _tell(self) -> None:
        """Tells whoever is to hear of what is committed. Who cannot be told may have set items aside that nobody would see again."""
        while self._tells:
            tell = self._tells.popleft()
            try:
                tell()
            except Exception as error:
                self.give_up(f"what is committed could not be told: {error!r}", error)

    def _answered(self) -> None:
        """What the writer waited for is over: where that was long, there were some who did not wait for it."""
        self._breaker.tries_no_more()
        was_late, self._waits_s = self.is_late, None
        if was_late:
            self._memory.answers_again()

    def _quiet(self) -> None:
        """No flush is under way."""
        self._flushing = False
        while self._between:
            self._between.popleft()()

    async def _flush_once(self, batch: Batch, begun_ms: int, now_ms: int, offset_ms: int) -> Flush:
        """One transaction, now, of a batch whose first attempt began then. When its outcome is unknown, finds out; raises `WriteRefused(again)` when it was not written."""
        fence = Fence(self._epoch, self._nonce, self.flush_number + 1, now_ms, offset_ms)
        moment = Moment(now_ms, begun_ms, fence.token, self._policies)
        get: Find = self._cache.get
        if batch.dues:
            get = find_in(get, *batch.due_rows())
        wanted = batch.wanted()
        touched = [number for number in batch.touched if get(number) is None and number not in wanted]
        loaded = {
            number: ANY_LENGTH
            for number in (*batch.leased, *wanted)
            if (row := get(number)) is None or row.payload is None
        }
        if loaded:
            # No more is read than was set aside when the hand-out was queued, whatever has been learned of its rows since.
            for part in batch.hand_outs:
                most = part.work.read_bytes
                loaded.update([(each, most) for each in part.numbers if each in loaded])
        own: list[KeyName] = batch.key_names() if self._keys_read else []
        keys = own + batch.recalled() if batch.recalls else own
        over_ms, self._keys_over_ms = self._keys_over_ms, None
        result: list[Flush] = []

        def decide(read: Mapping[int, Row], read_keys: Mapping[KeyName, KeyRow]) -> Writes:
            find = find_in(read, get) if read else get
            decision = judge_batch(batch, find, moment, self._timers, read_keys, self._memory.cuts)
            added = self._memory.topics_new(decision.topics)
            removed = self._memory.topics_over(decision.topics, now_ms)
            result[:] = [Flush(batch, decision, added, removed)]
            writes = result[0].writes()
            writes.keys_over_ms = over_ms
            return writes

        self._breaker.begin(new_items=bool(batch.inserts))
        try:
            await self._store.flush(fence, touched, loaded, keys, decide)
            self._breaker.succeeded()
        except WriteRefused as refused:
            if refused.again or refused.full:
                self._breaker.failed(str(refused))
            raise
        except StoreLost as lost:
            self._maybe_written = True
            self._facts.unknown_commit(self._shard)
            found = await self._resolve(fence, str(lost))
            self._breaker.failed(str(lost))
            if found is not Standing.COMMITTED:
                raise WriteRefused(str(lost), again=True) from lost
        finally:
            self._breaker.end()
        if own:
            self._keys_read -= 1
        self.key_clearings += over_ms is not None
        return result[0]

    async def _resolve(self, fence: Fence, why: str) -> Standing:
        """Asks the owner row, until the database answers, what became of `fence`'s flush.

        Raises:
            ShardLost: the row is not ours, or its flush is neither this one nor the one before.
        """
        log.warning("shard %d: flush %d may or may not be written: %s", self._shard, fence.flush, why)
        self._in_trouble(why)
        attempt = 0
        while True:
            try:
                owner = await self._store.owner()
                self.reconnects += 1
                break
            except StoreLost as lost:
                if self.trouble != str(lost):
                    log.warning("shard %d: %s", self._shard, lost)
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
        self._memory.answers_again()
        return found

    async def _read_one(self, what: Callable[[Store], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        """Reads once, and after a lost connection once more: a read that breaks every connection fails alone."""
        why = ""
        for _ in range(2):
            self._waits_s = self._seconds()
            self._breaker.begin(new_items=False)
            try:
                result = await what(self._store)
            except StoreLost as lost:
                why = str(lost)
                if await self._resolve(self.past, why) is not Standing.COMMITTED:
                    raise ShardLost("the owner row is behind the last committed flush", None) from lost
                self._breaker.failed(why)
            else:
                if not future.done():
                    future.set_result(result)
                return
            finally:
                self._breaker.end()
                self._answered()
            if future.done():
                return
        future.set_exception(Unavailable(f"shard {self._shard} could not read this: {why}", retry_after_ms=1000))

    def _in_trouble(self, why: str) -> None:
        self.trouble = why
        self._troubled_s = self._seconds()

    async def _look_at_owner(self) -> Owner | None:
        try:
            return await self._store.owner()
        except StoreError:
            return None

    def _end(self, error: FoqsError, maybe_written: bool) -> None:
        """Settles everything that waits: the flush under way as unknown where it may be written, the rest with `error`."""
        self.ended = True
        self._tell()
        self._between.clear()
        unknown = UnknownOutcome("the shard was lost while this was being written; it may be written")
        current = unknown if maybe_written else error
        begun, self._begun = self._begun, _NOTHING
        suspects = [part for batch in self._suspects for part in batch.parts]
        for part in self._current.parts:
            self._fail(part.fail, current)
        for claim in (*self._current.claims, *begun.claims):
            self._fail(claim.fail, 0, len(claim), current)
        for part in [*begun.parts, *suspects, *self._intake.drain()]:
            self._fail(part.fail, error)
        self._current = _NOTHING
        self._suspects.clear()
        while self._reads:
            _, future = self._reads.popleft()
            if not future.done():
                future.set_exception(error)

    def _fail(self, fail: Callable[..., None], *arguments: Any) -> None:
        """Tells somebody of the end; what goes wrong there keeps it from nobody else."""
        try:
            fail(*arguments)
        except Exception:
            log.exception("shard %d: a caller could not be told that it was lost", self._shard)


def _nothing() -> None:
    """Nobody asked to be told."""


def _events(batch: Batch) -> list[Part[Any]]:
    """All of a batch that inserts nothing."""
    return [*batch.acks, *batch.events, *batch.hand_outs, *batch.purging, *batch.recalls]


def _sealed_again(suspects: Batch) -> Batch:
    """Those that their callers have not withdrawn meanwhile."""
    left = Batch([part for part in suspects.inserts if not part.work.abandoned])
    for part in left.inserts:
        part.work.seal(part.start, part.stop)
    return left
