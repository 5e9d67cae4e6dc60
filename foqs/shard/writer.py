"""The writer of one shard: the only task that writes to its store.

It does one thing at a time: a flush, then the reads that must run between two
flushes, then the next flush. While one flush commits, operations collect for the
next. So its reads are never stale. After a flush with an unknown outcome
nothing runs until the owner row shows the outcome. Always true: `flush_number`
is the last flush known to be committed. Knows the protocol of a flush, not what
its events mean to the shard's memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from foqs.core.flush.batch import Batch, Part
from foqs.core.flush.fence import CommitOutcome, Fence, commit_outcome
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.intake import LANE_SHARES, Intake
from foqs.core.flush.operation import SEALED, Inserts, Lane, Operation
from foqs.core.flush.pacing import FlushPace, LeaseCost
from foqs.core.flush.writes import Writes
from foqs.core.items.idempotency_keys import IdempotencyKey, KeyName
from foqs.core.items.item import Row
from foqs.core.items.life import FlushContext
from foqs.core.timing.database_clock import DatabaseClock
from foqs.core.timing.shard_clock import ShardClock
from foqs.shard.flush_planner import FlushPlanner
from foqs.shard.flush_report import FlushReport
from foqs.shard.host_services import HostServices
from foqs.shard.owned_store import OwnedStore, OwnershipGivenUp, ShardLost
from foqs.shard.refused_writes import RefusedWrites
from foqs.shard.shard_breaker import ShardBreaker
from foqs.shard.shard_memory import ShardMemory
from foqs.store.port import FencedOut, IdempotencyKeyExists, Store, StoreLost, WriteRefused
from foqs_contract.errors import HANDOVER_RETRY_MS, FoqsError, NotOwner, Unavailable, UnknownOutcome

log = logging.getLogger(__name__)

T = TypeVar("T")

KEY_READ_FLUSHES: Final = 32
"""After a flush was refused because a key existed, this many flushes read their keys first: repeats come in swarms."""

KEYS_EXPIRED_PER_FLUSH: Final = 500
"""The expired key rows that a flush deletes beyond those that it adds: a few milliseconds of the database's time."""

_EMPTY_BATCH: Final = Batch()
"""Stands for no batch; nothing is ever added to it."""

STALLED_S: Final = 1.0
"""A shard whose writer has waited this long for the database delivers nothing meanwhile: other shards may have items."""


