"""Runs of strict groups on a whole engine: what a dequeue gets together, and what becomes of the rest when one item fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.core.items.item import DeliveryPolicy, Row, State
from foqs.core.items.life import EventKind
from foqs.queue.engine import Engine, EngineSettings
from foqs.queue.port import Outcome, RowView
from foqs.queue.topic_purge import purge_topic
from foqs_contract.errors import StaleLease
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, ok, run_in_world
from tests.unit.shard.test_limited_topics import GROUPS, LITTLE_MEMORY, ONE, grouped, id_of, set_rules

THREE = engine_settings(3)
STRICT = {"t": GroupRules(1)}
RUN_MAX = 4


async def strict_caller(world: World, settings: EngineSettings = ONE) -> tuple[Caller, Engine]:
    engine = await world.counted_engine(settings)
    set_rules(engine, STRICT)
    return Caller(world, engine), engine


async def enqueue(caller: Caller, group: str, count: int = 1, **changes: Any) -> list[str]:
    return [ok(each) for each in await caller.enqueue([replace(grouped(group), **changes) for _ in range(count)])]


def ids(items: Sequence[RowView]) -> list[str]:
    return [id_of(item) for item in items]


def is_stale(outcomes: Sequence[Outcome]) -> bool:
    return all(isinstance(outcome, StaleLease) for outcome in outcomes)


def rows(world: World) -> list[Row]:
    """Return the rows of all tables by number."""
    found = [row for table in world.database.tables.values() for row in table.rows.values()]
    return sorted(found, key=lambda row: row.id)


def attempts(world: World) -> list[int]:
    return [row.attempt for row in rows(world)]


def test_a_run_has_the_next_items_of_a_group_and_nothing_follows_until_all_are_settled() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna, bert = await enqueue(caller, "anna", 5), await enqueue(caller, "bert", 2)
        run = (await caller.get(count=10, run_max=3)).items
        assert ids(run) == [*anna[:3], *bert]
        assert not (await caller.get(count=10, run_max=3)).items
        for item in run[:2]:
            await caller.do(EventKind.ACK, [item])
            assert not (await caller.get(count=10, run_max=3)).items
        await caller.do(EventKind.ACK, [run[2]])
        assert ids((await caller.get(count=10, run_max=3)).items) == anna[3:]
        assert not world.broken

    run_in_world(story)


def test_a_dequeue_without_runs_gets_one_item_of_a_group() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna = await enqueue(caller, "anna", 3)
        assert ids((await caller.get(count=10)).items) == anna[:1]

    run_in_world(story)


def test_a_run_counts_within_what_the_dequeue_wants_of_the_topic() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna, bert = await enqueue(caller, "anna", 3), await enqueue(caller, "bert", 3)
        assert ids((await caller.get(count=4, run_max=3)).items) == [*anna, bert[0]]

    run_in_world(story)


@pytest.mark.parametrize(
    ("kind", "changes", "attempt", "is_ready"),
    [
        (EventKind.NACK, {"delay_ms": 0}, 1, True),
        (EventKind.NACK, {"delay_ms": 60_000}, 1, False),
        (EventKind.NACK, {}, 1, False),
        (EventKind.RELEASE, {}, 0, True),
        (EventKind.EXTEND, {"lease_ms": 0}, 1, True),
    ],
)
def test_items_behind_one_that_is_given_back_are_superseded_and_not_charged(
    kind: EventKind, changes: dict[str, Any], attempt: int, is_ready: bool
) -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna = await enqueue(caller, "anna", 5)
        run = (await caller.get(count=10, run_max=4)).items
        await caller.do(EventKind.ACK, run[:1])
        assert await caller.do(kind, [run[1]], **changes) == [None]
        assert attempts(world) == [attempt, 0, 0, 0]
        for late in (EventKind.ACK, EventKind.NACK, EventKind.EXTEND, EventKind.RELEASE):
            assert is_stale(await caller.do(late, run[2:]))
        again = (await caller.get(count=10, run_max=4)).items
        assert ids(again) == (anna[1:] if is_ready else [])
        assert not world.broken

    run_in_world(story)


def test_an_item_before_the_one_that_is_given_back_keeps_its_lease_and_locks_the_group() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna = await enqueue(caller, "anna", 3)
        run = (await caller.get(count=10, run_max=3)).items
        await caller.do(EventKind.NACK, [run[1]], delay_ms=0)
        assert is_stale(await caller.do(EventKind.ACK, [run[2]]))
        assert not (await caller.get(count=10, run_max=3)).items
        await caller.do(EventKind.ACK, [run[0]])
        assert ids((await caller.get(count=10, run_max=3)).items) == anna[1:]

    run_in_world(story)


def test_the_end_of_the_lease_of_a_run_charges_its_first_item_only() -> None:
    """A poison item at which consumers die takes none of those behind it along."""

    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna = await enqueue(caller, "anna", 4, attempts_max=2)
        await caller.do(EventKind.ACK, (await caller.get(count=3, run_max=3, lease_ms=100)).items[:1])
        await world.pass_s(1.0)
        assert attempts(world) == [1, 0, 0]
        again = await caller.get(count=10, run_max=3, lease_ms=100)
        assert ids(again.items) == anna[1:]
        await world.pass_s(1.0)
        assert attempts(world) == [2, 0, 0]
        assert [row.state for row in rows(world)] == [State.DEAD, State.READY, State.READY]
        assert is_stale(await caller.do(EventKind.ACK, again.items[1:]))
        assert not world.broken

    run_in_world(story)


def test_an_item_that_is_given_up_dies_and_the_run_goes_on() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        await enqueue(caller, "anna", 3)
        run = (await caller.get(count=3, run_max=3)).items
        await caller.do(EventKind.NACK, run[:1], dead=True)
        await caller.cancel(id_of(run[1]))
        assert await caller.do(EventKind.ACK, run[2:]) == [None]

    run_in_world(story)


def test_an_extension_is_of_one_item_and_the_end_of_another_lease_supersedes_those_behind_it() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        await enqueue(caller, "anna", 4)
        run = (await caller.get(count=4, run_max=4, lease_ms=200)).items
        assert await caller.do(EventKind.EXTEND, [run[0], run[2]], lease_ms=60_000) == [None, None]
        await world.pass_s(1.0)
        assert attempts(world) == [1, 0, 0, 0]
        assert is_stale(await caller.do(EventKind.ACK, [run[2]]))
        assert await caller.do(EventKind.ACK, [run[0]]) == [None]
        assert not world.broken

    run_in_world(story)


def test_an_at_most_once_item_behind_one_that_is_given_back_is_gone() -> None:
    """Its consumer may have begun it, against the rule, and must not be followed by another one."""

    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        await enqueue(caller, "anna", 1)
        await enqueue(caller, "anna", 2, policy=DeliveryPolicy.AT_MOST_ONCE)
        run = (await caller.get(count=4, run_max=4)).items
        await caller.do(EventKind.NACK, run[:1], delay_ms=0)
        assert [row.id for row in rows(world)] == [run[0].row.id]

    run_in_world(story)


def test_a_release_keeps_the_at_most_once_items_behind_it() -> None:
    """With it their consumer says that it did not begin them."""

    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna = await enqueue(caller, "anna", 4, policy=DeliveryPolicy.AT_MOST_ONCE)
        run = (await caller.get(count=4, run_max=4)).items
        released = caller.do(EventKind.RELEASE, run[:1])
        extended = caller.do(EventKind.EXTEND, run[2:3])
        assert [await released, await extended][0] == [None]
        await world.pass_s(0.1)
        assert is_stale(await caller.do(EventKind.ACK, run[1:]))
        assert attempts(world) == [0, 0, 0, 0]
        assert ids((await caller.get(count=4, run_max=4)).items) == anna
        assert not world.broken

    run_in_world(story)


def test_items_that_are_given_back_together_are_each_given_back_as_their_caller_says() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna = await enqueue(caller, "anna", 3)
        run = (await caller.get(count=3, run_max=3)).items
        assert await caller.do(EventKind.NACK, run, delay_ms=0) == [None] * 3
        assert attempts(world) == [1, 1, 1]
        assert ids((await caller.get(count=3, run_max=3)).items) == anna

    run_in_world(story)


def test_an_event_that_waits_for_an_item_behind_comes_first_and_then_it_is_superseded() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        await enqueue(caller, "anna", 3)
        run = (await caller.get(count=3, run_max=3)).items
        nacked = caller.do(EventKind.NACK, run[:1], delay_ms=0)
        extended = caller.do(EventKind.EXTEND, run[1:2])
        assert [await nacked, await extended][0] == [None]
        await world.pass_s(0.1)
        assert is_stale(await caller.do(EventKind.ACK, run[1:]))
        assert all(row.state is State.READY for row in rows(world))
        assert not world.broken

    run_in_world(story)


def test_a_new_owner_supersedes_the_leases_behind_an_item_that_came_back_before_it_knew_the_group() -> None:
    async def story(world: World) -> None:
        caller, engine = await strict_caller(world)
        anna = await enqueue(caller, "anna", 4)
        run = (await caller.get(count=4, run_max=4, lease_ms=60_000)).items
        await engine.abort()
        caller, engine = await strict_caller(world)
        assert await caller.do(EventKind.NACK, [run[1]], delay_ms=0) == [None]
        assert await caller.do(EventKind.ACK, run[:1]) == [None]
        again = (await caller.get(count=4, wait_ms=1_000, run_max=4)).items
        assert ids(again) == anna[1:2]  # the waiting ones were not read yet
        assert is_stale(await caller.do(EventKind.ACK, run[2:]))
        await caller.do(EventKind.ACK, again)
        assert ids((await caller.get(count=4, wait_ms=1_000, run_max=4)).items) == anna[2:]
        assert not world.broken

    run_in_world(story)


def test_the_leases_of_a_run_that_end_before_a_new_owner_knows_the_group_charge_its_first_item_only() -> None:
    async def story(world: World) -> None:
        caller, engine = await strict_caller(world)
        anna = await enqueue(caller, "anna", 3, attempts_max=1)
        await caller.get(count=3, run_max=3, lease_ms=5_000)
        await engine.abort()
        caller, engine = await strict_caller(world)
        await world.until(lambda: not any(row.state is State.LEASED for row in rows(world)))
        assert [row.state for row in rows(world)] == [State.DEAD, State.READY, State.READY]
        assert attempts(world) == [1, 0, 0]
        assert ids((await caller.get(count=3, wait_ms=1_000, run_max=3)).items) == anna[1:]

    run_in_world(story)


def test_a_new_owner_keeps_a_run_that_nothing_happened_to() -> None:
    async def story(world: World) -> None:
        caller, engine = await strict_caller(world)
        await enqueue(caller, "anna", 4)
        run = (await caller.get(count=3, run_max=3, lease_ms=60_000)).items
        await engine.abort()
        caller, engine = await strict_caller(world)
        assert not (await caller.get(count=4, wait_ms=1_000, run_max=3)).items
        assert await caller.do(EventKind.NACK, [run[1]], delay_ms=0) == [None]
        assert is_stale(await caller.do(EventKind.ACK, [run[2]]))
        assert await caller.do(EventKind.ACK, [run[0]]) == [None]

    run_in_world(story)


@pytest.mark.parametrize("kind", [EventKind.NACK, EventKind.RELEASE])
def test_leases_from_before_the_topic_was_strict_are_no_run(kind: EventKind) -> None:
    """Each has a consumer of its own, which keeps it when another one fails."""

    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await enqueue(caller, "anna", 4)
        first, second, third = [(await caller.get(lease_ms=60_000)).items for _ in range(3)]
        set_rules(engine, STRICT)
        assert not (await caller.get(wait_ms=500)).items
        assert await caller.do(kind, first) == [None]
        await world.pass_s(1.0)
        assert await caller.do(EventKind.ACK, second) == [None]
        assert not (await caller.get()).items
        assert await caller.do(EventKind.ACK, third) == [None]
        assert (await caller.get()).items
        world.broken.clear()  # a group has more leases than its limit until these have ended

    run_in_world(story)


def test_a_lease_behind_a_returned_item_of_another_flush_is_kept_when_the_topic_becomes_strict() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await enqueue(caller, "anna", 1, priority=-1)
        returned = (await caller.get(lease_ms=60_000)).items
        await enqueue(caller, "anna", 1)
        leased = (await caller.get(lease_ms=60_000)).items
        await caller.do(EventKind.NACK, returned, delay_ms=0)
        set_rules(engine, STRICT)
        assert not (await caller.get(wait_ms=500)).items
        assert await caller.do(EventKind.ACK, leased) == [None]
        assert ids((await caller.get()).items) == ids(returned)

    run_in_world(story)


def test_items_of_a_run_that_come_back_with_delays_keep_their_order() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna = await enqueue(caller, "anna", 3)
        run = (await caller.get(count=3, run_max=3)).items
        for item, delay_ms in zip(reversed(run), (100, 200, 300), strict=True):
            assert await caller.do(EventKind.NACK, [item], delay_ms=delay_ms) == [None]
        await world.pass_s(0.25)
        assert not (await caller.get(count=3, run_max=3)).items  # the first one backs off
        await world.pass_s(0.1)
        again = (await caller.get(count=3, run_max=3)).items
        assert ids(again) == anna
        await caller.do(EventKind.NACK, again[:1], delay_ms=100)
        assert not (await caller.get(count=3, run_max=3)).items
        await world.pass_s(0.2)
        assert ids((await caller.get(count=3, run_max=3)).items) == anna
        assert not world.broken

    run_in_world(story)


def test_a_run_of_which_the_database_refuses_one_item_is_delivered_one_by_one_up_to_it() -> None:
    async def story(world: World) -> None:
        caller, _ = await strict_caller(world)
        anna = await enqueue(caller, "anna", 4)
        refused = rows(world)[2].id
        world.database.refuse = lambda writes: (
            "a bad row" if any(refused in lease.ids for lease in writes.leases) else None
        )
        for name in anna[:2]:
            got = (await caller.get(count=4, wait_ms=3_000, run_max=4)).items
            assert ids(got) == [name]
            await caller.do(EventKind.ACK, got)
        assert not (await caller.get(count=4, wait_ms=3_000, run_max=4)).items
        world.database.refuse = lambda writes: None
        again = (await caller.get(count=4, wait_ms=3_000, run_max=4)).items
        assert ids(again) == anna[2:3]
        await caller.do(EventKind.ACK, again)
        assert ids((await caller.get(count=4, wait_ms=3_000, run_max=4)).items) == anna[3:]

    run_in_world(story)


def test_a_purge_ends_a_run() -> None:
    async def story(world: World) -> None:
        caller, engine = await strict_caller(world)
        await enqueue(caller, "anna", 4)
        await caller.get(count=3, run_max=3)
        await purge_topic([*engine.shards.values()], ("default", "t"), world.loop.time() + 5)
        bert = await enqueue(caller, "anna", 2)
        assert ids((await caller.get(count=3, run_max=3)).items) == bert
        assert not world.broken

    run_in_world(story)


def test_a_run_of_a_fair_topic_moves_the_turn_of_its_group_by_its_items() -> None:
    async def story(world: World) -> None:
        engine = await world.counted_engine(ONE)
        set_rules(engine, {"t": GroupRules(1, Fairness.ITEMS)})
        caller = Caller(world, engine)
        await enqueue(caller, "anna", 9)
        await enqueue(caller, "bert", 9)
        await enqueue(caller, "carl", 9)
        names: list[bytes | None] = []
        for count in (3, 1, 1, 1, 1, 1, 1):
            got = (await caller.get(count=count, run_max=3, wait_ms=1_000)).items
            names += [item.row.item_group for item in got]
            await caller.do(EventKind.ACK, got)
        assert names[:3] == [names[0]] * 3
        assert names.count(names[0]) == 3, names
        assert not world.broken

    run_in_world(story)


class Consumers:
    """Consumers that ask for runs, handle them in order, and try to settle what is behind one that failed."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    async def consume(self, caller: Caller) -> None:
        rng = self.rng
        run_max = rng.choice((1, 2, RUN_MAX))
        got = (
            await caller.get("t", rng.randint(1, 9), rng.choice((0, 20)), rng.choice((100, 400)), run_max=run_max)
        ).items
        runs: dict[bytes, list[RowView]] = {}
        for item in got:
            runs.setdefault(item.row.item_group or b"", []).append(item)
        for group, run in runs.items():
            assert len(run) <= run_max, "invariant 24: a run is too long"
            keys = [(item.row.attempt == 1, item.row.order_key) for item in run]
            assert keys == sorted(keys), f"invariant 24: the run of {group!r} is out of order: {keys}"
        names = [item.row.item_group or b"" for item in got]
        together = [name for group in dict.fromkeys(names) for name in [group] * len(runs[group])]
        assert names == together, f"invariant 24: the items of a run are not together: {names}"
        for run in runs.values():
            await self.handle(caller, run)

    async def handle(self, caller: Caller, run: list[RowView]) -> None:
        rng = self.rng
        for place, item in enumerate(run):
            fate = rng.random()
            if fate < 0.6:
                if is_stale(await caller.do(EventKind.ACK, [item])):
                    return
                continue
            if fate < 0.75:
                outcomes = await caller.do(EventKind.NACK, [item], delay_ms=rng.choice((None, 0, 200)))
            elif fate < 0.85:
                outcomes = await caller.do(EventKind.RELEASE, [item])
            elif fate < 0.9:
                await caller.cancel(id_of(item))
                continue
            else:
                return  # it dies
            behind = run[place + 1 :]
            if outcomes == [None] and behind and rng.random() < 0.7:
                late = rng.choice((EventKind.ACK, EventKind.NACK, EventKind.EXTEND))
                settled = await caller.do(late, behind)
                assert is_stale(settled), f"{late} of items behind a failed one: {settled}"
            return


