"""Lists of groups by an engine: their bounds, and what changes while a list is made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

import pytest

from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.groups.group_stats import GroupOrder, GroupState
from foqs.core.groups.topic_groups import TopicGroups
from foqs.core.items.item import State
from foqs.core.items.life import EventKind
from foqs.queue.engine import Engine
from foqs.queue.port import GroupList, GroupStats, WantedGroups
from foqs.queue.reads import group_lists
from foqs_contract.errors import NotOwner
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world
from tests.support.loop_turns import calls_per_turn
from tests.unit.shard.test_limited_topics import grouped, set_rules

TOPIC: Final = ("default", "t")
TWO_SHARDS: Final = engine_settings(1, 2)
STRICT: Final = {"t": GroupRules(1)}


def wanted(**changes: Any) -> WantedGroups:
    values: dict[str, Any] = {"order": GroupOrder.SIZE, "states": None, "group": None, "limit": 100, **changes}
    return WantedGroups("default", "t", **values)


async def groups_of(engine: Engine, shards: Collection[int] | None = None, **changes: Any) -> GroupList:
    return await engine.queue.reads.list_groups(wanted(**changes), shards)


def memories(engine: Engine) -> list[TopicGroups]:
    return [shard.memory.limited_topics[TOPIC].groups for shard in engine.shards.values()]


async def engine_with_groups(
    world: World, sizes: Mapping[str | None, int], rules: Mapping[str, GroupRules] = STRICT
) -> tuple[Engine, Caller]:
    """Start an engine, and have these groups read into memory."""
    engine = await world.counted_engine(TWO_SHARDS)
    set_rules(engine, rules)
    caller = Caller(world, engine)
    await caller.enqueue([grouped(name) for name, count in sizes.items() for _ in range(count)])
    await read_all(world, engine)
    return engine, caller


async def read_all(world: World, engine: Engine) -> None:
    """Have all rows of the topic read, as dequeues would."""

    def has_read() -> bool:
        for shard in engine.shards.values():
            shard.loader.start_refill(TOPIC)
        return not any(groups.is_partial for groups in memories(engine))

    await world.until(has_read)


def test_a_list_after_a_takeover_has_the_rows_read() -> None:
    async def story(world: World) -> None:
        engine, caller = await engine_with_groups(world, {"anna": 2, "bert": 1})
        held = await caller.get(count=1)
        await engine.abort()
        engine = await world.counted_engine(TWO_SHARDS)
        set_rules(engine, STRICT)
        found = await groups_of(engine)
        assert (found.counts, found.is_partial) == ({}, True)
        await world.until(lambda: sum(len(groups) for groups in memories(engine)) == 2)
        found = await groups_of(engine)
        assert found.counts == {GroupState.ELIGIBLE: 1, GroupState.LEASED: 1}
        [blocked] = (await groups_of(engine, states=frozenset({GroupState.LEASED}))).groups
        [item] = held.items
        assert list(blocked.blockers) == [f"{item.shard}-{item.row.id}"]
        assert not world.broken

    run_in_world(story)


def test_shard_without_items_of_the_topic_is_not_asked_to_read_and_misses_nothing() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(TWO_SHARDS)
        set_rules(engine, STRICT)
        await Caller(world, engine).enqueue([grouped("anna")])
        assert (await groups_of(engine)).is_partial
        await world.until(lambda: sum(len(groups) for groups in memories(engine)) == 1)
        assert sorted(groups.is_unread for groups in memories(engine)) == [False, True]
        assert not (await groups_of(engine)).is_partial

    run_in_world(story)


def test_deep_topic_is_partial_until_its_rows_are_in_memory() -> None:
    async def story(world: World) -> None:
        engine, _ = await engine_with_groups(world, {f"group {n}": 1 for n in range(20)})
        for groups in memories(engine):
            groups.boundary -= 1
        assert (await groups_of(engine)).is_partial

    run_in_world(story)


def test_many_groups_are_counted_in_several_turns_and_the_largest_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        monkeypatch.setattr(group_lists, "GROUPS_PER_STEP", 10)
        monkeypatch.setattr(group_lists, "FIGURES_PER_STEP", 5)
        sizes: dict[str | None, int] = {f"group {n}": 1 + n % 4 for n in range(100)}
        engine, _ = await engine_with_groups(world, sizes)
        (found, ranked, most_ranked) = await calls_per_turn(
            monkeypatch, group_lists, "first_ready", groups_of(engine, limit=30)
        )
        assert ranked == 100
        assert most_ranked <= 10
        assert found.counts == {GroupState.ELIGIBLE: 100}
        assert [stats.ready for stats in found.groups] == sorted(sizes.values(), reverse=True)[:30]
        assert all(sizes[stats.group] == stats.ready for stats in found.groups)
        _, described, most_described = await calls_per_turn(
            monkeypatch, group_lists, "figures_of", groups_of(engine, limit=30)
        )
        assert (described, most_described <= 5) == (30, True)

    run_in_world(story)


def test_as_many_groups_of_a_shard_are_counted_as_the_bound_says_and_the_list_says_that_others_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        engine, _ = await engine_with_groups(world, {f"group {n}": 1 for n in range(40)})
        sizes = {number: len(shard.memory.limited_topics[TOPIC].groups) for number, shard in engine.shards.items()}
        monkeypatch.setattr(group_lists, "GROUPS_COUNTED_MAX", 5)
        found = await groups_of(engine)
        assert found.counts == {GroupState.ELIGIBLE: 10}
        assert found.is_partial
        assert min(sizes.values()) > 5
        last = next(reversed(engine.shards[1].memory.limited_topics[TOPIC].groups.by_name.values()))
        assert [stats.group for stats in (await groups_of(engine, group=last.name)).groups] == [last.name]

    run_in_world(story)


def test_a_list_that_takes_too_long_ends_with_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine, _ = await engine_with_groups(world, {f"group {n}": 1 for n in range(40)})
        monkeypatch.setattr(group_lists, "GROUPS_PER_STEP", 3)
        monkeypatch.setattr(group_lists, "COUNT_S_MAX", 0.0)
        found = await groups_of(engine)
        assert (found.counts, found.is_partial) == ({GroupState.ELIGIBLE: 6}, True)

    run_in_world(story)


def test_groups_that_leave_the_memory_or_the_wanted_state_meanwhile_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    collect, counted, gate = group_lists._stats_of, asyncio.Event(), asyncio.Event()

    async def collect_later(*arguments: Any) -> list[GroupStats]:
        counted.set()
        await gate.wait()
        return await collect(*arguments)

    async def story(world: World) -> None:
        names = {f"group {n}" for n in range(8)}
        engine, caller = await engine_with_groups(world, dict.fromkeys(names, 2))
        monkeypatch.setattr(group_lists, "_stats_of", collect_later)
        listing = asyncio.ensure_future(groups_of(engine, states=frozenset({GroupState.ELIGIBLE})))
        await counted.wait()
        items = [item for _ in range(4) for item in (await caller.get(count=1)).items]
        taken = {item.row.item_group.decode() for item in items if item.row.item_group is not None}
        assert len(taken) == 4
        gate.set()
        assert {stats.group for stats in (await listing).groups} == names - taken
        gate.clear()
        counted.clear()
        listing = asyncio.ensure_future(groups_of(engine))
        await counted.wait()
        gone = min(names - taken)
        tables = world.database.tables
        ids = [
            f"{n}-{row.id}"
            for n, table in tables.items()
            for row in table.rows.values()
            if row.item_group == gone.encode()
        ]
        assert len(await caller.cancel(*ids)) == 2
        gate.set()
        assert {stats.group for stats in (await listing).groups} == names - {gone}
        names.remove(gone)
        gate.clear()
        counted.clear()
        listing = asyncio.ensure_future(groups_of(engine))
        await counted.wait()
        set_rules(engine, {})
        gate.set()
        found = await listing
        assert (found.groups, found.counts) == ([], {GroupState.ELIGIBLE: 3, GroupState.LEASED: 4})
        assert (await groups_of(engine)).counts == {}
        assert not world.broken

    run_in_world(story)


def test_figures_are_those_of_the_rows_after_each_step_of_a_history() -> None:
    """The state, the counts and the blockers of each group, beside the tables."""

    async def story(world: World) -> None:
        engine, caller = await engine_with_groups(world, {"anna": 3, "bert": 2, None: 2})
        held: list[Any] = []
        for step in range(12):
            if step % 3 != 2:
                held += (await caller.get(count=1)).items
            elif held:
                await caller.do(EventKind.ACK if step % 2 else EventKind.NACK, [held.pop(0)], delay_ms=60_000)
            found = await groups_of(engine)
            rows = [row for table in world.database.tables.values() for row in table.rows.values()]
            by_state = Counter((row.item_group, row.state) for row in rows)
            for stats in found.groups:
                name = stats.group.encode()
                assert stats.ready == by_state[name, State.READY]
                assert stats.leased == by_state[name, State.LEASED]
                assert stats.backing_off == by_state[name, State.DEFERRED]
                holders = [
                    f"{stats.shard}-{row.id}"
                    for row in rows
                    if row.item_group == name and row.state in (State.LEASED, State.DEFERRED)
                ]
                assert list(stats.blockers) == holders
                state = {State.LEASED: GroupState.LEASED, State.DEFERRED: GroupState.BACKING_OFF}
                expected = next((state[each] for each in state if by_state[name, each]), GroupState.ELIGIBLE)
                assert stats.state is expected
            assert {stats.group.encode() for stats in found.groups} == {row.item_group for row in rows} - {None}
            assert found.ungrouped == by_state[None, State.READY]
        assert not world.broken

    run_in_world(story)


def test_turns_of_a_fair_topic_are_counted_over_the_shards_of_the_host() -> None:
    async def story(world: World) -> None:
        rules = {"t": GroupRules(fair=Fairness.ITEMS)}
        names = [f"group {n}" for n in range(12)]
        engine, caller = await engine_with_groups(world, dict.fromkeys(names, 3), rules)
        found = await groups_of(engine)
        places = {stats.group: stats.groups_before for stats in found.groups}
        assert set(places.values()) == set(range(12))
        served = [(await caller.one()).row.item_group for _ in range(12)]
        assert [name.decode() for name in served if name is not None] == sorted(
            names, key=lambda name: places[name] or 0
        )
        alone = await groups_of(engine, shards=[1])
        assert {stats.group: stats.shard for stats in alone.groups} == {
            stats.group: 1 for stats in found.groups if stats.shard == 1
        }
        with pytest.raises(NotOwner):
            await groups_of(engine, shards=[7])

    run_in_world(story)


def test_full_memory_is_shown() -> None:
    async def story(world: World) -> None:
        engine, _ = await engine_with_groups(world, {"anna": 1})
        assert not (await groups_of(engine)).is_full
        engine.shards[1].memory.limited_topics[TOPIC].room.is_full = True
        assert (await groups_of(engine)).is_full

    run_in_world(story)
