"""Moved items: in one flush, with a new id, and once, whatever fails in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.flush.operation import ALREADY_GONE
from foqs.core.flush.purge_markers import SetPurgeMarker
from foqs.core.items.item import State, parse_id
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.queue.port import Repeated
from foqs.shard.observer import NullObserver
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import FAULT_POINTS, StoreLost
from foqs_contract.errors import InvalidArgument, KeyConflict, LimitExceeded, NotFound, UnknownOutcome
from tests.support.builders import NAMESPACE, catalog, engine_settings, keyed_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle

READY, DEFERRED, LEASED, DEAD = State.READY, State.DEFERRED, State.LEASED, State.DEAD


async def move(caller: Caller, *ids: str, to: str = "other") -> list[Any]:
    named = [parse_id(name, "id") for name in ids]
    return await caller.apply(
        [(shard, Event(EventKind.MOVE, number, caller.namespace, topic=to)) for shard, number in named]
    )


async def make_dead(caller: Caller, count: int = 1) -> None:
    await caller.do(EventKind.NACK, (await caller.get(count=count)).items, dead=True)


def test_moved_item_has_a_new_id_in_its_shard_and_the_same_payload() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        names = await caller.put(count=9, payload=b"work", metadata=b"note", priority=4)
        moved = await move(caller, *names)
        assert len({*moved, *names}) == 18
        assert [parse_id(new, "id")[0] for new in moved] == [parse_id(old, "id")[0] for old in names]
        await wait_until_idle(world, engine)
        assert world.rows() == [("other", READY)] * 9
        found = (await caller.get("other", 10)).items
        assert sorted(f"{seen.shard}-{seen.row.id}" for seen in found) == sorted(moved)
        assert {(seen.row.payload, seen.row.metadata, seen.row.priority, seen.row.attempt) for seen in found} == {
            (b"work", b"note", 4, 1)
        }
        assert (await caller.get(count=9)).items == []
        assert await caller.do(EventKind.ACK, found) == [None] * 9
        await wait_until_idle(world, engine)
        assert world.rows() == []

    run_in_world(story)


def test_dead_item_is_ready_with_new_attempts_and_its_waiting_consumer_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(NullObserver, "items_moved", lambda facts, items: counts.append(items))

    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        (name,) = await caller.put(attempts_max=1, ttl_ms=50_000)
        await make_dead(caller)
        await world.pass_s(40)
        waiting = start_task(caller.one("other", wait_ms=4_000))
        (new,) = await move(caller, name)
        seen = await waiting
        assert (f"{seen.shard}-{seen.row.id}", seen.row.attempt, seen.row.attempts_max) == (new, 1, 1)
        assert seen.row.expires_at_ms is not None and seen.row.expires_at_ms - seen.now_ms > 49_000
        assert counts == [1]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_deferred_item_stays_deferred_until_its_moment_and_expires_at_its_time() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        names = await caller.put(delay_ms=20_000, ttl_ms=60_000) + await caller.put(delay_ms=20_000, ttl_ms=25_000)
        await move(caller, *names)
        await wait_until_idle(world, engine)
        assert world.rows() == [("other", DEFERRED)] * 2
        assert (await caller.get("other")).items == []
        await world.pass_s(26)
        assert len((await caller.get("other", 5)).items) == 1
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_item_that_is_moved_when_its_time_has_come_is_ready_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan has read the old entry, and no later one would find an entry of the new id with the same due."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=10**9))
        caller = Caller(world, engine)
        (name,) = await caller.put(delay_ms=100, ttl_ms=60_000)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            first = start_task(caller.put("busy"))
            await world.until(lambda: commits.held == 1)
            moving = start_task(move(caller, name))
            await world.pass_s(0.3)
        await asyncio.gather(first, moving)
        await wait_until_idle(world, engine)
        assert world.rows() == [("busy", READY), ("other", READY)]
        await world.pass_s(60)
        assert world.rows() == [("busy", READY)]

    run_in_world(story)


def test_leased_expired_absent_and_foreign_items_are_refused_and_do_not_change() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (leased,) = await caller.put()
        await caller.one()
        (same,) = await caller.put("other")
        (gone,) = await caller.put()
        await caller.cancel(gone)
        (foreign,) = await Caller(world, engine, "other").put()
        before = world.rows()
        errors = await move(caller, leased, same, gone, foreign)
        assert [type(error) for error in errors] == [InvalidArgument, InvalidArgument, NotFound, NotFound]
        assert world.rows() == before
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_repeated_move_replies_the_same_id_also_after_the_new_item_is_done() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        caller = Caller(world, engine)
        (name,) = await caller.put()
        (new,) = await move(caller, name)
        assert await move(caller, name) == [Repeated(new)]
        (conflict,) = await move(caller, name, to="third")
        assert isinstance(conflict, KeyConflict)
        await caller.do(EventKind.ACK, [await caller.one("other")])
        engine = await restarted(world, engine, settings)
        assert await move(Caller(world, engine), name) == [Repeated(new)]
        assert world.rows() == []
        await world.pass_s(NAMESPACE.key_window_ms / 1_000)
        (error,) = await move(Caller(world, engine), name)
        assert isinstance(error, NotFound)

    run_in_world(story)


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_move_is_done_once_if_the_connection_breaks_at(point: str) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        names = await caller.put(count=3)
        breaks = [point]

        def fault(at: str) -> None:
            if at in breaks:
                breaks.clear()
                raise StoreLost("broken by the test")

        world.faults = fault
        moved = await move(caller, *names)
        assert not breaks
        assert len(set(map(ok, moved))) == 3
        assert await move(caller, *names) == [Repeated(new) for new in moved]
        await wait_until_idle(world, engine)
        assert world.rows() == [("other", READY)] * 3

    run_in_world(story)


@pytest.mark.parametrize("is_committed", [False, True])
def test_move_whose_host_dies_is_done_once_by_the_next_owner(
    is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1)
        engine = await world.engine(settings)
        names = await Caller(world, engine).put(count=3)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=is_committed)
        with closed(commits):
            moving = start_task(move(Caller(world, engine), *names))
            await world.until(lambda: commits.held == 1)
            await engine.abort()
        assert {type(outcome) for outcome in await moving} == {UnknownOutcome}
        assert world.rows() == [("other" if is_committed else "t", READY)] * 3
        engine = await world.engine(settings)
        moved = await move(Caller(world, engine), *names)
        assert {type(outcome) for outcome in moved} == {Repeated if is_committed else str}
        await wait_until_idle(world, engine)
        assert world.rows() == [("other", READY)] * 3

    run_in_world(story)


def test_item_that_is_leased_or_acked_first_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        names = await caller.put(count=2)
        taken = await caller.one()
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            acking = start_task(caller.do(EventKind.ACK, [taken]))
            await world.until(lambda: commits.held == 1)
            getting = start_task(caller.get(count=1))
            moving = start_task(move(caller, *names))
            await world.pass_s(0.05)
        assert await acking == [None]
        assert len((await getting).items) == 1
        assert [type(outcome) for outcome in await moving] == [NotFound, InvalidArgument]
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", LEASED)]

    run_in_world(story)


def test_dequeue_that_reserved_a_moved_item_continues_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        names = await caller.put(count=2)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            moving = start_task(move(caller, names[0]))
            await world.until(lambda: commits.held == 1)
            getting = start_task(caller.get(count=2))
            await world.pass_s(0.05)
        await moving
        assert [f"{seen.shard}-{seen.row.id}" for seen in (await getting).items] == [names[1]]
        await wait_until_idle(world, engine)
        assert world.rows() == [("other", READY), ("t", LEASED)]

    run_in_world(story)


def test_late_ack_of_a_moved_item_finds_it_gone() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        (name,) = await caller.put(lease_ms=1_000)
        late = await caller.one()
        await world.pass_s(2)
        (new,) = await move(caller, name)
        assert await caller.do(EventKind.ACK, [late]) == [ALREADY_GONE]
        wrong = replace(late, row=replace(late.row, id=parse_id(new, "id")[1]))
        assert [type(outcome).__name__ for outcome in await caller.do(EventKind.ACK, [wrong])] == ["StaleLease"]
        await wait_until_idle(world, engine)
        assert world.rows() == [("other", READY)]

    run_in_world(story)


def test_purge_of_the_target_in_the_flush_of_the_move_covers_the_moved_item(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        names = await caller.put(count=2)
        await caller.put("other")
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            first = start_task(caller.put("busy"))
            await world.until(lambda: commits.held == 1)
            moving = start_task(move(caller, *names))
            purging = start_task(caller.queue.bulk.purge_topic("default", "other", world.deadline_in(5)))
            await world.pass_s(0.05)
        await first
        assert all(isinstance(new, str) for new in await moving)
        assert await purging == 3
        await wait_until_idle(world, engine)
        assert world.rows() == [("busy", READY)]

    run_in_world(story)


def test_items_moved_after_a_purge_of_the_target_stay() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        names = await caller.put(count=2)
        await caller.put("other", count=5)
        shard = engine.shards[1]

        class Ignore:
            def on_operation_finished(self, operation: Any) -> None: ...

        assert isinstance(shard.submit_purge(("default", "other"), Ignore()), SetPurgeMarker)
        await world.until(lambda: bool(shard.memory.purge_markers))
        await move(caller, *names)
        await wait_until_idle(world, engine)
        assert world.rows() == [("other", READY)] * 2

    run_in_world(story)


def test_moved_items_of_a_refused_flush_keep_their_numbers() -> None:
    """A flush that the database refuses is bisected: its bad entry fails alone."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        names = await caller.put(count=5)
        bad = parse_id(names[2], "id")[1]
        world.database.refuse = lambda writes: "bad row" if any(old == bad for old, _ in writes.moves) else None
        outcomes = await move(caller, *names)
        assert [type(outcome).__name__ for outcome in outcomes] == ["str", "str", "Unavailable", "str", "str"]
        await wait_until_idle(world, engine)
        world.database.refuse = lambda writes: None
        again = await move(caller, *names)
        assert [outcome.id for outcome in again if isinstance(outcome, Repeated)] == [
            outcome for outcome in outcomes if isinstance(outcome, str)
        ]
        assert world.rows() == [("other", READY)] * 5

    run_in_world(story)


