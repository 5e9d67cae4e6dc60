"""Dequeues that ask for more items than a shard can lease in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.core.items.life import EventKind
from foqs.shard.awaited_results import AwaitedResults
from foqs.store.in_memory.memory_store import MemoryStore
from tests.support.builders import catalog, engine_settings, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.memory_check import is_at_rest

FLUSH_S = 0.1
FLUSH_ITEMS = 10
GOODPUT = FLUSH_ITEMS / FLUSH_S / 2
"""Items that are leased and acked per second."""


def slow_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each flush take `FLUSH_S`."""
    original = MemoryStore.flush

    async def flush(self: MemoryStore, *arguments: Any) -> None:
        await asyncio.sleep(FLUSH_S)
        await original(self, *arguments)

    monkeypatch.setattr(MemoryStore, "flush", flush)


class Consumers:
    """Consumers that dequeue and ack until they are stopped, and count their items."""

    def __init__(self, caller: Caller, topics: list[str], count: int, wait_ms: int, how_many: int) -> None:
        self.got = dict.fromkeys(topics, 0)
        self.slowest_s = 0.0
        self._caller = caller
        self._tasks = [
            asyncio.ensure_future(self._consume(topics[number % len(topics)], count, wait_ms))
            for number in range(how_many)
        ]

    async def _consume(self, topic: str, count: int, wait_ms: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            items = (await self._caller.get(topic, count, wait_ms=wait_ms)).items
            if items:
                self.slowest_s = max(self.slowest_s, loop.time() - started_s)
                self.got[topic] += len(items)
                await self._caller.do(EventKind.ACK, items)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.once
@pytest.mark.parametrize("wait_ms", [2_000, 0])
@pytest.mark.parametrize("topics", [["t"], ["a", "b", "c", "d"]])
def test_throughput_stays_when_consumers_ask_for_more_than_a_shard_can_lease(
    wait_ms: int, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, flush_items_max=FLUSH_ITEMS))
        caller = Caller(world, engine)
        for topic in topics:
            await caller.put(topic, 900)
            await caller.put(topic, 900)
        slow_down(monkeypatch)
        consumers = Consumers(caller, topics, 50, wait_ms, 32)
        await world.pass_s(10)
        before = dict(consumers.got)
        await world.pass_s(20)
        got = {topic: consumers.got[topic] - before[topic] for topic in topics}
        assert sum(got.values()) > 20 * 0.8 * GOODPUT
        assert min(got.values()) > 20 * 0.4 * GOODPUT / len(topics)
        await consumers.stop()
        monkeypatch.undo()
        await world.until(lambda: is_at_rest(engine.shards[1]), within_s=60)

    run_in_world(story)


def test_other_writes_reduce_the_room_and_no_lease_is_wasted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, flush_items_max=2 * FLUSH_ITEMS))
        caller, other = Caller(world, engine), Caller(world, engine, "other")
        for _ in range(3):
            await caller.put(count=900)
        await other.put(count=40)
        held = (await other.get(count=20, lease_ms=600_000)).items
        acked = (await other.get(count=20, lease_ms=600_000)).items
        slow_down(monkeypatch)

        async def repeat_forever(kind: EventKind, items: Any, **changes: Any) -> None:
            while True:
                await other.do(kind, items, **changes)

        busy = [
            asyncio.ensure_future(repeat_forever(kind, items[at : at + 10], **changes))
            for at in (0, 10)
            for kind, items, changes in ((EventKind.EXTEND, held, {"lease_ms": 600_000}), (EventKind.ACK, acked, {}))
        ]
        consumers = Consumers(caller, ["t"], 50, 2_000, 32)
        await world.pass_s(5)
        before = consumers.got["t"]
        await world.pass_s(10)
        assert consumers.got["t"] - before > 10 * 0.6 * GOODPUT
        for task in busy:
            task.cancel()
        await consumers.stop()

    run_in_world(story)


@pytest.mark.once
def test_each_shard_has_its_own_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        shards = (1, 2, 3)
        engine = await world.engine(engine_settings(*shards, flush_items_max=FLUSH_ITEMS))
        for number in shards:
            for _ in range(3):
                inserted = AwaitedResults()
                engine.shards[number].submit_inserts("default", [new_item(priority=number)] * 900, inserted)
                await inserted.future
        slow_down(monkeypatch)
        consumers = Consumers(Caller(world, engine), ["t"], 50, 2_000, 32)
        await world.pass_s(10)
        before = consumers.got["t"]
        await world.pass_s(10)
        assert consumers.got["t"] - before > 10 * 0.75 * GOODPUT * len(shards)
        await consumers.stop()

    run_in_world(story)


@pytest.mark.once
def test_room_is_divided_by_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        names = [f"light-{number}" for number in range(9)]
        world.catalog = catalog(heavy={"weight": 10}, **{name: {} for name in names})
        engine = await world.engine(engine_settings(1, flush_items_max=10 * FLUSH_ITEMS))
        callers = {name: Caller(world, engine, name) for name in ("heavy", *names)}
        for caller in callers.values():
            for _ in range(3):
                await caller.put(count=900)
        slow_down(monkeypatch)
        consumers = {name: Consumers(caller, ["t"], 20, 2_000, 16) for name, caller in callers.items()}
        await world.pass_s(3)
        before = {name: group.got["t"] for name, group in consumers.items()}
        await world.pass_s(4)
        got = {name: group.got["t"] - before[name] for name, group in consumers.items()}
        assert 6 < got["heavy"] / (sum(got[name] for name in names) / len(names)) < 14
        for group in consumers.values():
            await group.stop()

    run_in_world(story)


def test_modest_namespace_does_not_wait_for_a_greedy_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, flush_items_max=FLUSH_ITEMS))
        caller, other = Caller(world, engine), Caller(world, engine, "other")
        for _ in range(3):
            await caller.put(count=900)
        await other.put(count=200)
        slow_down(monkeypatch)
        greedy = Consumers(caller, ["t"], 50, 2_000, 32)
        await world.pass_s(10)
        modest = Consumers(other, ["t"], 1, 2_000, 2)
        await world.pass_s(20)
        assert modest.slowest_s < 5 * FLUSH_S
        assert modest.got["t"] > 40
        await greedy.stop()
        await modest.stop()

    run_in_world(story)


def test_waiter_without_room_is_served_after_earlier_callers_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to lease then, so no flush follows that would serve the waiter."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, flush_items_max=FLUSH_ITEMS))
        caller = Caller(world, engine)
        await caller.put(count=100)
        slow_down(monkeypatch)
        for _ in range(20):
            await caller.put("other", FLUSH_ITEMS)  # teaches the shard the duration of a flush
        writing = asyncio.ensure_future(caller.put("other"))
        await world.pass_s(FLUSH_S / 2)
        first = [asyncio.ensure_future(caller.get(count=50)) for _ in range(2)]
        await world.pass_s(FLUSH_S / 10)
        second = asyncio.ensure_future(caller.get(count=5, wait_ms=60_000, timeout_s=70))
        await world.pass_s(FLUSH_S / 10)
        for call in first:
            call.cancel()
        await writing
        started_s = world.loop.time()
        assert len((await second).items) == 5
        assert world.loop.time() - started_s < 5 * FLUSH_S

    run_in_world(story)
