"""Idempotency keys on a whole engine: repeats, conflicts, slots, failures."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.flush.writes import Writes
from foqs.core.items.item import KeyedItem, State
from foqs.core.items.life import EventKind
from foqs.queue.port import EnqueueOutcome, Repeated
from foqs.shard.writer import KEY_READ_FLUSHES, KEYS_EXPIRED_PER_FLUSH
from foqs.store.in_memory.memory_store import MemoryStore
from foqs.store.port import IdempotencyKeyExists, StoreLost
from foqs_contract.errors import DeadlineExceeded, KeyConflict, Overloaded, Unavailable, UnknownOutcome
from foqs_contract.key_slots import KEY_SLOT_COUNT
from tests.support.builders import NAMESPACE, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.inner_parts import writer_of
from tests.support.method_gate import MethodGate, closed, restarted, start_task, wait_until_idle

WINDOW_S = NAMESPACE.key_window_ms / 1000
ONE = engine_settings(1)


def repeated(result: EnqueueOutcome) -> str:
    """Return the id of the first item."""
    assert isinstance(result, Repeated)
    return result.id


async def put(caller: Caller, *items: KeyedItem) -> list[Any]:
    return list(await caller.enqueue(items))


def names(world: World) -> list[bytes]:
    """Return the keys that have rows."""
    return sorted(key for table in world.database.tables.values() for _, key in table.idempotency_keys)


def in_slot(slot: int, name: str = "", **changes: Any) -> KeyedItem:
    return keyed_item(f"~{slot:03x}{name}", **changes)


def flushes_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """Record (keys read, whether a key existed) of each flush from now on."""
    found: list[tuple[int, bool]] = []
    original = MemoryStore.flush

    async def flush(self: Any, fence: Any, touched: Any, loaded: Any, keys: Sequence[Any], decide: Any) -> None:
        try:
            await original(self, fence, touched, loaded, keys, decide)
        except IdempotencyKeyExists:
            found.append((len(keys), True))
            raise
        found.append((len(keys), False))

    monkeypatch.setattr(MemoryStore, "flush", flush)
    return found


# ---------------------------------------------------------------- meaning of a key


def test_repeated_key_returns_the_first_id_and_inserts_nothing() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        (first,) = await put(caller, keyed_item("k"))
        assert [repeated(result) for result in await put(caller, keyed_item("k"))] == [first]
        assert [repeated(result) for result in await put(caller, keyed_item("k"))] == [first]
        assert len(world.rows()) == 1
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_key_with_another_item_is_a_conflict_and_other_items_are_inserted() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(ONE))
        (first,) = await put(caller, keyed_item("k"))
        other, again, new = await put(caller, keyed_item("k", payload=b"x"), keyed_item("k"), keyed_item("l"))
        assert isinstance(other, KeyConflict)
        assert repeated(again) == first
        assert isinstance(new, str)
        assert len(world.rows()) == 2

    run_in_world(story)


def test_key_twice_in_a_call_is_one_item() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        first, second, third = await put(caller, keyed_item("k"), keyed_item("k"), keyed_item("k", payload=b"x"))
        assert repeated(second) == first
        assert isinstance(third, KeyConflict)
        assert len(world.rows()) == 1
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_key_in_concurrent_calls_is_one_item() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        caller = Caller(world, engine)
        results = await asyncio.gather(*(put(caller, keyed_item("k")) for _ in range(20)))
        outcomes = [result for (result,) in results]
        (first,) = [result for result in outcomes if isinstance(result, str)]
        assert {repeated(result) for result in outcomes if result is not first} == {first}
        assert len(world.rows()) == 1
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_same_key_in_two_namespaces_is_two_items() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        mine, other = Caller(world, engine), Caller(world, engine, "other")
        (first,) = await put(mine, keyed_item("k"))
        (second,) = await put(other, keyed_item("k", namespace="other"))
        assert ok(first) != ok(second)

    run_in_world(story)


def test_key_outlives_its_item_and_is_free_after_its_window() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine())
        (first,) = await put(caller, keyed_item("k"))
        started = world.loop.time()
        assert await caller.do(EventKind.ACK, [await caller.one()]) == [None]
        await world.pass_s(WINDOW_S - 0.1 - (world.loop.time() - started))
        assert repeated((await put(caller, keyed_item("k")))[0]) == first
        assert isinstance((await put(caller, keyed_item("k", payload=b"x")))[0], KeyConflict)
        await world.pass_s(0.1)
        (second,) = await put(caller, keyed_item("k", payload=b"x"))
        assert ok(second) != first
        assert repeated((await put(caller, keyed_item("k", payload=b"x")))[0]) == second

    run_in_world(story)


def test_key_is_free_after_its_window_even_if_its_row_still_exists() -> None:
    async def story(world: World) -> None:
        settings = engine_settings(1, sweep_interval_ms=3_600_000)
        caller = Caller(world, await world.engine(settings))
        (first,) = await put(caller, keyed_item("k"))
        await world.pass_s(WINDOW_S + 0.1)
        assert names(world) == [b"k"]
        (second,) = await put(caller, keyed_item("k"))
        assert ok(second) != first
        assert repeated((await put(caller, keyed_item("k")))[0]) == second

    run_in_world(story)


def test_keys_survive_a_restart() -> None:
    async def story(world: World) -> None:
        engine = await world.engine()
        before = await put(Caller(world, engine), *(keyed_item(f"k{n}") for n in range(20)))
        engine = await restarted(world, engine, engine_settings(1, 2))
        caller = Caller(world, engine)
        after = await put(caller, *(keyed_item(f"k{n}") for n in range(20)))
        assert [repeated(result) for result in after] == before
        await wait_until_idle(world, engine)

    run_in_world(story)


# ------------------------------------------------------------------------- waiters


def test_repeat_is_not_delivered_to_a_waiter() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        (first,) = await put(caller, keyed_item("k"))
        assert await caller.do(EventKind.ACK, [await caller.one()]) == [None]
        waiting = start_task(caller.get(count=5, wait_ms=5_000))
        await world.pass_s(0.1)
        assert [repeated(result) for result in await put(caller, keyed_item("k"))] == [first]
        await world.pass_s(0.5)
        assert not waiting.done()
        await put(caller, keyed_item("k"), keyed_item("new"), keyed_item("new"))
        (only,) = (await waiting).items
        assert only.row.attempt == 1
        assert world.rows() == [("t", State.LEASED)]
        await wait_until_idle(world, engine)

    run_in_world(story)


# --------------------------------------------------------------------------- slots


def test_slots_of_a_new_tier_are_divided_and_do_not_move() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        held = {number: shard.key_slots for number, shard in engine.shards.items()}
        assert held == {1: frozenset(range(0, KEY_SLOT_COUNT, 2)), 2: frozenset(range(1, KEY_SLOT_COUNT, 2))}
        assert {number: table.key_slots for number, table in world.database.tables.items()} == held
        (even,) = await put(Caller(world, engine), in_slot(4))
        (odd,) = await put(Caller(world, engine), in_slot(5))
        assert (ok(even)[:2], ok(odd)[:2]) == ("1-", "2-")
        engine = await restarted(world, engine, engine_settings(1, 2, 3))
        await world.pass_s(1)
        assert {number: shard.key_slots for number, shard in engine.shards.items()} == {**held, 3: frozenset()}
        assert repeated((await put(Caller(world, engine), in_slot(4)))[0]) == even

    run_in_world(story)


def test_division_interrupted_by_a_crash_is_continued() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        await engine.abort()
        world.database.tables[2].key_slots.clear()
        engine = await world.engine(engine_settings(1, 2))
        await world.until(lambda: engine.shards[2].key_slots == frozenset(range(1, KEY_SLOT_COUNT, 2)))
        assert world.database.tables[2].key_slots == engine.shards[2].key_slots

    run_in_world(story)


def test_slots_are_used_only_after_their_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            starting = start_task(world.engine(ONE))
            await world.pass_s(0.5)
            assert gate.held == 1
            assert not starting.done()
            assert world.newest is not None
            assert not world.newest.is_ready
            assert not world.newest.became_ready.is_set()
            assert list(world.newest.not_ready_reasons()) == ["slots"]
            assert isinstance((await put(Caller(world, world.newest), keyed_item("k")))[0], Unavailable)
        engine = await starting
        assert engine.became_ready.is_set()
        assert engine.not_ready_reasons() == {}
        assert len(engine.shards[1].key_slots) == KEY_SLOT_COUNT

    run_in_world(story)


def test_slots_refused_by_the_database_are_written_later_and_delay_nothing() -> None:
    async def story(world: World) -> None:
        world.database.refuse = lambda writes: "no such luck" if writes.key_slots_added else None
        starting = start_task(world.engine(engine_settings(1, sweep_interval_ms=3_600_000)))
        await world.pass_s(1)
        (shard,) = world.database.tables.values()
        assert shard.owner.flush > 0
        assert not shard.key_slots
        world.database.refuse = lambda writes: None
        assert len((await starting).shards[1].key_slots) == KEY_SLOT_COUNT

    run_in_world(story)


def test_only_keys_of_an_unserved_shard_are_unavailable() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        closed_shard = engine.shards[2]
        closed_shard.close()
        await world.until(lambda: not closed_shard.is_serving)
        items = [in_slot(4), in_slot(5), new_item(), in_slot(6), in_slot(7)]
        even, odd, plain, even_too, odd_too = await caller.enqueue(items)
        assert all(ok(result).startswith("1-") for result in (even, plain, even_too))
        assert isinstance(odd, Unavailable)
        assert isinstance(odd_too, Unavailable)
        assert odd.retry_after_ms is not None

    run_in_world(story)


def test_error_for_keys_of_an_unavailable_shard_has_its_reason_and_a_growing_retry_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_away, resets = False, 0
    original = MemoryStore.read_owner

    async def read_owner(self: Any) -> Any:
        if is_away:
            raise StoreLost("the line is cut")
        return await original(self)

    def lose(at: str) -> None:
        if is_away:
            raise StoreLost("the line is cut")

    async def story(world: World) -> None:
        nonlocal is_away, resets
        world.faults = lose
        engine = await world.engine(engine_settings(1, 2))
        caller = Caller(world, engine)
        await put(caller, in_slot(4), in_slot(5))
        original_reset = engine.queue.placement.on_slots_moved

        def reset() -> None:
            nonlocal resets
            resets += 1
            original_reset()

        monkeypatch.setattr(engine.queue.placement, "on_slots_moved", reset)
        monkeypatch.setattr(MemoryStore, "read_owner", read_owner)
        is_away = True
        waiting = start_task(caller.enqueue([in_slot(5, "waits")], 60))
        shard = engine.shards[2]
        await world.until(lambda: shard.unavailable_reason is not None)
        waits_ms: list[int] = []
        for _ in range(40):
            (error,) = await put(caller, in_slot(5, "k"))
            assert isinstance(error, Unavailable)
            assert "shard 2 cannot write at the moment: the line is cut" in error.message
            assert error.retry_after_ms is not None
            waits_ms.append(error.retry_after_ms)
            await world.pass_s(0.05)
        assert waits_ms == sorted(waits_ms)
        assert (waits_ms[0], waits_ms[-1]) == (100, 1_000)
        assert 400 <= waits_ms[10] <= 600
        assert resets == 1, "slots are looked up again only after a change"
        is_away = False
        await world.until(lambda: shard.unavailable_reason is None)
        assert ok((await put(caller, in_slot(5, "k")))[0]).startswith("2-")
        assert ok((await waiting)[0]).startswith("2-")

    run_in_world(story)


def test_keys_find_their_shard_after_another_takeover() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        (first,) = await put(caller, keyed_item("k"))
        lost = engine.shards[1]
        writer_of(lost).give_up("to see what becomes of its keys")
        await world.until(lambda: engine.is_ready and engine.shards[1] is not lost)
        assert repeated((await put(caller, keyed_item("k")))[0]) == first

    run_in_world(story)


def test_mixed_call_uses_several_shards_and_replies_in_order() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, 2, 3)))
        items = [in_slot(n % 9, str(n), payload=b"%d" % n) if n % 4 else new_item(payload=b"%d" % n) for n in range(60)]
        results = [ok(result) for result in await caller.enqueue(items)]
        payloads = {
            f"{shard}-{row.id}": row.payload
            for shard, table in world.database.tables.items()
            for row in table.rows.values()
        }
        assert [payloads[result] for result in results] == [b"%d" % n for n in range(60)]
        keyed = [(n, result) for n, result in enumerate(results) if n % 4]
        assert all(result.startswith(f"{1 + n % 9 % 3}-") for n, result in keyed)

    run_in_world(story)


def test_full_shard_refuses_only_its_own_keys() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, 2, queue_items_max=40)))
        world.stall()
        full = start_task(caller.enqueue([in_slot(0, f"{n}") for n in range(20)]))
        await world.pass_s(0.1)
        more = start_task(caller.enqueue([in_slot(0, f"more{n}") for n in range(18)]))
        await world.pass_s(0.1)
        mixed = start_task(
            caller.enqueue([in_slot(0, "no"), in_slot(0, "nor this"), in_slot(0, "x"), in_slot(1), new_item()])
        )
        await world.pass_s(0.1)
        world.resume()
        *refused, other, plain = await mixed
        assert [type(result) for result in refused] == [Overloaded] * 3
        assert ok(other).startswith("2-")
        assert ok(plain)
        assert all(isinstance(result, str) for result in await full + await more)

    run_in_world(story)


# ------------------------------------------------------------- the way to the database


def test_new_keys_are_not_read_except_for_a_while_after_a_repeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(ONE))
        flushes = flushes_of(monkeypatch)
        await put(caller, keyed_item("k"), keyed_item("l"))
        assert flushes == [(0, False)]
        await put(caller, keyed_item("k"))
        assert flushes[1:] == [(0, True), (1, False)]
        del flushes[:]
        for n in range(KEY_READ_FLUSHES + 3):
            await put(caller, keyed_item(f"{n}"), keyed_item(f"{n}"))
            await caller.put()
        with_keys = flushes[::2]
        assert with_keys == [(2, False)] * (KEY_READ_FLUSHES - 1) + [(0, False)] * 4
        assert set(flushes[1::2]) == {(0, False)}

    run_in_world(story)


@pytest.mark.parametrize("point", ["begin", "fenced", "read", "written", "committed"])
def test_lost_reply_makes_neither_a_second_item_nor_a_repeat(point: str) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        points = iter([point])
        expected = next(points)

        def fail(at: str) -> None:
            nonlocal expected
            if at == expected:
                expected = next(points, "")
                raise StoreLost("the line is cut")

        world.faults = fail
        first, again = await put(caller, keyed_item("k"), keyed_item("k"))
        assert expected == ""
        assert repeated(again) == ok(first)
        assert len(world.rows()) == 1
        assert repeated((await put(caller, keyed_item("k")))[0]) == first
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_repeated_call_after_an_unknown_outcome_returns_its_item() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(ONE)
        caller = Caller(world, engine)
        world.stall()
        started = start_task(caller.enqueue([keyed_item("k")], 0.5))
        await world.pass_s(0.1)
        queued = start_task(caller.enqueue([keyed_item("l")], 0.5))
        (unknown,), (late,) = await started, await queued
        assert isinstance(unknown, UnknownOutcome)
        assert isinstance(late, DeadlineExceeded)
        world.resume()
        known, new = await put(caller, keyed_item("k"), keyed_item("l"))
        assert (isinstance(known, Repeated), isinstance(new, str)) == (True, True)
        assert len(world.rows()) == 2
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_bad_row_with_a_key_fails_alone_and_its_key_is_free() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(ONE))
        (first,) = await put(caller, keyed_item("old"))

        def refuse(writes: Writes) -> str | None:
            return "no such luck" if any(row.payload == b"bad" for row in writes.inserts) else None

        world.database.refuse = refuse
        items = [keyed_item(f"{n}", payload=b"bad" if n == 5 else b"fine") for n in range(12)]
        results = await put(caller, *items, keyed_item("old"))
        assert [n for n, result in enumerate(results) if isinstance(result, Unavailable)] == [5]
        assert repeated(results[-1]) == first
        world.database.refuse = lambda writes: None
        again = await put(caller, *items)
        assert [n for n, result in enumerate(again) if isinstance(result, str)] == [5]
        assert len(world.rows()) == 13

    run_in_world(story)


def test_conflict_on_a_full_disk_is_reported_once_the_first_item_is_stored() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        world.database.refuse = lambda writes: "the disk is full" if writes.inserts else None
        first = start_task(caller.enqueue([keyed_item("k"), *(keyed_item(f"{n}") for n in range(6))], 0.4))
        await world.pass_s(0.05)
        other = start_task(caller.enqueue([keyed_item("k", payload=b"x")], 0.4))
        results = await first + await other
        assert not any(isinstance(result, str | Repeated) for result in results)
        world.database.refuse = lambda writes: None
        await world.pass_s(0.5)
        (now,) = await put(caller, keyed_item("k", payload=b"x"))
        ours = [row for row in world.database.tables[1].rows.values() if row.payload == b"x"]
        assert len(ours) == isinstance(now, str | Repeated)

    run_in_world(story)


# -------------------------------------------------------------------- key expiry


def test_expired_keys_are_deleted_page_by_page() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=3_000))
        caller = Caller(world, engine)
        count = 2 * KEYS_EXPIRED_PER_FLUSH + 10
        for start in range(0, count, 100):
            await put(caller, *(keyed_item(f"{start}-{n}") for n in range(min(100, count - start))))
        await world.pass_s(WINDOW_S - 1)
        assert len(names(world)) == count
        pages: list[int] = []

        def refuse(writes: Writes) -> None:
            if writes.idempotency_keys_expired_by_ms is not None:
                pages.append(len(names(world)))

        world.database.refuse = refuse
        await world.pass_s(5)
        assert names(world) == []
        remaining = [*pages, 0]
        assert remaining[0] == count
        assert max(before - after for before, after in itertools.pairwise(remaining)) == KEYS_EXPIRED_PER_FLUSH
        assert len(world.rows()) == count
        await wait_until_idle(world, engine)

    run_in_world(story)


def test_key_expiry_reads_no_more_where_it_found_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deleted rows may stay in the database's index for long."""

    async def story(world: World) -> None:
        lower_bounds: list[int] = []
        next_expiry = MemoryStore.next_key_expiry_ms

        async def noted(self: MemoryStore, from_ms: int = 0) -> int | None:
            lower_bounds.append(from_ms)
            return await next_expiry(self, from_ms)

        monkeypatch.setattr(MemoryStore, "next_key_expiry_ms", noted)
        engine = await world.engine(engine_settings(1, sweep_interval_ms=3_000))
        begun_ms = engine.shards[1].now_ms()
        caller = Caller(world, engine)
        for n in range(4):
            await put(caller, keyed_item(f"{n}"))
            await world.pass_s(2)
        await world.pass_s(WINDOW_S + 10)
        assert names(world) == []
        assert lower_bounds[0] == 0
        assert lower_bounds[1:] == sorted(lower_bounds[1:])
        assert lower_bounds[-1] > begun_ms + WINDOW_S * 1_000

    run_in_world(story)


