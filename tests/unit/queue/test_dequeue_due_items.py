"""Direct deliveries of items that come due: one write instead of two."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.flush.operation import Dues
from foqs.core.flush.writes import Writes
from foqs.core.items.item import DeliveryPolicy, State
from foqs.core.items.life import EventKind
from foqs.queue.dequeue import Dequeue
from foqs.shard.observer import NullObserver
from foqs.shard.shard import OwnedShard
from foqs.store.in_memory.memory_store import MemoryReads, MemoryStore
from foqs_contract.errors import StaleLease
from tests.support.builders import CACHE, engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.inner_parts import connection_of
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle

NEVER_MS = 10**9
NOTHING_KEPT = replace(CACHE, written_items_max=1, written_bytes_max=1)


def settings_of(*shards: int, **changes: Any) -> Any:
    return engine_settings(*shards, sweep_interval_ms=NEVER_MS, **changes)


def record_writes(world: World) -> list[Writes]:
    """Record the writes of flushes that write items, from now on."""
    found: list[Writes] = []

    def record(writes: Writes) -> None:
        if writes.updates or writes.leases or writes.deletes or writes.inserts:
            found.append(writes)

    world.database.refuse = record
    return found


def states_of(writes: Writes) -> list[State]:
    """Return the states that a flush writes to existing rows."""
    return sorted([row.state for row in writes.updates] + [lease.state for lease in writes.leases for _ in lease.ids])


def record_direct_deliveries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of items of each direct delivery, from now on."""
    found: list[int] = []
    original = Dequeue.assign

    def assign(self: Dequeue, shard: OwnedShard, topic: Any, keys: Any) -> Any:
        found.append(len(keys))
        return original(self, shard, topic, keys)

    monkeypatch.setattr(Dequeue, "assign", assign)
    return found


