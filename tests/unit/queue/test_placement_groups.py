"""Groups of items on a whole engine: their shard, and the keys within them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from foqs.core.items.item import (
    AbsoluteTimeItem,
    GroupedAbsoluteTimeItem,
    GroupedItem,
    KeyedItem,
    NewItem,
)
from foqs.core.items.life import EventKind
from foqs.queue.port import EnqueueOutcome, Repeated
from foqs_contract.errors import InvalidArgument, RateLimited, Unavailable
from foqs_contract.key_slots import group_prefix, group_slot_of
from tests.support.builders import catalog, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import wait_until_idle

THREE = engine_settings(1, 2, 3)


def grouped(group: str, topic: str = "t", **changes: Any) -> NewItem:
    """Return an item with a group and without a key."""
    item = new_item(topic, item_group=group.encode(), **changes)
    return (GroupedAbsoluteTimeItem if isinstance(item, AbsoluteTimeItem) else GroupedItem)(**asdict(item))


def keyed(group: str, key: str, topic: str = "t", **changes: Any) -> KeyedItem:
    """Return an item with a group and a key."""
    item = keyed_item(group_prefix(b"default", group.encode()) + key.encode(), topic, **changes)
    item.item_group = group.encode()
    return item


def shard_of(outcome: EnqueueOutcome) -> int:
    return int((outcome.id if isinstance(outcome, Repeated) else ok(outcome)).split("-")[0])


async def some_groups(caller: Caller) -> dict[int, str]:
    """Return a group for each of three shards, each with an item."""
    groups = {shard_of((await caller.enqueue([grouped(name)]))[0]): name for name in map(str, range(30))}
    assert len(groups) == 3
    return groups


def test_all_items_of_a_group_are_in_one_shard_whatever_their_topics_keys_and_times() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(THREE)
        caller = Caller(world, engine)
        names = [f"group {number}" for number in range(30)]
        soon_ms = world.clock.wall_ms() + 50
        outcomes = await caller.enqueue(
            [
                item
                for name in names
                for item in (
                    grouped(name),
                    keyed(name, "~000"),
                    grouped(name, "another"),
                    new_item(),
                    keyed(name, "~001", "another"),
                    grouped(name, deliver_after_ms=soon_ms, ttl_ms=60_000),
                )
            ]
        )
        shards = [shard_of(outcome) for outcome in outcomes]
        for place, name in enumerate(names):
            one, two, three, _, four, five = shards[6 * place : 6 * place + 6]
            assert {two, three, four, five} == {one}
            slot = group_slot_of(b"default", name.encode())
            assert slot in engine.shards[one].key_slots
        assert set(shards) == {1, 2, 3}
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_a_key_is_unique_within_its_group() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(THREE)
        caller = Caller(world, engine)
        items = [keyed("a", "k"), keyed("b", "k"), keyed_item("k"), keyed("a", "l")]
        first = [ok(outcome) for outcome in await caller.enqueue(items)]
        assert len(set(first)) == 4
        assert await caller.enqueue(items) == [Repeated(id) for id in first]
        await wait_until_idle(world, engine)
        await caller.do(EventKind.ACK, (await caller.get(count=9)).items)
        assert world.rows() == []
        assert await caller.enqueue(items) == [Repeated(id) for id in first]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_a_repeat_in_a_group_beyond_a_limit_returns_its_id() -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default={"enqueues_per_minute": 3})
        engine = await world.engine(THREE)
        caller = Caller(world, engine)
        items = [keyed("a", "k"), keyed("b", "k"), keyed("c", "k")]
        first = [ok(outcome) for outcome in await caller.enqueue(items)]
        new, *repeats = await caller.enqueue([keyed("a", "new"), *items[1:]])
        assert isinstance(new, RateLimited)
        assert repeats == [Repeated(id) for id in first[1:]]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_an_atomic_call_of_groups_in_two_shards_is_refused_with_both_fields() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(THREE)
        caller = Caller(world, engine)
        groups = await some_groups(caller)
        one, two = groups[1], groups[2]
        count = len(world.rows())
        with pytest.raises(
            InvalidArgument, match=r"items\[0\].group and items\[1\].group belong to different shards"
        ) as caught:
            await caller.enqueue([grouped(one), grouped(two)], is_atomic=True)
        assert caught.value.field == "items[1].group"
        first = await caller.enqueue([keyed_item(f"~00{slot}first") for slot in range(3)])
        in_two = f"~00{list(map(shard_of, first)).index(2)}"
        with pytest.raises(
            InvalidArgument, match=r"items\[0\].group and items\[1\].idempotency_key belong to different shards"
        ):
            await caller.enqueue([keyed(one, "k"), keyed_item(f"{in_two}k")], is_atomic=True)
        together = await caller.enqueue([keyed(two, "k"), keyed_item(f"{in_two}k")], is_atomic=True)
        assert [shard_of(outcome) for outcome in together] == [2, 2]
        assert [shard_of(outcome) for outcome in await caller.enqueue([grouped(one), new_item()], is_atomic=True)] == [
            1,
            1,
        ]
        assert len(world.rows()) > count
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_a_completion_in_a_shard_that_is_not_the_one_of_the_group_is_refused_with_both_fields() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(THREE)
        groups = await some_groups(Caller(world, engine))
        placement = engine.queue.placement
        placement.check_bound_to(2, "completions[0].id", [new_item(), grouped(groups[2])], 0)
        both = r"completions\[0\].id and items\[4\].group belong to different shards"
        with pytest.raises(InvalidArgument, match=both):
            placement.check_bound_to(1, "completions[0].id", [new_item(), grouped(groups[2])], 3)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_items_of_a_group_whose_shard_is_away_are_refused_and_others_are_not() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(THREE)
        caller = Caller(world, engine)
        groups = await some_groups(caller)
        engine.shards[1].close()
        await world.until(lambda: not engine.shards[1].is_serving)
        refused, other, free = await caller.enqueue([grouped(groups[1]), grouped(groups[2]), new_item()])
        assert isinstance(refused, Unavailable)
        assert "the slot of this group is not served now" in str(refused)
        assert shard_of(other) == 2
        assert shard_of(free) in (2, 3)
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_the_slot_of_a_group_does_not_depend_on_the_topic_but_on_the_namespace() -> None:
    assert len({group_slot_of(b"%d" % number, b"g") for number in range(99)}) > 50
