"""The rows that a host caches: parked items take no room from active ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from foqs.core.items.life import EventKind
from foqs.store.in_memory.memory_store import MemoryStore
from tests.support.builders import CACHE, engine_settings
from tests.support.engines import Caller, World, run_in_world

ROOM = 20
HOUR_MS = 3_600_000


async def of_another_namespace(world: World, caller: Caller, engine: Any) -> None:
    await Caller(world, engine, "other").put(count=2 * ROOM)


async def due_in_an_hour(world: World, caller: Caller, engine: Any) -> None:
    await caller.put("parked", 2 * ROOM, delay_ms=HOUR_MS)


async def nacked_until_an_hour_from_now(world: World, caller: Caller, engine: Any) -> None:
    await caller.put("parked", 2 * ROOM)
    for _ in range(8):
        reply = await caller.get("parked", ROOM // 4)
        await caller.do(EventKind.NACK, reply.items, delay_ms=HOUR_MS)


async def dead(world: World, caller: Caller, engine: Any) -> None:
    for _ in range(8):
        await caller.put("parked", ROOM // 4, attempts_max=1)
        reply = await caller.get("parked", ROOM // 4)
        await caller.do(EventKind.NACK, reply.items)


Park = Callable[[World, Caller, Any], Awaitable[None]]


@pytest.mark.parametrize("park", [of_another_namespace, due_in_an_hour, nacked_until_an_hour_from_now, dead])
def test_parked_items_do_not_evict_active_items_from_the_cache(park: Park, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1, cache=replace(CACHE, written_items_max=ROOM)))
        caller = Caller(world, engine)
        await park(world, caller, engine)
        reads: list[Sequence[int]] = []
        flush = MemoryStore.flush

        async def watched(self: MemoryStore, fence: Any, touched: Any, loaded: Any, *rest: Any) -> None:
            reads.extend(read for read in (touched, loaded) if read)
            await flush(self, fence, touched, loaded, *rest)

        monkeypatch.setattr(MemoryStore, "flush", watched)
        for _ in range(3):
            await caller.put(count=4)
            reply = await caller.get(count=4)
            assert len(reply.items) == 4
            await caller.do(EventKind.ACK, reply.items)
        assert reads == []

    run_in_world(story)
