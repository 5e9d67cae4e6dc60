"""Calls leave no garbage cycles, and Python's collector does not pause the host for long."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from foqs.core.items.life import EventKind
from foqs.runtime.garbage_collection import FULL_COLLECTION_INTERVAL_S, GENERATION_2_THRESHOLD, GarbageCollection
from tests.support.engines import Caller, World, run_in_world
from tests.support.virtual_time import run_virtual


@pytest.fixture(autouse=True)
def collector(leaves_tests_out_again: None) -> Iterator[None]:
    """Leaves the collector as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.set_debug(0)
    gc.enable()
    gc.garbage.clear()
    assert gc.get_threshold() == thresholds


@pytest.mark.parametrize("waiting", [False, True])
def test_calls_leave_no_cycles(waiting: bool) -> None:
    async def story(world: World) -> set[str]:
        caller = Caller(world, await world.engine())

        async def rounds(count: int) -> None:
            for _ in range(count):
                if waiting:
                    getting = asyncio.ensure_future(caller.get(count=2, wait_ms=1_000))
                    await asyncio.sleep(0.01)
                    await caller.put(count=2)
                    delivered = await getting
                else:
                    await caller.put(count=2)
                    delivered = await caller.get(count=2)
                assert len(delivered.items) == 2
                await caller.do(EventKind.RELEASE, delivered.items[:1])
                await caller.do(EventKind.ACK, delivered.items[1:])
                await caller.do(EventKind.ACK, (await caller.get(count=2)).items)

        await rounds(2)
        gc.collect()
        gc.disable()
        await rounds(5)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return {type(found).__module__ for found in gc.garbage if type(found).__module__.startswith("foqs")}

    assert run_in_world(story) == set()


def test_old_objects_are_collected_rarely_until_the_stop() -> None:
    async def main() -> None:
        garbage = GarbageCollection(asyncio.get_running_loop())
        garbage.stop()
        before = gc.get_threshold()
        garbage.start()
        assert gc.get_threshold()[2] == GENERATION_2_THRESHOLD
        assert gc.get_freeze_count() > 0
        full = gc.get_stats()[2]["collections"]
        await asyncio.sleep(FULL_COLLECTION_INTERVAL_S * 2.5)
        assert gc.get_stats()[2]["collections"] == full + 2
        garbage.stop()
        garbage.stop()
        assert gc.get_threshold() == before
        assert gc.get_freeze_count() == 0
        await asyncio.sleep(FULL_COLLECTION_INTERVAL_S * 2)
        assert gc.get_stats()[2]["collections"] == full + 2

    run_virtual(main, until_s=FULL_COLLECTION_INTERVAL_S * 10)