@pytest.mark.parametrize("leaves_by", [EventKind.MOVE, EventKind.CANCEL])
def test_topic_that_loses_its_last_item_and_gets_a_moved_one_in_one_flush_is_known_to_the_next_owner(
    leaves_by: EventKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, empty_topic_linger_ms=100)
        engine = await world.counted_engine(settings)
        caller = Caller(world, engine)
        (leaving,) = await caller.put("u")
        (coming,) = await caller.put("t")
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            first = start_task(caller.put("busy"))
            await world.until(lambda: commits.held == 1)
            changing = [start_task(move(caller, leaving) if leaves_by is EventKind.MOVE else caller.cancel(leaving))]
            changing.append(start_task(move(caller, coming, to="u")))
            await world.pass_s(0.05)
        await asyncio.gather(first, *changing)
        await wait_until_idle(world, engine)
        await world.pass_s(0.2)
        await caller.put("busy")
        engine = await restarted(world, engine, settings)
        assert (await Caller(world, engine).one("u")).row.payload == b"payload"
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_pages_of_a_bulk_move_move_each_item_that_matches_once() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        await caller.put(count=25, priority=1)
        await caller.put(count=5, priority=9)
        await make_dead(caller, 10)
        event = Event(EventKind.MOVE, 0, "default", topic="other")
        only = RowFilter("t", (READY, DEAD), priority_max=5)
        changed, cursor = 0, None
        while True:
            page = await caller.queue.bulk.change_matching("default", event, only, cursor, 4, world.deadline_in(5))
            assert page.refused == 0
            changed, cursor = changed + page.changed, page.next_cursor
            if cursor is None:
                break
        assert changed == 25
        await wait_until_idle(world, engine)
        assert world.rows() == [("other", READY)] * 25 + [("t", READY)] * 5

    run_in_world(story)


