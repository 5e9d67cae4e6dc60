"""Completions on a whole engine: the ack and the new items are in one flush, or neither is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.item import State, parse_id
from foqs.core.items.life import EventKind
from foqs.queue.port import CompletedIds, CompletionOutcome, Repeated, RowView
from foqs.shard.observer import NullObserver
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.journaled.journal_settings import JournalSettings
from foqs.store.port import FAULT_POINTS, StoreLost, WriteRefused
from foqs_contract.errors import (
    DeadlineExceeded,
    FoqsError,
    InvalidArgument,
    KeyConflict,
    KeyEnded,
    LimitExceeded,
    NotFound,
    NotOwner,
    RateLimited,
    StaleLease,
    Unavailable,
    UnknownOutcome,
)
from tests.support.builders import NAMESPACE, catalog, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle
from tests.unit.queue.test_placement_keys import in_slot

READY, LEASED = State.READY, State.LEASED
ONE = engine_settings(1)


def done(outcome: CompletionOutcome) -> list[str]:
    """Return the ids of a completion that this attempt wrote."""
    assert isinstance(outcome, CompletedIds), outcome
    assert not outcome.is_repeat
    return outcome.ids


async def delivered(caller: Caller, count: int, topic: str = "t") -> list[RowView]:
    await caller.put(topic, count)
    items = (await caller.get(topic, count)).items
    assert len(items) == count
    return list(items)


def kinds(outcomes: Sequence[object]) -> list[type]:
    return [type(outcome) for outcome in outcomes]


def test_items_follow_in_the_flush_of_the_ack_and_in_its_shard() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2, 3))
        caller = Caller(world, engine)
        items = await delivered(caller, 6)
        flushes: list[tuple[int, int, int]] = []

        def note(writes: Writes) -> None:
            if writes.inserts:
                flushes.append((len(writes.deletes), len(writes.inserts), len(writes.idempotency_keys_added)))

        world.database.refuse = note
        outcomes = await caller.complete([(item, [new_item("u"), new_item("v", payload=b"next")]) for item in items])
        world.database.refuse = lambda writes: None
        ids = [done(outcome) for outcome in outcomes]
        assert [{parse_id(id, "id")[0] for id in own} for own in ids] == [{item.shard} for item in items]
        assert all((acks * 2, acks) == (inserts, records) for acks, inserts, records in flushes)
        await wait_until_idle(world, engine)
        assert world.rows() == [("u", READY)] * 6 + [("v", READY)] * 6
        found = (await caller.get("v", 6)).items
        assert sorted(f"{seen.shard}-{seen.row.id}" for seen in found) == sorted(own[1] for own in ids)
        assert {seen.row.payload for seen in found} == {b"next"}

    run_in_world(story)


def test_superseded_token_writes_neither_the_ack_nor_the_items() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await caller.put(lease_ms=100)
        first = await caller.one()
        await world.pass_s(0.5)
        second = await caller.one()
        assert kinds(await caller.complete([(first, [new_item("u")])])) == [StaleLease]
        assert world.rows() == [("t", LEASED)]
        assert world.database.tables[1].idempotency_keys == {}
        (outcome,) = await caller.complete([(second, [new_item("u")])])
        assert len(done(outcome)) == 1
        assert kinds(await caller.complete([(first, [new_item("u")])])) == [StaleLease], "not its completion"
        await wait_until_idle(world, engine)
        assert world.rows() == [("u", READY)]

    run_in_world(story)


def test_token_counts_after_the_end_of_the_lease_until_the_item_is_delivered_again() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await caller.put(lease_ms=100)
        item = await caller.one()
        await world.pass_s(0.5)
        (outcome,) = await caller.complete([(item, [new_item("u", delay_ms=10)])])
        assert len(done(outcome)) == 1
        await world.pass_s(0.1)
        await wait_until_idle(world, engine)
        assert world.rows() == [("u", READY)]

    run_in_world(story)


def test_second_attempt_replies_the_first_ids_also_at_the_next_owner_until_the_key_window_ends() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        (item,) = await delivered(caller, 1)
        then = [new_item("u"), keyed_item("k", "u"), new_item("v")]
        ids = done((await caller.complete([(item, then)]))[0])
        assert await caller.complete([(item, then)]) == [CompletedIds(ids, True)]
        assert kinds(await caller.complete([(item, then[:2])])) == [StaleLease]
        assert kinds(await caller.complete([(replace(item, row=replace(item.row, token=99)), then)])) == [StaleLease]
        await caller.do(EventKind.ACK, (await caller.get("u", 9)).items)
        engine = await restarted(world, engine, ONE)
        caller = Caller(world, engine)
        assert await caller.complete([(item, then)]) == [CompletedIds(ids, True)]
        assert world.rows() == [("v", READY)]
        await world.pass_s(NAMESPACE.key_window_ms / 1_000)
        assert kinds(await caller.complete([(item, then)])) == [StaleLease]
        await wait_until_idle(world, engine)
        assert world.rows() == [("v", READY)]

    run_in_world(story)


@pytest.mark.parametrize("is_journaled", [False, True])
@pytest.mark.parametrize("point", FAULT_POINTS)
def test_completion_is_written_once_if_the_connection_breaks_at(point: str, is_journaled: bool) -> None:
    async def story(world: World) -> None:
        if is_journaled:
            world.journal = JournalSettings(1_000, 100, world.clock.monotonic_ms)
            world.facts = NullObserver()
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        items = await delivered(caller, 3)
        breaks = [point]

        def fault(at: str) -> None:
            if at in breaks:
                breaks.clear()
                raise StoreLost("broken by the test")

        world.faults = fault
        entries = [(item, [new_item("u"), new_item("u")]) for item in items]
        ids = [done(outcome) for outcome in await caller.complete(entries)]
        assert not breaks
        assert len({id for own in ids for id in own}) == 6
        assert await caller.complete(entries) == [CompletedIds(own, True) for own in ids]
        found = (await caller.get("u", 9)).items
        assert sorted(f"{seen.shard}-{seen.row.id}" for seen in found) == sorted(id for own in ids for id in own)
        assert (await caller.get("t", 9)).items == []

    run_in_world(story)


@pytest.mark.parametrize("is_committed", [False, True])
def test_completion_whose_host_dies_is_written_once_by_the_next_attempt(
    is_committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        (item,) = await delivered(Caller(world, engine), 1)
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=is_committed)
        with closed(commits):
            completing = start_task(Caller(world, engine).complete([(item, [new_item("u"), new_item("u")])]))
            await world.until(lambda: commits.held == 1)
            await engine.abort()
        assert kinds(await completing) == [UnknownOutcome]
        assert world.rows() == ([("u", READY)] * 2 if is_committed else [("t", LEASED)])
        engine = await world.engine(ONE)
        (outcome,) = await Caller(world, engine).complete([(item, [new_item("u"), new_item("u")])])
        assert isinstance(outcome, CompletedIds)
        assert outcome.is_repeat is is_committed
        await wait_until_idle(world, engine)
        assert world.rows() == [("u", READY)] * 2

    run_in_world(story)


def test_deadline_withdraws_a_completion_or_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        flushed, queued = await delivered(caller, 2)
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            flushing = start_task(caller.complete([(flushed, [new_item("u")])], timeout_s=0.2))
            await world.pass_s(0.05)
            waiting = start_task(caller.complete([(queued, [new_item("v")])], timeout_s=0.2))
            assert kinds(await flushing) == [UnknownOutcome]
            assert kinds(await waiting) == [DeadlineExceeded]
        (again,) = await caller.complete([(flushed, [new_item("u")])])
        assert isinstance(again, CompletedIds)
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", LEASED), ("u", READY)]

    run_in_world(story)


def test_item_of_a_remembered_key_is_not_added_again_and_the_others_are() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        (old,) = [ok(outcome) for outcome in await caller.enqueue([keyed_item("old", "u")])]
        (item,) = await delivered(caller, 1)
        then = [new_item("v"), keyed_item("old", "u"), keyed_item("new", "u")]
        ids = done((await caller.complete([(item, then)]))[0])
        assert ids[1] == old
        assert await caller.complete([(item, then)]) == [CompletedIds(ids, True)]
        assert await caller.enqueue([keyed_item("new", "u")]) == [Repeated(ids[2])]
        await wait_until_idle(world, engine)
        assert world.rows() == [("u", READY)] * 2 + [("v", READY)]

    run_in_world(story)


@pytest.mark.parametrize(
    ("bad", "kind", "field"),
    [
        (keyed_item("old", "u", payload=b"another"), KeyConflict, "items[1].idempotency_key"),
        (replace(keyed_item("new"), key_until_ms=1), KeyEnded, "items[1]"),
        (replace(keyed_item("new"), key_until_ms=1 << 45), InvalidArgument, "items[1].key_until_ms"),
        (new_item(delay_ms=None, deliver_after_ms=1 << 45, ttl_ms=5), InvalidArgument, "items[1].ttl_ms"),
    ],
)
def test_bad_item_fails_its_completion_alone_and_is_named(bad: Any, kind: type[FoqsError], field: str) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        await caller.enqueue([keyed_item("old", "u")])
        one, two = await delivered(caller, 2)
        error, fine = await caller.complete([(one, [new_item("v"), bad]), (two, [new_item("w")])])
        assert isinstance(error, kind)
        assert error.field == field
        assert len(done(fine)) == 1
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", LEASED), ("u", READY), ("w", READY)]

    run_in_world(story)


def test_key_of_another_shard_is_refused_before_anything_is_written_and_both_fields_are_named() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        (item,) = await delivered(caller, 1)
        (other,) = [shard for shard in engine.shards.values() if shard.number != item.shard]
        flushes = other.number, len(world.rows())
        error = (await caller.complete([(item, [new_item("u"), in_slot(min(other.key_slots), "k")])]))[0]
        assert isinstance(error, InvalidArgument)
        assert error.field == "items[1].idempotency_key"
        assert "completions[0].id and items[1].idempotency_key belong to different shards" in error.message
        assert (other.number, len(world.rows())) == flushes
        own = in_slot(min(engine.shards[item.shard].key_slots), "k")
        assert len(done((await caller.complete([(item, [own])]))[0])) == 1

    run_in_world(story)


def test_refused_row_fails_its_completion_as_a_whole_and_harms_no_ack() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        items = await delivered(caller, 5)
        world.database.refuse = lambda writes: (
            WriteRefused("no such luck", is_bad_value=True)
            if any(row.payload == b"bad" for row in writes.inserts)
            else None
        )
        world.stall()
        first = start_task(caller.put("busy"))
        await world.pass_s(0.01)
        acking = start_task(caller.do(EventKind.ACK, items[:1]))
        then = [[new_item("u")], [new_item("u"), new_item("u", payload=b"bad")], [new_item("u")], [new_item("u")]]
        completing = start_task(caller.complete(list(zip(items[1:], then, strict=True))))
        adding = start_task(caller.put("v"))
        await world.pass_s(0.01)
        world.resume()
        await asyncio.gather(first, adding)
        assert await acking == [None]
        outcomes = await completing
        assert kinds(outcomes) == [CompletedIds, InvalidArgument, CompletedIds, CompletedIds]
        world.database.refuse = lambda writes: None
        await wait_until_idle(world, engine)
        assert world.rows() == [("busy", READY), ("t", LEASED)] + [("u", READY)] * 3 + [("v", READY)]
        repeats = await caller.complete([(items[2], [new_item("u")]), *zip(items[3:], then[2:], strict=True)])
        assert [outcome.is_repeat for outcome in repeats if isinstance(outcome, CompletedIds)] == [False, True, True]

    run_in_world(story)


def test_open_breaker_refuses_completions_and_lets_acks_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        settings: dict[str, Any] = {"breaker_latency_ms_max": 100, "breaker_flushes_min": 5}
        engine = await world.engine(engine_settings(1, **settings))
        caller = Caller(world, engine)
        shard = engine.shards[1]
        items = await delivered(caller, 5)
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            first = start_task(caller.do(EventKind.ACK, items[:1], timeout_s=60))
            await world.pass_s(0.01)
            waiting = start_task(caller.complete([(items[1], [new_item("u")])], timeout_s=60))
            nacking = start_task(caller.do(EventKind.NACK, items[2:3], timeout_s=60, delay_ms=0))
            behind = start_task(caller.complete([(items[2], [new_item("u")])], timeout_s=60))
            await world.until(lambda: shard.breaker_state == "open")
            await world.pass_s(0.01)
            assert not first.done()
            assert kinds(await waiting) == [Unavailable], "it waited when the breaker opened"
            late = await caller.complete([(items[3], [new_item("u")])])
            assert kinds(late) == [Unavailable]
            assert isinstance(late[0], Unavailable) and late[0].retry_after_ms
            acking = start_task(caller.do(EventKind.ACK, items[4:], timeout_s=60))
            await world.pass_s(0.01)
        assert await first == [None]
        assert await acking == [None]
        assert await nacking == [None]
        assert kinds(await behind) == [Unavailable], "it was held back by the nack, until the breaker was open"
        await world.until(lambda: shard.breaker_state == "half-open")
        assert kinds(await caller.complete([(items[3], [new_item("u")])])) == [CompletedIds]
        assert shard.breaker_state == "closed"
        await wait_until_idle(world, engine)
        assert [topic for topic, _ in world.rows()] == ["t", "t", "u"]

    run_in_world(story)


@pytest.mark.parametrize(
    ("limits", "kind", "field"),
    [
        ({"enqueues_per_minute": 4}, RateLimited, "items"),
        ({"backlog_items_max": 3}, LimitExceeded, "items"),
        ({"topics_max": 2}, LimitExceeded, "items[0].topic"),
    ],
)
def test_limits_hold_for_new_items_of_each_entry(limits: dict[str, int], kind: type[FoqsError], field: str) -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default=limits)
        engine = await world.counted_engine(ONE)
        caller = Caller(world, engine)
        one, two = await delivered(caller, 2)
        (fine,) = await caller.complete([(one, [new_item("u"), new_item("u")])])
        assert len(done(fine)) == 2
        error = (await caller.complete([(two, [new_item("v"), new_item("u")])]))[0]
        assert isinstance(error, kind)
        assert error.field == field
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", LEASED)] + [("u", READY)] * 2

    run_in_world(story)


def test_item_that_is_acked_leaves_room_for_one_that_follows() -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default={"backlog_items_max": 2})
        engine = await world.counted_engine(ONE)
        caller = Caller(world, engine)
        items = await delivered(caller, 2)
        for item in items:
            assert len(done((await caller.complete([(item, [new_item("u")])]))[0])) == 1
        await wait_until_idle(world, engine)
        assert world.rows() == [("u", READY)] * 2

    run_in_world(story)


@pytest.mark.parametrize("limits", [{"backlog_items_max": 6}, {"backlog_bytes_max": 6 * 7}])
def test_full_namespace_completes_many_items_at_once_that_are_followed_by_no_more_than_they_were(
    limits: dict[str, int],
) -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default=limits)
        engine = await world.counted_engine(ONE)
        caller = Caller(world, engine)
        await caller.enqueue([new_item(payload=b"payload") for _ in range(6)])
        items = (await caller.get("t", 6)).items
        larger = [new_item("u", payload=b"payload"), new_item("u", payload=b"")]
        if "backlog_bytes_max" in limits:
            larger = [new_item("u", payload=b"payloads")]
        outcomes = await caller.complete(
            [(items[0], larger), *[(item, [new_item("u", payload=b"payload")]) for item in items[1:]]]
        )
        assert kinds(outcomes) == [LimitExceeded] + [CompletedIds] * 5
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", LEASED)] + [("u", READY)] * 5
        under_way = engine.queue._backlogs._in_flight["default"]
        assert (under_way.items, under_way.bytes) == (0, 0)

    run_in_world(story)


def test_growth_of_completions_in_flight_counts_in_the_backlog() -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default={"backlog_items_max": 4})
        engine = await world.counted_engine(ONE)
        caller = Caller(world, engine)
        items = await delivered(caller, 3)
        outcomes = await caller.complete([(item, [new_item("u"), new_item("u")]) for item in items])
        assert kinds(outcomes) == [CompletedIds, LimitExceeded, LimitExceeded]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_namespace_over_its_limit_completes_items_that_one_follows_and_bytes_of_a_row_that_is_not_cached_count() -> (
    None
):
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        items = await delivered(Caller(world, engine), 3)
        world.catalog = catalog(default={"backlog_items_max": 2})
        engine = await restarted(world, engine, ONE)
        await wait_until_idle(world, engine)
        caller = Caller(world, engine)
        outcomes = await caller.complete([(items[0], [new_item("u")]), (items[1], [new_item("u")] * 2)])
        assert kinds(outcomes) == [CompletedIds, LimitExceeded]
        world.catalog = catalog(default={"backlog_bytes_max": 1})
        engine = await restarted(world, engine, ONE)
        await wait_until_idle(world, engine)
        assert engine.shards[1].memory.cache.get(items[1].row.id) is None
        outcomes = await Caller(world, engine).complete(
            [(items[1], [new_item("u")]), (items[2], [new_item("u", payload=b"")])]
        )
        assert kinds(outcomes) == [LimitExceeded, CompletedIds]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_what_completions_did_not_insert_is_not_charged() -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default={"enqueues_per_minute": 6, "backlog_items_max": 100})
        engine = await world.counted_engine(ONE)
        caller = Caller(world, engine)
        (item,) = await delivered(caller, 1)
        then = [new_item("u")] * 3
        assert len(done((await caller.complete([(item, then)]))[0])) == 3
        for _ in range(5):
            (again,) = await caller.complete([(item, then[:2])])
            assert isinstance(again, StaleLease)
        assert len(await caller.put("w", 2)) == 2
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_completion_whose_caller_gave_up_and_that_is_written_is_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default={"enqueues_per_minute": 4})
        engine = await world.counted_engine(ONE)
        caller = Caller(world, engine)
        one, two = await delivered(caller, 2)
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            assert kinds(await caller.complete([(one, [new_item("u")] * 2)], timeout_s=0.2)) == [UnknownOutcome]
        await wait_until_idle(world, engine)
        assert world.rows() == [("t", LEASED)] + [("u", READY)] * 2
        assert kinds(await caller.complete([(two, [new_item("v")])])) == [RateLimited]
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_purged_cancelled_and_unknown_items_are_not_completed() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        cancelled, acked = await delivered(caller, 2)
        (purged,) = await delivered(caller, 1, "p")
        await caller.cancel(f"1-{cancelled.row.id}")
        await caller.do(EventKind.ACK, [acked])
        await caller.queue.bulk.purge_topic("default", "p", world.deadline_in(5))
        unknown = replace(acked, row=replace(acked.row, id=engine.shards[1].numbers.next_number + 5))
        foreign = replace(acked, shard=9)
        outcomes = await caller.complete(
            [(item, [new_item("u")]) for item in (cancelled, acked, purged, unknown, foreign)]
        )
        assert kinds(outcomes) == [StaleLease, StaleLease, StaleLease, NotFound, NotOwner]
        await wait_until_idle(world, engine)
        assert world.rows() == []

    run_in_world(story)


def test_purge_in_the_flush_of_a_completion_covers_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        (item,) = await delivered(caller, 1)
        await caller.put("u")
        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            first = start_task(caller.put("busy"))
            await world.until(lambda: commits.held == 1)
            completing = start_task(caller.complete([(item, [new_item("u"), new_item("v")])]))
            purging = start_task(caller.queue.bulk.purge_topic("default", "u", world.deadline_in(5)))
            await world.pass_s(0.05)
        await first
        done((await completing)[0])
        assert await purging == 2
        await wait_until_idle(world, engine)
        assert world.rows() == [("busy", READY), ("v", READY)]

    run_in_world(story)


def test_purge_in_a_refused_flush_covers_the_items_of_a_completion_that_is_written_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        one, two = await delivered(caller, 2)
        await caller.put("u")
        refusals: list[Writes] = []

        def refuse(writes: Writes) -> WriteRefused | None:
            if not writes.purge_markers_added or not writes.inserts:
                return None
            refusals.append(writes)
            return WriteRefused("no such luck", is_bad_value=True)

        commits = MethodGate(monkeypatch, MemoryStore, "commit", on_the_way_back=False)
        with closed(commits):
            first = start_task(caller.put("busy"))
            await world.until(lambda: commits.held == 1)
            world.database.refuse = refuse
            completing = start_task(caller.complete([(one, [new_item("u"), new_item("v")]), (two, [new_item("u")])]))
            purging = start_task(caller.queue.bulk.purge_topic("default", "u", world.deadline_in(5)))
            await world.pass_s(0.05)
        await first
        mixed, covered = await completing
        assert (len(done(mixed)), len(done(covered))) == (2, 1)
        assert await purging == 1
        assert refusals
        engine.shards[1].memory.check()
        assert ("default", "u") not in engine.shards[1].counts
        await wait_until_idle(world, engine)
        assert world.rows() == [("busy", READY), ("v", READY)]

    run_in_world(story)


def test_waiting_dequeue_gets_a_new_item() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        (item,) = await delivered(caller, 1)
        waiting = start_task(caller.one("u", wait_ms=4_000))
        await world.pass_s(0.01)
        ids = done((await caller.complete([(item, [new_item("u")])]))[0])
        seen = await waiting
        assert [f"{seen.shard}-{seen.row.id}"] == ids
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_flush_takes_about_as_many_rows_of_completions_as_of_other_items() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, flush_bytes_max=64 * 1024))
        caller = Caller(world, engine)
        items = await delivered(caller, 20)
        sizes: list[int] = []
        world.database.refuse = lambda writes: sizes.append(len(writes.inserts)) if writes.inserts else None
        outcomes = await caller.complete([(item, [new_item("u")] * 10) for item in items])
        assert all(len(done(outcome)) == 10 for outcome in outcomes)
        assert sum(sizes) == 200
        assert max(sizes) <= 64
        world.database.refuse = lambda writes: None
        await wait_until_idle(world, engine)

    run_in_world(story)
