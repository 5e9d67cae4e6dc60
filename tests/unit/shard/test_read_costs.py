"""Reads beside the flushes take turns by their cost: small reads do not wait for many large ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from foqs.core.items.item import PRIORITY_MAX, State, TopicName, pack_order_key, parse_id
from foqs.shard.row_queries import KEYS_PER_ROW
from foqs.shard.shard import OwnedShard
from tests.support.builders import engine_settings
from tests.support.engines import Caller, World, run_in_world

SMALL = 20
LARGE = 3
TOPIC: TopicName = ("default", "t")

Read = Callable[[OwnedShard, Sequence[int]], Awaitable[object]]


def a_page(shard: OwnedShard, ids: Sequence[int]) -> Awaitable[object]:
    return shard.queries.in_order(TOPIC, State.READY, None, 100)


def many_rows(shard: OwnedShard, ids: Sequence[int]) -> Awaitable[object]:
    return shard.queries.by_number("default", ids)


def many_keys(shard: OwnedShard, ids: Sequence[int]) -> Awaitable[object]:
    return shard.queries.count_ready_before(TOPIC, pack_order_key(PRIORITY_MAX, 0, 1), 100 * KEYS_PER_ROW)


@pytest.mark.parametrize("large", [a_page, many_rows, many_keys])
def test_small_reads_of_one_namespace_run_between_the_large_ones_of_another(large: Read) -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        ids = [parse_id(id_, "id")[1] for id_ in await Caller(world, engine).put(count=60)]
        (other,) = await Caller(world, engine, "other").put()
        shard, order = engine.shards[1], list[str]()
        world.stall()  # the first read is under way while the others are submitted

        async def run_read(name: str, read: Awaitable[object]) -> None:
            await read
            order.append(name)

        one = [parse_id(other, "id")[1]]
        reads = [run_read("large", large(shard, ids)) for _ in range(LARGE)]
        reads += [run_read("small", shard.queries.by_number("other", one)) for _ in range(SMALL)]
        calls = asyncio.gather(*reads)
        await world.pass_s(0.1)
        world.resume()
        await calls
        assert order == ["large", *["small"] * SMALL, *["large"] * (LARGE - 1)]

    run_in_world(story)
