"""Atomic calls on a whole engine: one flush of one shard, or nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.flush.writes import Writes
from foqs.queue.port import EnqueueOutcome, Repeated
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import WriteRefused
from foqs_contract.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    KeyConflict,
    KeyEnded,
    LimitExceeded,
    NotOwner,
    RateLimited,
    Unavailable,
    UnknownOutcome,
)
from tests.support.builders import catalog, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import MethodGate, closed, start_task, wait_until_idle
from tests.unit.queue.test_placement_keys import in_slot

ONE = engine_settings(1)
SMALL = engine_settings(1, flush_items_max=4, flush_items_min=4)


def sizes_of_flushes(world: World) -> list[int]:
    """Record the count of new items of each flush from now on."""
    sizes: list[int] = []

    def note(writes: Writes) -> None:
        if writes.inserts:
            sizes.append(len(writes.inserts))

    world.database.refuse = note
    return sizes


def error_of_all(outcomes: Sequence[EnqueueOutcome]) -> FoqsError:
    """Return the one error of a call."""
    assert len(set(map(id, outcomes))) == 1
    assert isinstance(outcomes[0], FoqsError)
    return outcomes[0]


async def put(caller: Caller, *items: Any, timeout_s: float = 5.0) -> list[EnqueueOutcome]:
    return await caller.enqueue(items, timeout_s, is_atomic=True)


def test_all_items_are_in_one_flush_of_one_shard_however_small_flushes_are() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, 2, flush_items_max=4, flush_items_min=4)))
        sizes = sizes_of_flushes(world)
        others = start_task(caller.enqueue([new_item() for _ in range(40)]))
        ids = [ok(outcome) for outcome in await put(caller, *[new_item() for _ in range(17)])]
        assert len({id.split("-")[0] for id in ids}) == 1
        assert max(sizes) >= 17
        await others
        assert sum(sizes) == 57

    run_in_world(story)


@pytest.mark.parametrize(("is_bad_value", "error"), [(False, Unavailable), (True, InvalidArgument)])
def test_a_refused_item_fails_its_atomic_call_and_no_other(is_bad_value: bool, error: type[FoqsError]) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        world.database.refuse = lambda writes: (
            WriteRefused("no such luck", is_bad_value=is_bad_value)
            if any(row.payload == b"bad" for row in writes.inserts)
            else None
        )
        world.stall()
        first = start_task(caller.put())
        await world.pass_s(0.01)
        fine, bad, single = (
            start_task(put(caller, new_item("a"), new_item("a"))),
            start_task(put(caller, new_item("b"), new_item("b", payload=b"bad"), new_item("b"))),
            start_task(caller.enqueue([new_item("c"), new_item("c", payload=b"bad")])),
        )
        await world.pass_s(0.01)
        world.resume()
        await first
        assert all(map(ok, await fine))
        assert isinstance(error_of_all(await bad), error)
        assert "one of the 3 items" in str(error_of_all(await bad))
        assert [type(outcome) for outcome in await single] == [str, error]
        assert Counter(topic for topic, _ in world.rows()) == {"t": 1, "a": 2, "c": 1}
        world.database.refuse = lambda writes: None
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_an_atomic_call_is_a_repeat_if_all_its_keys_are_remembered_for_its_items() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        one, two = in_slot(0, "one"), in_slot(0, "two", topic="u")
        ids = [ok(outcome) for outcome in await put(caller, one, two)]
        assert await put(caller, one, two) == [Repeated(id) for id in ids]
        assert await put(caller, two, one) == [Repeated(id) for id in reversed(ids)]
        (third,) = await put(caller, in_slot(0, "three"))
        assert await put(caller, in_slot(0, "three"), one) == [Repeated(ok(third)), Repeated(ids[0])]
        assert len(world.rows()) == 3
        await wait_until_idle(world, engine)

    run_in_world(story)


@pytest.mark.parametrize(
    ("items", "kind", "field"),
    [
        ([in_slot(0, "new"), in_slot(0, "old")], KeyConflict, "items[1].idempotency_key"),
        ([in_slot(0, "old"), in_slot(0, "other", payload=b"x")], KeyConflict, "items[1].idempotency_key"),
        (
            [in_slot(0, "new"), replace(in_slot(0, "newer"), key_until_ms=1)],
            KeyEnded,
            "items[1]",
        ),
        (
            [in_slot(0, "new"), replace(in_slot(0, "newer"), key_until_ms=1 << 45)],
            InvalidArgument,
            "items[1].key_until_ms",
        ),
    ],
)
def test_a_call_whose_keys_are_not_alike_writes_nothing(items: list[Any], kind: type[FoqsError], field: str) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await put(caller, in_slot(0, "old"), in_slot(0, "other"))
        error = error_of_all(await put(caller, *items))
        assert (type(error), error.field) == (kind, field)
        assert len(world.rows()) == 2
        assert not isinstance((await put(caller, in_slot(0, "new")))[0], Repeated)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_of_two_atomic_calls_that_share_a_key_in_one_flush_the_first_wins() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        world.stall()
        before = start_task(caller.put())
        await world.pass_s(0.01)
        shared = keyed_item("shared")
        first = start_task(put(caller, keyed_item("a"), shared))
        second = start_task(put(caller, keyed_item("b"), shared))
        again = start_task(put(caller, shared, keyed_item("a")))
        await world.pass_s(0.01)
        world.resume()
        await before
        ids = [ok(outcome) for outcome in await first]
        assert error_of_all(await second).field == "items[1].idempotency_key"
        assert await again == [Repeated(ids[1]), Repeated(ids[0])]
        assert len(world.rows()) == 3
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_keys_of_two_shards_are_refused_and_named_and_of_one_shard_are_not() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        by_shard: dict[int, list[int]] = {}
        for shard in engine.shards.values():
            by_shard[shard.number] = sorted(shard.key_slots)
        (first, *_), (second, other, *_) = by_shard.values()
        with pytest.raises(InvalidArgument) as caught:
            await put(caller, in_slot(second, "1"), in_slot(other, "2"), in_slot(first, "3"))
        assert caught.value.field == "items[2].idempotency_key"
        assert "items[0].idempotency_key and items[2].idempotency_key belong to different shards" in str(caught.value)
        assert world.rows() == []
        assert all(map(ok, await put(caller, in_slot(second, "1"), in_slot(other, "2"))))

    run_in_world(story)


def test_a_shard_that_is_not_here_fails_an_atomic_call_as_a_whole() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        engine.on_dropped(1)
        with pytest.raises((Unavailable, NotOwner)):
            await put(caller, keyed_item("a"), keyed_item("b"))

    run_in_world(story)


def test_items_that_would_expire_first_fail_an_atomic_call() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(ONE))
        late = new_item(delay_ms=None, deliver_after_ms=1 << 45, ttl_ms=5)
        with pytest.raises(InvalidArgument) as caught:
            await put(caller, new_item(), late)
        assert caught.value.field == "items[1].ttl_ms"
        assert world.rows() == []

    run_in_world(story)


@pytest.mark.parametrize(
    ("limits", "kind", "field"),
    [
        ({"enqueues_per_minute": 3}, RateLimited, "items"),
        ({"backlog_items_max": 2}, LimitExceeded, "items"),
        ({"topics_max": 1}, LimitExceeded, "items[1].topic"),
    ],
)
def test_over_a_limit_an_atomic_call_is_a_repeat_or_is_refused_as_a_whole(
    limits: dict[str, int], kind: type[FoqsError], field: str
) -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default=limits)
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        one, two = in_slot(0, "one"), in_slot(0, "two")
        ids = [ok(outcome) for outcome in await put(caller, one, two)]
        new = in_slot(0, "new", topic="another")
        error = error_of_all(await put(caller, in_slot(0, "newer"), new))
        assert (type(error), error.field) == (kind, field)
        assert await put(caller, one, two) == [Repeated(id) for id in ids]
        assert error_of_all(await put(caller, one, new)).code == "KEY_CONFLICT"
        assert len(world.rows()) == 2
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_a_deadline_withdraws_all_items_or_leaves_all_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(SMALL))
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            flushing = start_task(put(caller, *[new_item("a") for _ in range(9)], timeout_s=0.2))
            await world.pass_s(0.05)
            queued = start_task(put(caller, *[new_item("b") for _ in range(9)], timeout_s=0.2))
            assert {type(outcome) for outcome in await flushing} == {UnknownOutcome}
            assert {type(outcome) for outcome in await queued} == {DeadlineExceeded}
        await caller.put("c")
        assert Counter(topic for topic, _ in world.rows()) == {"a": 9, "c": 1}

    run_in_world(story)


def test_a_waiter_of_items_that_are_refused_gets_later_ones() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await put(caller, keyed_item("old", "u"))
        waiting = start_task(caller.get(wait_ms=4_000))
        await asyncio.sleep(0)
        assert isinstance(error_of_all(await put(caller, keyed_item("new"), keyed_item("old", "u"))), KeyConflict)
        assert not waiting.done()
        (id,) = await caller.put()
        assert [f"{item.shard}-{item.row.id}" for item in (await waiting).items] == [id]
        await wait_until_idle(world, engine)

    run_in_world(story)
