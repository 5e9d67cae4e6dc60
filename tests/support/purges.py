"""Purges of topics on an engine, and what is left of them in memory and tables."""

from __future__ import annotations

from foqs.core.items.item import Row
from foqs.core.items.life import EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.queue.engine import Engine
from tests.support.engines import Caller, World
from tests.support.memory_check import differences, is_at_rest


async def purge(caller: Caller, topic: str = "t", timeout_s: float = 5.0) -> int:
    return await caller.queue.bulk.purge_topic(caller.namespace, topic, caller.world.deadline_in(timeout_s))


async def count(caller: Caller) -> int:
    only = RowFilter()
    return (await caller.queue.reads.count_matching(caller.namespace, only, caller.world.deadline_in(5))).items


def stored(world: World, topic: str = "t") -> list[Row]:
    tables = world.database.tables.values()
    return [row for table in tables for row in table.rows.values() if row.topic == topic]


def marker_count(world: World) -> int:
    return sum(len(table.purge_markers) for table in world.database.tables.values())


def keep_rows(world: World) -> None:
    """Refuse to delete rows, so that only the purge markers have an effect."""
    world.database.refuse = lambda writes: "they stay" if len(writes.deletes) > 0 else None


async def wait_for_deletion(world: World, engine: Engine) -> None:
    """Wait until purged rows and markers are deleted, and check memory against the tables."""
    world.database.refuse = lambda writes: None
    await world.until(lambda: marker_count(world) == 0 and all(map(is_at_rest, engine.shards.values())))
    for number, shard in engine.shards.items():
        assert differences(shard, world.database.tables[number]) == []


async def put_items_of_every_state(caller: Caller) -> None:
    """Put two items in each state."""
    await caller.put(count=2, attempts_max=1)
    await caller.do(EventKind.NACK, (await caller.get(count=2)).items)
    await caller.put(count=2)
    assert len((await caller.get(count=2)).items) == 2
    await caller.put(count=2)
    await caller.put(count=2, delay_ms=500)
