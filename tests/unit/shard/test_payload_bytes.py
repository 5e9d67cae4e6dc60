"""Payload reads stay within the byte limits of a flush and of a prefetch (invariant 18)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from foqs.core.items.item import Row, State, parse_id
from foqs.core.items.life import EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.core.memory.reservations import ROW_BYTES
from foqs.queue.engine import Engine, EngineSettings
from foqs.store.in_memory.memory_table import ShardTables
from tests.support.builders import CACHE, changed, engine_settings
from tests.support.engines import Caller, World, run_in_world

ITEMS = 200
LONG = 20_000
FLUSH_BYTES = 5 * (LONG + 3_000)
LOADED_BYTES = 8 * (LONG + ROW_BYTES)


def settings(payload_bytes_max: int = LONG, written_bytes_max: int = 40_000) -> EngineSettings:
    cache = replace(CACHE, prefetched_bytes_max=LOADED_BYTES, written_bytes_max=written_bytes_max)
    made = engine_settings(1, cache=cache, flush_bytes_max=FLUSH_BYTES, delivery_bytes_max=16 * LONG)
    return replace(made, namespace=changed(made.namespace, payload_bytes_max=payload_bytes_max))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The payload bytes of each read from now on."""
    found: list[int] = []
    original = ShardTables.rows_with_payload

    def loaded(self: ShardTables, lengths: Mapping[int, int]) -> list[Row]:
        rows = original(self, lengths)
        found.append(sum(len(row.payload or b"") for row in rows))
        return rows

    monkeypatch.setattr(ShardTables, "rows_with_payload", loaded)
    return found


async def consume_all(world: World, engine: Engine, count: int = 15, consumers: int = 40) -> list[str]:
    """Dequeue with many consumers until all items are delivered, while another namespace enqueues. Checks the size of each reply."""
    caller, neighbour = Caller(world, engine), Caller(world, engine, "other")
    delivered: list[str] = []

    async def consume() -> None:
        while len(delivered) < ITEMS:
            reply = await caller.get("t", count, wait_ms=500, lease_ms=600_000, timeout_s=20)
            assert sum(len(seen.row.payload or b"") for seen in reply.items) <= 16 * LONG
            delivered.extend(f"{seen.shard}-{seen.row.id}" for seen in reply.items)
            await caller.do(EventKind.ACK, reply.items)

    async def enqueue() -> None:
        while len(delivered) < ITEMS:
            await neighbour.put("t", timeout_s=1.0)
            await asyncio.sleep(0.01)

    async with asyncio.timeout(60):
        await asyncio.gather(*(consume() for _ in range(consumers)), enqueue())
    return sorted(delivered)


def numbers(ids: list[str]) -> list[int]:
    return [parse_id(id_, "id")[1] for id_ in ids]


def within_limits(reads: list[int]) -> bool:
    return max(reads) <= max(FLUSH_BYTES, LOADED_BYTES)


def test_rows_whose_leases_ended_are_read_within_the_byte_limit_of_a_flush(reads: list[int]) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings())
        caller = Caller(world, engine)
        ids = await caller.put(count=ITEMS, payload=b"p" * LONG)
        left = ITEMS
        while left:
            left -= len((await caller.get("t", 15, lease_ms=5_000)).items)
        await engine.abort()
        engine = await world.engine(settings(written_bytes_max=1_000_000))
        cache = engine.shards[1].memory.cache
        await world.until(lambda: len(cache) == ITEMS)
        assert not any(row.payload for number in numbers(ids) if (row := cache.get(number)))
        reads.clear()
        assert await consume_all(world, engine) == sorted(ids)
        assert within_limits(reads)

    run_in_world(story)


@pytest.mark.parametrize("payload_bytes_max", [LONG, 20])
def test_rows_found_at_a_start_are_read_within_the_byte_limit_whatever_their_namespace_allows_now(
    reads: list[int], payload_bytes_max: int
) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings())
        ids = await Caller(world, engine).put(count=ITEMS, payload=b"p" * LONG)
        await engine.abort()
        reads.clear()
        engine = await world.engine(settings(payload_bytes_max))
        assert await consume_all(world, engine) == sorted(ids)
        assert within_limits(reads)

    run_in_world(story)


def test_items_stored_before_their_limit_was_lowered_are_delivered_within_the_byte_limit(reads: list[int]) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings(written_bytes_max=10_000_000))
        ids = await Caller(world, engine).put(count=ITEMS, payload=b"p" * LONG)
        document = engine.namespaces.document
        lowered = {name: replace(own, settings={"payload_bytes_max": 20}) for name, own in document.namespaces.items()}
        engine.namespaces.apply(replace(document, namespaces=lowered))
        assert await consume_all(world, engine, count=40) == sorted(ids)
        assert not reads or within_limits(reads)

    run_in_world(story)


def test_long_and_short_items_are_delivered_in_order_within_the_byte_limit(reads: list[int]) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings())
        caller = Caller(world, engine)
        sizes = [LONG if number % 3 == 2 else 5 for number in range(60)]
        ids = [(await caller.put(payload=b"p" * size))[0] for size in sizes]
        await engine.abort()
        engine = await world.engine(settings(20))
        caller = Caller(world, engine)
        reads.clear()
        found: list[str] = []
        async with asyncio.timeout(60):
            while len(found) < len(ids):
                reply = await caller.get("t", 7, wait_ms=500)
                found += [f"{seen.shard}-{seen.row.id}" for seen in reply.items]
                await caller.do(EventKind.ACK, reply.items)
        assert found == ids
        assert within_limits(reads)

    run_in_world(story)


def test_rows_of_unknown_size_are_prefetched_within_the_byte_limit(reads: list[int]) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings())
        caller = Caller(world, engine)
        for number in range(ITEMS):
            await caller.put(payload=b"p" * (9_000 if number > 20 else 10))
        await engine.abort()
        engine = await world.engine(settings(10_240))
        caller = Caller(world, engine)
        reads.clear()
        left = ITEMS
        while left:
            reply = await caller.get("t", 1, wait_ms=500)
            left -= len(reply.items)
            await caller.do(EventKind.ACK, reply.items)
            await world.pass_s(0.02)
        assert max(reads) <= max(LOADED_BYTES, 9_000)

    run_in_world(story)


@pytest.mark.parametrize("by_filter", [False, True])
def test_pages_with_payloads_are_read_within_the_byte_limit_of_a_reply(reads: list[int], by_filter: bool) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(settings())
        stored = await Caller(world, engine).put(count=ITEMS, payload=b"p" * LONG)
        await engine.abort()
        engine = await world.engine(settings(payload_bytes_max=20))
        reads.clear()
        found: list[str] = []
        cursor: str | None = None
        while True:
            deadline = asyncio.get_running_loop().time() + 5
            if by_filter:
                only = RowFilter(topic="t")
                page, cursor = await engine.queue.reads.list_matching("default", only, cursor, 100, True, deadline)
            else:
                page, cursor = await engine.queue.reads.peek("default", "t", State.READY, cursor, 100, True, deadline)
            assert all(seen.row.payload == b"p" * LONG for seen in page)
            assert len(page) * LONG <= 16 * LONG
            found += [f"{seen.shard}-{seen.row.id}" for seen in page]
            if cursor is None:
                break
        assert sorted(found) == sorted(stored)
        assert max(reads) <= 16 * LONG

    run_in_world(story)
