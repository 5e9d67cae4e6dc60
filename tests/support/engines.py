"""An engine on the memory store under virtual time, with helpers to call it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from foqs.catalog.namespace_deletion import ClusterDeletions
from foqs.catalog.port import Catalog
from foqs.core.flush.completions import CompletionEntry
from foqs.core.items.idempotency_keys import completion_digest, item_digest
from foqs.core.items.item import KeyedItem, NewItem, State, parse_id
from foqs.core.items.life import Event, EventKind
from foqs.queue.engine import Engine, EngineSettings
from foqs.queue.host_state import HostState
from foqs.queue.port import (
    CompletionOutcome,
    EnqueueOutcome,
    LeasedItems,
    Outcome,
    PendingCall,
    RowView,
    ShardCompletion,
    TopicStats,
)
from foqs.queue.tier import Alone
from foqs.runtime.clock import Clock
from foqs.runtime.unwritten_replies import UnwrittenReplies
from foqs.shard.observer import ShardObserver
from foqs.store.factories import ShardStoreFactory
from foqs.store.in_memory.memory_store import MemoryDatabase
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.journaled.journaled_store import JournaledStore
from foqs.store.port import FaultHook, Store, no_faults
from foqs.testing.virtual_loop import VirtualClock
from foqs_contract.errors import FoqsError
from shardmgr.local_coordinator import LocalCoordinator
from shardmgr.port import Coordinator
from tests.support.aio import call_result
from tests.support.builders import MemoryEpochBook, catalog, engine_settings, new_item
from tests.support.checked_shards import CheckedShards
from tests.support.memory_check import is_quiet
from tests.support.virtual_time import run_virtual

T = TypeVar("T")


class FixedTier(Alone):
    """A host of a tier whose other hosts the test plays.

    Attributes:
        owners: the owner of each shard.
    """

    is_alone = False

    def __init__(self, nonce: str, shards: Collection[int], state: HostState) -> None:
        super().__init__(nonce, shards, state)
        self.deletions = ClusterDeletions(state.namespaces, state.shards.served, self.tier_shards)
        self.owners: Mapping[int, tuple[str, int]] = {}

    def owner_of(self, shard: int) -> tuple[str, int] | None:
        return self.owners.get(shard)


def make_engine(
    settings: EngineSettings,
    open_store: ShardStoreFactory,
    coordinator: Coordinator,
    catalog: Catalog,
    clock: Clock,
    rng: Random,
    observer: ShardObserver,
    nonce: str,
    sharing: Collection[int] | None = None,
) -> Engine:
    """Return an engine of a host alone or, if it is `sharing` these shards, of a `FixedTier`."""
    state = HostState(settings.namespace, settings.tier, clock.stopwatch_s)
    tier = (
        Alone(nonce, settings.standalone_shards or (), state) if sharing is None else FixedTier(nonce, sharing, state)
    )
    replies = UnwrittenReplies(asyncio.get_running_loop())
    return Engine(settings, state, tier, open_store, coordinator, catalog, clock, rng, observer, replies)


def tier_of(engine: Engine) -> FixedTier:
    """Return the tier of an engine that is `sharing` shards."""
    assert isinstance(engine._tier, FixedTier)
    return engine._tier


class World:
    """One database, one epoch book, and engines that start and stop."""

    def __init__(self, latency_ms: float = 1.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = VirtualClock(self.loop)
        self.rng = Random(7)
        self.book = MemoryEpochBook()
        self.catalog: Catalog = catalog()
        self.faults: FaultHook = no_faults
        self.facts: ShardObserver | None = None
        """The observer of the engines; None for one that checks their shards after each flush."""
        self.journal: JournalSettings | None = None
        """How the stores journal, if they do. The checks of `checked` know no journal."""
        self.broken: list[str] = []
        """What was not true of a shard that should always be."""
        self._answering = asyncio.Event()
        self._answering.set()

        async def latency() -> None:
            await asyncio.sleep(latency_ms / 1000)
            await self._answering.wait()

        self.database = MemoryDatabase(self.clock.wall_ms, latency)
        self._engines = 0
        self.newest: Engine | None = None
        """The last engine that was started. It may not be ready yet."""

    async def engine(
        self, settings: EngineSettings | None = None, nonce: str | None = None, sharing: Collection[int] | None = None
    ) -> Engine:
        """Start an engine and wait until it is ready. `sharing`: all shards of its tier, by default its own."""
        self._engines += 1
        has_slots = any(table.key_slots for table in self.database.tables.values())
        engine = make_engine(
            settings or engine_settings(1, 2),
            lambda shard, *_: self._store(shard),
            LocalCoordinator(self.book),
            self.catalog,
            self.clock,
            self.rng,
            self.facts or self.checked(lambda: engine),
            nonce or f"engine-{self._engines}",
            sharing,
        )
        self.newest = engine
        await engine.open()
        engine.start()
        await self.until(lambda: engine.is_ready)
        if not has_slots:
            # The first engine of a new tier has just received its slots.
            await self.until(lambda: all(map(is_quiet, engine.shards.values())))
        return engine

    def _store(self, shard: int) -> Store:
        store = self.database.store(shard, lambda point: self.faults(point))
        return store if self.journal is None else JournaledStore(store, self.journal)

    def checked(self, engine: Callable[[], Engine | None]) -> CheckedShards:
        """Return an observer that checks the shards of an engine after each flush."""
        return CheckedShards(engine, self.database.tables.__getitem__, self.broken.append)

    def stall(self) -> None:
        """Let the database not reply until `resume`."""
        self._answering.clear()

    def resume(self) -> None:
        self._answering.set()

    async def counted_engine(self, settings: EngineSettings | None = None) -> Engine:
        """Start an engine as `engine` does, and wait until it has counted its items."""
        engine = await self.engine(settings)
        await self.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        return engine

    async def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        """Wait for a condition in virtual time."""
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - virtual time, any condition
                await asyncio.sleep(0.001)

    async def pass_s(self, seconds: float) -> None:
        """Let virtual time pass."""
        await asyncio.sleep(seconds)

    def deadline_in(self, seconds: float) -> float:
        """Return the deadline after this time."""
        return self.loop.time() + seconds

    def rows(self) -> list[tuple[str, State]]:
        """Return (topic, state) of every row of the database."""
        tables = self.database.tables.values()
        return sorted((row.topic, row.state) for table in tables for row in table.rows.values())


class Caller:
    """Calls the queue of an engine as a client does."""

    def __init__(self, world: World, engine: Engine, namespace: str = "default") -> None:
        self.world = world
        self.queue = engine.queue
        self.namespace = namespace

    async def put(self, topic: str = "t", count: int = 1, timeout_s: float = 5.0, **changes: Any) -> list[str]:
        """Enqueue items, all of which must succeed."""
        items = [new_item(topic, namespace=self.namespace, **changes) for _ in range(count)]
        return [ok(result) for result in await self.enqueue(items, timeout_s)]

    async def enqueue(
        self, items: Sequence[NewItem], timeout_s: float = 5.0, *, is_atomic: bool = False
    ) -> list[EnqueueOutcome]:
        """Enqueue items. Returns an id or an error for each."""
        deadline = self.world.deadline_in(timeout_s)
        results: list[EnqueueOutcome] = await call_result(
            lambda done: self.queue.enqueue(self.namespace, items, deadline, done, is_atomic=is_atomic)
        )
        return results

    async def get(
        self,
        topic: str = "t",
        count: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        timeout_s: float = 5.0,
        run_max: int = 1,
    ) -> LeasedItems:
        return await self.dequeue([(topic, count)], wait_ms, lease_ms, timeout_s, run_max)

    async def dequeue(
        self,
        wants: Sequence[tuple[str, int]],
        wait_ms: int = 0,
        lease_ms: int | None = None,
        timeout_s: float = 5.0,
        run_max: int = 1,
    ) -> LeasedItems:
        deadline = self.world.deadline_in(timeout_s)
        deliveries: LeasedItems = await call_result(
            lambda done: self.queue.dequeue(self.namespace, wants, wait_ms, lease_ms, deadline, done, None, run_max)
        )
        return deliveries

    async def one(self, topic: str = "t", wait_ms: int = 0) -> RowView:
        """Dequeue one item, which must be available."""
        deliveries = await self.get(topic, 1, wait_ms)
        assert len(deliveries.items) == 1
        return deliveries.items[0]

    async def do(
        self, kind: EventKind, items: Iterable[RowView], timeout_s: float = 5.0, **changes: Any
    ) -> list[Outcome]:
        """Ack, nack, extend, release or cancel delivered items."""
        delivered = list(items)
        ids = [(item.shard, item.row.id) for item in delivered]
        deadline = self.world.deadline_in(timeout_s)
        if kind is EventKind.ACK:
            tokens = [item.row.token for item in delivered]
            return await self._outcomes(lambda done: self.queue.ack(self.namespace, ids, tokens, deadline, done))
        events = [
            (item.shard, Event(kind, item.row.id, self.namespace, token=item.row.token, **changes))
            for item in delivered
        ]
        return await self.apply(events, timeout_s)

    async def complete(
        self, entries: Sequence[tuple[RowView, Sequence[NewItem]]], timeout_s: float = 5.0
    ) -> list[CompletionOutcome]:
        """Ack each delivered item and enqueue the items that follow from it, or do neither."""
        completions = [
            ShardCompletion(
                item.shard, CompletionEntry(item.row.id, item.row.token, then, digest_of(item.row.token, then))
            )
            for item, then in entries
        ]
        deadline = self.world.deadline_in(timeout_s)
        outcomes: list[CompletionOutcome] = await call_result(
            lambda done: self.queue.complete(self.namespace, completions, deadline, done)
        )
        return outcomes

    async def cancel(self, *ids: str) -> list[Outcome]:
        events = [
            (shard, Event(EventKind.CANCEL, number, self.namespace))
            for shard, number in (parse_id(i, "id") for i in ids)
        ]
        return await self.apply(events)

    async def apply(self, events: Sequence[tuple[int, Event]], timeout_s: float = 5.0) -> list[Outcome]:
        """Apply each (shard, event)."""
        deadline = self.world.deadline_in(timeout_s)
        return await self._outcomes(lambda done: self.queue.apply(self.namespace, events, deadline, done))

    async def _outcomes(self, submit: Callable[[Callable[[list[Outcome]], None]], PendingCall]) -> list[Outcome]:
        outcomes: list[Outcome] = await call_result(submit)
        return outcomes

    async def stats(self, topic: str = "t") -> TopicStats | None:
        page, _ = await self.queue.reads.list_topics(self.namespace, topic, list(State), None, 10)
        return next((stats for stats in page if stats.topic == topic), None)


def digest_of(token: int, items: Sequence[NewItem]) -> bytes:
    """Return the digest of a completion with these items, which differ in topic, payload or key."""
    texts = [(item_digest(item.topic.encode(), item.priority, item.payload, b"", None), key_of(item)) for item in items]
    return completion_digest(token, texts, b"")


def key_of(item: NewItem) -> bytes:
    return item.idempotency_key if isinstance(item, KeyedItem) else b""


def ok(result: EnqueueOutcome) -> str:
    """Return the id of an inserted item; raise if there is an error instead."""
    if isinstance(result, FoqsError):
        raise result
    assert isinstance(result, str)
    return result


def run_in_world(run: Callable[[World], Coroutine[Any, Any, T]], until_s: float = 3_600.0) -> T:
    """Run a test in a new world under virtual time."""

    async def main() -> T:
        world = World()
        result = await run(world)
        assert world.broken == []
        return result

    return run_virtual(main, until_s=until_s)