@pytest.mark.parametrize("settings", [ONE, LITTLE_MEMORY, THREE], ids=["one shard", "little memory", "three shards"])
@pytest.mark.parametrize("seed", range(6))
def test_runs_are_in_order_and_alone_and_nothing_behind_an_early_end_is_settled(
    seed: int, settings: EngineSettings
) -> None:
    rng = Random(seed)

    async def story(world: World) -> None:
        caller, engine = await strict_caller(world, settings)
        consumers = Consumers(rng)
        for _ in range(150):
            kind = rng.random()
            if kind < 0.4:
                group = rng.choice(GROUPS[:3])
                delay_ms = rng.choice((None, None, 300))
                await caller.enqueue(
                    [grouped(group, "t", rng.choice((0, 0, 1)), delay_ms) for _ in range(rng.randint(1, 5))]
                )
            elif kind < 0.95:
                await consumers.consume(caller)
            elif kind < 0.97:
                await engine.abort()
                caller, engine = await strict_caller(world, settings)
            else:
                await world.pass_s(0.3)
            leased = [row for row in rows(world) if row.state is State.LEASED]
            for name in {row.item_group for row in leased}:
                tokens = {row.token for row in leased if row.item_group == name}
                assert len(tokens) == 1, f"invariant 24: two runs of {name!r}"
        await world.pass_s(2.0)
        for _ in range(400):
            got = (await caller.get("t", 9, 1_500, run_max=RUN_MAX)).items
            if not got:
                break
            await caller.do(EventKind.ACK, got)
        assert world.rows() == []
        assert not world.broken

    run_in_world(story)