def record_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record how many rows each flush reads, without and with payload, from now on; flushes without reads are skipped."""
    found: list[tuple[int, int]] = []
    original = MemoryStore.flush

    async def flush(
        self: MemoryStore, fence: Any, touched: Sequence[int], loaded: Mapping[int, int], *rest: Any
    ) -> None:
        if touched or loaded:
            found.append((len(touched), len(loaded)))
        await original(self, fence, touched, loaded, *rest)

    monkeypatch.setattr(MemoryStore, "flush", flush)
    return found


class RecordingObserver(NullObserver):
    def __init__(self) -> None:
        self.out = self.over = 0

    def items_delivered(self, item_count: int) -> None:
        self.out += item_count

    def items_timed_out(self, item_count: int) -> None:
        self.over += item_count


@pytest.mark.parametrize("kept", [True, False], ids=["remembered", "read"])
def test_due_item_with_a_waiter_is_leased_by_the_flush_that_finds_it_due(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        observer = world.facts = RecordingObserver()
        engine = await world.engine(settings_of(1, cache=CACHE if kept else NOTHING_KEPT))
        caller = Caller(world, engine)
        await caller.put(count=8, delay_ms=300, payload=b"whole")
        waiting = start_task(caller.get(count=6, wait_ms=5_000))
        await world.pass_s(0.1)
        deliveries, written, reads = (
            record_direct_deliveries(monkeypatch),
            record_writes(world),
            record_reads(monkeypatch),
        )
        delivered = await waiting
        assert deliveries == [6]
        assert [states_of(each) for each in written] == [[State.READY] * 2 + [State.LEASED] * 6]
        assert reads == ([] if kept else [(0, 6)])
        assert [(seen.row.payload, seen.row.attempt) for seen in delivered.items] == [(b"whole", 1)] * 6
        assert (observer.out, observer.over, engine.shards[1].snapshot().due_counts) == (6, 0, {"deliver_after": 8})
        assert await caller.do(EventKind.ACK, delivered.items) == [None] * 6
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_item_whose_lease_ended_is_delivered_directly_to_a_waiter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        observer = world.facts = RecordingObserver()
        engine = await world.engine(settings_of(1))
        caller = Caller(world, engine)
        await caller.put(lease_ms=300)
        first = await caller.one()
        waiting = start_task(caller.get(wait_ms=5_000))
        await world.pass_s(0.1)
        deliveries, written = record_direct_deliveries(monkeypatch), record_writes(world)
        (second,) = (await waiting).items
        assert deliveries == [1]
        assert [states_of(each) for each in written] == [[State.LEASED]]
        assert (second.row.id, second.row.attempt, second.row.payload) == (first.row.id, 2, first.row.payload)
        assert second.row.token > first.row.token
        assert (observer.out, observer.over, engine.shards[1].snapshot().due_counts) == (2, 1, {"lease": 1})
        (late,) = await caller.do(EventKind.NACK, [first])
        assert isinstance(late, StaleLease)
        assert await caller.do(EventKind.ACK, [second]) == [None]
        await wait_until_idle(world, engine)

    run_in_world(story)


@pytest.mark.parametrize(
    "changes",
    [{"policy": DeliveryPolicy.AT_MOST_ONCE}, {"attempts_max": 1}, {"ttl_ms": 250}],
    ids=["at most once", "out of attempts", "past its TTL"],
)
def test_item_that_ends_with_its_lease_is_not_delivered(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1))
        caller = Caller(world, engine)
        await caller.put(lease_ms=300, **changes)
        await caller.one()
        deliveries = record_direct_deliveries(monkeypatch)
        assert (await caller.get(wait_ms=2_000)).items == []
        assert deliveries == []
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_waiter_gets_the_best_of_due_and_inserted_items(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1))
        caller = Caller(world, engine)
        at_ms = engine.shards[1].now_ms() + 500
        for priority in (5, 3, 9):
            await caller.put(priority=priority, deliver_after_ms=at_ms)
        waiting = [start_task(caller.get(count=2, wait_ms=5_000)) for _ in range(2)]
        await world.pass_s(0.1)
        deliveries, written = record_direct_deliveries(monkeypatch), record_writes(world)
        reads = MethodGate(monkeypatch, MemoryStore, "due_rows", on_the_way_back=True)
        with closed(reads):
            await world.until(lambda: reads.held == 1)
            putting = start_task(caller.put(priority=4))
            await world.pass_s(0.01)
        await putting
        got = [[seen.row.priority for seen in (await each).items] for each in waiting]
        assert got == [[3, 4], [5, 9]]
        assert (deliveries, len(written)) == ([2, 2], 1)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_due_items_of_a_page_are_divided_among_waiters_best_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1))
        caller = Caller(world, engine)
        at_ms = engine.shards[1].now_ms() + 500
        for priority in (5, 3, 9, 4, 7):
            await caller.put(priority=priority, deliver_after_ms=at_ms)
        waiting = [start_task(caller.get(count=2, wait_ms=5_000)) for _ in range(2)]
        await world.pass_s(0.1)
        deliveries, written = record_direct_deliveries(monkeypatch), record_writes(world)
        got = [[seen.row.priority for seen in (await each).items] for each in waiting]
        assert got == [[3, 4], [5, 7]]
        assert (deliveries, len(written)) == ([2, 2], 1)
        assert (await caller.one()).row.priority == 9

    run_in_world(story)


def test_no_direct_delivery_if_another_shard_may_have_items_of_the_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The read in flight may find a better item."""

    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1, 2))
        caller = Caller(world, engine)
        (name,) = await caller.put(delay_ms=300)
        other = engine.shards[3 - int(name.partition("-")[0])]
        deliveries = record_direct_deliveries(monkeypatch)
        reads = MethodGate(monkeypatch, MemoryReads, "ready_order_keys", on_the_way_back=False)
        with closed(reads):
            other.index.discover(("default", "t"))
            waiting = start_task(caller.get(wait_ms=5_000))
            await world.until(lambda: ("t", State.READY) in world.rows())
        assert len((await waiting).items) == 1
        assert deliveries == []
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_due_item_of_a_paused_topic_is_ready_but_not_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1))
        caller = Caller(world, engine)
        await caller.put(delay_ms=300)
        waiting = start_task(caller.get(wait_ms=1_000))
        await world.pass_s(0.1)
        monkeypatch.setattr(engine.namespaces, "paused_topics", frozenset({("default", "t")}))
        assert (await waiting).items == []
        assert world.rows() == [("t", State.READY)]

    run_in_world(story)


