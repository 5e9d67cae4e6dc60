"""Items with an absolute time and a TTL: those that would expire first are refused, by their shard's time."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.errors import InvalidArgument
from foqs.core.items.item import NewItem
from foqs.queue.port import Repeated
from tests.support.builders import engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world


def made(keyed: bool, name: str, **changes: Any) -> NewItem:
    return keyed_item(name, name, **changes) if keyed else new_item(name, **changes)


@pytest.mark.parametrize("keyed", [False, True])
def test_an_item_that_would_expire_before_its_moment_is_refused_alone(keyed: bool) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        now_ms = engine.shards[1].now_ms()
        results = await caller.enqueue(
            [
                made(keyed, "in time", deliver_after_ms=now_ms + 999, ttl_ms=1_000),
                made(keyed, "as late", deliver_after_ms=now_ms + 1_000, ttl_ms=1_000),
                new_item("now"),
                made(keyed, "past", deliver_after_ms=now_ms - 5_000, ttl_ms=1),
                made(keyed, "later", deliver_after_ms=now_ms + 10_000, ttl_ms=1_000),
                made(keyed, "for ever", deliver_after_ms=now_ms + 10_000),
            ]
        )
        refused = [place for place, result in enumerate(results) if not isinstance(result, str)]
        assert refused == [1, 4]
        for place in refused:
            error = results[place]
            assert isinstance(error, InvalidArgument)
            assert error.field == "ttl_ms"
        assert {topic for topic, _ in world.rows()} == {"in time", "now", "past", "for ever"}

    run_in_world(story)


def test_a_call_of_which_nothing_can_be_delivered_is_answered_and_may_be_mended() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        moment = engine.shards[1].now_ms() + 60_000
        results = await caller.enqueue([made(n > 0, f"{n}", deliver_after_ms=moment, ttl_ms=100) for n in range(3)])
        assert [type(result) for result in results] == [InvalidArgument] * 3
        assert world.rows() == []
        # Nothing of it was kept: its key is free.
        assert all(map(ok, await caller.enqueue([keyed_item("1"), keyed_item("2")])))

    run_in_world(story)


def test_a_repeat_of_what_was_taken_in_is_no_mistake() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        item = keyed_item("k", deliver_after_ms=engine.shards[1].now_ms() + 500, ttl_ms=501)
        ok((await caller.enqueue([item]))[0])
        await world.pass_s(3)
        assert isinstance((await caller.enqueue([item]))[0], Repeated)

    run_in_world(story)
