"""Bugs to plant, which show that the simulation would find them.

Each bug breaks one rule of the design in one place, and names the invariants that
it may violate. Every invariant that the simulation can check has at least one bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from foqs.catalog.document import Document
from foqs.catalog.namespaces import Namespaces
from foqs.core.flush import flush_plan, operation, planning
from foqs.core.flush.batch import Batch
from foqs.core.flush.fence import CommitOutcome, Fence
from foqs.core.flush.flush_plan import FlushPlan
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.flush.writes import Writes
from foqs.core.items import life
from foqs.core.items.item import DeliveryPolicy, OrderKey, Row, State, TopicName, make_number
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition
from foqs.core.memory.ready_index import ReadyIndex
from foqs.core.memory.ready_window import Refill
from foqs.core.memory.row_cache import Prefetch, RowCache
from foqs.core.memory.topic_counts import TopicCounts
from foqs.core.timing import database_clock
from foqs.core.timing.database_clock import DatabaseClock
from foqs.core.timing.due_timers import DueTimers
from foqs.queue.bulk_changes import HostBulkChanges
from foqs.queue.port import PageResult
from foqs.queue.reads import counting
from foqs.queue.reads.filter_walk import FilterWalk
from foqs.shard import flush_planner
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.topic_loader import TopicLoader
from foqs.shard.writer import Writer
from foqs.store.in_memory import memory_store
from foqs.store.port import Decide, StoreLost
from foqs_contract.errors import DeadlineExceeded
from tests.simulation import planted_access, planted_delivery, planted_rows
from tests.simulation.planting import plant


def _rule(kind: EventKind, state: State, decide: Callable[[Event, Any, FlushContext], Transition]) -> None:
    table: dict[Any, Any] = dict(life.TABLE)
    table[state, kind] = replace(table[state, kind], decide=decide)
    life.TABLE = table  # type: ignore[misc]


def no_fence() -> None:
    """Every owner writes, also one that was replaced."""

    async def flush_locked(
        self: memory_store.MemoryStore,
        fence: Fence,
        row_ids: Sequence[int],
        payload_limits: Mapping[int, int],
        key_names: Any,
        decide: Decide,
    ) -> None:
        old = self._tables.owner
        self._tables.owner = replace(old, epoch=fence.epoch, nonce=fence.nonce, flush=fence.flush - 1)
        await original(self, fence, row_ids, payload_limits, key_names, decide)

    original = plant(memory_store.MemoryStore, "_flush_locked", flush_locked)


def token_ignored() -> None:
    """An ack is accepted with any token."""
    for state in State:
        _rule(EventKind.ACK, state, lambda event, row, moment: Transition(Effect.DELETED))


def answered_before_commit() -> None:
    """The caller gets success when the flush is sent, not when it is committed."""

    async def commit(self: memory_store.MemoryStore, fence: Fence, writes: Any) -> None:
        self._committing_connection = self._connection
        task = asyncio.ensure_future(late(self, self._connection, fence, writes))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)

    async def late(self: memory_store.MemoryStore, connection: int, fence: Fence, writes: Any) -> None:
        await asyncio.sleep(0.02)
        await self._apply(connection, fence, writes, asyncio.get_running_loop().create_future())

    plant(memory_store.MemoryStore, "commit", commit)


def lease_cut_short() -> None:
    """A lease ends after half of its time."""

    def lease_end(lease_ms: int, now_ms: int, due_ms_min: int) -> int:
        return max(due_ms_min, now_ms + lease_ms // 2)

    plant(planning, "_lease_end_ms", lease_end)


def rerun_without_reading() -> None:
    """After a lost connection the flush runs again, whatever the owner row says."""

    async def resolve(self: Writer, fence: Fence, reason: str) -> CommitOutcome:
        while True:
            try:
                owner = await self._store.read_owner()
            except StoreLost:
                await asyncio.sleep(0.01)
                continue
            if (owner.epoch, owner.nonce) != (fence.epoch, fence.nonce):
                return CommitOutcome.FENCED
            self.flush_number = owner.flush
            return CommitOutcome.COMMITTED if fence.clock_ms == 0 else CommitOutcome.NOT_COMMITTED

    plant(Writer, "_resolve_outcome", resolve)


def reads_trusted() -> None:
    """A refill and a prefetch keep all that they read, even if it was written meanwhile."""

    def end_refill(self: ReadyIndex, refill: Refill, keys: Sequence[OrderKey], complete: bool) -> None:
        refill.changes.clear()
        refilled(self, refill, keys, complete)

    def end_load(self: RowCache, prefetch: Prefetch, rows: Sequence[Row]) -> None:
        self._prefetching.update(dict.fromkeys(prefetch.numbers, prefetch))
        self._remove(prefetch.numbers)
        loaded(self, prefetch, rows)

    refilled, loaded = ReadyIndex.finish_refill, RowCache.finish_prefetch
    plant(ReadyIndex, "finish_refill", end_refill)
    plant(RowCache, "finish_prefetch", end_load)


def direct_delivery_before_commit() -> None:
    """A direct delivery is complete when the flush is decided, not when it is committed."""

    def plan_flush(batch: Batch, *arguments: Any) -> FlushPlan:
        plan = original(batch, *arguments)
        for part, rows in plan.results[: len(batch.direct_deliveries)]:
            if part.operation.is_open and part.operation.settle(0, rows):
                part.operation.report_end()
        return plan

    original = planning.plan_flush
    plant(flush_planner, "plan_flush", plan_flush)


def keys_unwritten() -> None:
    """A key is compared only with keys of the same flush: no key is written."""

    def writes(self: FlushPlan) -> Writes:
        return replace(original(self), idempotency_keys_added=[], idempotency_keys_replaced=[])

    original = plant(FlushPlan, "writes", writes)


def keys_always_replaced() -> None:
    """A key that is found counts as if its window had ended."""

    def plan_flush(
        batch: Batch, find_row: Any, context: FlushContext, timers: DueTimers, keys: Mapping[Any, Any], *others: Any
    ) -> FlushPlan:
        over = {name: row._replace(until_ms=0) for name, row in keys.items()}
        return original(batch, find_row, context, timers, over, *others)

    original = planning.plan_flush
    plant(flush_planner, "plan_flush", plan_flush)


def rows_of_two_shards() -> None:
    """Rows are cached by their number alone, which two shards give to different items."""

    def init(self: RowCache, written_budget: Any, prefetch_budget: Any, longest_payloads: Any) -> None:
        original(self, written_budget, prefetch_budget, longest_payloads)
        self._rows = rows.setdefault(written_budget, {})
        self.get = self._rows.get  # type: ignore[misc]

    rows: dict[Any, dict[int, Row]] = {}
    original = plant(RowCache, "__init__", init)


def tokens_without_epoch() -> None:
    """The tokens of leases do not contain the epoch: after a takeover they start at one again."""
    plant(Fence, "token", property(lambda fence: make_number(1, fence.flush)))


def unknown_is_failure() -> None:
    """A call whose deadline passes while it is being written fails as if it were not written."""
    plant(operation, "UnknownOutcome", DeadlineExceeded)


def check_unlocked() -> None:
    """After a lost connection the owner row is read without its lock, while a COMMIT may be in flight."""

    async def owner(self: memory_store.MemoryStore) -> Any:
        await self._reconnect()
        return self._tables.owner

    plant(memory_store.MemoryStore, "read_owner", owner)


def dead_items_deleted() -> None:
    """An item whose attempts are used up, or that a consumer gives up, is deleted."""
    for (state, kind), rule in life.TABLE.items():

        def decide(
            event: Event, row: Row, moment: FlushContext, original: Callable[..., Transition] = rule.decide
        ) -> Transition:
            transition = original(event, row, moment)
            is_dead = transition.row is not None and transition.row.state is State.DEAD
            return Transition(Effect.DELETED) if is_dead else transition

        _rule(kind, state, decide)


def late_extension_by_anybody() -> None:
    """An item whose lease has ended is leased again to a consumer with any token."""

    def extend(event: Event, row: Row, moment: FlushContext) -> Transition:
        return original(replace(event, token=row.token), row, moment)

    original = life.TABLE[State.READY, EventKind.EXTEND].decide
    _rule(EventKind.EXTEND, State.READY, extend)


def extension_after_a_nack() -> None:
    """An extension leases an item again that its consumer has nacked."""

    def nack(event: Event, row: Row, moment: FlushContext) -> Transition:
        transition = original(event, row, moment)
        if transition.row is not None:
            transition.row.token = row.token
        return transition

    original = life.TABLE[State.LEASED, EventKind.NACK].decide
    _rule(EventKind.NACK, State.LEASED, nack)


def at_most_once_ignored() -> None:
    """An at-most-once item is delivered again when its lease ends."""
    decide = life.TABLE[State.LEASED, EventKind.DUE].decide
    _rule(
        EventKind.DUE,
        State.LEASED,
        lambda event, row, moment: decide(event, replace(row, policy=DeliveryPolicy.AT_LEAST_ONCE), moment),
    )


def attempts_unlimited() -> None:
    """The maximum of attempts is ignored."""
    for kind in (EventKind.DUE, EventKind.NACK):
        decide = life.TABLE[State.LEASED, kind].decide
        _rule(
            kind,
            State.LEASED,
            lambda event, row, moment, decide=decide: decide(event, replace(row, attempts_max=0), moment),  # type: ignore[misc]
        )


def delays_ignored() -> None:
    """A nacked item is ready at once, whatever its delay."""
    decide = life.TABLE[State.LEASED, EventKind.NACK].decide
    _rule(EventKind.NACK, State.LEASED, lambda event, row, moment: decide(replace(event, delay_ms=0), row, moment))


def extensions_unwritten() -> None:
    """An extension succeeds, but changes nothing."""
    _rule(EventKind.EXTEND, State.LEASED, lambda event, row, moment: Transition(Effect.UNCHANGED))


def unread_is_gone() -> None:
    """An event sees only cached rows: an item that is not cached counts as gone."""
    plant(flush_planner, "chain_finders", lambda *sources: next(find for find in sources if callable(find)))


def namespaces_ignored() -> None:
    """A client may change any item whose id it knows."""

    def apply_event(event: Event, row: Row | None, moment: FlushContext) -> Transition:
        return life.apply_event(replace(event, namespace=None), row, moment)

    plant(flush_plan, "apply_event", apply_event)
    plant(planning, "apply_event", apply_event)


def no_refill() -> None:
    """Items that did not fit into a window are never read again."""
    plant(TopicLoader, "start_refill", lambda self, topic: None)


def boundary_kept() -> None:
    """A window that drops its worst keys keeps its boundary, as if it still had them."""

    def lower(self: ReadyIndex, window: Any, order_keys_max: int) -> None:
        boundary = window.boundary
        original(self, window, order_keys_max)
        window.boundary = boundary

    original = plant(ReadyIndex, "_lower_boundary", lower)


def watermark_too_early() -> None:
    """The watermark rises although a due item is not written."""

    def on_scan_incomplete(self: DueTimers, next_scan_ms: int) -> None:
        self.on_scan_completed(next_scan_ms, next_scan_ms)

    plant(DueTimers, "on_scan_incomplete", on_scan_incomplete)


def clock_followed_at_once() -> None:
    """A shard's time follows the jumps of the database's clock."""

    def sample(self: DatabaseClock, database_ms: int, requested_at_ms: int) -> None:
        original(self, database_ms, requested_at_ms)
        for clock in self._shard_clocks:
            clock._base_us = database_ms * 1_000

    original = plant(DatabaseClock, "on_sample", sample)


def offset_forgotten() -> None:
    """A new owner's time is the database's clock, whatever the time of the last owner."""

    def first_ms(database_ms: int, saved_ms: int, offset_ms: int, skew_ms_max: int) -> int:
        return database_ms

    plant(database_clock, "initial_time_ms", first_ms)


def pages_unreported() -> None:
    """A page of changes by filter reports no change."""

    async def changed_page(*arguments: Any) -> PageResult:
        return replace(await original(*arguments), changed=0)

    original = plant(HostBulkChanges, "change_matching", changed_page)


def dead_uncounted() -> None:
    """A new owner does not count the dead items that it finds."""

    def found_some(self: TopicCounts, counts: Sequence[tuple[TopicName, State, int]]) -> None:
        original(self, [each for each in counts if each[1] is not State.DEAD])

    original = plant(TopicCounts, "add_initial", found_some)


def walk_ends_early() -> None:
    """A filter finds only the first item of a topic in each state."""

    async def read(self: FilterWalk, limit: int) -> list[Any]:
        seen = await original(self, limit)
        if self.cursor is not None and self.cursor.after_key != self._first_key:
            await self._advance()
        return seen

    original = plant(FilterWalk, "read", read)
    plant(counting, "COUNT_ROWS_PER_READ", 1)


def pauses_ignored() -> None:
    """Items of a paused topic are delivered."""

    def apply(self: Namespaces, document: Document) -> frozenset[TopicName]:
        resumed = original(self, document)
        self.paused_topics = frozenset()
        return resumed

    original = plant(Namespaces, "apply", apply)


def limits_ignored() -> None:
    """A namespace has the defaults of the host, whatever was set."""
    plant(Namespaces, "settings_of", lambda self, name: self.default_settings)


def purge_markers_unread() -> None:
    """A new owner does not read the purge markers of the last owner."""

    def recovered(self: ShardMemory, topics: Any, key_slots: Any, purge_markers: Any) -> Iterator[None]:
        return original(self, topics, key_slots, ())

    original = plant(ShardMemory, "recover", recovered)


def purge_markers_ignored() -> None:
    """A purged item can be delivered until its row is deleted."""
    plant(PurgeMarkers, "hide_purged", lambda self, find: find)


def purges_fail() -> None:
    """Removing purged items from memory fails: the shard is acquired again from its rows, and no caller notices."""

    def apply(self: ShardMemory, plan: FlushPlan, finished: Any) -> None:
        if plan.batch.purges:
            raise RuntimeError(PLANTED_ERROR)
        original(self, plan, finished)

    original = plant(ShardMemory, "apply", apply)


def refills_fail() -> None:
    """Adding the keys of a refill to the index fails: the reader's task ends, and with it the ownership."""

    def end_refill(self: ReadyIndex, refill: Any, keys: Any, complete: bool) -> None:
        raise RuntimeError(PLANTED_ERROR)

    plant(ReadyIndex, "finish_refill", end_refill)