def test_purged_item_is_not_delivered_when_it_comes_due(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1))
        caller = Caller(world, engine)
        await caller.put(count=3, delay_ms=300)
        deliveries = record_direct_deliveries(monkeypatch)
        waiting = start_task(caller.get(wait_ms=2_000))
        await world.pass_s(0.1)
        rows = MethodGate(monkeypatch, MemoryReads, "list_rows", on_the_way_back=False)
        with closed(rows):
            assert await caller.queue.bulk.purge_topic("default", "t", world.deadline_in(5)) == 3
            assert (await waiting).items == []
        assert deliveries == []
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_due_row_is_judged_after_an_earlier_queued_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The event is queued when the timer service reads the row, so the row will differ."""

    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1, cache=NOTHING_KEPT))
        caller = Caller(world, engine)
        await caller.put(lease_ms=300, priority=1)
        held = await caller.one()
        kept: list[int] = []
        original = Dues.__init__

        def made(self: Dues, numbers: Any, rows: Any, finished: Any, timer_dues: Any) -> None:
            kept.append(len(rows))
            original(self, numbers, rows, finished, timer_dues)

        monkeypatch.setattr(Dues, "__init__", made)
        waiting = start_task(caller.get(wait_ms=5_000))
        reads = MethodGate(monkeypatch, MemoryStore, "rows", on_the_way_back=False)
        with closed(reads):
            await world.until(lambda: reads.held == 1)
            extending = start_task(caller.do(EventKind.EXTEND, [held], lease_ms=400))
            await world.pass_s(0.01)
        assert await extending == [None]
        before = world.loop.time()
        (seen,) = (await waiting).items
        assert world.loop.time() - before >= 0.399
        assert (kept[0], seen.row.attempt) == (0, 2)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_direct_delivery_in_a_refused_flush_is_made_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1, retry_ms_max=200))
        caller = Caller(world, engine)
        await caller.put(count=2, delay_ms=300)
        waiting = start_task(caller.get(count=2, wait_ms=5_000))
        await world.pass_s(0.1)
        deliveries, refusals = record_direct_deliveries(monkeypatch), 1

        def refuse(writes: Writes) -> str | None:
            nonlocal refusals
            wanted = bool(writes.updates or writes.leases)
            refusals -= wanted
            return "not today" if wanted and refusals >= 0 else None

        world.database.refuse = refuse
        got = (await waiting).items
        got += (await caller.get(count=2, wait_ms=1_000)).items if len(got) < 2 else []
        assert deliveries[0] == 2
        assert [seen.row.attempt for seen in got] == [1, 1]
        await wait_until_idle(world, engine)

    run_in_world(story)


@pytest.mark.parametrize("leaves", ["by its caller", "by its time"])
def test_direct_delivery_to_a_consumer_that_leaves_is_released(leaves: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1, delivery_wait_ms_max=50))
        caller = Caller(world, engine)
        await caller.put(count=2, delay_ms=300, attempts_max=1)
        waiting = start_task(caller.get(count=2, wait_ms=5_000))
        await world.pass_s(0.1)
        deliveries = record_direct_deliveries(monkeypatch)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            await world.until(lambda: commits.held == 1)
            if leaves == "by its caller":
                waiting.cancel()
                await world.pass_s(0.01)
            else:
                assert (await waiting).items == []
        assert deliveries == [2]
        delivered = await caller.get(count=9, wait_ms=1_000)
        assert [seen.row.attempt for seen in delivered.items] == [1, 1]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_direct_delivery_with_an_unknown_commit_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_of(1))
        caller = Caller(world, engine)
        await caller.put(delay_ms=300, policy=DeliveryPolicy.AT_MOST_ONCE)
        waiting = start_task(caller.get(wait_ms=5_000))
        await world.pass_s(0.1)
        deliveries = record_direct_deliveries(monkeypatch)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=True)
        with closed(commits):
            await world.until(lambda: commits.held == 1)
            world.database.kill(connection_of(engine.shards[1]))
        (seen,) = (await waiting).items
        assert (deliveries, seen.row.attempt) == ([1], 1)
        assert await caller.do(EventKind.ACK, [seen]) == [None]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_new_owner_delivers_items_that_came_due_meanwhile_to_waiters() -> None:
    async def story(world: World) -> None:
        settings = settings_of(1)
        first = await world.engine(settings)
        await Caller(world, first).put(delay_ms=500)
        second = await restarted(world, first, settings)
        caller = Caller(world, second)
        assert (await caller.one(wait_ms=3_000)).row.attempt == 1
        await wait_until_idle(world, second)

    run_in_world(story)


def test_reads_of_a_flush_for_waiters_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings = settings_of(1, cache=NOTHING_KEPT, flush_bytes_max=2_500)
        engine = await world.engine(settings)
        caller = Caller(world, engine)
        await caller.put(count=4, deliver_after_ms=engine.shards[1].now_ms() + 300, payload=bytes(1_000))
        waiting = [start_task(caller.get(wait_ms=5_000)) for _ in range(4)]
        await world.pass_s(0.1)
        deliveries, reads = record_direct_deliveries(monkeypatch), record_reads(monkeypatch)
        got = await asyncio.gather(*waiting)
        assert [len(each.items) for each in got] == [1] * 4
        assert deliveries == [1, 1]
        assert reads[0] == (0, 2)

    run_in_world(story)
