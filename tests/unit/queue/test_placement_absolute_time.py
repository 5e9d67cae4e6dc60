"""Items with an absolute time and a TTL: an item that would expire before it is due, by the shard clock, is refused."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.item import NewItem
from foqs.queue.port import Repeated
from foqs_contract.errors import InvalidArgument
from tests.support.builders import engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world


def absolute_time_item(keyed: bool, name: str, **changes: Any) -> NewItem:
    return keyed_item(name, name, **changes) if keyed else new_item(name, **changes)


@pytest.mark.parametrize("keyed", [False, True])
def test_item_that_would_expire_before_it_is_due_is_refused_alone(keyed: bool) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        now_ms = engine.shards[1].now_ms()
        results = await caller.enqueue(
            [
                absolute_time_item(keyed, "in time", deliver_after_ms=now_ms + 999, ttl_ms=1_000),
                absolute_time_item(keyed, "as late", deliver_after_ms=now_ms + 1_000, ttl_ms=1_000),
                new_item("now"),
                absolute_time_item(keyed, "past", deliver_after_ms=now_ms - 5_000, ttl_ms=1),
                absolute_time_item(keyed, "later", deliver_after_ms=now_ms + 10_000, ttl_ms=1_000),
                absolute_time_item(keyed, "for ever", deliver_after_ms=now_ms + 10_000),
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


def test_call_whose_items_are_all_refused_can_be_corrected_and_repeated() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        moment = engine.shards[1].now_ms() + 60_000
        results = await caller.enqueue(
            [absolute_time_item(n > 0, f"{n}", deliver_after_ms=moment, ttl_ms=100) for n in range(3)]
        )
        assert [type(result) for result in results] == [InvalidArgument] * 3
        assert world.rows() == []
        # Nothing was stored, so the key is free.
        assert all(map(ok, await caller.enqueue([keyed_item("1"), keyed_item("2")])))

    run_in_world(story)


def test_repeat_of_an_accepted_item_is_not_refused() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        item = keyed_item("k", deliver_after_ms=engine.shards[1].now_ms() + 500, ttl_ms=501)
        ok((await caller.enqueue([item]))[0])
        await world.pass_s(3)
        assert isinstance((await caller.enqueue([item]))[0], Repeated)

    run_in_world(story)
