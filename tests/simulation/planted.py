"""Bugs to plant, to show that the simulation would find them.

Each is the mistake that a rule of the design prevents, made in one place, and
names the invariants by which it may show. Every invariant that the simulation can
show is named by one of them at least.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from foqs.catalog.document import Document
from foqs.catalog.namespaces import Namespaces
from foqs.core.errors import DeadlineExceeded
from foqs.core.flush import decision, work
from foqs.core.flush.batch import Batch
from foqs.core.flush.decision import Decision
from foqs.core.flush.fence import CommitOutcome, Fence
from foqs.core.flush.purge_markers import PurgeMarkers
from foqs.core.items import life
from foqs.core.items.idempotency_keys import IdempotencyKey
from foqs.core.items.item import DeliveryPolicy, OrderKey, Row, State, TopicName, make_number
from foqs.core.items.life import Effect, Event, EventKind, FlushContext, Transition
from foqs.core.memory.ready_index import ReadyIndex, Refill
from foqs.core.memory.row_cache import Prefetch, RowCache
from foqs.core.memory.topic_counts import TopicCounts
from foqs.core.timing.due_timers import DueTimers
from foqs.core.timing.shard_clock import ShardClock
from foqs.queue import bulk
from foqs.queue.filter_walk import Walk
from foqs.queue.port import BulkPage
from foqs.shard import shard, writer
from foqs.shard import shard_flush as shard_flush
from foqs.shard.shard import Shard
from foqs.shard.shard_memory import ShardMemory
from foqs.shard.writer import Writer
from foqs.store.in_memory import memory_store
from foqs.store.port import Decide, StoreLost
from tests.simulation import planted_access, planted_delivery
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

    original = memory_store.MemoryStore._flush_locked
    memory_store.MemoryStore._flush_locked = flush_locked  # type: ignore[method-assign]


def token_ignored() -> None:
    """Whoever acks, acks."""
    for state in State:
        _rule(EventKind.ACK, state, lambda event, row, moment: Transition(Effect.DELETED))


def answered_before_commit() -> None:
    """The caller hears of success when the flush is sent, not when it is committed."""

    async def commit(self: memory_store.MemoryStore, fence: Fence, writes: Any) -> None:
        self._committing_connection = self._connection
        task = asyncio.ensure_future(late(self, self._connection, fence, writes))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.sleep(0)

    async def late(self: memory_store.MemoryStore, connection: int, fence: Fence, writes: Any) -> None:
        await asyncio.sleep(0.02)
        await self._apply(connection, fence, writes, asyncio.get_running_loop().create_future())

    memory_store.MemoryStore._commit = commit  # type: ignore[method-assign]


def lease_cut_short() -> None:
    """The slack for clocks that differ is taken off the lease instead of being put on."""

    def lease_end(lease_ms: int, now_ms: int, lift_ms: int) -> int:
        return max(lift_ms, now_ms + lease_ms // 2)

    plant(decision, "_lease_end_ms", lease_end)


def rerun_without_reading() -> None:
    """After a lost connection the flush is simply run again, whatever the owner row says."""

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

    Writer._resolve_outcome = resolve  # type: ignore[method-assign]


def reads_trusted() -> None:
    """A refill and a load take what they read, whatever was written meanwhile."""

    def end_refill(self: ReadyIndex, refill: Refill, keys: Sequence[OrderKey], complete: bool) -> None:
        refill.changes.clear()
        refilled(self, refill, keys, complete)

    def end_load(self: RowCache, prefetch: Prefetch, rows: Sequence[Row]) -> None:
        self._prefetching.update(dict.fromkeys(prefetch.numbers, prefetch))
        self._remove(prefetch.numbers)
        loaded(self, prefetch, rows)

    refilled, loaded = ReadyIndex.finish_refill, RowCache.finish_prefetch
    ReadyIndex.finish_refill = end_refill  # type: ignore[method-assign]
    RowCache.finish_prefetch = end_load  # type: ignore[method-assign]


def claim_before_commit() -> None:
    """Who was claimed for items about to be inserted is answered when they are judged, not when they are committed."""

    def judge_batch(batch: Batch, *arguments: Any) -> Decision:
        decision = original(batch, *arguments)
        for claim, rows in zip(batch.direct_deliveries, decision.directly_leased, strict=True):
            if claim.is_open:
                claim.complete(0, rows)
        return decision

    original = decision.decide_batch
    plant(writer, "decide_batch", judge_batch)


def keys_unwritten() -> None:
    """A key is judged by those of its own flush alone: no row of it is written."""

    def rows(keys: Mapping[str, Mapping[bytes, IdempotencyKey]]) -> list[IdempotencyKey]:
        return []

    plant(shard_flush, "_idempotency_key_rows", rows)


def keys_for_ever_replaced() -> None:
    """A key that is found is taken as if it were over."""

    def firsts(part: Any, moment: FlushContext, keys: Any, decision: Decision) -> list[Any]:
        over = {name: row._replace(until_ms=0) for name, row in keys.items()}
        return original(part, moment, over, decision)

    original = decision._add_keys
    plant(decision, "_add_keys", firsts)


def rows_of_two_shards() -> None:
    """Rows are remembered by their number alone, which two shards give to different items."""

    def init(self: RowCache, written_budget: Any, prefetch_budget: Any, longest_payloads: Any) -> None:
        original(self, written_budget, prefetch_budget, longest_payloads)
        self._rows = rows.setdefault(written_budget, {})
        self.get = self._rows.get  # type: ignore[misc]

    rows: dict[Any, dict[int, Row]] = {}
    original = RowCache.__init__
    RowCache.__init__ = init  # type: ignore[method-assign]


def tokens_begin_anew() -> None:
    """The tokens of leases do not carry their epoch: after a takeover they begin at one again."""
    Fence.token = property(lambda fence: make_number(1, fence.flush))  # type: ignore[assignment]


def unknown_is_failure() -> None:
    """A call whose time runs out while it is being written is told that it was withdrawn."""
    plant(work, "UnknownOutcome", DeadlineExceeded)


def check_unlocked() -> None:
    """After a lost connection the owner row is read without waiting for its lock: a COMMIT may be on its way."""

    async def owner(self: memory_store.MemoryStore) -> Any:
        await self._reconnect()
        return self._tables.owner

    memory_store.MemoryStore.read_owner = owner  # type: ignore[method-assign]


def dead_items_deleted() -> None:
    """An item that is out of attempts, or given up, is deleted."""
    plant(life, "_to_dead", lambda row, moment, metadata=None: Transition(Effect.DELETED))


def at_most_once_ignored() -> None:
    """An item to be delivered at most once comes again when its lease is over."""
    decide = life.TABLE[State.LEASED, EventKind.DUE].decide
    _rule(
        EventKind.DUE,
        State.LEASED,
        lambda event, row, moment: decide(event, replace(row, policy=DeliveryPolicy.AT_LEAST_ONCE), moment),
    )


def attempts_unlimited() -> None:
    """Nobody looks at the maximum of attempts."""
    for kind in (EventKind.DUE, EventKind.NACK):
        decide = life.TABLE[State.LEASED, kind].decide
        _rule(
            kind,
            State.LEASED,
            lambda event, row, moment, decide=decide: decide(event, replace(row, attempts_max=0), moment),  # type: ignore[misc]
        )


def delays_ignored() -> None:
    """A nacked item is ready at once, whatever delay was asked for."""
    decide = life.TABLE[State.LEASED, EventKind.NACK].decide
    _rule(EventKind.NACK, State.LEASED, lambda event, row, moment: decide(replace(event, delay_ms=0), row, moment))


def extensions_unwritten() -> None:
    """An extension succeeds and changes nothing."""
    _rule(EventKind.EXTEND, State.LEASED, lambda event, row, moment: Transition(Effect.UNCHANGED))


def unread_is_gone() -> None:
    """An event is judged by what is remembered alone: what is not counts as gone."""
    plant(writer, "chain_finders", lambda *sources: next(find for find in sources if callable(find)))


def namespaces_ignored() -> None:
    """Whoever knows an id may do to it what he likes."""

    def judge(event: Event, row: Row | None, moment: FlushContext) -> Transition:
        return life.apply_event(replace(event, namespace=None), row, moment)

    plant(decision, "apply_event", judge)


def no_refill() -> None:
    """What did not fit into a window is never read again."""
    Shard.start_refill = lambda self, topic: None  # type: ignore[method-assign]


def boundary_kept() -> None:
    """A window that drops its worst keys still claims to cover them."""

    def lower(self: ReadyIndex, window: Any, keys_max: int) -> None:
        boundary = window.boundary
        original(self, window, keys_max)
        window.boundary = boundary

    original = ReadyIndex._lower_boundary
    ReadyIndex._lower_boundary = lower  # type: ignore[method-assign]


def watermark_too_early() -> None:
    """The watermark rises although something that was due is not written."""

    def fell_short(self: DueTimers, retry_at_ms: int, next_due_ms: int | None, *, swept: bool) -> None:
        self.on_scan_completed(retry_at_ms, next_due_ms, swept=swept)

    DueTimers.on_scan_incomplete = fell_short  # type: ignore[method-assign]


def clock_followed_at_once() -> None:
    """A shard's time is the database's clock, wherever that jumps."""

    def sample(self: ShardClock, database_ms: int, requested_at_ms: int) -> None:
        self._since_ms = self._monotonic_ms()
        self._base_us = database_ms * 1_000

    ShardClock.on_database_time = sample  # type: ignore[method-assign]


def offset_forgotten() -> None:
    """A new owner's time is the database's clock, whatever the last one's was."""

    def first_ms(database_ms: int, saved_ms: int, offset_ms: int, skew_ms_max: int) -> int:
        return database_ms

    plant(shard, "initial_time_ms", first_ms)


