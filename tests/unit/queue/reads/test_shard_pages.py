"""Lists of the items of a shard: each item once, whatever happens to it meanwhile, and no read longer than its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foqs.core.items.life import EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.queue.port import ItemDetails, ShardListing, ShardPage
from foqs.queue.reads import shard_pages
from foqs.store.in_memory.memory_store import MemoryReads
from foqs_contract.errors import DeadlineExceeded, NotOwner
from tests.support.builders import engine_settings, keyed_item, new_item
from tests.support.engines import Caller, World, run_in_world
from tests.support.method_gate import MethodGate, closed

LISTING = ShardListing("default", RowFilter(), 1, None, 100, with_payload=False, with_key=False)


async def page_of(caller: Caller, listing: ShardListing, cursor: str | None = None) -> ShardPage:
    return await caller.queue.reads.list_shard(replace(listing, cursor=cursor), caller.world.deadline_in(5))


async def following(caller: Caller, listing: ShardListing, page: ShardPage) -> list[int]:
    """The numbers on the pages after this one."""
    numbers: list[int] = []
    while page.next_cursor is not None:
        page = await page_of(caller, listing, page.next_cursor)
        numbers += [item.row.id for item in page.items]
    return numbers


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("rows_per_read", [1, 4, 2_000])
def test_item_is_listed_once_although_it_changes_during_the_list(
    monkeypatch: pytest.MonkeyPatch, limit: int, rows_per_read: int
) -> None:
    monkeypatch.setattr(shard_pages, "ROWS_PER_READ", rows_per_read)
    listing = replace(LISTING, limit=limit)

    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put(count=10)
        numbers = sorted(world.database.tables[1].rows)
        first = await page_of(caller, listing)
        leased = (await caller.get(count=6)).items
        await caller.do(EventKind.NACK, leased[:3], dead=True)
        await caller.put(count=5, priority=-1)
        found = [item.row.id for item in first.items] + await following(caller, listing, first)
        assert found == numbers

    run_in_world(story)


def test_purged_items_and_those_of_other_namespaces_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await Caller(world, engine, "other").put(count=3)
        await caller.put("kept")
        await caller.put("purged", count=3)
        with closed(MethodGate(monkeypatch, MemoryReads, "list_rows", on_the_way_back=False)):
            await caller.queue.bulk.purge_topic("default", "purged", world.deadline_in(5))
            page = await page_of(caller, LISTING)
            assert len(world.database.tables[1].rows) == 7
        assert [item.row.topic for item in page.items] == ["kept"]
        assert page.next_cursor is None

    run_in_world(story)


def test_page_ends_where_its_payloads_reach_the_limit_of_a_reply() -> None:
    listing = replace(LISTING, with_payload=True)

    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        caller = Caller(world, engine)
        await caller.put(count=7, payload=b"x" * 1_000)
        shard = engine.shards[1]
        page = await shard_pages.list_shard(shard, listing, 5_000, world.deadline_in(5))
        assert [item.row.payload for item in page.items] == [b"x" * 1_000] * 2
        assert len(await following(caller, listing, page)) == 5

    run_in_world(story)


def test_keys_are_listed_if_asked_for() -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.enqueue([keyed_item("k"), new_item()])
        page = await page_of(caller, replace(LISTING, with_key=True))
        assert {item.idempotency_key for item in page.items if isinstance(item, ItemDetails)} == {b"k", None}
        assert not any(isinstance(item, ItemDetails) for item in (await page_of(caller, LISTING)).items)

    run_in_world(story)


def test_list_ends_with_its_deadline_and_is_refused_for_a_shard_of_another_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World) -> None:
        caller = Caller(world, await world.engine(engine_settings(1)))
        await caller.put()
        with pytest.raises(NotOwner):
            await page_of(caller, replace(LISTING, shard=2))
        gate = MethodGate(monkeypatch, MemoryReads, "rows_by_id", on_the_way_back=True)
        with closed(gate), pytest.raises(DeadlineExceeded):
            await page_of(caller, LISTING)

    run_in_world(story)
