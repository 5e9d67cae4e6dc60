"""Items in flight count against a backlog once, with their payload."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.life import EventKind
from foqs.store.in_memory.memory_store import MemoryStore
from foqs_contract.errors import DeadlineExceeded, LimitExceeded, UnknownOutcome
from tests.support.builders import catalog, engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, ok, run_in_world
from tests.support.method_gate import MethodGate, closed, start_task


async def limited(world: World, **limits: int) -> Caller:
    """Return a caller of a namespace with these limits, on one shard."""
    world.catalog = catalog(default=limits)
    return Caller(world, await world.engine(engine_settings(1)))


@pytest.mark.parametrize("keyed", [False, True])
def test_queued_items_count_with_their_payload_like_stored_ones(keyed: bool) -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_bytes_max=1_000)
        make: dict[str, Any] = {"payload": bytes(450), "metadata": bytes(500)}
        items = [keyed_item(f"{n}", **make) if keyed else new_item(**make) for n in range(3)]
        world.stall()
        started = start_task(caller.enqueue(items[:1]))
        await world.pass_s(0.1)
        queued = start_task(caller.enqueue(items[1:2]))
        await world.pass_s(0.1)
        with pytest.raises(LimitExceeded):
            await caller.enqueue([new_item(payload=bytes(101))])
        world.resume()
        assert all(map(ok, await started + await queued))
        with pytest.raises(LimitExceeded):
            await caller.enqueue([new_item(payload=bytes(101))])
        await caller.put(payload=bytes(100))

    run_in_world(story)


@pytest.mark.parametrize(("limits", "size"), [({"backlog_items_max": 10}, 1), ({"backlog_bytes_max": 1_000}, 100)])
def test_items_retried_alone_after_a_refused_flush_count_once(
    monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], size: int
) -> None:
    async def story(world: World) -> None:
        caller = await limited(world, **limits)
        await caller.put(payload=bytes(size))
        held = (await caller.get()).items
        gate = MethodGate(monkeypatch, MemoryStore, "flush", on_the_way_back=False)
        with closed(gate):
            written = start_task(caller.do(EventKind.EXTEND, held))
            refused = start_task(caller.enqueue([new_item(payload=bytes(size)) for _ in range(5)]))
            await world.until(lambda: gate.held == 1)
            world.database.refuse = lambda writes: "no such luck" if writes.inserts else None
            gate.open()
            await world.pass_s(0.0025)
            gate.close()
            await world.until(lambda: gate.held == 1)
            # Six of ten: five that wait to be retried alone, and a stored one.
            more = start_task(caller.enqueue([new_item(payload=bytes(size)) for _ in range(4)]))
            await world.pass_s(0.001)
            assert not more.done()
            with pytest.raises(LimitExceeded):
                await caller.enqueue([new_item(payload=bytes(size))])
            world.database.refuse = lambda writes: None
        assert await written == [None]
        assert all(map(ok, await refused + await more))
        assert len(world.rows()) == 10

    run_in_world(story)


def test_items_of_an_ended_call_count_only_if_they_were_written() -> None:
    async def story(world: World) -> None:
        caller = await limited(world, backlog_items_max=10)
        world.stall()
        started = start_task(caller.enqueue([new_item() for _ in range(4)], 0.5))
        await world.pass_s(0.1)
        queued = start_task(caller.enqueue([new_item() for _ in range(6)], 0.3))
        assert {type(result) for result in await queued} == {DeadlineExceeded}
        later = start_task(caller.enqueue([new_item() for _ in range(6)], 30))
        assert {type(result) for result in await started} == {UnknownOutcome}
        world.resume()
        assert all(map(ok, await later))
        assert len(world.rows()) == 10
        with pytest.raises(LimitExceeded):
            await caller.enqueue([new_item()])

    run_in_world(story)


def test_call_written_in_parts_counts_once() -> None:
    async def story(world: World) -> None:
        world.catalog = catalog(default={"backlog_items_max": 100})
        engine = await world.engine(engine_settings(1, flush_items_max=10))
        caller = Caller(world, engine)
        call = start_task(caller.enqueue([new_item() for _ in range(60)]))
        seen = set()
        while not call.done():
            under_way = engine.queue._backlogs._in_flight.get("default")
            if under_way is not None:
                assert len(world.rows()) - 10 <= 60 - under_way.items <= len(world.rows())
                assert engine.queue._backlogs.usage("default")[0] + under_way.items == 60
                seen.add(under_way.items)
            await world.pass_s(0.0005)
        assert len(seen) > 3

    run_in_world(story)