def test_key_of_a_moved_item_stays_in_use_and_is_not_the_key_of_the_new_one() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        (name,) = await caller.enqueue([keyed_item("k")])
        (new,) = await move(caller, ok(name))
        assert await caller.enqueue([keyed_item("k")]) == [Repeated(ok(name))]
        shard, number = parse_id(ok(new), "id")
        details = await caller.queue.reads.get_item("default", shard, number, world.deadline_in(5))
        assert details.idempotency_key is None
        assert world.rows() == [("other", READY)]

    run_in_world(story)


def test_new_target_beyond_the_limit_of_topics_is_refused_and_a_known_one_is_not() -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default={"topics_max": 2})
        engine = await world.counted_engine(engine_settings(1))
        caller = Caller(world, engine)
        first, second = await caller.put(), await caller.put("u")
        with pytest.raises(LimitExceeded, match="at most 2 topics"):
            await move(caller, *first)
        event, only = Event(EventKind.MOVE, 0, "default", topic="other"), RowFilter("t")
        with pytest.raises(LimitExceeded, match=r"\(move_to\)"):
            await caller.queue.bulk.change_matching("default", event, only, None, 9, world.deadline_in(5))
        (moved,) = await move(caller, *first, to="u")
        assert isinstance(moved, str)
        assert await caller.cancel(*second) == [None]
        await wait_until_idle(world, engine)

    run_in_world(story)
