"""Restored items: once for each key, with their history, and placed and limited as enqueued ones."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.idempotency_keys import item_digest
from foqs.core.items.item import DeliveryPolicy, State, parse_id
from foqs.core.items.item_with_history import ItemWithHistory
from foqs.core.items.life import EventKind
from foqs.queue.port import Repeated
from foqs_contract.errors import KeyConflict, LimitExceeded, UnknownOutcome
from foqs_contract.key_slots import restore_key
from tests.support.builders import catalog, engine_settings
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import start_task, wait_until_idle


def restored(key: bytes, **changes: Any) -> ItemWithHistory:
    values: dict[str, Any] = {
        "namespace": "default",
        "topic": "t",
        "priority": 0,
        "payload": b"payload",
        "metadata": b"",
        "deliver_after_ms": None,
        "lease_ms": 30_000,
        "ttl_ms": None,
        "policy": DeliveryPolicy.AT_LEAST_ONCE,
        "attempts_max": 3,
        "idempotency_key": key,
        "trace_context": None,
        "state": State.READY,
        "attempt": 2,
        "ttl_remaining_ms": None,
    }
    values |= changes
    values.setdefault("digest", item_digest(b"t", 0, values["payload"], b"", None))
    return ItemWithHistory(**values)


def test_restored_items_are_delivered_in_their_former_order_and_with_their_attempts() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        now_ms = world.clock.wall_ms()
        items = [
            restored(restore_key(b"%d" % place), deliver_after_ms=now_ms - place, payload=b"%d" % place)
            for place in range(20)
        ]
        names = [ok(result) for result in await caller.enqueue(items)]
        await wait_until_idle(world, engine)
        found = (await caller.get(count=20)).items
        assert [seen.row.payload for seen in found] == [b"%d" % place for place in reversed(range(20))]
        assert {seen.row.attempt for seen in found} == {3}
        assert {f"{seen.shard}-{seen.row.id}" for seen in found} == set(names)
        await caller.do(EventKind.NACK, found, delay_ms=0)
        assert world.rows() == [("t", State.DEAD)] * 20
        await wait_until_idle(world, engine)

    run_in_world(story)


@pytest.mark.parametrize("key", [b"own", restore_key(b"1")])
def test_repeated_restore_adds_nothing_and_replies_the_same_id(key: bytes) -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        (name,) = await caller.enqueue([restored(key)])
        assert (
            await caller.enqueue([restored(key), restored(key, attempt=1, state=State.DEAD)])
            == [Repeated(ok(name))] * 2
        )
        (other,) = await caller.enqueue([restored(key, payload=b"other")])
        assert isinstance(other, KeyConflict)
        assert world.rows() == [("t", State.READY)]
        shard, number = parse_id(ok(name), "id")
        details = await caller.queue.reads.get_item("default", shard, number, world.deadline_in(5))
        assert details.idempotency_key == (b"own" if key == b"own" else None)

    run_in_world(story)


def test_dead_and_deferred_items_are_not_given_to_a_waiting_dequeue_and_a_ready_one_is() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        waiting = start_task(caller.get(count=5, wait_ms=4_000))
        await world.pass_s(0.1)
        later_ms = world.clock.wall_ms() + 60_000
        await caller.enqueue([restored(b"a", state=State.DEAD), restored(b"b", deliver_after_ms=later_ms)])
        await world.pass_s(1)
        assert not waiting.done()
        await caller.enqueue([restored(b"c", attempt=1)])
        (seen,) = (await waiting).items
        assert seen.row.attempt == 2
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", State.DEFERRED), ("t", State.LEASED), ("t", State.DEAD)]

    run_in_world(story)


def test_restored_items_expire_after_the_rest_of_their_ttl_and_dead_ones_after_the_retention() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.enqueue([restored(b"a", ttl_ms=90_000, ttl_remaining_ms=5_000), restored(b"b", state=State.DEAD)])
        await world.pass_s(6)
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", State.DEAD)]
        await world.pass_s(60)
        await wait_until_idle(world, engine)
        assert world.rows() == []

    run_in_world(story)


def test_restore_beyond_the_backlog_is_refused_but_a_repeat_is_not() -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default={"backlog_items_max": 2})
        engine = await world.counted_engine(engine_settings(1))
        caller = Caller(world, engine)
        names = [ok(result) for result in await caller.enqueue([restored(b"a"), restored(b"b")])]
        first, second, third = await caller.enqueue([restored(b"b"), restored(b"c"), restored(b"a")])
        assert (first, third) == (Repeated(names[1]), Repeated(names[0]))
        assert isinstance(second, LimitExceeded)

    run_in_world(story)


def test_restore_whose_host_dies_is_completed_by_a_repeat() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        items = [restored(restore_key(b"%d" % place)) for place in range(5)]
        restoring = start_task(Caller(world, engine).enqueue(items))
        await world.until(lambda: len(world.rows()) == 5)
        await engine.abort()
        assert {type(result) for result in await restoring} == {UnknownOutcome}
        results = await Caller(world, await world.engine(settings)).enqueue(items)
        assert {type(result) for result in results} == {Repeated}
        assert len(world.rows()) == 5

    run_in_world(story)
