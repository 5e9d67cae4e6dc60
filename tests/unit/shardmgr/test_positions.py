"""The documents of positions: the latest publication of each shard is found, and what nobody needs is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from shardmgr.model import MalformedDocument
from shardmgr.positions import (
    ShardPosition,
    parse_positions,
    read_all_positions,
    read_positions,
    remove_superfluous,
    render_positions,
    write_positions,
)
from shardmgr.registry.port import Registry
from tests.support.local_ensemble import LocalEnsemble


def position(shard: int, epoch: int) -> ShardPosition:
    return ShardPosition(shard, "main", epoch, 3, [(0, 0), (7, 70)], 1_070)


def on_registry(story: Callable[[Registry], Awaitable[None]]) -> None:
    async def main() -> None:
        registry = LocalEnsemble(None, lambda: 0).registry(6_000)
        await registry.open()
        await story(registry)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_positions_survive_rendering_and_parsing() -> None:
    found = [position(1, 4), position(2, 9)]
    other = replace(position(0, 3), database="x")
    assert parse_positions(render_positions([other, *found])) == [*found, other]
    text = render_positions(reversed(found))
    assert parse_positions(text) == found
    for word, wrong in ((b'"term":3', b'"term":0'), (b"[[0,0],[7,70]]", b"[]"), (b'"most":1070', b'"most":-1')):
        with pytest.raises(MalformedDocument):
            parse_positions(text.replace(word, wrong, 1))


def test_latest_epoch_of_each_shard_is_found_among_hosts_and_a_document_that_is_damaged_is_named() -> None:
    async def story(registry: Registry) -> None:
        assert await read_all_positions(registry) == ({}, [])
        await write_positions(registry, "one:1", render_positions([position(1, 4), position(2, 9)]), None)
        await write_positions(registry, "two/2", render_positions([position(1, 6)]), None)
        await registry.replace("positions/three", b"?", None)
        found, problems = await read_all_positions(registry)
        assert found == {1: position(1, 6), 2: position(2, 9)}
        assert [problem.partition(":")[0] for problem in problems] == ["positions/three"]

    on_registry(story)


def test_document_of_a_host_that_is_gone_is_removed_once_all_its_shards_have_a_later_publication() -> None:
    async def story(registry: Registry) -> None:
        await write_positions(registry, "gone", render_positions([position(1, 4), position(2, 9)]), None)
        await write_positions(registry, "here", render_positions([position(1, 6)]), None)
        assert await remove_superfluous(registry, ["here", "gone"], [1, 2]) == ()
        assert await remove_superfluous(registry, ["here"], [1, 2]) == []
        # The shard 2 is removed from the layout.
        assert await remove_superfluous(registry, ["here"], [1]) == ["gone"]
        assert await read_positions(registry, "gone") == ((), None)
        await write_positions(registry, "gone", render_positions([position(1, 5)]), None)
        await registry.replace("positions/damaged", b"?", None)
        assert await remove_superfluous(registry, [], [1, 2]) == ["gone"]
        found, problems = await read_all_positions(registry)
        assert (found, len(problems)) == ({1: position(1, 6)}, 1)

    on_registry(story)


def test_document_of_a_host_that_comes_back_meanwhile_stays() -> None:
    async def story(registry: Registry) -> None:
        await write_positions(registry, "gone", render_positions([position(1, 4)]), None)
        await write_positions(registry, "here", render_positions([position(1, 6)]), None)
        back = asyncio.Event()

        class Slow:
            def __getattr__(self, name: str) -> object:
                return getattr(registry, name)

            async def remove(self, name: str, version: int) -> None:
                await write_positions(registry, "gone", render_positions([position(1, 7)]), version)
                back.set()
                await registry.remove(name, version)

        assert await remove_superfluous(Slow(), ["here"], [1]) == []  # type: ignore[arg-type]
        assert back.is_set()
        found, version = await read_positions(registry, "gone")
        assert found == [position(1, 7)]
        assert version == 1

    on_registry(story)