SEEDS: Final = range(16)
"""The seeds that show nearly every bug; the first seed shows most."""


@dataclass(slots=True, frozen=True)
class Bug:
    """A bug, and the invariants of which some seed of `SEEDS` violates at least one."""

    plant: Callable[[], None]
    """Plant the bug for the rest of this process."""
    shows: tuple[int, ...]
    seed_count: int = len(SEEDS)
    """How many seeds are played to show it. A rare bug needs more than `SEEDS`."""
    first_seed: int = 0
    """The seed that is played first, because it is known to show it. The others follow in order."""


PLANTED_ERROR: Final = "a planted bug"

BUGS: Final[Mapping[str, Bug]] = {
    "reply-before-commit": Bug(answered_before_commit, (4, 5, 8)),
    "dead-items-deleted": Bug(dead_items_deleted, (1,)),
    "rows-of-two-shards": Bug(rows_of_two_shards, (2,)),
    "keys-unwritten": Bug(keys_unwritten, (3,)),
    "keys-replaced": Bug(keys_always_replaced, (3,)),
    "direct-delivery-before-commit": Bug(direct_delivery_before_commit, (2, 5, 8, 16)),
    "uncached-items-gone": Bug(unread_is_gone, (4,)),
    "lease-cut-short": Bug(lease_cut_short, (5,)),
    "extensions-unwritten": Bug(extensions_unwritten, (5,), first_seed=1),
    "token-ignored": Bug(token_ignored, (6,)),
    "late-extension-by-anybody": Bug(late_extension_by_anybody, (6,), first_seed=4),
    "extension-after-a-nack": Bug(extension_after_a_nack, (6,)),
    "tokens-without-epoch": Bug(tokens_without_epoch, (6,)),
    "at-most-once-ignored": Bug(at_most_once_ignored, (7,)),
    "clock-followed-at-once": Bug(clock_followed_at_once, (5, 9, 10), first_seed=1),
    "offset-forgotten": Bug(offset_forgotten, (5, 9), first_seed=5),
    "attempts-unlimited": Bug(attempts_unlimited, (8,)),
    "first-delivery-rewritten": Bug(planted_rows.first_delivery_rewritten, (8,)),
    "first-delivery-unwritten": Bug(planted_rows.first_delivery_unwritten, (8,)),
    "trace-lost-at-insert": Bug(planted_rows.trace_lost_at_insert, (2,)),
    "trace-lost-at-nack": Bug(planted_rows.trace_lost_at_nack, (2,), first_seed=3),
    "delays-ignored": Bug(delays_ignored, (9,)),
    "watermark-too-early": Bug(watermark_too_early, (10,)),
    "no-refill": Bug(no_refill, (11,)),
    "dequeue-gives-up-early": Bug(planted_delivery.dequeue_gives_up_early, (11,), first_seed=3),
    "no-fence": Bug(no_fence, (12,)),
    "reads-trusted": Bug(reads_trusted, (10, 11, 13)),
    "boundary-kept": Bug(boundary_kept, (13,)),
    "rerun-unread": Bug(rerun_without_reading, (2, 5, 16), first_seed=4),
    "owner-read-without-lock": Bug(check_unlocked, (2, 16)),
    "unknown-is-failure": Bug(unknown_is_failure, (16,)),
    "namespaces-ignored": Bug(namespaces_ignored, (17,)),
    "page-changes-unreported": Bug(pages_unreported, (1,)),
    "dead-uncounted": Bug(dead_uncounted, (15,)),
    "walk-ends-early": Bug(walk_ends_early, (15,)),
    "pauses-ignored": Bug(pauses_ignored, (19,)),
    "limits-ignored": Bug(limits_ignored, (19,)),
    "purge-markers-unread": Bug(purge_markers_unread, (19,), first_seed=2),
    "purge-markers-ignored": Bug(purge_markers_ignored, (10, 13, 15, 19), first_seed=3),
    "permission-missing-for-one-call": Bug(planted_access.permission_missing_for_one_call, (17,)),
    "authentication-skipped": Bug(planted_access.authentication_skipped, (17,)),
    "grants-never-revoked": Bug(planted_access.grants_never_revoked, (17,)),
    "deleted-with-deferred-items": Bug(planted_access.deleted_with_deferred_items, (19,), 24, first_seed=18),
    "deleted-namespace-served": Bug(planted_access.deleted_namespace_served, (19,)),
    "leased-explained-as-ready": Bug(planted_access.leased_explained_as_ready, (15,)),
    "deferred-explained-as-absent": Bug(planted_access.deferred_explained_as_absent, (15,)),
    "imports-without-grants": Bug(planted_access.imports_without_grants, (19,)),
}

FAULTS: Final[Mapping[str, Bug]] = {"purges-fail": Bug(purges_fail, ()), "refills-fail": Bug(refills_fail, ())}
"""Bugs that violate no invariant: the host survives them and logs an error."""


def shows(bug: Bug, violations: Sequence[str]) -> bool:
    """Whether one of the violations is of an invariant that the bug may violate."""
    return any(f"invariant {invariant}:" in each for invariant in bug.shows for each in violations)
