"""Tests several connections of one client: spread, lost and opened again independently."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from foqs_client import Client, InvalidArgument, Item, UnknownOutcome
from foqs_client.host_connector import Connect, ProtocolFactory
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import ServedQueue, serve_queue


class Busy:
    """A client whose calls wait at the host until `end`."""

    def __init__(self, host: ServedQueue, queue: FakeQueue, connections: int, connect: Connect | None) -> None:
        self.host = host
        self.queue = queue
        self._connect_real = connect or asyncio.get_running_loop().create_connection
        self.connecting_count = 0
        """The connections that are being opened."""
        self.client = Client(host.url, connections=connections, connect=self._connect)
        self.calls: list[asyncio.Task[Any]] = []

    @property
    def loads(self) -> list[int]:
        """Return the number of calls in flight on each connection of the host, fewest first."""
        return sorted(len(connection.calls) for connection in self.host.server.connections)

    async def begin(self, count: int) -> None:
        """Start calls; each is in flight before the next starts."""
        for _ in range(count):
            self.calls.append(asyncio.ensure_future(self.client.dequeue({"t": 1}, wait_ms=10_000)))
            await soon(lambda: self.queue.running == len([call for call in self.calls if not call.done()]))
            await asyncio.sleep(0)  # another connection is opened by a task of its own
            await soon(lambda: not self.connecting_count)
            await asyncio.sleep(0)  # the client notices that it is open

    async def _connect(self, factory: ProtocolFactory, host: str, port: int) -> Any:
        self.connecting_count += 1
        try:
            return await self._connect_real(factory, host, port)
        finally:
            self.connecting_count -= 1

    async def end(self) -> None:
        assert self.queue.gate is not None
        self.queue.gate.set()
        await asyncio.gather(*self.calls, return_exceptions=True)


@asynccontextmanager
async def busy(connections: int, connect: Connect | None = None) -> AsyncIterator[Busy]:
    queue = FakeQueue()
    queue.gate = asyncio.Event()
    async with serve_queue(queue) as host:
        each = Busy(host, queue, connections, connect)
        async with each.client:
            yield each
            await each.end()


def run_story(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(story())


def test_call_uses_the_connection_with_the_fewest_calls_in_flight() -> None:
    async def story() -> None:
        async with busy(3) as at:
            await at.begin(9)
            assert at.loads == [3, 3, 3]

    run_story(story)


def test_connection_is_opened_only_when_all_are_busy() -> None:
    async def story() -> None:
        async with busy(3) as at:
            for _ in range(5):
                await at.client.routing()
            assert len(at.host.server.connections) == 1
            await at.begin(3)
            assert at.loads == [1, 2]

    run_story(story)


def test_limit_of_one_connection_holds() -> None:
    async def story() -> None:
        async with busy(1) as at:
            await at.begin(5)
            assert at.loads == [5]

    run_story(story)


def test_lost_connection_affects_no_other_and_is_opened_again() -> None:
    async def story() -> None:
        async with busy(3) as at:
            await at.begin(6)
            list(at.host.server.connections)[1].abort()
            await soon(lambda: at.queue.running == 4)
            await soon(lambda: sum(call.done() for call in at.calls) == 2)
            for call in at.calls:
                if call.done():
                    assert isinstance(call.exception(), UnknownOutcome)
            assert at.loads == [2, 2]
            at.calls = [call for call in at.calls if not call.done()]
            await at.begin(5)
            assert at.loads == [3, 3, 3]

    run_story(story)


def test_failed_connection_attempt_affects_no_call() -> None:
    async def story() -> None:
        made: list[int] = []

        async def connect(factory: Any, host: str, port: int) -> Any:
            made.append(port)
            if len(made) > 1:
                raise ConnectionRefusedError("one is enough")
            return await asyncio.get_running_loop().create_connection(factory, host, port)

        async with busy(4, connect=connect) as at:
            await at.begin(5)
            assert at.loads == [5]
            # Each of the others was tried once and is not tried again for a while.
            assert 2 <= len(made) <= 4

    run_story(story)


def test_many_connections_lose_no_call_and_confuse_no_reply() -> None:
    async def story() -> None:
        async with serve_queue(FakeQueue()) as host, Client(host.url, connections=8) as client:
            results = await asyncio.gather(*(client.enqueue([Item(f"t{n}")]) for n in range(200)))
            views = await asyncio.gather(*(client.item(result.require()) for [result] in results))
            assert [view.topic for view in views] == [f"t{n}" for n in range(200)]

    run_story(story)


def test_close_closes_all_connections() -> None:
    async def story() -> None:
        async with busy(3) as at:
            await at.begin(3)
            await at.client.close()
            await soon(lambda: not at.host.server.connections)

    run_story(story)


@pytest.mark.parametrize("connections", [0, -1, 65])
def test_wrong_number_of_connections_is_refused(connections: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Client("foqs://127.0.0.1", connections=connections)
    assert caught.value.field == "connections"
