"""Delays of years, and the last possible moment, through an engine on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from foqs.core.items.item import TIME_MS_MAX, State
from foqs.queue.engine import Engine
from foqs.runtime.clock import SystemClock
from foqs.shard.observer import NullObserver
from foqs.store.port import DueRow, no_faults
from shardmgr.local_coordinator import LocalCoordinator
from tests.contract.conftest import SHARD, Bench
from tests.support.aio import call_result
from tests.support.builders import MemoryEpochBook, catalog, engine_settings, new_item
from tests.support.engines import make_engine
from tests.support.stores import make_row, opened

YEAR_MS = 365 * 86_400_000


def test_a_row_due_at_the_last_moment_is_found_then_and_not_before(bench: Bench) -> None:
    async def story() -> None:
        owned = await opened(bench.store())
        last = make_row(1, state=State.DEFERRED, deliver_after_ms=TIME_MS_MAX, due_ms=TIME_MS_MAX)
        await owned.write(inserts=[last], timers_added=[(TIME_MS_MAX, 1)])
        assert await owned.store.next_due_ms(0, TIME_MS_MAX + 1) == TIME_MS_MAX
        assert await owned.store.due_rows(0, TIME_MS_MAX - 1, None, 10) == []
        assert await owned.store.due_rows(None, TIME_MS_MAX, None, 10) == [DueRow(TIME_MS_MAX, 1)]

    bench.run(story())


def test_items_delayed_by_years_are_kept_over_a_restart_and_not_delivered(bench: Bench) -> None:
    """tests/unit/shard/test_time_of_shard.py checks their delivery under virtual time."""
    book = MemoryEpochBook()

    @asynccontextmanager
    async def engine(nonce: str) -> AsyncIterator[Engine]:
        found = make_engine(
            engine_settings(SHARD),
            lambda shard, *_: bench.make(shard, no_faults),
            LocalCoordinator(book),
            catalog(),
            SystemClock(),
            Random(1),
            NullObserver(),
            nonce,
        )
        await found.open()
        found.start()
        await found.became_ready.wait()
        try:
            yield found
        finally:
            found.on_release_requested()
            await found.run()

    async def story() -> None:
        loop = asyncio.get_running_loop()
        items = [
            new_item("t", delay_ms=10 * YEAR_MS),
            new_item("t", deliver_after_ms=TIME_MS_MAX),
            new_item("t", delay_ms=TIME_MS_MAX),
        ]
        async with engine("a") as first:
            given = await call_result(lambda done: first.queue.enqueue("default", items, loop.time() + 10, done))
            assert all(isinstance(found, str) for found in given)
            now_ms = first.shards[SHARD].now_ms()
        async with engine("b") as second:
            dequeued = await call_result(
                lambda done: second.queue.dequeue("default", [("t", 3)], 200, None, loop.time() + 10, done)
            )
            assert dequeued.items == []
            rows = await second.shards[SHARD].queries.in_order(("default", "t"), State.DEFERRED, None, 10)
        found_ms = sorted(row.deliver_after_ms for row in rows)
        assert abs(found_ms[0] - now_ms - 10 * YEAR_MS) < 60_000
        assert found_ms[1:] == [TIME_MS_MAX, TIME_MS_MAX]

    bench.run(story())