def pages_unreported() -> None:
    """A page of changes by filter says that it changed nothing."""

    def page(*arguments: Any) -> BulkPage:
        return replace(original(*arguments), changed=0)

    original: Callable[..., BulkPage] = plant(bulk, "_bulk_page", page)


def dead_uncounted() -> None:
    """A new owner does not count the dead items that it finds."""

    def found_some(self: TopicCounts, counts: Sequence[tuple[TopicName, State, int]]) -> None:
        original(self, [each for each in counts if each[1] is not State.DEAD])

    original = TopicCounts.add_initial
    TopicCounts.add_initial = found_some  # type: ignore[method-assign, assignment]


def walk_cut_short() -> None:
    """Of a topic's items in one state, a filter finds the first alone."""

    async def read(self: Walk, limit: int) -> list[Any]:
        seen = await original(self, limit)
        if self.cursor is not None and self.cursor.after_key != self._first_key:
            await self._advance()
        return seen

    original = Walk.read
    Walk.read = read  # type: ignore[method-assign]
    plant(bulk, "COUNT_ROWS_PER_READ", 1)


def pauses_ignored() -> None:
    """A topic is handed out whether it is paused or not."""

    def apply(self: Namespaces, document: Document) -> frozenset[TopicName]:
        resumed = original(self, document)
        self.paused_topics = frozenset()
        return resumed

    original = Namespaces.apply
    Namespaces.apply = apply  # type: ignore[method-assign]