class Writer:
    """Runs flushes against one store until it is closed or fenced.

    Args:
        pace: sets the size of flushes.
        breaker: the circuit breaker, which is notified of every wait for the store.
    """

    def __init__(
        self,
        owned: OwnedStore,
        shard_clock: ShardClock,
        database_clock: DatabaseClock,
        intake: Intake,
        memory: ShardMemory,
        planner: FlushPlanner,
        report: FlushReport,
        pace: FlushPace,
        breaker: ShardBreaker,
        host: HostServices,
    ) -> None:
        self.flush_number = owned.owner.flush
        self.inserted_items = 0
        """The items that this epoch has inserted up to `flush_number`."""
        self.lease_cost = LeaseCost()
        self.last_flush_s = 0.0
        """The duration of the last committed flush, with all its attempts."""
        self._lease_count = 0
        """Leases in the flush under way; 0 if no others wait."""
        self._waiting_since_s: float | None = None
        """When the wait for the database began, retries included; None when it does not wait."""
        self._unavailable_since_s = 0.0
        """When the trouble of `unavailable_reason` began."""
        self.unavailable_reason: str | None = None
        """Why the store does not answer or refuses this owner's writes; None when it works."""
        self._owned = owned
        self._shard = owned.shard
        self._store = owned.store
        self._epoch = owned.owner.epoch
        self._nonce = owned.owner.nonce
        self._shard_clock = shard_clock
        self._database_clock = database_clock
        self._intake = intake
        self._retry_policies = host.namespaces.retry_policies
        self._backoff = host.backoff
        self._stopwatch_s = host.clock.stopwatch_s
        self.refused_writes = RefusedWrites(owned.shard, host.clock.stopwatch_s, self.request_flush)
        self._observer = host.observer
        self._memory = memory
        self._planner = planner
        self._report = report
        self._pace = pace
        self._breaker = breaker
        self._bisection_queue: deque[Batch] = deque()
        self._sealed_batch = _EMPTY_BATCH
        """The batch of this turn; the part in the flush under way is also in `_flushing_batch`."""
        self._flushing_batch = _EMPTY_BATCH
        self._is_maybe_written = False
        self._finished: deque[Operation] = deque()
        """Operations that committed flushes have finished. Their ends are still to be reported."""
        self._committed: deque[tuple[FlushPlan, float]] = deque()
        """Committed flushes, with their seconds, that are still to be reported to the metrics."""
        self._is_flushing = False
        self._between_flushes: deque[Callable[[], None]] = deque()
        self._reads: deque[tuple[Callable[[Store], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._work_arrived = asyncio.Event()
        self._is_idle = False
        """It waits for `_work_arrived`."""
        self._is_closing = False
        self._give_up_reason: str | None = None
        self._flush_requested = False
        self._key_read_flushes_left = 0
        """How many more flushes with keys read them first."""
        self._idempotency_keys_expired_from_ms = 0
        self._idempotency_keys_expired_by_ms: int | None = None
        self._pending_key_slots: Sequence[int] = ()
        self._on_key_slots_assigned: Callable[[], None] = _ignore
        self._are_key_slots_refused = False
        """The database refused them; they are tried again after a pause."""
        self.is_ended = False
        """New operations would never be written."""
        self.key_reruns = 0
        self.key_expiry_flushes = 0
        """Flushes that deleted expired keys."""
        self.reconnects = 0

    def submit(self, operation: Operation, *, is_internal: bool = False) -> None:
        """Queue an operation for a flush.

        Args:
            is_internal: an operation of the shard itself. It is bounded by its cause, so no limit applies.

        Raises:
            Overloaded: there is no room; nothing was queued.
        """
        self._intake.submit(operation, is_internal=is_internal)
        if self._is_idle:
            self._work_arrived.set()

    def request_flush(self) -> None:
        """Write a flush even if no operation waits. It saves the shard's time and checks the ownership."""
        self._flush_requested = True
        self._work_arrived.set()

    def expire_idempotency_keys(self, from_ms: int, by_ms: int | None) -> None:
        """Let each flush, from now on, delete key rows that ended from `from_ms` to `by_ms`; None: let none.

        A flush deletes more of them than it adds. One that is refused ends this.
        """
        self._idempotency_keys_expired_from_ms, self._idempotency_keys_expired_by_ms = from_ms, by_ms
        if by_ms is not None:
            self.request_flush()

    def assign_key_slots(self, key_slots: Sequence[int], on_assigned: Callable[[], None]) -> None:
        """Store that the shard holds these slots, and call `on_assigned` when that is committed."""
        self._pending_key_slots = key_slots
        self._on_key_slots_assigned = on_assigned
        self._are_key_slots_refused = False
        self.request_flush()

    @property
    def shard(self) -> int:
        """The number of its shard."""
        return self._shard

    @property
    def bisection_batch_count(self) -> int:
        """The number of parts of refused batches that wait for another try."""
        return len(self._bisection_queue)

    @property
    def new_items_max(self) -> int:
        """How many more items it inserts at most if nothing more is submitted."""
        # A part may be in two of them.
        batches = [self._sealed_batch, self._flushing_batch, *self._bisection_queue]
        return self._intake.new_items_max + sum([batch.new_items_max for batch in batches])

    @property
    def pending_key_slots(self) -> Sequence[int]:
        """The key slots that are still to be written."""
        return self._pending_key_slots

    def refuse_inserts(self, error: Unavailable) -> None:
        """Fail all new items that wait for a flush or for another try, and the completions that would add some."""
        parts: list[Part[Any]] = [*self._intake.pop_inserts(), *self._intake.pop_completions()]
        parts += [part for batch in self._bisection_queue for part in batch.parts]
        self._bisection_queue.clear()
        for part in parts:
            part.fail(error)

    def close(self) -> None:
        """Let `run` return once nothing waits."""
        self._is_closing = True
        self._work_arrived.set()

    def drop(self) -> None:
        """End at once: operations being written get `UNKNOWN_OUTCOME`, the rest `NOT_OWNER`. The caller cancels `run` too."""
        self._fail_all(
            NotOwner(f"this host does not own shard {self._shard} any more; call its owner, which getRouting names"),
            True,
        )

    def give_up(self, reason: str, cause: BaseException | None = None) -> None:
        """Make `run` raise `OwnershipGivenUp` after the flush under way. A `cause` is an error of this program and is logged."""
        if cause is not None:
            log.error("shard %d: %s", self._shard, reason, exc_info=cause)
        self._give_up_reason = reason
        self.request_flush()

    @property
    def last_committed(self) -> Fence:
        return Fence(self._epoch, self._nonce, self.flush_number, 0)

    @property
    def unavailable_ms(self) -> int:
        """How long the trouble of `unavailable_reason` has lasted."""
        return int((self._stopwatch_s() - self._unavailable_since_s) * 1000)

    @property
    def is_stalled(self) -> bool:
        """Whether it has waited for the database for more than `STALLED_S`."""
        return self._waiting_since_s is not None and self._stopwatch_s() - self._waiting_since_s > STALLED_S

    def is_writing(self, inserts: Inserts) -> bool:
        """Return whether items of this operation are in the batch of this turn, so that a flush may write them."""
        return any(part.operation is inserts for part in self._sealed_batch.inserts)

    def run_between_flushes(self, action: Callable[[], None]) -> None:
        """Call `action` while no flush is under way: now or after this one; never once the writer has ended."""
        if not self._is_flushing:
            action()
        elif not self.is_ended:
            self._between_flushes.append(action)

    async def read(self, query: Callable[[Store], Awaitable[T]]) -> T:
        """Run `query` between two flushes and return its result.

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
        """Run flushes until `close` was called and nothing waits.

        Raises:
            ShardLost: the owner row shows another owner or an unexpected flush.
            OwnershipGivenUp: see `give_up`.
        """
        try:
            while True:
                while self._intake or self._bisection_queue or self._reads or self._flush_requested:
                    await self._run_once()
                if self._finished or self._committed:
                    self._report_commits()
                    continue
                if self._is_closing:
                    return
                self._work_arrived.clear()
                self._is_idle = True
                await self._work_arrived.wait()
                self._is_idle = False
        except ShardLost as lost:
            self._observer.shard_fenced(self._shard)
            self._fail_all(
                NotOwner(
                    f"this host does not own shard {self._shard} any more ({lost.reason}); call its owner, which getRouting names"
                ),
                self._is_maybe_written,
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
        self._lease_count = len(batch.lease_numbers) if self._intake.has_waiting_leases else 0
        self._memory.on_batch_sealed()
        if batch or self._flush_requested:
            self._flush_requested = False
            self._planner.complete(batch)
            await self._commit_or_bisect(self._without_completions(batch) if self._breaker.is_open else batch)
            self._intake.on_flush_ended(batch)
        if self._bisection_queue:
            self._sealed_batch = self._bisection_queue.popleft().reseal()
            if self._sealed_batch:
                await self._commit_or_bisect(self._sealed_batch)
        self._sealed_batch = _EMPTY_BATCH
        for _ in range(len(self._reads)):
            query, future = self._reads[0]
            if not future.done():
                await self._read_one(query, future)
            self._reads.popleft()

    def _without_completions(self, batch: Batch) -> Batch:
        """Fail the completions of a batch, which waited for an earlier event when the breaker opened. Return the rest of it."""
        if not batch.completions:
            return batch
        for part in batch.completions:
            part.fail(self._breaker.unavailable_error())
        rest = Batch([*batch.parts_without_items(), *batch.inserts])
        rest.direct_deliveries = batch.direct_deliveries
        return rest

    async def _write_key_slots(self) -> None:
        """Write the assigned key slots in a flush of their own, so that their refusal delays nothing else."""
        await self._commit_or_bisect(Batch(key_slots=self._pending_key_slots))
        if self._pending_key_slots:
            self._are_key_slots_refused = True
            asyncio.get_running_loop().call_later(
                self._backoff.s_max, self.assign_key_slots, self._pending_key_slots, self._on_key_slots_assigned
            )
        else:
            self._on_key_slots_assigned()

    async def _commit_or_bisect(self, batch: Batch) -> None:
        """Commit a batch. Entries that the database refuses are found by bisection and fail alone, or with their whole operation.

        Refused inserts are tried again in later turns, alone and after the events of
        the turn, so that a bad row or a full disk never delays an ack. Completions add
        items too, and are tried again after the events that do not.
        """
        refusal = await self._flush_until_committed(batch)
        if refusal is None:
            return
        for delivery in batch.direct_deliveries:
            if delivery.operation.settle(0, [None] * delivery.count):
                delivery.operation.report_end()
        if batch.adds_items and self._breaker.is_open:
            # Bisection would only put more load on an unhealthy database.
            adding: list[Part[Any]] = [*batch.inserts, *batch.completions]
            for refused in adding:
                refused.fail(self._breaker.unavailable_error())
            batch = Batch(batch.parts_without_items())
            if batch:
                await self._commit_or_bisect(batch)
            return
        events = batch.parts_without_items()
        if (events or batch.completions) and batch.inserts:
            self._bisect_later(Batch(batch.inserts))
            await self._commit_or_bisect(Batch([*events, *batch.completions]))
        elif events and batch.completions:
            await self._commit_or_bisect(Batch(events))
            await self._commit_or_bisect(Batch(batch.completions))
        elif batch.is_divisible and batch.inserts:
            for half in reversed(batch.split()):
                self._bisect_later(half)
        elif batch.is_divisible:
            for half in batch.split():
                await self._commit_or_bisect(half)
        else:
            self.refused_writes.add(refusal)
            for part in batch.parts:
                part.fail(self.refused_writes.error_of(refusal, part))
                self._memory.on_refused(part)

    def _bisect_later(self, batch: Batch) -> None:
        """Queue refused inserts before all others. Their callers may withdraw them meanwhile."""
        for part in batch.inserts:
            part.operation.unseal(part.start, part.stop)
        self._bisection_queue.appendleft(batch)

    async def _flush_until_committed(self, batch: Batch) -> WriteRefused | None:
        """Run one flush until it is committed.

        Returns the refusal if the database refused it for good, or refused it at all while the
        breaker is open and the batch has new items. Raises `ShardLost`.
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
                plan = await self._flush_once(batch, begun_ms, now_ms, offset_ms)
                break
            except WriteRefused as refused:
                if isinstance(refused, IdempotencyKeyExists) and not self._key_read_flushes_left:
                    self._key_read_flushes_left = KEY_READ_FLUSHES
                    self.key_reruns += 1
                    continue
                if refused.is_retryable:
                    self._breaker.on_flush_retry(started_s)
                if not refused.is_retryable or (batch.adds_items and self._breaker.is_open):
                    self._flushing_batch = _EMPTY_BATCH
                    self._on_wait_ended()
                    self._on_flush_ended()
                    return refused
            except FencedOut as fenced:
                self._mark_unavailable(str(fenced))  # calls need not wait until the owner is known
                raise ShardLost(str(fenced), await self._owned.try_read_owner()) from fenced
            self._observer.flush_retried(self._shard)
            await asyncio.sleep(self._backoff.pause_s(attempt))
            attempt += 1
        self.flush_number += 1
        self.inserted_items += len(plan.inserted)
        self.last_flush_s = self._stopwatch_s() - started_s
        self._is_maybe_written = True
        if batch.key_slots:
            self._pending_key_slots = ()
        self.refused_writes.on_committed(self._store.full_refusals)
        if not self._finished and not self._committed:
            # They are reported when the next flush is on its way to the database: nothing is awaited before.
            asyncio.get_running_loop().call_soon(self._report_commits)
        self._memory.settle(plan, self._finished)
        if plan.can_notify_before_apply and not (
            self._intake or self._bisection_queue or self._reads or self._flush_requested
        ):
            # No next flush waits for the memory, so callers need not wait either: they see it as it was
            # during the flush. A reply to a dequeue must wait: it states what is left, or looks for more.
            self._report_commits()
            self._memory.on_callers_notified()
        self._is_flushing = False
        self._memory.apply(plan, self._finished)
        self._flushing_batch = _EMPTY_BATCH
        self._is_maybe_written = False
        seconds = self._stopwatch_s() - started_s
        self._committed.append((plan, seconds))
        items_max = self._pace.update(len(batch), seconds, self._intake.is_small_flush, started_s + seconds)
        self._intake.set_flush_items_max(items_max)
        self.lease_cost.learn(self._lease_count or items_max * LANE_SHARES[Lane.LEASE].percent_max / 100, seconds)
        self._on_wait_ended()
        self._on_flush_ended()
        return None

    def _report_commits(self) -> None:
        """Report committed flushes: the ends of their operations to the callers, then the flushes to the metrics.

        A failure gives the shard up: items may stay reserved for ever.
        """
        finished, committed = self._finished, self._committed
        while finished or committed:
            try:
                while finished:
                    finished.popleft().report_end()
                while committed:
                    plan, seconds = committed.popleft()
                    self._report.add(plan, seconds)
            except Exception as error:
                self.give_up(f"a caller could not be notified of a commit: {error!r}", error)

    def _on_wait_ended(self) -> None:
        """End the wait for the database. After a long one, dequeues that went elsewhere are notified."""
        self._breaker.on_retries_ended()
        was_late, self._waiting_since_s = self.is_stalled, None
        if was_late:
            self._memory.on_store_recovered()

    def _on_flush_ended(self) -> None:
        self._is_flushing = False
        while self._between_flushes:
            self._between_flushes.popleft()()

    async def _flush_once(self, batch: Batch, first_attempt_ms: int, now_ms: int, offset_ms: int) -> FlushPlan:
        """Run one transaction of a batch, and return its plan once it is committed. An unknown outcome is resolved first.

        Raises:
            WriteRefused: nothing was written; also after a lost connection, as retryable.
            FencedOut, ShardLost: this host does not own the shard any more.
        """
        arrival_ms = self._database_clock.last_arrival_ms
        fence = Fence(self._epoch, self._nonce, self.flush_number + 1, now_ms, offset_ms, arrival_ms)
        memory = self._memory
        policies = self._retry_policies
        moment = FlushContext(
            now_ms, first_attempt_ms, fence.token, policies, memory.limited_names, memory.strict_names
        )
        reads = self._planner.reads(batch, with_own_idempotency_keys=bool(self._key_read_flushes_left))
        expired_from_ms, expired_by_ms = self._idempotency_keys_expired_from_ms, self._idempotency_keys_expired_by_ms
        result: list[FlushPlan] = []

        def decide(read: Mapping[int, Row], read_keys: Mapping[KeyName, IdempotencyKey]) -> Writes:
            plan = self._planner.plan(batch, reads, read, read_keys, moment)
            result[:] = [plan]
            writes = plan.writes()
            writes.idempotency_keys_expired_from_ms, writes.idempotency_keys_expired_by_ms = (
                expired_from_ms,
                expired_by_ms,
            )
            writes.idempotency_keys_expired_max = KEYS_EXPIRED_PER_FLUSH + len(writes.idempotency_keys_added)
            return writes

        self._breaker.on_wait_started(has_new_items=batch.adds_items)
        try:
            await self._store.flush(fence, reads.rows, reads.payloads, reads.key_names, decide)
            self._breaker.on_flush_succeeded()
        except WriteRefused as refused:
            self._idempotency_keys_expired_by_ms = None  # perhaps it was refused because of them
            if refused.is_retryable or refused.is_full:
                self._breaker.on_flush_failed(str(refused))
            if refused.is_full:
                self.refused_writes.on_full(str(refused))
            raise
        except StoreLost as lost:
            self._is_maybe_written = True
            self._observer.commit_outcome_unknown(self._shard)
            outcome = await self._resolve_outcome(fence, str(lost))
            self._breaker.on_flush_failed(str(lost))
            if outcome is not CommitOutcome.COMMITTED:
                raise WriteRefused(str(lost), is_retryable=True) from lost
        finally:
            self._breaker.on_wait_ended()
        if reads.has_own_idempotency_keys:
            self._key_read_flushes_left -= 1
        self.key_expiry_flushes += expired_by_ms is not None
        return result[0]

    async def _resolve_outcome(self, fence: Fence, reason: str) -> CommitOutcome:
        """Read the owner row, until the database answers, and return the outcome of `fence`'s flush.

        Raises:
            ShardLost: the row names another ownership, or its flush is neither this one nor the one before.
        """
        log.warning("shard %d: the outcome of flush %d is unknown: %s", self._shard, fence.flush, reason)
        self._mark_unavailable(reason)
        attempt = 0
        while True:
            try:
                owner = await self._store.read_owner()
                self.reconnects += 1
                break
            except StoreLost as lost:
                if self.unavailable_reason != str(lost):
                    log.warning("shard %d: the owner row cannot be read; trying again: %s", self._shard, lost)
                self.unavailable_reason = str(lost)
                await asyncio.sleep(self._backoff.pause_s(attempt))
                attempt += 1
        self.unavailable_reason = None
        outcome = commit_outcome(fence, owner)
        log.info("shard %d: the outcome of flush %d is known now: %s", self._shard, fence.flush, outcome.value)
        if outcome is CommitOutcome.FENCED:
            raise ShardLost(
                f"the owner row shows epoch {owner.epoch}, flush {owner.flush}, which is not what this host wrote last",
                owner,
            )
        if outcome is CommitOutcome.NOT_COMMITTED:
            self._is_maybe_written = False
        self._memory.on_store_recovered()
        return outcome

    async def _read_one(self, query: Callable[[Store], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
        """Run a read, and once more after a lost connection: a read that breaks every connection fails alone."""
        reason = ""
        for _ in range(2):
            self._waiting_since_s = self._stopwatch_s()
            self._breaker.on_wait_started(has_new_items=False)
            try:
                result = await query(self._store)
            except StoreLost as lost:
                reason = str(lost)
                if await self._resolve_outcome(self.last_committed, reason) is not CommitOutcome.COMMITTED:
                    raise ShardLost(
                        "the owner row shows an earlier flush than the last one that was committed", None
                    ) from lost
                self._breaker.on_flush_failed(reason)
            else:
                if not future.done():
                    future.set_result(result)
                return
            finally:
                self._breaker.on_wait_ended()
                self._on_wait_ended()
            if future.done():
                return
        future.set_exception(
            Unavailable(
                f"shard {self._shard} could not read what the call needs; try again: {reason}", retry_after_ms=1000
            )
        )

    def _mark_unavailable(self, reason: str) -> None:
        self.unavailable_reason = reason
        self._unavailable_since_s = self._stopwatch_s()

    def _fail_all(self, error: FoqsError, is_maybe_written: bool) -> None:
        """Fail everything that waits with `error`; the flush under way with `UnknownOutcome` if it may be written."""
        self.is_ended = True
        self.refused_writes.close()
        self._report_commits()
        self._between_flushes.clear()
        unknown = UnknownOutcome(
            f"shard {self._shard} was lost while this was being written; it may be written, so check before you repeat it"
        )
        current = unknown if is_maybe_written else error
        sealed, self._sealed_batch = self._sealed_batch, _EMPTY_BATCH
        refused_parts = [part for batch in self._bisection_queue for part in batch.parts]
        flushing = self._flushing_batch
        for part in [*flushing.parts, *flushing.direct_deliveries, *sealed.direct_deliveries]:
            self._call_safely(part.fail, current)
        for part in [*sealed.parts, *refused_parts, *self._intake.remove_all()]:
            self._call_safely(part.fail, error)
        self._flushing_batch = _EMPTY_BATCH
        self._bisection_queue.clear()
        while self._reads:
            _, future = self._reads.popleft()
            if not future.done():
                future.set_exception(error)

    def check(self) -> None:
        """Assert what is always true. Call it after a flush was applied; the next one may be under way."""
        self._intake.check(self._sealed_batch)
        assert self._is_flushing or not (self._flushing_batch or self._between_flushes or self._is_maybe_written), (
            "invariant 16: something of a flush is left, and none is under way"
        )
        for batch in self._bisection_queue:
            assert len(batch.parts) == len(batch.inserts), "other operations than inserts wait for another try"
            for part in batch.inserts:
                results = part.operation.results[part.start : part.stop]
                assert SEALED not in results, "invariant 16: an insert waits for another try and counts as sealed"
        for operation in self._finished:
            assert not operation.is_open, (
                f"invariant 16: an operation is finished and has no result: {operation.results}"
            )

    def _call_safely(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call back; an error must not keep the others from their results."""
        try:
            callback(*arguments)
        except Exception:
            log.exception("shard %d: a caller could not be notified that the shard was lost", self._shard)


def _ignore() -> None:
    """Do nothing: no callback was given."""
