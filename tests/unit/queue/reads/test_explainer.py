"""Explanations by an engine why an item is not delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.items.item import State, parse_id
from foqs.core.items.life import EventKind
from foqs.queue.engine import EngineSettings
from foqs.queue.port import ItemExplanation
from foqs.shard.shard import TOPIC_PRIORITIES_MAX
from foqs_contract.errors import NotOwner
from tests.support.builders import NAMESPACE, catalog, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import start_task, wait_until_idle


async def why(caller: Caller, name: str, namespace: str | None = None, timeout_s: float = 5.0) -> ItemExplanation:
    shard, number = parse_id(name, "id")
    deadline = caller.world.deadline_in(timeout_s)
    return await caller.queue.reads.explain(namespace or caller.namespace, shard, number, deadline)


def first_reason(explanation: ItemExplanation) -> str:
    return explanation.reasons[0]


def settings_counting(better_items_max: int, **changes: Any) -> EngineSettings:
    settings = engine_settings(1, **changes)
    return replace(settings, calls=replace(settings.calls, better_items_max=better_items_max))


def test_item_is_explained_in_each_state() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put(delay_ms=60_000, attempts_max=1)
        assert first_reason(await why(caller, name)).startswith("It is deferred until")
        await world.pass_s(61)
        explanation = await why(caller, name)
        assert first_reason(explanation) == "It is ready, and the next of its topic."
        assert (explanation.better_items, explanation.better_items_more) == (0, False)
        seen = await caller.one()
        explanation = await why(caller, name)
        assert first_reason(explanation).startswith("A consumer has it, attempt 1 of 1")
        assert explanation.better_items is None
        assert explanation.item is not None
        assert explanation.item.row.state is State.LEASED
        await caller.do(EventKind.NACK, [seen])
        assert first_reason(await why(caller, name)).startswith("It is dead, attempts exhausted")
        await caller.cancel(name)
        explanation = await why(caller, name)
        assert explanation.item is None
        assert first_reason(explanation).startswith(
            "There is no such item in the namespace 'default': it was acked, cancelled"
        )

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
        explanation = await why(caller, name)
        assert (explanation.better_items, explanation.better_items_more) == (10, False)
        assert any("It is not in memory" in reason for reason in explanation.reasons)
        assert "--priority 0" in explanation.remedies[0], "the best of them has priority 1"

    run_in_world(story)


@pytest.mark.parametrize("window", [100, 4])
def test_count_stops_at_its_limit_and_is_marked_as_such(window: int) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings_counting(5, ready_window_items_max=window))
        caller = Caller(world, engine)
        (name,) = await caller.put(priority=5)
        await caller.put(count=5)
        await wait_until_idle(world, engine)
        explanation = await why(caller, name)
        assert (explanation.better_items, explanation.better_items_more) == (5, False)
        await caller.put()
        await wait_until_idle(world, engine)
        explanation = await why(caller, name)
        assert (explanation.better_items, explanation.better_items_more) == (5, True)
        assert "more than 5 better items" in first_reason(explanation)

    run_in_world(story)


def test_paused_topic_and_its_waiters_are_reported() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await engine.admin.pause("default", "t", world.deadline_in(5), paused=True)
        (name,) = await caller.put()
        waiting = [start_task(caller.get(wait_ms=50_000)) for _ in range(2)]
        await world.pass_s(1)
        explanation = await why(caller, name)
        assert first_reason(explanation).startswith("Its topic is paused")
        assert any(reason.startswith("2 consumers wait") for reason in explanation.reasons)
        for one in waiting:
            one.cancel()

    run_in_world(story)


def test_time_of_the_last_dequeue_of_the_topic_is_reported() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put()
        (name,) = await caller.put(priority=1)
        assert "this host remembers no dequeue" in (await why(caller, name)).reasons[-1]
        await caller.one()
        await world.pass_s(12)
        assert "was 12.0 s ago" in (await why(caller, name)).reasons[-1]

    run_in_world(story)


def test_item_of_another_namespace_is_absent() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put()
        mine = await why(caller, name, "other")
        assert (mine.item, mine.absent) == (None, True)
        await caller.cancel(name)
        assert mine == await why(caller, name, "other")

    run_in_world(story)


def test_id_that_was_not_used_yet_is_not_reported_as_deleted() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put()
        shard, number = parse_id(name, "id")
        assert first_reason(await why(caller, f"{shard}-{number + 1}")).startswith("No item has this id yet")

    run_in_world(story)


def test_unserved_shard_is_a_reason_and_foreign_shard_is_an_error() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        (name,) = await caller.put()
        shard, number = parse_id(name, "id")
        del engine.shards[shard]
        explanation = await why(caller, name)
        assert (explanation.item, explanation.absent) == (None, False)
        assert f"shard {shard} is not served here; it is owned" in first_reason(explanation)
        with pytest.raises(NotOwner):
            await why(caller, f"9-{number}")

    run_in_world(story)


def test_unresponsive_database_is_reported_before_the_deadline() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        (name,) = await caller.put()
        world.stall()
        started = world.loop.time()
        explanation = await why(caller, name, timeout_s=4)
        assert world.loop.time() - started < 4
        assert explanation.item is None
        assert "cannot be read now" in first_reason(explanation)
        world.resume()
        assert (await why(caller, name)).item is not None

    run_in_world(story)


def test_used_up_rate_is_the_last_reason() -> None:
    async def story(world: World) -> None:
        limits: Mapping[str, int] = {"enqueues_per_minute": 2}
        world.catalog = catalog(slow=limits)
        caller = Caller(world, await world.engine(engine_settings(1)), "slow")
        (name, _) = await caller.put(count=2)
        assert "used up its enqueues of this minute, for another 30.0 s" in (await why(caller, name)).reasons[-1]

    run_in_world(story)


def test_counts_lag_without_one_shard_and_are_unavailable_without_all() -> None:
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
        removed = engine.shards.pop(empty)
        stats = await caller.stats()
        assert stats is not None
        assert stats.counts_lag
        del engine.shards[other]
        with pytest.raises(Exception, match="no shard of this host is served"):
            await caller.stats()
        engine.shards[empty] = removed

    run_in_world(story)


def test_oldest_ready_item_is_found_behind_better_ones() -> None:
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
def test_oldest_item_is_searched_in_a_limited_number_of_priorities(priorities: int, is_seen: bool) -> None:
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


def test_key_of_an_item_is_shown_while_it_names_the_item() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=60_000))
        caller = Caller(world, engine)
        started = world.loop.time()
        name = ok((await caller.enqueue([keyed_item("k")]))[0])
        bare = ok((await caller.enqueue([new_item()]))[0])

        async def key(name: str) -> bytes | None:
            shard, number = parse_id(name, "id")
            item = await caller.queue.reads.get_item("default", shard, number, world.deadline_in(5))
            explanation = await why(caller, name)
            assert explanation.item is not None
            assert explanation.item.idempotency_key == item.idempotency_key
            return item.idempotency_key

        assert (await key(name), await key(bare)) == (b"k", None)
        await caller.one()
        assert await key(name) == b"k"
        await world.pass_s(started + NAMESPACE.key_window_ms / 1000 + 0.2 - world.loop.time())
        assert any(table.idempotency_keys for table in world.database.tables.values()), "its row is still there"
        assert await key(name) is None

    run_in_world(story)


def test_key_is_not_found_after_the_key_window_changed() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        name = ok((await caller.enqueue([keyed_item("k")]))[0])
        await engine.admin.update("default", None, {"key_window_ms": 120_000}, world.deadline_in(5))
        explanation = await why(caller, name)
        assert explanation.item is not None
        assert explanation.item.idempotency_key is None

    run_in_world(story)
