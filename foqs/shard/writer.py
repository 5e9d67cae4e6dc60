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
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from foqs.core.errors import HANDOVER_RETRY_MS, FoqsError, NotOwner, Unavailable, UnknownOutcome
from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.decision import FindRow, chain_finders, decide_batch
from foqs.core.flush.fence import CommitOutcome, Fence, Owner, commit_outcome
from foqs.core.flush.intake import LANE_SHARES, Intake
from foqs.core.flush.pacing import FlushPace, LeaseCost
from foqs.core.flush.work import Inserts, Lane
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row
from foqs.core.items.life import FlushContext, RetryPolicy
from foqs.core.timing.shard_clock import ShardClock
from foqs.shard.observer import ShardObserver
from foqs.shard.retry import Backoff
from foqs.shard.shard_breaker import ShardBreaker
from foqs.shard.shard_flush import Flush, ShardMemoryPort
from foqs.store.port import (
    ANY_LENGTH,
    FencedOut,
    IdempotencyKeyExists,
    Store,
    StoreError,
    StoreLost,
    WriteRefused,
    Writes,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

KEY_READ_FLUSHES: Final = 32
"""So many flushes read their keys before they write, after one was refused because it had not: repeats come in swarms."""


_EMPTY_BATCH: Final = Batch()
"""Stands where no batch is; nothing is ever added to it."""

STALLED_S: Final = 1.0
"""A shard whose writer has waited for the database for so long hands nothing out meanwhile: others may have items."""

_REFUSAL_LOG_INTERVAL_S: Final = 1.0
"""Between two lines of the log about single writes that were refused."""


class ShardLost(Exception):
    """This host may write to the shard no more. `owner` is its owner row as last seen."""

    def __init__(self, reason: str, owner: Owner | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.owner = owner


class OwnershipGivenUp(Exception):
    """This ownership is of no more use, though nobody has taken the shard: it can be taken over anew."""


@dataclass(slots=True, frozen=True)
class OwnedStore:
    """The store of a shard: open, and taken over by `owner`."""

    shard: int
    store: Store
    owner: Owner


class Writer:
    """Runs flushes against one store until it is closed or fenced.

    Args:
        pace: how large flushes may be.
        breaker: told of every wait for the store.
    """

    def __init__(
        self,
        owned: OwnedStore,
        shard_clock: ShardClock,
        intake: Intake,
        retry_policies: Mapping[str, RetryPolicy],
        backoff: Backoff,
        stopwatch_s: Callable[[], float],
        observer: ShardObserver,
        memory: ShardMemoryPort,
        pace: FlushPace,
        breaker: ShardBreaker,
    ) -> None:
        self.flush_number = owned.owner.flush
        self.lease_cost = LeaseCost()
        self.last_flush_s = 0.0
        """What the last committed flush took, with all its attempts."""
        self._lease_count = 0
        """In the flush under way, where more of them wait."""
        self._waiting_since_s: float | None = None
        """Since when it waits for the database, also where it tries again; None when it does not."""
        self._unavailable_since_s = 0.0
        """Since when there is trouble, where there is."""
        self.unavailable_reason: str | None = None
        """Why the store does not answer just now, or writes nothing more for us; None when it does both."""
        self._shard = owned.shard
        self._store = owned.store
        self._epoch = owned.owner.epoch
        self._nonce = owned.owner.nonce
        self._shard_clock = shard_clock
        self._intake = intake
        self._retry_policies = retry_policies
        self._backoff = backoff
        self._stopwatch_s = stopwatch_s
        self._observer = observer
        self._memory = memory
        self._pace = pace
        self._breaker = breaker
        self._bisection_queue: deque[Batch] = deque()
        self._sealed_batch = _EMPTY_BATCH
        """What this turn sealed; what of it is in the flush under way is also in `_flushing_batch`."""
        self._flushing_batch = _EMPTY_BATCH
        self._is_maybe_written = False
        self._callbacks: deque[Callable[[], None]] = deque()
        """Who is to hear of what is committed, and has not yet: metrics and callers."""
        self._is_flushing = False
        self._between_flushes: deque[Callable[[], None]] = deque()
        self._reads: deque[tuple[Callable[[Store], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._work_arrived = asyncio.Event()
        self._is_closing = False
        self._give_up_reason: str | None = None
        self._flush_requested = False
        self._key_read_flushes_left = 0
        """So many flushes with keys are still to read them first."""
        self._keys_expired_by_ms: int | None = None
        self._pending_key_slots: Sequence[int] = ()
        """Waiting to be written."""
        self._on_key_slots_assigned: Callable[[], None] = _ignore
        self._are_key_slots_refused = False
        """They are tried again after a pause."""
        self.is_ended = False
        """Nothing that comes now would ever be written."""
        self.refused_writes = 0
        """Single entries that the database refused for good."""
        self._next_refusal_log_s = 0.0
        self.key_reruns = 0
        self.key_expiry_flushes = 0
        """Flushes that cleared keys away."""
        self.reconnects = 0

    def wake(self) -> None:
        """There is something in the intake."""
        self._work_arrived.set()

    def request_flush(self) -> None:
        """Writes a flush even if nothing waits: saves the shard's time, and finds out whether we still own it."""
        self._flush_requested = True
        self._work_arrived.set()

    def expire_keys(self, now_ms: int) -> None:
        """The next flush clears away some rows of keys that are over."""
        self._keys_expired_by_ms = now_ms
        self.request_flush()

    def assign_key_slots(self, key_slots: Sequence[int], on_assigned: Callable[[], None]) -> None:
        """Writes down that the shard holds these slots, and calls `on_assigned` when that is committed."""
        self._pending_key_slots = key_slots
        self._on_key_slots_assigned = on_assigned
        self._are_key_slots_refused = False
        self.request_flush()

    @property
    def bisection_batch_count(self) -> int:
        """Parts of batches that were refused and wait to be tried alone."""
        return len(self._bisection_queue)

    @property
    def pending_key_slots(self) -> Sequence[int]:
        """Slots that are still to be written."""
        return self._pending_key_slots

    def refuse_inserts(self, error: Unavailable) -> None:
        """New items that wait for a flush, or to be tried again, are not written; their callers are told why."""
        parts = [*self._intake.pop_inserts(), *(part for batch in self._bisection_queue for part in batch.parts)]
        self._bisection_queue.clear()
        for part in parts:
            part.fail(error)

    def close(self) -> None:
        """Lets `run` return once nothing waits."""
        self._is_closing = True
        self._work_arrived.set()

    def drop(self) -> None:
        """Ends at once: what is being written as unknown, the rest as not ours; the caller cancels `run` too."""
        self._fail_all(NotOwner(f"this host does not own shard {self._shard} any more; ask for the routing"), True)

    def give_up(self, reason: str, cause: BaseException | None = None) -> None:
        """This ownership is of no more use: `run` raises `OwnershipGivenUp` when the flush under way has ended. `cause`: ours."""
        if cause is not None:
            log.error("shard %d: %s", self._shard, reason, exc_info=cause)
        self._give_up_reason = reason
        self.request_flush()

    @property
    def last_committed(self) -> Fence:
        """The last flush known to be committed."""
        return Fence(self._epoch, self._nonce, self.flush_number, 0)

    @property
    def unavailable_ms(self) -> int:
        """How long the trouble has lasted, where there is some."""
        return int((self._stopwatch_s() - self._unavailable_since_s) * 1000)

    @property
    def is_stalled(self) -> bool:
        """It waits for the database, and has for long."""
        return self._waiting_since_s is not None and self._stopwatch_s() - self._waiting_since_s > STALLED_S

    def is_writing(self, inserts: Inserts) -> bool:
        """Items of this call are in the flush under way."""
        return any(part.work is inserts for part in self._sealed_batch.inserts)

    def run_between_flushes(self, action: Callable[[], None]) -> None:
        """Calls `action` while no flush is under way: now, or after this one. Never, once the writer has ended."""
        if not self._is_flushing:
            action()
        elif not self.is_ended:
            self._between_flushes.append(action)

    async def read(self, query: Callable[[Store], Awaitable[T]]) -> T:
        """Runs `query` between two flushes and returns its result.

        Raises:
            NotOwner, Unavailable: the shard was lost or closed first.
        """
        if self.is_ended:
            raise self._closing_error()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._reads.append((query, future))
        self._work_arrived.set()
        return await future

    async def run(self) -> None:
        """Serves until `close`.

        Raises:
            ShardLost: another owner, or an unknown past, was found in the owner row.
            OwnershipGivenUp: see `give_up`.
        """
        try:
            while True:
                while self._intake or self._bisection_queue or self._reads or self._flush_requested:
                    await self._run_once()
                if self._callbacks:
                    self._run_callbacks()
                    continue
                if self._is_closing:
                    return
                self._work_arrived.clear()
                await self._work_arrived.wait()
        except ShardLost as lost:
            self._observer.shard_fenced(self._shard)
            self._fail_all(
                NotOwner(f"this host does not own shard {self._shard} any more: {lost.reason}"), self._is_maybe_written
            )
            raise
        finally:
            self._fail_all(self._closing_error(), True)

    def _closing_error(self) -> Unavailable:
        return Unavailable(f"shard {self._shard} is closing; try again", retry_after_ms=HANDOVER_RETRY_MS)

    async def _run_once(self) -> None:
        if self._give_up_reason is not None:
            raise OwnershipGivenUp(self._give_up_reason)
        if self._pending_key_slots and not self._are_key_slots_refused:
            await self._write_key_slots()
        batch = self._sealed_batch = self._intake.seal(with_inserts=not self._bisection_queue)
        self._lease_count = len(batch.hand_out_numbers) if self._intake.has_waiting_leases else 0
        self._memory.on_batch_sealed()
        if batch or self._flush_requested:
            self._flush_requested = False
            if batch.inserts or batch.dues:
                batch.direct_deliveries = self._memory.assign_to_waiters(batch)
            if batch.purges:
                self._memory.place_purge_markers(batch)
            await self._commit_or_bisect(batch)
            self._intake.on_flush_ended(batch)
        if self._bisection_queue:
            self._sealed_batch = _reseal(self._bisection_queue.popleft())
            if self._sealed_batch:
                await self._commit_or_bisect(self._sealed_batch)
        self._sealed_batch = _EMPTY_BATCH
        for _ in range(len(self._reads)):
            what, future = self._reads[0]
            if not future.done():
                await self._read_one(what, future)
            self._reads.popleft()

    async def _write_key_slots(self) -> None:
        """In a flush of their own, so that what the database has against them holds up nothing else."""
        await self._commit_or_bisect(Batch(key_slots=self._pending_key_slots))
        if self._pending_key_slots:
            self._are_key_slots_refused = True
            asyncio.get_running_loop().call_later(
                self._backoff.ms_max / 1000, self.assign_key_slots, self._pending_key_slots, self._on_key_slots_assigned
            )
        else:
            self._on_key_slots_assigned()

    async def _commit_or_bisect(self, batch: Batch) -> None:
        """Commits a batch; the entries that the database refuses are found by halving and failed alone.

        Inserts that were refused are suspects: each turn tries some of them, alone
        and after its events, so that a bad row or a full disk never holds back an ack.
        """
        refusal = await self._flush_until_committed(batch)
        if refusal is None:
            return
        for claim in batch.direct_deliveries:
            claim.complete(0, [None] * len(claim))
        if batch.inserts and self._breaker.is_open:
            # Halving them would only go on asking a database that is not well.
            for part in batch.inserts:
                part.fail(self._breaker.unavailable_error())
            batch = Batch(_parts_but_inserts(batch))
            if batch:
                await self._commit_or_bisect(batch)
            return
        inserts: list[Part[Any]] = [*batch.inserts]
        events = _parts_but_inserts(batch)
        if events and inserts:
            self._bisect_later(Batch(inserts))
            await self._commit_or_bisect(Batch(events))
        elif len(batch) > 1 and inserts:
            for half in reversed(batch.split()):
                self._bisect_later(half)
        elif len(batch) > 1:
            for half in batch.split():
                await self._commit_or_bisect(half)
        else:
            self._log_refusal(refusal)
            for part in batch.parts:
                part.fail(Unavailable(f"the database refused this: {refusal}", retry_after_ms=1000))
                self._memory.on_refused(part)

    def _log_refusal(self, refusal: WriteRefused) -> None:
        """A full disk refuses everything that comes: the log, perhaps on the same disk, is told now and then."""
        self.refused_writes += 1
        if self._stopwatch_s() >= self._next_refusal_log_s:
            self._next_refusal_log_s = self._stopwatch_s() + _REFUSAL_LOG_INTERVAL_S
            log.warning(
                "shard %d: the database refused a single write, the %d. of this ownership: %s",
                self._shard,
                self.refused_writes,
                refusal,
            )

    def _bisect_later(self, batch: Batch) -> None:
        """Puts inserts that are not written before all other suspects; their callers may withdraw them."""
        for part in batch.inserts:
            part.work.unseal(part.start, part.stop)
        self._bisection_queue.appendleft(batch)

    async def _flush_until_committed(self, batch: Batch) -> WriteRefused | None:
        """Runs one flush until it is committed.

        Returns why when the database refused it for good, or at all while the breaker keeps new items away.
        """
        self._flushing_batch = batch
        self._is_flushing = True
        started_s = self._waiting_since_s = self._stopwatch_s()
        begun_ms: int | None = None
        attempt = 0
        while True:
            now_ms, offset_ms = self._shard_clock.now_and_offset_ms()
            if begun_ms is None:
                begun_ms = now_ms
            try:
                flush = await self._flush_once(batch, begun_ms, now_ms, offset_ms)
                break
            except WriteRefused as refused:
                if isinstance(refused, IdempotencyKeyExists) and not self._key_read_flushes_left:
                    self._key_read_flushes_left = KEY_READ_FLUSHES
                    self.key_reruns += 1
                    continue
                if refused.is_retryable:
                    self._breaker.on_flush_retry(started_s)
                if not refused.is_retryable or (batch.inserts and self._breaker.is_open):
                    self._flushing_batch = _EMPTY_BATCH
                    self._on_wait_ended()
                    self._on_flush_ended()
                    return refused
            except FencedOut as fenced:
                self._mark_unavailable(str(fenced))  # nobody need wait here for who the owner is
                raise ShardLost(str(fenced), await self._try_read_owner()) from fenced
            self._observer.flush_retried(self._shard)
            await asyncio.sleep(self._backoff.pause_s(attempt))
            attempt += 1
        self.flush_number += 1
        self.last_flush_s = self._stopwatch_s() - started_s
        self._is_maybe_written = True
        if batch.key_slots:
            self._pending_key_slots = ()
        if not self._callbacks:
            # As soon as the next flush is on its way to the database: until then nothing is awaited.
            asyncio.get_running_loop().call_soon(self._run_callbacks)
        self._memory.record_results(flush, self._callbacks)
        if flush.can_notify_before_apply and not (
            self._intake or self._bisection_queue or self._reads or self._flush_requested
        ):
            # No next flush waits for the memory, nor do callers then: they see it as it was during the flush.
            # The reply to a hand-out, though, tells what is left, and one that got less than it wants looks again.
            self._run_callbacks()
            self._memory.on_callers_notified()
        self._is_flushing = False
        self._memory.apply(flush, self._callbacks)
        self._flushing_batch = _EMPTY_BATCH
        self._is_maybe_written = False
        entries, seconds = len(batch), self._stopwatch_s() - started_s
        items_max = self._pace.update(entries, seconds, self._intake.is_express, started_s + seconds)
        self._intake.set_flush_items_max(items_max)
        self.lease_cost.learn(self._lease_count or items_max * LANE_SHARES[Lane.LEASE].percent_max / 100, seconds)
        self._callbacks.append(partial(self._observer.flush_committed, self._shard, entries, seconds))
        self._on_wait_ended()
        self._on_flush_ended()
        return None

    def _run_callbacks(self) -> None:
        """Tells whoever is to hear of what is committed. Who cannot be told may have set items aside that nobody would see again."""
        while self._callbacks:
            tell = self._callbacks.popleft()
            try:
                tell()
            except Exception as error:
                self.give_up(f"what is committed could not be told: {error!r}", error)

    def _on_wait_ended(self) -> None:
        """What the writer waited for is over: where that was long, there were some who did not wait for it."""
        self._breaker.on_retries_ended()
        was_late, self._waiting_since_s = self.is_stalled, None
        if was_late:
            self._memory.on_store_recovered()

    def _on_flush_ended(self) -> None:
        """No flush is under way."""
        self._is_flushing = False
        while self._between_flushes:
            self._between_flushes.popleft()()

    async def _flush_once(self, batch: Batch, first_attempt_ms: int, now_ms: int, offset_ms: int) -> Flush:
        """One transaction, now, of a batch whose first attempt began then. When its outcome is unknown, finds out; raises `WriteRefused(again)` when it was not written."""
        fence = Fence(self._epoch, self._nonce, self.flush_number + 1, now_ms, offset_ms)
        moment = FlushContext(now_ms, first_attempt_ms, fence.token, self._retry_policies)
        get: FindRow = self._memory.cache.get
        if batch.dues:
            get = chain_finders(get, *batch.due_rows())
        wanted = batch.dues_with_waiter()
        touched = [number for number in batch.event_numbers if get(number) is None and number not in wanted]
        loaded = {
            number: ANY_LENGTH
            for number in (*batch.hand_out_numbers, *wanted)
            if (row := get(number)) is None or row.payload is None
        }
        if loaded:
            # No more is read than was set aside when the hand-out was queued, whatever has been learned of its rows since.
            for part in batch.hand_outs:
                most = part.work.read_bytes
                loaded.update([(each, most) for each in part.numbers if each in loaded])
        own: list[KeyName] = batch.key_names() if self._key_read_flushes_left else []
        keys = own + batch.replay_key_names() if batch.replay_lookups else own
        over_ms, self._keys_expired_by_ms = self._keys_expired_by_ms, None
        result: list[Flush] = []

        def decide(read: Mapping[int, Row], read_keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
            find = chain_finders(read, get) if read else get
            decision = decide_batch(batch, find, moment, self._memory.timers, read_keys, self._memory.purge_markers)
            added = self._memory.topics_to_add(decision.topics)
            removed = self._memory.topics_to_remove(decision.topics, now_ms)
            result[:] = [Flush(batch, decision, added, removed)]
            writes = result[0].writes()
            writes.keys_expired_by_ms = over_ms
            return writes

        self._breaker.on_wait_started(has_new_items=bool(batch.inserts))
        try:
            await self._store.flush(fence, touched, loaded, keys, decide)
            self._breaker.on_flush_succeeded()
        except WriteRefused as refused:
            if refused.is_retryable or refused.is_full:
                self._breaker.on_flush_failed(str(refused))
            raise
        except StoreLost as lost:
            self._is_maybe_written = True
            self._observer.commit_outcome_unknown(self._shard)
            found = await self._resolve_outcome(fence, str(lost))
            self._breaker.on_flush_failed(str(lost))
            if found is not CommitOutcome.COMMITTED:
                raise WriteRefused(str(lost), is_retryable=True) from lost
        finally:
            self._breaker.on_wait_ended()
        if own:
            self._key_read_flushes_left -= 1
        self.key_expiry_flushes += over_ms is not None
        return result[0]

    async def _resolve_outcome(self, fence: Fence, reason: str) -> CommitOutcome:
        """Asks the owner row, until the database answers, what became of `fence`'s flush.

        Raises:
            ShardLost: the row is not ours, or its flush is neither this one nor the one before.
        """
        log.warning("shard %d: flush %d may or may not be written: %s", self._shard, fence.flush, reason)
        self._mark_unavailable(reason)
        attempt = 0
        while True:
            try:
                owner = await self._store.read_owner()
                self.reconnects += 1
                break
            except StoreLost as lost:
                if self.unavailable_reason != str(lost):
                    log.warning("shard %d: %s", self._shard, lost)
                self.unavailable_reason = str(lost)
                await asyncio.sleep(self._backoff.pause_s(attempt))
                attempt += 1
        self.unavailable_reason = None
        found = commit_outcome(fence, owner)
        log.info("shard %d: flush %d is %s", self._shard, fence.flush, found.value)
        if found is CommitOutcome.FENCED:
            raise ShardLost(f"the owner row shows epoch {owner.epoch}, flush {owner.flush}", owner)
        if found is CommitOutcome.NOT_COMMITTED:
            self._is_maybe_written = False
        self._memory.on_store_recovered()
        return found

    async def _read_one(self, query: Callable[[Store], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        """Reads once, and after a lost connection once more: a read that breaks every connection fails alone."""
        why = ""
        for _ in range(2):
            self._waiting_since_s = self._stopwatch_s()
            self._breaker.on_wait_started(has_new_items=False)
            try:
                result = await query(self._store)
            except StoreLost as lost:
                why = str(lost)
                if await self._resolve_outcome(self.last_committed, why) is not CommitOutcome.COMMITTED:
                    raise ShardLost("the owner row is behind the last committed flush", None) from lost
                self._breaker.on_flush_failed(why)
            else:
                if not future.done():
                    future.set_result(result)
                return
            finally:
                self._breaker.on_wait_ended()
                self._on_wait_ended()
            if future.done():
                return
        future.set_exception(Unavailable(f"shard {self._shard} could not read this: {why}", retry_after_ms=1000))

    def _mark_unavailable(self, reason: str) -> None:
        self.unavailable_reason = reason
        self._unavailable_since_s = self._stopwatch_s()

    async def _try_read_owner(self) -> Owner | None:
        try:
            return await self._store.read_owner()
        except StoreError:
            return None

    def _fail_all(self, error: FoqsError, is_maybe_written: bool) -> None:
        """Settles everything that waits: the flush under way as unknown where it may be written, the rest with `error`."""
        self.is_ended = True
        self._run_callbacks()
        self._between_flushes.clear()
        unknown = UnknownOutcome("the shard was lost while this was being written; it may be written")
        current = unknown if is_maybe_written else error
        begun, self._sealed_batch = self._sealed_batch, _EMPTY_BATCH
        suspects = [part for batch in self._bisection_queue for part in batch.parts]
        for part in self._flushing_batch.parts:
            self._call_safely(part.fail, current)
        for claim in (*self._flushing_batch.direct_deliveries, *begun.direct_deliveries):
            self._call_safely(claim.fail, 0, len(claim), current)
        for part in [*begun.parts, *suspects, *self._intake.drain()]:
            self._call_safely(part.fail, error)
        self._flushing_batch = _EMPTY_BATCH
        self._bisection_queue.clear()
        while self._reads:
            _, future = self._reads.popleft()
            if not future.done():
                future.set_exception(error)

    def _call_safely(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Tells somebody of the end; what goes wrong there keeps it from nobody else."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("shard %d: a caller could not be told that it was lost", self._shard)


def _ignore() -> None:
    """Nobody asked to be told."""


def _parts_but_inserts(batch: Batch) -> list[Part[Any]]:
    """All of a batch that inserts nothing."""
    return [*batch.acks, *batch.events, *batch.hand_outs, *batch.purges, *batch.replay_lookups]


def _reseal(refused: Batch) -> Batch:
    """Those that their callers have not withdrawn meanwhile."""
    left = Batch([part for part in refused.inserts if not part.work.is_abandoned])
    for part in left.inserts:
        part.work.seal(part.start, part.stop)
    return left