def limits_ignored() -> None:
    """A namespace has the host's defaults, whatever was set."""
    Namespaces.settings_of = lambda self, name: self.default_settings  # type: ignore[method-assign]


def purge_markers_unread() -> None:
    """A new owner does not know what its former one had purged."""

    def recovered(self: ShardMemory, topics: Any, key_slots: Any, purge_markers: Any) -> Iterator[None]:
        return original(self, topics, key_slots, ())

    original = ShardMemory.recover
    ShardMemory.recover = recovered  # type: ignore[method-assign]


def purge_markers_ignored() -> None:
    """What is purged can be handed out as long as its row is there."""
    PurgeMarkers.hide_purged = lambda self, find: find  # type: ignore[method-assign]


def purges_fail() -> None:
    """What a flush purges cannot be taken out of memory: the shard is taken over anew, from its rows, and nobody is harmed."""

    def purged(self: ShardMemory, batch: Any, decision: Any, callbacks: Any) -> None:
        raise RuntimeError("a bug")

    ShardMemory._apply_purges = purged  # type: ignore[method-assign]


def refills_fail() -> None:
    """What a refill read cannot be taken in: the task that reads ends, and so does this ownership."""

    def end_refill(self: ReadyIndex, refill: Any, keys: Any, complete: bool) -> None:
        raise RuntimeError("a bug")

    ReadyIndex.finish_refill = end_refill  # type: ignore[method-assign]


