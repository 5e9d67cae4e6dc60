"""Items that one host accepted come in the order in which it accepted them, whatever their shards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.core.items.item import parse_id
from foqs.queue.engine import DELIVERY_START_S
from foqs.shard.owned_store import OwnedStore
from foqs.shard.shard import OwnedShard
from foqs.shard.shard_takeover import ShardTakeover
from tests.support.builders import engine_settings, keyed_item
from tests.support.engines import Caller, World, ok
from tests.support.method_gate import start_task
from tests.support.virtual_time import run_virtual

COUNT = 40


async def put_in_sequence(caller: Caller, first: int = 0, **changes: Any) -> set[int]:
    """Enqueue items, each after the one before it was acknowledged. Return their shards."""
    ids = []
    for at in range(first, first + COUNT):
        ids += await caller.enqueue([keyed_item(f"key {at}", payload=b"%d" % at, **changes)])
    return {parse_id(ok(id), "id")[0] for id in ids}


async def taken(caller: Caller, count: int) -> list[int]:
    """Dequeue everything, up to `count` items a call, and return the numbers of the items."""
    found = []
    while items := (await caller.get(count=count, wait_ms=100)).items:
        found += [int(item.row.payload or b"") for item in items]
    return found


@pytest.mark.parametrize("latency_ms", [0.0, 0.3, 7.0])
@pytest.mark.parametrize("count", [1, 7, 100])
def test_items_come_in_the_order_of_their_acknowledgements(latency_ms: float, count: int) -> None:
    async def story() -> None:
        world = World(latency_ms)
        caller = Caller(world, await world.engine())
        assert await put_in_sequence(caller) == {1, 2}
        assert await taken(caller, count) == list(range(COUNT))

    run_virtual(story)


@pytest.mark.parametrize("count", [1, 7, 100])
def test_the_order_holds_if_one_shard_was_taken_over_more_often(count: int) -> None:
    async def story() -> None:
        world = World(0.0)
        for shards in ((1, 2), (1,), (1,)):
            await (await world.engine(engine_settings(*shards))).abort()
        engine = await world.engine()
        assert engine.shards[1].epoch > engine.shards[2].epoch
        caller = Caller(world, engine)
        assert await put_in_sequence(caller) == {1, 2}
        assert await taken(caller, count) == list(range(COUNT))

    run_virtual(story)


@pytest.mark.parametrize("latency_ms", [0.0, 7.0])
@pytest.mark.parametrize("count", [1, 100])
def test_the_order_holds_over_a_restart(latency_ms: float, count: int) -> None:
    async def story() -> None:
        world = World(latency_ms)
        for first in (0, COUNT, 2 * COUNT):
            engine = await world.engine()
            assert await put_in_sequence(Caller(world, engine), first) == {1, 2}
            if first < 2 * COUNT:
                await engine.abort()
        assert await taken(Caller(world, engine), count) == list(range(3 * COUNT))

    run_virtual(story)


class SlowTakeover:
    """Holds the takeovers of one shard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, shard: int) -> None:
        self.ended = asyncio.Event()
        recover = ShardTakeover.recover

        async def held(takeover: ShardTakeover, owned: OwnedStore) -> OwnedShard:
            if takeover._shard == shard:
                await self.ended.wait()
            return await recover(takeover, owned)

        monkeypatch.setattr(ShardTakeover, "recover", held)


async def restarted_without_shard_1(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[SlowTakeover, Caller]:
    """Enqueue items, start another host that serves shard 2 only, and enqueue one more."""
    engine = await world.engine()
    assert await put_in_sequence(Caller(world, engine)) == {1, 2}
    await engine.abort()
    slow = SlowTakeover(monkeypatch, 1)
    start_task(world.engine())

    def serves_shard_2() -> bool:
        return world.newest is not None and world.newest is not engine and 2 in world.newest.shards

    await world.until(serves_shard_2)
    assert world.newest is not None
    caller = Caller(world, world.newest)
    await caller.put(payload=b"%d" % COUNT)
    return slow, caller


def test_the_order_holds_while_a_host_that_was_restarted_takes_its_shards_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(0.0)
        slow, caller = await restarted_without_shard_1(world, monkeypatch)
        waiting = start_task(caller.get(count=100, wait_ms=10_000, timeout_s=30.0))
        outage = (await caller.get(count=100)).outage
        assert outage is not None
        assert outage.is_whole
        assert "does not serve all its shards yet" in outage.reason
        await world.pass_s(DELIVERY_START_S / 2)
        assert not waiting.done()
        slow.ended.set()
        found = [int(item.row.payload or b"") for item in (await waiting).items]
        assert found + await taken(caller, 100) == list(range(COUNT + 1))

    run_virtual(story)


def test_a_shard_that_takes_too_long_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(0.0)
        _, caller = await restarted_without_shard_1(world, monkeypatch)
        await world.pass_s(DELIVERY_START_S)
        assert {item.shard for item in (await caller.get(count=100)).items} == {2}

    run_virtual(story)


def test_the_order_holds_if_a_shard_is_lost_and_taken_over_again() -> None:
    async def story() -> None:
        world = World(0.0)
        engine = await world.engine()
        caller = Caller(world, engine)
        await put_in_sequence(caller)
        lost = engine.shards[1]
        lost._writer.give_up("a test")
        await world.until(lambda: engine.shards.get(1) not in (None, lost) and engine.is_ready)
        assert await put_in_sequence(caller, COUNT) == {1, 2}
        assert await taken(caller, 100) == list(range(2 * COUNT))

    run_virtual(story)


@pytest.mark.parametrize("changes", [{"delay_ms": 500}, {"deliver_after_ms": 2_000_000_000_000}])
def test_items_that_come_due_together_keep_the_order_in_which_they_were_accepted(changes: dict[str, int]) -> None:
    async def story() -> None:
        world = World(0.0)
        for shards in ((1, 2), (1,)):
            await (await world.engine(engine_settings(*shards))).abort()
        caller = Caller(world, await world.engine())
        if "deliver_after_ms" in changes:
            changes["deliver_after_ms"] = world.clock.wall_ms() + 500
        assert await put_in_sequence(caller, **changes) == {1, 2}
        await world.pass_s(1)
        assert await taken(caller, 100) == list(range(COUNT))

    run_virtual(story)
