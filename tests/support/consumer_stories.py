"""Consumers on a whole host in memory, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Final

import pytest

from foqs.testing import FakeHost
from foqs_client import Client
from foqs_client.consumer import Consumer, Counts, loop_watch
from tests.support.virtual_time import run_virtual

Story = Callable[[FakeHost, Client], Coroutine[Any, Any, None]]


_NEVER_S: Final = 1e6


def play(story: Story, options: Mapping[str, object] = MappingProxyType({})) -> None:
    """Run a story on a new host under virtual time.

    The watch of a consumer's event loop goes by the real time, in which a busy machine may stand still for as long as a
    blocked loop. So it finds nothing here.
    """

    async def main() -> None:
        async with FakeHost({"namespace.backoff_ms_min": 100, "namespace.backoff_ms_max": 200, **options}) as fake:
            await story(fake, fake.client(automatic_keys=False))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_watch, "BLOCKED_S", _NEVER_S)
        run_virtual(main, until_s=3_600.0)


async def until(condition: Callable[[], bool], within_s: float = 300.0) -> None:
    """Wait under virtual time until a condition holds."""
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - virtual time, any condition
            await asyncio.sleep(0.01)


async def worked(
    client: Client, handler: Any, topics: Sequence[str], over: Callable[[], bool], **options: Any
) -> Counts:
    """Run a consumer until a condition holds, stop it, and return its counts."""
    consumer = Consumer(client, handler, topics, rng=Random(1), **options)
    running = asyncio.ensure_future(consumer.run())
    await until(lambda: over() or running.done())
    consumer.stop()
    return await running
