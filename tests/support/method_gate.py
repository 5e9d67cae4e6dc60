"""Helpers for tests of races: gates that hold a step of a database, and the end of a test."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

from foqs.queue.engine import Engine, EngineSettings
from tests.support.engines import World
from tests.support.memory_check import differences, is_at_rest

T = TypeVar("T")


class MethodGate:
    """Calls of one method, held on their way in or out while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, *, on_the_way_back: bool) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.held = 0
        self.passed = 0
        original = getattr(owner, method)

        async def held(it: Any, *arguments: Any, **options: Any) -> Any:
            if not on_the_way_back:
                await self._pass()
            result = await original(it, *arguments, **options)
            if on_the_way_back:
                await self._pass()
            return result

        monkeypatch.setattr(owner, method, held)

    async def _pass(self) -> None:
        self.held += 1
        await self._open.wait()
        self.held -= 1
        self.passed += 1

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()


@contextmanager
def closed(gate: MethodGate) -> Iterator[None]:
    """Closed for this block."""
    gate.close()
    yield
    gate.open()


async def wait_until_idle(world: World, *engines: Engine) -> None:
    """Wait until nothing is in flight and the memory agrees with the tables."""
    shards = [shard for engine in engines for shard in engine.shards.values()]
    await world.until(lambda: all(is_at_rest(shard) for shard in shards))
    for shard in shards:
        assert differences(shard, world.database.tables[shard.number]) == []


async def restarted(world: World, engine: Engine, settings: EngineSettings) -> Engine:
    """Another engine after this one; it knows of its topics but not of their items."""
    await engine.abort()
    return await world.engine(settings)


def start_task(call: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Let the call continue concurrently with the test."""
    return asyncio.ensure_future(call)


class MethodCount:
    """Counts the calls of a method."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str) -> None:
        self.calls = 0
        method = getattr(owner, name)

        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            return method(*args, **options)

        monkeypatch.setattr(owner, name, counted)
