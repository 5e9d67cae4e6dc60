"""A shard whose database is slow or keeps refusing, beside a healthy one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.core.items.item import DeliveryPolicy, State
from foqs.core.items.life import EventKind
from foqs.queue.placement import ROTATION_S
from foqs.queue.port import LeasedItems
from foqs.shard.writer import STALLED_S
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import StoreLost, WriteRefused
from foqs_contract.errors import DeadlineExceeded
from tests.support.builders import engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.memory_check import is_at_rest

SICK, WELL = 1, 2
ITEMS_PER_SHARD = 100


class Outage:
    """While `well` is cleared, the flushes of one shard get no reply, or are each refused after `refusal_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusal_s: float | None) -> None:
        self.well = asyncio.Event()
        self.well.set()
        original = MemoryStore.flush
        outage = self

        async def flush(self: MemoryStore, *arguments: Any) -> None:
            if self._shard == SICK and not outage.well.is_set():
                if refusal_s is not None:
                    await asyncio.sleep(refusal_s)
                    raise WriteRefused("somebody holds the table", is_retryable=True)
                await outage.well.wait()
            await original(self, *arguments)

        monkeypatch.setattr(MemoryStore, "flush", flush)


@pytest.mark.parametrize("refusal_s", [None, 0.001, 0.3])
def test_items_of_a_healthy_shard_are_not_delayed_by_a_sick_one(
    refusal_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        outage = Outage(monkeypatch, refusal_s)
        engine = await world.engine(engine_settings(SICK, WELL))
        caller = Caller(world, engine)
        while any(len(world.database.tables[shard].rows) < ITEMS_PER_SHARD for shard in (SICK, WELL)):
            await caller.put(count=5)
            await world.pass_s(ROTATION_S / 2)
        stored = {shard: len(world.database.tables[shard].rows) for shard in (SICK, WELL)}
        outage.well.clear()
        got = {SICK: 0, WELL: 0}

        async def consume() -> None:
            while sum(got.values()) < sum(stored.values()):
                items = (await caller.get(count=1, wait_ms=2_000)).items
                for item in items:
                    got[item.shard] += 1
                if items:
                    await caller.do(EventKind.ACK, items)

        consumers = [asyncio.ensure_future(consume()) for _ in range(4)]
        await world.until(lambda: got[WELL] == stored[WELL], within_s=6 * STALLED_S)
        outage.well.set()
        await world.until(lambda: got == stored, within_s=30)
        await asyncio.gather(*consumers)
        await world.until(lambda: all(map(is_at_rest, engine.shards.values())))

    run_in_world(story)


def test_late_shard_gets_no_new_dequeues_and_serves_its_waiters_when_it_responds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        outage = Outage(monkeypatch, None)
        engine = await world.engine(engine_settings(SICK))
        caller = Caller(world, engine)
        await caller.put(count=3)
        outage.well.clear()
        early = asyncio.ensure_future(caller.get(count=1, wait_ms=0))
        await world.pass_s(1.5 * STALLED_S)
        assert not early.done(), "its lease may yet commit"
        began_s = world.loop.time()
        assert (await caller.get(wait_ms=0)).items == []
        assert world.loop.time() == began_s
        waiting = asyncio.ensure_future(caller.get(count=2, wait_ms=4_000))
        await world.pass_s(1.5 * STALLED_S)
        assert not waiting.done()
        outage.well.set()
        await world.pass_s(0.1)
        assert len((await waiting).items) == 2
        assert len((await early).items) == 1

    run_in_world(story)


@pytest.mark.parametrize("refusal_s", [0.001, 0.3])
def test_breaker_stays_open_while_a_flush_fails_and_new_items_use_another_shard(
    refusal_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        outage = Outage(monkeypatch, refusal_s)
        breaker: dict[str, Any] = {"breaker_latency_ms_max": 100, "breaker_flushes_min": 5, "breaker_error_percent": 50}
        engine = await world.engine(engine_settings(SICK, WELL, **breaker))
        caller = Caller(world, engine)
        sick = engine.shards[SICK]
        while not (items := (await caller.put(count=1)))[0].startswith(f"{SICK}-"):
            await world.pass_s(ROTATION_S)
        outage.well.clear()
        stuck = asyncio.ensure_future(caller.cancel(*items))
        await world.until(lambda: sick.breaker_state == "open")
        late: list[object] = []

        async def put() -> None:
            began_s = world.loop.time()
            [result] = await caller.enqueue([new_item()], 10)
            if isinstance(result, DeadlineExceeded) or world.loop.time() - began_s > 1:
                late.append(result)

        puts = []
        for _ in range(300):
            assert sick.breaker_state == "open"
            puts.append(asyncio.ensure_future(put()))
            await world.pass_s(0.1)
        await asyncio.gather(*puts)
        assert late == []
        outage.well.set()
        await world.until(lambda: sick.breaker_state != "open")
        await stuck

    run_in_world(story)


def test_breaker_closes_after_a_failing_flush_commits_but_its_reply_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = iter([True])

    def lose(at: str) -> None:
        if at == "committed" and next(lost, False):
            raise StoreLost("the line is cut")

    async def story(world: World) -> None:
        outage = Outage(monkeypatch, 0.001)
        quiet = {"sweep_interval_ms": 10**9, "clock_sample_interval_ms": 10**9}  # nothing else is written
        settings: dict[str, Any] = {"breaker_latency_ms_max": 100, "breaker_flushes_min": 5, **quiet}
        engine = await world.engine(engine_settings(SICK, **settings))
        caller = Caller(world, engine)
        [item] = await caller.put()
        outage.well.clear()
        stuck = asyncio.ensure_future(caller.cancel(item))
        await world.until(lambda: engine.shards[SICK].breaker_state == "open")
        world.faults = lose
        outage.well.set()
        await stuck
        assert next(lost, None) is None, "no answer was lost"
        await world.until(lambda: engine.shards[SICK].breaker_state == "half-open", within_s=30)
        await caller.put()
        assert engine.shards[SICK].breaker_state == "closed"

    run_in_world(story)


@pytest.mark.parametrize("at_s", [0.0, 0.05, 0.3])
def test_items_that_the_first_shards_leased_for_a_caller_that_left_are_released(
    at_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller leaves when one shard has committed its leases and the other has not."""

    async def story(world: World) -> None:
        outage = Outage(monkeypatch, None)
        engine = await world.engine(engine_settings(SICK, WELL))
        caller = Caller(world, engine)
        for _ in range(20):
            await caller.put(policy=DeliveryPolicy.AT_MOST_ONCE, lease_ms=600_000)
            await world.pass_s(ROTATION_S)
        stored = {shard: set(world.database.tables[shard].rows) for shard in (SICK, WELL)}
        assert all(stored.values())
        outage.well.clear()
        replies: list[LeasedItems] = []
        call = caller.queue.dequeue("default", [("t", 20)], 5_000, None, world.deadline_in(10), replies.append)
        await world.until(lambda: leased(world, WELL) == stored[WELL])
        await world.pass_s(at_s)
        call.abandon()
        await world.until(lambda: not leased(world, WELL))
        assert leased(world, SICK) == set()
        outage.well.set()
        await world.until(lambda: all(map(is_at_rest, engine.shards.values())))
        items = (await caller.get(count=20)).items
        assert {shard: {item.row.id for item in items if item.shard == shard} for shard in stored} == stored
        assert {item.row.attempt for item in items} == {1}
        assert replies == []

    run_in_world(story)


def leased(world: World, shard: int) -> set[int]:
    """Return the numbers of a shard's LEASED items."""
    return {number for number, row in world.database.tables[shard].rows.items() if row.state is State.LEASED}