def test_keys_of_a_shortened_window_are_deleted_when_they_end() -> None:
    """They end before keys that are older, and one of them ends while its flush hangs."""

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, sweep_interval_ms=3_000))
        caller = Caller(world, engine)
        await put(caller, keyed_item("long"))
        await world.pass_s(4)
        policies = engine.namespaces.retry_policies
        policies["default"] = replace(policies["default"], key_window_ms=2_000)
        await put(caller, keyed_item("short"))
        assert names(world) == [b"long", b"short"]
        await world.pass_s(6)
        assert names(world) == [b"long"]
        world.stall()
        late = start_task(put(caller, keyed_item("late")))
        await world.pass_s(5)
        world.resume()
        await late
        await world.pass_s(2)
        assert names(world) == [b"long"]
        await world.pass_s(WINDOW_S)
        assert names(world) == []

    run_in_world(story)


def test_key_expiry_refused_by_the_database_delays_nothing() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1, sweep_interval_ms=1_000)))
        await put(caller, keyed_item("k"))
        world.database.refuse = lambda writes: (
            "no such luck" if writes.idempotency_keys_expired_by_ms is not None else None
        )
        await world.pass_s(WINDOW_S + 2)
        for n in range(20):
            await put(caller, keyed_item(f"{n}"))
            assert await caller.do(EventKind.ACK, [await caller.one()]) == [None]
        world.database.refuse = lambda writes: None
        await world.pass_s(2)
        assert b"k" not in names(world)

    run_in_world(story)