SEEDS: Final = range(16)
"""These show nearly every bug; most show it in the first."""


@dataclass(slots=True, frozen=True)
class Bug:
    """A mistake and the invariants by which it shows: by one of them, in the first of `SEEDS` or a later one."""

    plant: Callable[[], None]
    """Plants it for the rest of this process."""
    shows: tuple[int, ...]
    seed_count: int = len(SEEDS)
    """How many seeds are played to show it. A rare bug needs more than `SEEDS`."""


BUGS: Final[Mapping[str, Bug]] = {
    "reply-before-commit": Bug(answered_before_commit, (4, 5, 8)),
    "the-dead-vanish": Bug(dead_items_deleted, (1,)),
    "rows-of-two-shards": Bug(rows_of_two_shards, (2,)),
    "keys-unwritten": Bug(keys_unwritten, (3,)),
    "keys-replaced": Bug(keys_for_ever_replaced, (3,)),
    "claim-before-commit": Bug(claim_before_commit, (2, 5, 8, 16)),
    "unread-is-gone": Bug(unread_is_gone, (4,)),
    "lease-cut-short": Bug(lease_cut_short, (5,)),
    "extensions-unwritten": Bug(extensions_unwritten, (5,)),
    "token-ignored": Bug(token_ignored, (6,)),
    "tokens-begin-anew": Bug(tokens_begin_anew, (6,)),
    "at-most-once-ignored": Bug(at_most_once_ignored, (7,)),
    "clock-followed-at-once": Bug(clock_followed_at_once, (5, 9)),
    "offset-forgotten": Bug(offset_forgotten, (5, 9)),
    "attempts-unlimited": Bug(attempts_unlimited, (8,)),
    "delays-ignored": Bug(delays_ignored, (9,)),
    "watermark-too-early": Bug(watermark_too_early, (10,)),
    "no-refill": Bug(no_refill, (11,)),
    "gives-up-with-nothing": Bug(planted_delivery.gives_up_with_nothing, (11,)),
    "no-fence": Bug(no_fence, (12,)),
    "reads-trusted": Bug(reads_trusted, (10, 11, 13)),
    "boundary-kept": Bug(boundary_kept, (13,)),
    "rerun-unread": Bug(rerun_without_reading, (2, 5, 16)),
    "check-unlocked": Bug(check_unlocked, (2, 16)),
    "unknown-is-failure": Bug(unknown_is_failure, (16,)),
    "namespaces-ignored": Bug(namespaces_ignored, (17,)),
    "pages-untold": Bug(pages_unreported, (1,)),
    "dead-uncounted": Bug(dead_uncounted, (15,)),
    "walk-cut-short": Bug(walk_cut_short, (15,)),
    "pauses-ignored": Bug(pauses_ignored, (19,)),
    "limits-ignored": Bug(limits_ignored, (19,)),
    "cuts-unread": Bug(purge_markers_unread, (19,)),
    "cuts-hide-nothing": Bug(purge_markers_ignored, (10, 13, 15, 19)),
    "one-call-for-everybody": Bug(planted_access.permission_missing_for_one_call, (17,)),
    "nobody-asked": Bug(planted_access.authentication_skipped, (17,)),
    "grants-for-ever": Bug(planted_access.grants_for_ever, (17,)),
    "deleted-with-what-is-deferred": Bug(planted_access.deleted_with_what_is_deferred, (19,)),
    "deleted-and-served-on": Bug(planted_access.deleted_and_served_on, (19,)),
    "leased-explained-as-ready": Bug(planted_access.leased_explained_as_ready, (15,)),
    "deferred-explained-as-gone": Bug(planted_access.deferred_explained_as_gone, (15,)),
    "imports-without-grants": Bug(planted_access.imports_without_grants, (19,)),
}

FAULTS: Final[Mapping[str, Bug]] = {"purges-fail": Bug(purges_fail, ()), "refills-fail": Bug(refills_fail, ())}
"""These break no invariant: the host lives through them, and says so."""


def shows(bug: Bug, violations: Sequence[str]) -> bool:
    """One of these is by an invariant that a bug breaks."""
    return any(f"invariant {invariant}:" in each for invariant in bug.shows for each in violations)
