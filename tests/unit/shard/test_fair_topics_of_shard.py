"""Fair topics on a whole engine: turns over shards and takeovers, weights, changes of the policy, and what others see of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from foqs.core.groups.group import KEYS_PER_UNIT
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.item import State, TopicName, parse_id
from foqs.core.items.life import EventKind
from foqs.core.memory.order_samples import NOTHING, Displacement
from foqs.queue.engine import Engine
from foqs.queue.order_meter import TOPIC_PAUSE_S
from foqs.queue.port import RowView
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.plain_turns import TurnAccount
from tests.unit.shard.test_limited_topics import ONE, grouped, id_of, set_rules

BY_ITEMS: Final = GroupRules(fair=Fairness.ITEMS)
THREE: Final = engine_settings(1, 2, 3)
TOPIC: Final[TopicName] = ("default", "t")


async def fair_engine(world: World, rules: GroupRules = BY_ITEMS, settings: Any = ONE) -> tuple[Engine, Caller]:
    engine = await world.counted_engine(settings)
    set_rules(engine, {"t": rules})
    return engine, Caller(world, engine)


async def put(caller: Caller, *groups: str | None) -> list[str]:
    """Enqueue an item of each of these groups, in order."""
    return [ok(each) for each in await caller.enqueue([grouped(group) for group in groups])]


def name_of(item: RowView) -> str:
    return id_of(item) if item.row.item_group is None else item.row.item_group.decode()


async def serve_one_by_one(caller: Caller, count: int, most: int = 1) -> list[str]:
    """Deliver and ack items, at most `most` with a call. Return their groups; an item without one has its id."""
    found: list[str] = []
    while len(found) < count:
        items = (await caller.get(count=most, wait_ms=1_000)).items
        assert items, f"{found} were delivered"
        found += map(name_of, items)
        await caller.do(EventKind.ACK, items)
    return found


def worst_wait(delivered: Sequence[str], waiting: Mapping[str, int], weights: Mapping[str, int]) -> float:
    """Return `TurnAccount.most` of deliveries, if this number of each group was waiting from the beginning."""
    account, left = TurnAccount(weights), Counter(waiting)
    account.follow(dict.fromkeys(waiting, 0))
    for name in delivered:
        account.deliver(name, 0, {other: 0 for other in left if left[other]})
        left[name] -= 1
        account.follow({other: 0 for other in left if left[other]})
    return float(account.most)


@pytest.mark.parametrize("most", [1, 7])
@pytest.mark.parametrize("weights", [{}, {"anna": 3}], ids=["equal", "weighted"])
def test_groups_of_all_shards_take_turns(weights: Mapping[str, int], most: int) -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world, replace(BY_ITEMS, weights=weights), THREE)
        sizes = {"anna": 60, "bert": 12, "carl": 5, "dora": 9, "emil": 1, "fred": 30}
        ids = await put(caller, *[name for name, size in sizes.items() for _ in range(size)])
        singles = await put(caller, None, None, None)
        assert len({parse_id(id, "id")[0] for id in ids}) > 1, "the groups are in several shards"
        waiting = sizes | dict.fromkeys(singles, 1)
        delivered = await serve_one_by_one(caller, sum(waiting.values()), most)
        assert Counter(delivered) == waiting
        if most == 1:
            assert worst_wait(delivered, waiting, weights) <= 1
        turns = sum([2 * weights.get(name, 1) for name in waiting])
        assert set(delivered[:turns]) == set(waiting)
        assert len({id(shard.memory.limited_topics[TOPIC].groups.turns) for shard in engine.shards.values()}) == 1

    run_in_world(story)


def test_reply_has_the_items_of_several_shards_in_turn() -> None:
    async def story(world: World) -> None:
        _, caller = await fair_engine(world, settings=THREE)
        names = ("anna", "bert", "carl", "dora", "emil", "fred")
        shards = {name: parse_id(id, "id")[0] for name, id in zip(names, await put(caller, *names), strict=True)}
        assert len(set(shards.values())) > 1
        await serve_one_by_one(caller, len(names))
        for name in names:
            await put(caller, *[name] * 5)
            await world.pass_s(0.1)
        delivered = [name_of(item) for item in (await caller.get(count=30)).items]
        assert len(delivered) == 30
        for start in range(0, 30, len(names)):
            assert set(delivered[start : start + len(names)]) == set(names)

    run_in_world(story)


def test_group_with_very_many_items_does_not_keep_the_first_item_of_another_waiting() -> None:
    async def story(world: World) -> None:
        _, caller = await fair_engine(world)
        for _ in range(3):
            await put(caller, *["anna"] * 1_000)
        assert await serve_one_by_one(caller, 20, 5) == ["anna"] * 20
        await world.pass_s(2)  # all rows are read by now
        await put(caller, "bert")
        assert "bert" in await serve_one_by_one(caller, 2)
        await put(caller, None)
        assert "anna" in (two := await serve_one_by_one(caller, 2))
        assert len(set(two)) == 2

    run_in_world(story)


def test_items_of_a_group_come_in_order_and_better_priorities_first() -> None:
    async def story(world: World) -> None:
        _, caller = await fair_engine(world)
        await caller.enqueue([grouped("anna", priority=priority) for priority in (1, 0, 1, 0)])
        await caller.enqueue([grouped("bert", priority=2) for _ in range(2)])
        items = (await caller.get(count=10)).items
        assert [item.row.priority for item in items] == [0, 0, 1, 1, 2, 2]
        anna = [item.row.id for item in items if item.row.priority < 2]
        assert anna[:2] == sorted(anna[:2])
        assert anna[2:] == sorted(anna[2:])

    run_in_world(story)


def test_by_time_a_group_with_long_leases_gets_fewer_items() -> None:
    async def story(world: World) -> None:
        _, caller = await fair_engine(world, GroupRules(fair=Fairness.TIME))
        await put(caller, *["slow"] * 100, *["quick"] * 100)
        delivered: Counter[str] = Counter()

        async def consume() -> None:
            while delivered["quick"] < 60:
                for item in (await caller.get(wait_ms=1_000)).items:
                    delivered[name_of(item)] += 1
                    await asyncio.sleep(2.0 if name_of(item) == "slow" else 0.25)
                    await caller.do(EventKind.ACK, [item])

        await asyncio.gather(consume(), consume())
        assert 4 < delivered["quick"] / delivered["slow"] < 12

    run_in_world(story)


def test_new_owner_reads_the_groups_and_goes_on_in_turn() -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world)
        for name in ("anna", "bert", "carl"):
            await put(caller, *[name] * 700)
        await serve_one_by_one(caller, 9, 3)
        await engine.abort()
        engine, caller = await fair_engine(world)
        await serve_one_by_one(caller, 30, 5)
        await world.pass_s(2)  # all rows are read by now
        delivered = await serve_one_by_one(caller, 30)
        assert max(Counter(delivered).values()) <= 11
        await put(caller, "dora")
        assert "dora" in await serve_one_by_one(caller, 4)

    run_in_world(story)


@pytest.mark.takes_source
def test_rows_behind_a_long_group_are_read_without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world)
        for name in [*["anna"] * 3, "bert"]:
            await put(caller, *[name] * 1_000)
        await engine.abort()
        engine, caller = await fair_engine(world)
        reads, loop = engine.shards[1].loader.groups, asyncio.get_running_loop()
        call_later, pauses = loop.call_later, list[float]()

        def note(delay_s: float, callback: Any, *arguments: Any) -> Any:
            if callback == reads._go_on:
                pauses.append(delay_s)
            return call_later(delay_s, callback, *arguments)

        monkeypatch.setattr(loop, "call_later", note)
        assert (await caller.get()).items
        await world.pass_s(1)
        assert reads.page_count >= 8
        assert len(pauses) <= 1, "only after the last page"
        assert engine.shards[1].memory.limited_topics[TOPIC].groups.get("bert") is not None

    run_in_world(story)


def test_returned_items_and_ended_leases_have_their_turn_again() -> None:
    async def story(world: World) -> None:
        _, caller = await fair_engine(world)
        await put(caller, "anna", "anna", "bert", "bert")
        held = (await caller.get(count=2, lease_ms=200)).items
        assert {name_of(item) for item in held} == {"anna", "bert"}
        await caller.do(EventKind.NACK, held[:1], delay_ms=50)
        await world.pass_s(1)  # the other lease has ended
        delivered = await serve_one_by_one(caller, 4)
        assert Counter(delivered) == {"anna": 2, "bert": 2}
        assert set(delivered[:2]) == {"anna", "bert"}
        assert not (await caller.get(count=9)).items

    run_in_world(story)


def test_lease_that_has_ended_is_extended_if_the_topic_has_no_limit() -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world)
        await put(caller, "anna", "anna")
        held = (await caller.get(lease_ms=100)).items
        await world.pass_s(0.5)
        assert await caller.do(EventKind.EXTEND, held) == [None]
        assert [row.state for row in world.database.tables[1].rows.values()].count(State.LEASED) == 1
        set_rules(engine, {"t": GroupRules(2, Fairness.ITEMS)})
        held = (await caller.get(lease_ms=100)).items
        await world.pass_s(0.5)
        [refused] = await caller.do(EventKind.EXTEND, held)
        assert refused is not None

    run_in_world(story)


@pytest.mark.parametrize("leases_max", [1, 2])
def test_limit_holds_in_a_fair_topic(leases_max: int) -> None:
    async def story(world: World) -> None:
        _, caller = await fair_engine(world, GroupRules(leases_max, Fairness.ITEMS))
        await put(caller, *["anna"] * 5, *["bert"] * 5, None)
        held = (await caller.get(count=20)).items
        assert Counter(map(name_of, held))["anna"] == leases_max
        assert len(held) == 2 * leases_max + 1
        [anna, *_] = [item for item in held if name_of(item) == "anna"]
        await caller.do(EventKind.ACK, [anna])
        assert list(map(name_of, (await caller.get(count=20)).items)) == ["anna"]

    run_in_world(story)


def test_weights_that_change_count_from_the_next_turn_on() -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world)
        await put(caller, *["anna"] * 100, *["bert"] * 100)
        delivered = await serve_one_by_one(caller, 20)
        assert abs(Counter(delivered)["anna"] - 10) <= 1
        limited = engine.shards[1].memory.limited_topics[TOPIC]
        set_rules(engine, {"t": replace(BY_ITEMS, weights={"anna": 4})})
        assert engine.shards[1].memory.limited_topics[TOPIC] is limited, "nothing is read again"
        delivered = await serve_one_by_one(caller, 50)
        assert abs(Counter(delivered)["anna"] - 40) <= 2

    run_in_world(story)


def test_reserved_item_that_is_given_back_after_the_policy_was_removed_comes_by_its_age() -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world)
        ids = await put(caller, "anna", "anna", "bert", "bert", "carl")
        assert (await caller.get()).items
        await world.pass_s(1)
        shard = engine.shards[1]
        keys = shard.index.reserve(TOPIC, 2)
        assert len(keys) == 2
        set_rules(engine, {})
        held = (await caller.get()).items
        assert len(held) == 1
        shard.memory.check()
        shard.release_reservation([(TOPIC, keys)])
        await world.pass_s(1)
        shard.memory.check()
        assert (shard.oldest_ready_age_ms(TOPIC) or 0) < 10_000
        assert len((await caller.get(count=9)).items) == len(ids) - 2

    run_in_world(story)


@pytest.mark.takes_source
def test_rows_of_items_that_come_next_in_turn_are_prefetched() -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world)
        for name in ("anna", "bert", "carl"):
            await put(caller, *[name] * 400)
        await engine.abort()
        engine, caller = await fair_engine(world)
        shard, numbers = engine.shards[1], list[int]()
        flushed = shard._writer._planner.reads

        def reads(*arguments: Any, **options: Any) -> Any:
            found = flushed(*arguments, **options)
            numbers.extend(found.payloads)
            return found

        shard._writer._planner.reads = reads  # type: ignore[method-assign]
        await serve_one_by_one(caller, 400, 10)
        read_early = len(numbers)
        await serve_one_by_one(caller, 600, 10)
        assert engine.shards[1] is shard
        assert len(numbers) - read_early < 100, "most rows were in memory before they were leased"

    run_in_world(story)


# --------------------------------------------------------------- what others see


def test_age_of_a_fair_topic_is_that_of_its_oldest_item() -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world)
        await put(caller, *["anna"] * 3)
        await caller.get()
        await world.pass_s(7)
        stats = await caller.stats()
        assert stats is not None
        assert stats.fair is Fairness.ITEMS
        assert stats.oldest_ready_age_ms is not None
        assert 6_900 <= stats.oldest_ready_age_ms <= 7_500
        assert engine.shards[1].oldest_ready_age_ms() == stats.oldest_ready_age_ms

    run_in_world(story)


def test_fair_topic_has_no_samples_of_order() -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world)
        samples: list[TopicName] = []

        class Sink:
            def on_sample(
                self, topic: TopicName, priority: int, deliver_after_ms: int, here: Displacement, deliveries: int
            ) -> None:
                samples.append(topic)

        engine.queue.order_meter._sink = Sink()
        await put(caller, *["anna"] * 9)
        await caller.put("plain", 9)
        for _ in range(3):
            await caller.get()
            await caller.get("plain")
            await world.pass_s(TOPIC_PAUSE_S + 0.1)
        assert set(samples) == {("default", "plain")}
        ranking = engine.queue.order_meter._ranking
        assert ranking.passed_over(TOPIC, 5, 1 << 40) is NOTHING
        assert ranking.passed_over(("default", "plain"), 5, 1 << 40).items == 6

    run_in_world(story)


async def reasons(world: World, engine: Engine, id: str) -> Sequence[str]:
    shard, number = parse_id(id, "id")
    found = await engine.queue.reads.explain("default", shard, number, world.deadline_in(5))
    assert found.better_items is None or not found.reasons[0].startswith("It is ready, and groups")
    return found.reasons


def test_explanation_says_which_turn_an_item_waits_for() -> None:
    async def story(world: World) -> None:
        engine, caller = await fair_engine(world, settings=THREE)
        anna = await put(caller, *["anna"] * 4)
        others = await put(caller, "bert", "carl", None)
        assert "its group has no turn yet" in (await reasons(world, engine, anna[0]))[0]
        [first] = (await caller.get()).items
        texts = [(await reasons(world, engine, id))[0] for id in (*anna, *others)]
        waiting = [text for text in texts if "take turns" in text]
        assert len(waiting) == 6
        assert sum("is next" in text for text in waiting) >= 1
        last = (await reasons(world, engine, anna[3]))[0]
        assert "the turn of its group 'anna'" in last
        assert "items of the group come before it" in last
        assert "its turn" in (await reasons(world, engine, others[2]))[0] or id_of(first) == others[2]
        set_rules(engine, {"t": GroupRules(1, Fairness.ITEMS)})
        await caller.get(count=9)
        assert "the policy of its topic allows 1 delivered item" in (await reasons(world, engine, anna[3]))[0]

    run_in_world(story)


def test_more_groups_than_fit_are_all_delivered() -> None:
    async def story(world: World) -> None:
        small = replace(ONE, shard=ONE.shard.model_copy(update={"ready_index_items_max": 12 * KEYS_PER_UNIT}))
        engine, caller = await fair_engine(world, settings=small)
        names = [f"group {number}" for number in range(60)]
        await put(caller, *[name for _ in range(3) for name in names])
        await put(caller, *[None] * 30)
        delivered = await serve_one_by_one(caller, 210, 4)
        assert Counter(Counter(delivered).values()) == {3: 60, 1: 30}
        assert engine.shards[1].snapshot().group_units <= 12

    run_in_world(story)
