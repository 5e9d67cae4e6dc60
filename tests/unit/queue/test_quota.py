"""The limits of a namespace: rate, backlog, topics."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from foqs.core.items.item import NewItem
from foqs.core.items.life import EventKind
from foqs.queue.engine import EngineSettings
from foqs.queue.port import EnqueueOutcome
from foqs.store.in_memory.memory_store import MemoryReads
from foqs_contract.errors import FoqsError, LimitExceeded, RateLimited, Unavailable
from tests.support.builders import catalog, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import MethodGate, closed, start_task


def limited(world: World, **limits: int) -> EngineSettings:
    """Return settings of two shards; the namespace `default` has these limits, `other` has none."""
    world.catalog = catalog(default=limits)
    return engine_settings(1, 2)


async def refused(caller: Caller, items: Sequence[NewItem]) -> FoqsError:
    """Return the error of a call that is refused as a whole."""
    with pytest.raises(FoqsError) as caught:
        await caller.enqueue(items)
    return caught.value


# -------------------------------------------------------------------------- rate


def test_rate_allows_a_minutes_items_and_returns_the_retry_time() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(limited(world, enqueues_per_minute=60)))
        await caller.put(count=60)
        error = await refused(caller, [new_item() for _ in range(10)])
        assert isinstance(error, RateLimited)
        assert error.field == "items"
        assert error.retry_after_ms is not None
        assert 9_000 < error.retry_after_ms <= 10_001
        await world.pass_s(error.retry_after_ms / 1000)
        await caller.put(count=10)
        assert isinstance(await refused(caller, [new_item()]), RateLimited)
        assert len(world.rows()) == 70

    run_in_world(story)


def test_each_namespace_has_its_own_rate() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(limited(world, enqueues_per_minute=10))
        caller = Caller(world, engine)
        await caller.put(count=10)
        assert isinstance(await refused(caller, [new_item()]), RateLimited)
        await Caller(world, engine, "other").put(count=100)
        held = await caller.get(count=5)
        assert await caller.do(EventKind.ACK, held.items) == [None] * 5

    run_in_world(story)


def test_call_larger_than_a_minutes_rate_exceeds_the_limit() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(limited(world, enqueues_per_minute=10)))
        error = await refused(caller, [new_item() for _ in range(11)])
        assert isinstance(error, LimitExceeded)
        assert (error.field, error.retry_after_ms) == ("items", None)
        await caller.put(count=10)

    run_in_world(story)


def test_call_that_no_shard_accepts_is_not_charged() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(limited(world, enqueues_per_minute=10))
        caller = Caller(world, engine)
        away = dict(engine.shards)
        engine.shards.clear()
        for _ in range(3):
            assert isinstance(await refused(caller, [new_item() for _ in range(10)]), Unavailable)
        results = await caller.enqueue([keyed_item("a"), keyed_item("b")])
        assert all(isinstance(result, Unavailable) for result in results)
        engine.shards.update(away)
        await caller.put(count=10)

    run_in_world(story)


# ----------------------------------------------------------------------- backlog


@pytest.mark.parametrize(("limits", "size"), [({"backlog_items_max": 10}, 1), ({"backlog_bytes_max": 1_000}, 100)])
def test_backlog_is_limited_and_has_room_again_after_it_shrinks(limits: dict[str, int], size: int) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(limited(world, **limits)))
        await caller.put(count=8, payload=bytes(size))
        error = await refused(caller, [new_item(payload=bytes(size)) for _ in range(3)])
        assert isinstance(error, LimitExceeded)
        assert error.field == "items"
        assert error.retry_after_ms
        await caller.put(count=2, payload=bytes(size))
        await refused(caller, [new_item(payload=bytes(size))])
        held = (await caller.get(count=10)).items
        await refused(caller, [new_item(payload=bytes(size))])
        await caller.do(EventKind.ACK, held[:3])
        await refused(caller, [new_item(payload=bytes(size)) for _ in range(4)])
        await caller.put(count=3, payload=bytes(size))
        assert len(world.rows()) == 10

    run_in_world(story)


@pytest.mark.parametrize(("limits", "size"), [({"backlog_items_max": 10}, 1), ({"backlog_bytes_max": 1_000}, 100)])
def test_concurrent_calls_do_not_exceed_the_limit_together(limits: dict[str, int], size: int) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(limited(world, **limits)))
        accepted = []

        async def offer() -> None:
            with contextlib.suppress(LimitExceeded):
                accepted.extend(await caller.enqueue([new_item(payload=bytes(size))]))

        calls = []
        for number in range(40):
            calls.append(start_task(offer()))
            if number % 4 == 0:
                await world.pass_s(0.001)
        for call in calls:
            await call
        assert len(accepted) == len(world.rows()) == 10

    run_in_world(story)


@pytest.mark.parametrize(("limits", "size"), [({"backlog_items_max": 10}, 1), ({"backlog_bytes_max": 1_000}, 100)])
def test_new_owner_refuses_nothing_wrongly_and_limits_the_backlog_once_counted(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], size: int
) -> None:
    async def story(world: World) -> None:
        first = await world.engine(limited(world, **limits))
        await Caller(world, first).put(count=9, payload=bytes(size))
        await first.abort()
        counting = MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=True)
        with closed(counting):
            engine = await world.engine(limited(world, **limits))
            caller = Caller(world, engine)
            held = (await caller.get(count=9, wait_ms=1_000)).items
            await caller.do(EventKind.ACK, held[:6])
            # There were nine items, which it has not counted yet; six of them were deleted since.
            await caller.put(count=7, payload=bytes(size))
        await world.until(lambda: not any(shard.counts.is_lagging for shard in engine.shards.values()))
        assert len(world.rows()) == 10
        await refused(caller, [new_item(payload=bytes(size))])
        await caller.do(EventKind.ACK, held[6:])
        await caller.put(count=3, payload=bytes(size))

    run_in_world(story)


def test_usage_matches_the_tables_after_every_event() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(limited(world, backlog_items_max=1_000))
        caller = Caller(world, engine)
        await caller.put("now", 6, payload=b"four")
        await caller.put("later", 2, payload=b"twelve bytes", delay_ms=60_000)
        await caller.put("short", 2, payload=b"one", ttl_ms=50)
        await Caller(world, engine, "other").put("now", 3, payload=b"x")
        held = (await caller.get("now", 4)).items
        await caller.do(EventKind.ACK, held[:1])
        await caller.do(EventKind.NACK, held[1:2], dead=True)
        await caller.do(EventKind.NACK, held[2:3], delay_ms=1_000, metadata=b"why")
        await world.pass_s(0.5)
        assert engine.queue._backlogs.usage("default") == (7, 5 * 4 + 2 * 12)
        assert engine.queue._backlogs.usage("other") == (3, 3)
        assert engine.queue._backlogs.usage("nobody") == (0, 0)

    run_in_world(story)


# ------------------------------------------------------------------------ topics


def topics_of(results: Sequence[EnqueueOutcome], names: Sequence[str]) -> list[str]:
    """Return the names of the accepted topics."""
    return [name for result, name in zip(results, names, strict=True) if isinstance(result, str)]


@pytest.mark.parametrize("keyed", [False, True])
def test_item_of_a_topic_over_the_limit_is_refused_alone(keyed: bool) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.counted_engine(limited(world, topics_max=3)))
        names = ["a", "b", "a", "c", "d", "a", "e", "d"]
        items = [keyed_item(f"key {n}", name) if keyed else new_item(name) for n, name in enumerate(names)]
        results = await caller.enqueue(items)
        assert topics_of(results, names) == ["a", "b", "a", "c", "a"]
        errors = [result for result in results if isinstance(result, LimitExceeded)]
        assert [error.field for error in errors] == ["topic"] * 3
        assert sorted(topic for topic, _ in world.rows()) == ["a", "a", "a", "b", "c"]
        results = await caller.enqueue([new_item("x")])
        assert isinstance(results[0], LimitExceeded)

    run_in_world(story)


def test_topic_without_items_makes_room_for_another() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(limited(world, topics_max=1)))
        await caller.put("a")
        (error,) = await caller.enqueue([new_item("b")])
        assert isinstance(error, LimitExceeded)
        await caller.do(EventKind.ACK, [await caller.one("a")])
        ok((await caller.enqueue([new_item("b")]))[0])

    run_in_world(story)


def test_topics_are_not_limited_until_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        first = await world.engine(limited(world, topics_max=2))
        await Caller(world, first).put("x")
        await Caller(world, first).put("y")
        await first.abort()
        with closed(MethodGate(monkeypatch, MemoryReads, "counts", on_the_way_back=True)):
            caller = Caller(world, await world.engine(limited(world, topics_max=2)))
            held = [await caller.one("x", wait_ms=1_000), await caller.one("y", wait_ms=1_000)]
            assert await caller.do(EventKind.ACK, held) == [None, None]
            await caller.put("a")

    run_in_world(story)


def test_refused_items_are_counted_by_limit() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(limited(world, topics_max=1, enqueues_per_minute=5, backlog_items_max=3))
        caller = Caller(world, engine)
        await caller.enqueue([new_item("a"), new_item("b")])
        await refused(caller, [new_item("a") for _ in range(3)])
        await caller.put("a", 2)
        await caller.do(EventKind.ACK, (await caller.get("a", 3)).items)
        await refused(caller, [new_item("a") for _ in range(3)])
        assert engine.queue.quota.limited_items == {"topics": 1, "items": 3, "rate": 3}

    run_in_world(story)


def test_usage_counts_the_enqueues_of_the_last_minute() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        await Caller(world, engine).put(count=7)
        usage = engine.admin.usage("default")
        assert (usage.items, len(usage.topics), usage.enqueues_last_minute) == (7, 1, 7)
        await world.pass_s(125)
        assert engine.admin.usage("default").enqueues_last_minute == 0

    run_in_world(story)
