"""Repeated keys of a namespace over a limit: they return the first id, and insert nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.core.items.life import EventKind
from foqs.queue.port import Repeated
from foqs.shard.writer import KEY_READ_FLUSHES
from foqs.store.in_memory.memory_store import MemoryStore
from foqs_contract.errors import DeadlineExceeded, FoqsError, KeyConflict, LimitExceeded, RateLimited
from tests.support.builders import catalog, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import MethodGate, closed, start_task, wait_until_idle
from tests.unit.queue.test_placement_keys import flushes_of, in_slot, repeated

LIMITS = [
    ({"enqueues_per_minute": 4}, RateLimited),
    ({"enqueues_per_minute": 1}, LimitExceeded),
    ({"backlog_items_max": 2}, LimitExceeded),
    ({"backlog_bytes_max": 15}, LimitExceeded),
    ({"topics_max": 2}, LimitExceeded),
]
"""Two items in two topics reach each limit. The first rate then refuses a call of four items; the second always does."""


async def limited(world: World, *shards: int, replay_lookup_items_max: int = 1_000, **limits: int) -> Caller:
    """Return a caller of a namespace with these limits, on these shards."""
    world.catalog = catalog(default=limits)
    settings = engine_settings(*(shards or (1,)), sweep_interval_ms=3_600_000)
    calls = replace(settings.calls, replay_lookup_items_max=replay_lookup_items_max)
    return Caller(world, await world.engine(replace(settings, calls=calls)))


@pytest.mark.parametrize(("limits", "kind"), LIMITS)
def test_over_a_limit_repeats_return_their_ids_and_new_items_are_refused(
    limits: dict[str, int], kind: type[FoqsError]
) -> None:
    async def story(world: World) -> None:
        caller = await limited(world, 1, 2, **limits)
        (first,) = await caller.enqueue([in_slot(0, "a", topic="a")])
        if limits != {"enqueues_per_minute": 1}:
            ok((await caller.enqueue([in_slot(1, "b", topic="b")]))[0])
        rows = world.rows()
        again, other, new, bare = await caller.enqueue(
            [
                in_slot(0, "a", topic="a"),
                in_slot(0, "a", topic="c"),
                in_slot(1, "new", topic="c"),
                new_item("c"),
            ]
        )
        assert repeated(again) == ok(first)
        assert isinstance(other, KeyConflict)
        assert (type(new), type(bare)) == (kind, kind)
        assert world.rows() == rows
        assert world.newest is not None
        await wait_until_idle(world, world.newest)

    run_in_world(story)


def test_call_without_keys_is_refused_as_a_whole() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=1)
        await caller.put()
        with pytest.raises(LimitExceeded):
            await caller.enqueue([new_item(), new_item()])

    run_in_world(story)


def test_repeat_is_not_charged() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, enqueues_per_minute=10)
        items = [keyed_item(f"{n}") for n in range(5)]
        assert all(map(ok, await caller.enqueue(items)))
        for _ in range(4):
            assert all(isinstance(result, Repeated) for result in await caller.enqueue(items))
            (conflict,) = await caller.enqueue([keyed_item("0", payload=b"x")])
            assert isinstance(conflict, KeyConflict)
        await caller.put(count=5)
        (refused,) = await caller.enqueue([keyed_item("new")])
        assert isinstance(refused, RateLimited)
        for _ in range(3):
            assert all(isinstance(result, Repeated) for result in await caller.enqueue(items))
        (refused,) = await caller.enqueue([keyed_item("new")])
        assert isinstance(refused, RateLimited)

    run_in_world(story)


def test_keys_of_another_namespace_are_not_repeats() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=1)
        assert world.newest is not None
        (theirs,) = await Caller(world, world.newest, "other").enqueue([keyed_item("k", namespace="other")])
        ok(theirs)
        await caller.put()
        (refused,) = await caller.enqueue([keyed_item("k")])
        assert isinstance(refused, LimitExceeded)

    run_in_world(story)


def test_expired_key_is_not_a_repeat() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=1)
        ok((await caller.enqueue([keyed_item("k")]))[0])
        await world.pass_s(19.9)
        assert isinstance((await caller.enqueue([keyed_item("k")]))[0], Repeated)
        await world.pass_s(0.2)
        assert isinstance((await caller.enqueue([keyed_item("k")]))[0], LimitExceeded)

    run_in_world(story)


def test_repeat_of_an_item_in_a_flush_waits_for_the_flush() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=3)
        world.stall()
        flushed = start_task(caller.enqueue([keyed_item("flushed")], 0.2))
        await world.pass_s(0.1)
        queued = start_task(caller.enqueue([keyed_item("queued"), keyed_item("too")]))
        await world.pass_s(0.2)
        assert flushed.done()
        repeats = start_task(caller.enqueue([keyed_item("flushed"), keyed_item("queued"), keyed_item("no")]))
        await world.pass_s(0.1)
        world.resume()
        assert [type(result).__name__ for result in await repeats] == ["Repeated", "Repeated", "LimitExceeded"]
        assert all(map(ok, await queued))
        assert len(world.rows()) == 3

    run_in_world(story)


def test_concurrent_lookups_are_limited_and_further_items_are_refused() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, replay_lookup_items_max=3, enqueues_per_minute=3)
        items = [keyed_item(f"{n}") for n in range(3)]
        assert all(map(ok, await caller.enqueue(items)))
        world.stall()
        looked_up = start_task(caller.enqueue(items[:2]))
        await world.pass_s(0.1)
        with pytest.raises(RateLimited):
            await caller.enqueue(items[:2])
        more = start_task(caller.enqueue(items[2:]))
        await world.pass_s(0.1)
        with pytest.raises(RateLimited):
            await caller.enqueue(items[:1])
        world.resume()
        assert all(isinstance(result, Repeated) for result in await looked_up + await more)
        assert all(isinstance(result, Repeated) for result in await caller.enqueue(items))
        with pytest.raises(LimitExceeded):
            await caller.enqueue([*items, keyed_item("a fourth")])

    run_in_world(story)


def test_lookups_do_not_delay_other_calls() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=10)
        await caller.put(count=9)
        world.stall()
        asked = start_task(caller.enqueue([keyed_item(f"{n}") for n in range(50)]))
        await world.pass_s(0.1)
        new = start_task(caller.enqueue([new_item()]))
        await world.pass_s(0.1)
        assert not new.done()
        world.resume()
        assert all(isinstance(result, LimitExceeded) for result in await asked)
        ok((await new)[0])

    run_in_world(story)


def test_lookup_past_its_deadline_has_written_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=1)
        await caller.put()
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            (late,) = await caller.enqueue([keyed_item("k")], 0.2)
            assert gate.held == 1
        assert isinstance(late, DeadlineExceeded)
        assert await caller.do(EventKind.ACK, [await caller.one()]) == [None]
        ok((await caller.enqueue([keyed_item("k")]))[0])

    run_in_world(story)


def test_lookup_in_a_flush_with_a_bad_row_still_succeeds() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=2)
        (first,) = await caller.enqueue([keyed_item("k")])
        world.stall()
        started = start_task(caller.enqueue([new_item()]))
        await world.pass_s(0.1)
        assert world.newest is not None
        other = Caller(world, world.newest, "other")
        bad = start_task(other.enqueue([new_item(namespace="other", payload=b"bad")]))
        again = start_task(caller.enqueue([keyed_item("k"), keyed_item("new")]))
        await world.pass_s(0.1)
        world.database.refuse = lambda writes: (
            "no such luck" if any(row.payload == b"bad" for row in writes.inserts) else None
        )
        world.resume()
        outcomes = await again
        assert repeated(outcomes[0]) == ok(first)
        assert isinstance(outcomes[1], LimitExceeded)
        ok((await started)[0])
        assert isinstance((await bad)[0], FoqsError)

    run_in_world(story)


def test_lookup_reads_no_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=2)
        assert world.newest is not None
        other = Caller(world, world.newest, "other")
        ok((await caller.enqueue([keyed_item("a")]))[0])
        ok((await caller.enqueue([keyed_item("b")]))[0])
        flushes = flushes_of(monkeypatch)
        await caller.enqueue([keyed_item("a"), keyed_item("c")])
        ok((await other.enqueue([keyed_item("d", namespace="other")]))[0])
        assert flushes == [(2, False), (0, False)]
        assert isinstance((await other.enqueue([keyed_item("d", namespace="other")]))[0], Repeated)
        for _ in range(KEY_READ_FLUSHES):
            await caller.enqueue([keyed_item("a")])
        del flushes[:]
        ok((await other.enqueue([keyed_item("e", namespace="other")]))[0])
        assert flushes == [(1, False)]

    run_in_world(story)
