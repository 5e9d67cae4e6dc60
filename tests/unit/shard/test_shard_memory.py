"""A shard's memory equals its tables, whatever happened before (invariants 10 and 13).

Random calls under virtual time, some of them cancelled, against a database that
loses connections, refuses writes and stalls. Whenever the shard is at rest,
index, counts and timers are compared with the tables.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.item import State, parse_id
from foqs.core.items.life import Event, EventKind
from foqs.queue.engine import Engine
from foqs.queue.port import RowView
from foqs.shard.shard import OwnedShard
from foqs.store.port import StoreLost
from foqs_contract.errors import FoqsError
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.example_counts import examples
from tests.support.memory_check import differences, is_at_rest

TOPICS = ("a", "b", "c", "d")
ROUNDS = 12
SETTINGS = engine_settings(
    1,
    2,
    delivery_wait_ms_max=20,
    flush_items_max=7,
    queue_items_max=60,
    ready_window_items_max=4,
    ready_index_items_max=9,
    timer_page_items=3,
    retry_ms_max=40,
    sweep_interval_ms=10**9,
)


class Players:
    """Callers that make random calls and leave at random."""

    def __init__(self, world: World, engine: Engine, rng: Random) -> None:
        self.caller = Caller(world, engine)
        self.rng = rng
        self.held: list[RowView] = []
        self.ids: list[str] = []

    async def act(self) -> None:
        gets = (self.get, self.get, self.get)
        act = self.rng.choice((self.put, self.put, *gets, self.settle, self.settle, self.cancel, self.change))
        with contextlib.suppress(FoqsError):
            await act()

    async def put(self) -> None:
        rng = self.rng
        self.ids += await self.caller.put(
            rng.choice(TOPICS),
            rng.choice((1, 2, 9)),
            timeout_s=self._patience_s(),
            priority=rng.randint(-1, 1),
            delay_ms=rng.choice((0, 0, 0, rng.randint(1, 120))),
            ttl_ms=rng.choice((None, None, rng.randint(121, 300))),
            lease_ms=rng.randint(20, 200),
            attempts_max=rng.choice((0, 0, 2)),
        )

    async def get(self) -> None:
        rng = self.rng
        reply = await self.caller.get(
            rng.choice(TOPICS), rng.choice((1, 3, 9)), wait_ms=rng.choice((0, 50)), timeout_s=self._patience_s()
        )
        if rng.random() < 0.2:
            reply.give_back()
        else:
            self.held += reply.items

    async def settle(self) -> None:
        rng = self.rng
        items, self.held = self.held[:4], self.held[4:]
        kind = rng.choice((EventKind.ACK, EventKind.NACK, EventKind.EXTEND, EventKind.RELEASE))
        changes = {"delay_ms": rng.choice((0, 60)), "dead": rng.random() < 0.1} if kind is EventKind.NACK else {}
        await self.caller.do(kind, items, timeout_s=self._patience_s(), **changes)
        self.held += items if rng.random() < 0.3 else []

    async def cancel(self) -> None:
        await self.caller.cancel(*self.rng.sample(self.ids, min(3, len(self.ids))))

    async def change(self) -> None:
        rng = self.rng
        ids = [parse_id(name, "id") for name in rng.sample(self.ids, min(3, len(self.ids)))]
        kind = rng.choice((EventKind.UPDATE, EventKind.UPDATE, EventKind.REDRIVE, EventKind.MOVE, EventKind.MOVE))
        changes: dict[str, Any] = {}
        if kind is EventKind.UPDATE:
            changes["priority"] = rng.choice((None, rng.randint(-2, 2)))
            changes["delay_ms"] = rng.choice((None, None, 0, rng.randint(1, 120)))
        elif kind is EventKind.MOVE:
            changes["topic"] = rng.choice(TOPICS)
        outcomes = await self.caller.apply(
            [(shard, Event(kind, number, "default", **changes)) for shard, number in ids]
        )
        self.ids += [outcome for outcome in outcomes if isinstance(outcome, str)]

    def _patience_s(self) -> float:
        return self.rng.choice((0.003, 0.02, 0.5))


def trouble(world: World, rng: Random) -> None:
    """Make the database fail at random."""

    def fault(point: str) -> None:
        if rng.random() < 0.02:
            raise StoreLost("the line is cut")

    def refuse(writes: Writes) -> str | None:
        return "not today" if rng.random() < 0.08 else None

    world.faults = fault
    world.database.refuse = refuse


def heal(world: World) -> None:
    world.faults = lambda point: None
    world.database.refuse = lambda writes: None
    world.resume()


async def play_a_round(world: World, players: Players, rng: Random) -> None:
    tasks: list[asyncio.Future[None]] = []
    for _ in range(40):
        acting: Coroutine[Any, Any, None] = players.act()
        tasks.append(asyncio.ensure_future(acting))
        await world.pass_s(rng.choice((0, 0, 0.001, 0.004, 0.02)))
        if rng.random() < 0.1:
            rng.choice(tasks).cancel()
        if rng.random() < 0.03:
            world.stall()
        elif rng.random() < 0.3:
            world.resume()
    heal(world)
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        assert task.cancelled() or task.exception() is None


def at_rest(world: World, shard: OwnedShard) -> bool:
    """Return whether nothing is under way and no row is due, refused ones included."""
    rows = world.database.tables[shard.number].rows.values()
    return is_at_rest(shard) and all(row.due_ms is None or row.due_ms > shard.now_ms() for row in rows)


def compare(world: World, shard: OwnedShard) -> None:
    assert differences(shard, world.database.tables[shard.number]) == []


@pytest.mark.parametrize(
    "seed", [*range(examples(12)), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(12, 24))]
)
def test_memory_equals_the_tables_after_any_history(seed: int) -> None:
    async def story(world: World) -> None:
        rng = Random(seed)
        engine = await world.engine(SETTINGS)
        players = Players(world, engine, rng)
        for _ in range(ROUNDS):
            trouble(world, rng)
            await play_a_round(world, players, rng)
            await world.until(
                lambda: len(engine.shards) == 2 and all(at_rest(world, each) for each in engine.shards.values())
            )
            for shard in engine.shards.values():
                compare(world, shard)
        assert len(engine.queue.waiters) == 0
        await drain(world, players)
        assert [row for row in world.rows() if row[1] is State.READY] == []

    run_in_world(story)


async def drain(world: World, players: Players) -> None:
    """Dequeue and ack until nothing is ready."""
    empty_rounds = 0
    while empty_rounds < 5:
        for topic in TOPICS:
            reply = await players.caller.get(topic, 9)
            await players.caller.do(EventKind.ACK, reply.items)
            empty_rounds = 0 if reply.items else empty_rounds + 1


async def cancel_at_every_step(
    world: World, engine: Engine, begin: Callable[[], Coroutine[Any, Any, Any]], undo: Callable[[], Any]
) -> int:
    """Repeat a call, cancelled one step later each time, until it ends first. Returns the number of repetitions."""
    steps = 0
    while True:
        steps += 1
        if await _cancel_at(world, begin, steps):
            return steps
        await world.until(lambda: all(at_rest(world, each) for each in engine.shards.values()))
        for shard in engine.shards.values():
            compare(world, shard)
        await undo()


async def _cancel_at(world: World, begin: Callable[[], Coroutine[Any, Any, Any]], steps: int) -> bool:
    loop = world.loop
    calling = asyncio.ensure_future(begin())
    last = loop.steps + steps  # type: ignore[attr-defined]

    def on_step(step: int) -> None:
        if step == last:
            calling.cancel()

    loop.on_step = on_step  # type: ignore[attr-defined]
    await asyncio.gather(calling, return_exceptions=True)
    loop.on_step = None  # type: ignore[attr-defined]
    return not calling.cancelled()


def test_an_enqueue_cancelled_at_any_step_leaves_memory_equal_to_the_tables() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(SETTINGS)
        caller = Caller(world, engine)

        async def undo() -> None:
            await drain(world, Players(world, engine, Random(1)))
            assert world.rows() == []

        assert await cancel_at_every_step(world, engine, lambda: caller.put("a", 3), undo) > 10

    run_in_world(story)


@pytest.mark.parametrize("kind", [EventKind.ACK, EventKind.NACK, EventKind.EXTEND, EventKind.RELEASE])
def test_an_event_cancelled_at_any_step_leaves_memory_equal_to_the_tables(kind: EventKind) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(SETTINGS)
        caller = Caller(world, engine)
        held: list[RowView] = []

        async def undo() -> None:
            await drain(world, Players(world, engine, Random(1)))
            await caller.do(EventKind.ACK, held)
            assert world.rows() == []
            await caller.put("a", 2)
            held[:] = (await caller.get("a", 2)).items

        await undo()
        assert await cancel_at_every_step(world, engine, lambda: caller.do(kind, held), undo) > 10

    run_in_world(story)


@pytest.mark.parametrize("wait_ms", [0, 5])
def test_a_dequeue_cancelled_at_any_step_keeps_no_item_and_counts_no_attempt(wait_ms: int) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(SETTINGS)
        caller = Caller(world, engine)
        await caller.put("a", 12)
        await caller.put("b", 1, delay_ms=86_400_000)

        async def undo() -> None:
            rows = [row for table in world.database.tables.values() for row in table.rows.values()]
            assert Counter((row.topic, row.state) for row in rows) == {("a", State.READY): 12, ("b", State.DEFERRED): 1}
            assert {row.attempt for row in rows} == {0}
            forget_the_windows(engine)

        def begin() -> Coroutine[Any, Any, Any]:
            return caller.dequeue([("a", 8 if not wait_ms else 0), ("b", 1)], wait_ms)

        assert await cancel_at_every_step(world, engine, begin, undo) > 5

    run_in_world(story)


def forget_the_windows(engine: Engine) -> None:
    """Reset the windows as after a takeover, so that the next dequeue reads them again."""
    for shard in engine.shards.values():
        for topic in shard.index.topics():
            shard.index.forget(topic)
            shard.index.discover(topic)
