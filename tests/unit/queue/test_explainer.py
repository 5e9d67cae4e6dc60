"""Why an item is not delivered, asked of an engine: what it finds out, and when it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.errors import NotOwner
from foqs.core.items.item import State, parse_id
from foqs.core.items.life import EventKind
from foqs.queue.engine import EngineSettings
from foqs.queue.port import ItemExplanation
from foqs.shard.shard import TOPIC_PRIORITIES_MAX
from tests.support.builders import NAMESPACE, catalog, changed, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import start_task, wait_until_idle


async def why(caller: Caller, name: str, namespace: str | None = None, timeout_s: float = 5.0) -> ItemExplanation:
    shard, number = parse_id(name, "id")
    deadline = caller.world.deadline_in(timeout_s)
    return await caller.queue.explain(namespace or caller.namespace, shard, number, deadline)


def first(told: ItemExplanation) -> str:
    return told.reasons[0]


def counting(most: int, **changes: Any) -> EngineSettings:
    settings = engine_settings(1, **changes)
    return replace(settings, calls=changed(settings.calls, better_items_max=most))


def test_an_item_is_explained_in_each_state_of_its_life() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put(delay_ms=60_000, attempts_max=1)
        assert first(await why(caller, name)).startswith("It is deferred until")
        await world.pass_s(61)
        told = await why(caller, name)
        assert first(told) == "It is ready, and the next of its topic."
        assert (told.better_items, told.better_items_more) == (0, False)
        seen = await caller.one()
        told = await why(caller, name)
        assert first(told).startswith("A consumer has it, attempt 1 of 1")
        assert told.better_items is None
        assert told.item is not None
        assert told.item.row.state is State.LEASED
        await caller.do(EventKind.NACK, [seen])
        assert first(await why(caller, name)).startswith("It is dead, attempts exhausted")
        await caller.cancel(name)
        told = await why(caller, name)
        assert told.item is None
        assert first(told).startswith("There is no such item in the namespace 'default': it was acked, cancelled")

    run_in_world(story)


def test_better_items_are_counted_over_all_shards_in_memory_or_not() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2, ready_window_items_max=4))
        caller = Caller(world, engine)
        (name,) = await caller.put(priority=5)
        for priority in (1, 9, 5):
            for _ in range(10):
                await caller.put(priority=priority)
                await world.pass_s(0.3)  # so that both shards get some
        await wait_until_idle(world, engine)
        assert {shard.counts.totals[State.READY] > 5 for shard in engine.shards.values()} == {True}
        told = await why(caller, name)
        assert (told.better_items, told.better_items_more) == (10, False)
        assert any("It is not in memory" in said for said in told.reasons)

    run_in_world(story)


@pytest.mark.parametrize("window", [100, 4])
def test_counting_stops_at_its_limit_and_says_so(window: int) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(counting(5, ready_window_items_max=window))
        caller = Caller(world, engine)
        (name,) = await caller.put(priority=5)
        await caller.put(count=5)
        await wait_until_idle(world, engine)
        told = await why(caller, name)
        assert (told.better_items, told.better_items_more) == (5, False)
        await caller.put()
        await wait_until_idle(world, engine)
        told = await why(caller, name)
        assert (told.better_items, told.better_items_more) == (5, True)
        assert "more than 5 better items" in first(told)

    run_in_world(story)


def test_a_paused_topic_is_said_and_who_waits_for_it() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await engine.admin.pause("default", "t", world.deadline_in(5), paused=True)
        (name,) = await caller.put()
        waiting = [start_task(caller.get(wait_ms=50_000)) for _ in range(2)]
        await world.pass_s(1)
        told = await why(caller, name)
        assert first(told).startswith("Its topic is paused")
        assert any(said.startswith("2 consumers wait") for said in told.reasons)
        for one in waiting:
            one.cancel()

    run_in_world(story)


def test_when_an_item_of_the_topic_was_last_taken_is_said() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put()
        (name,) = await caller.put(priority=1)
        assert "this host remembers no dequeue" in (await why(caller, name)).reasons[-1]
        await caller.one()
        await world.pass_s(12)
        assert "was 12.0 s ago" in (await why(caller, name)).reasons[-1]

    run_in_world(story)


def test_an_item_of_another_namespace_is_as_one_that_never_was() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put()
        mine = await why(caller, name, "other")
        assert (mine.item, mine.absent) == (None, True)
        await caller.cancel(name)
        assert mine == await why(caller, name, "other")

    run_in_world(story)


def test_an_id_that_was_not_given_out_is_not_said_to_be_gone() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put()
        shard, number = parse_id(name, "id")
        assert first(await why(caller, f"{shard}-{number + 1}")).startswith("No item has this id yet")

    run_in_world(story)


def test_a_shard_that_is_not_served_is_a_reason_and_one_that_is_not_ours_an_error() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        (name,) = await caller.put()
        shard, number = parse_id(name, "id")
        del engine.shards[shard]
        told = await why(caller, name)
        assert (told.item, told.absent) == (None, False)
        assert f"shard {shard} is not served here; it is owned" in first(told)
        with pytest.raises(NotOwner):
            await why(caller, f"9-{number}")

    run_in_world(story)


def test_a_database_that_does_not_answer_is_said_before_the_deadline() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put()
        world.stall()
        begun = world.loop.time()
        told = await why(caller, name, timeout_s=4)
        assert world.loop.time() - begun < 4
        assert told.item is None
        assert "cannot be read now" in first(told)
        world.resume()
        assert (await why(caller, name)).item is not None

    run_in_world(story)


def test_a_rate_that_is_used_up_is_said_after_all_else() -> None:
    async def story(world: World) -> None:
        limits: Mapping[str, int] = {"enqueues_per_minute": 2}
        world.catalog = catalog(slow=limits)
        caller = Caller(world, await world.engine(engine_settings(1)), "slow")
        (name, _) = await caller.put(count=2)
        assert "used up its enqueues of this minute, for another 30.0 s" in (await why(caller, name)).reasons[-1]

    run_in_world(story)


def test_a_recovering_shard_makes_the_counts_lag_and_none_at_all_is_unavailable() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        await caller.put()
        await wait_until_idle(world, engine)
        stats = await caller.stats()
        assert stats is not None
        assert not stats.counts_lag
        (empty,) = [shard.number for shard in engine.shards.values() if not shard.counts.totals[State.READY]]
        other = next(number for number in engine.shards if number != empty)
        gone = engine.shards.pop(empty)
        stats = await caller.stats()
        assert stats is not None
        assert stats.counts_lag
        del engine.shards[other]
        with pytest.raises(Exception, match="no shard of this host is served"):
            await caller.stats()
        engine.shards[empty] = gone

    run_in_world(story)


def test_the_oldest_ready_item_is_found_behind_better_ones() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(priority=9)
        await world.pass_s(30)
        await caller.put(priority=1)
        await caller.put("other topic", priority=5)
        await wait_until_idle(world, engine)
        stats = await caller.stats()
        assert stats is not None
        assert stats.best_priority == 1
        assert stats.oldest_ready_age_ms is not None
        assert stats.oldest_ready_age_ms >= 30_000
        other = await caller.stats("other topic")
        assert other is not None
        assert other.oldest_ready_age_ms is not None
        assert other.oldest_ready_age_ms < 30_000

    run_in_world(story)


@pytest.mark.parametrize(("priorities", "is_seen"), [(TOPIC_PRIORITIES_MAX, True), (TOPIC_PRIORITIES_MAX + 1, False)])
def test_the_oldest_is_looked_for_among_so_many_priorities(priorities: int, is_seen: bool) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, ready_window_items_max=200))
        caller = Caller(world, engine)
        await caller.put(priority=priorities - 1)
        await world.pass_s(30)
        await caller.enqueue([new_item(priority=priority) for priority in range(priorities - 1)])
        await wait_until_idle(world, engine)
        stats = await caller.stats()
        assert stats is not None
        assert stats.oldest_ready_age_ms is not None
        assert (stats.oldest_ready_age_ms >= 30_000) is is_seen

    run_in_world(story)


def test_the_key_of_an_item_is_shown_while_it_names_the_item() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=60_000))
        caller = Caller(world, engine)
        begun = world.loop.time()
        name = ok((await caller.enqueue([keyed_item("k")]))[0])
        bare = ok((await caller.enqueue([new_item()]))[0])

        async def key(name: str) -> bytes | None:
            shard, number = parse_id(name, "id")
            looked = await caller.queue.get_item("default", shard, number, world.deadline_in(5))
            told = await why(caller, name)
            assert told.item is not None
            assert told.item.idempotency_key == looked.idempotency_key
            return looked.idempotency_key

        assert (await key(name), await key(bare)) == (b"k", None)
        await caller.one()
        assert await key(name) == b"k"
        await world.pass_s(begun + NAMESPACE.key_window_ms / 1000 + 0.2 - world.loop.time())
        assert any(table.idempotency_keys for table in world.database.tables.values()), "its row is still there"
        assert await key(name) is None

    run_in_world(story)


def test_a_key_is_not_found_once_the_window_was_changed() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        name = ok((await caller.enqueue([keyed_item("k")]))[0])
        await engine.admin.update("default", None, {"key_window_ms": 120_000}, world.deadline_in(5))
        told = await why(caller, name)
        assert told.item is not None
        assert told.item.idempotency_key is None

    run_in_world(story)
