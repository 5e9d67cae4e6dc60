"""The connections of the SQS port while it stops."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from foqs.options.rpc_options import RpcOptions
from foqs.sqs.http_listener import SqsListener
from foqs.sqs.http_messages import HttpHead, HttpReply
from tests.support.aio import run

REQUEST: Final = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


class Service:
    """Answers a request when `answer` is set."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def refuse(self, head: HttpHead) -> HttpReply | None:
        return None

    async def serve(self, head: HttpHead, body: bytes) -> HttpReply:
        self.called.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return HttpReply(200, {}, body, "SendMessage")


class Port:
    """A listener on a free port."""

    def __init__(self) -> None:
        self.service = Service()
        self.listener = SqsListener(
            self.service,  # type: ignore[arg-type]
            RpcOptions(),
            65_536,
            lambda action, outcome, seconds: None,
            time.monotonic,
        )

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.get_running_loop().create_server(self.listener.connection, "127.0.0.1", 0)
        async with server:
            yield int(server.sockets[0].getsockname()[1])


async def connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def story(coro: Coroutine[Any, Any, None]) -> None:
    run(coro, timeout=10)


def test_an_idle_connection_does_not_hold_up_the_stop() -> None:
    async def main() -> None:
        port = Port()
        port.service.answer.set()
        async with port.listening() as number:
            reader, writer = await connect(number)
            writer.write(REQUEST)
            assert b"200 OK" in await reader.readuntil(b"{}")
            await port.listener.stop(asyncio.get_running_loop().time() + 3_600)
            assert await read_to_end(reader) == b""
            writer.close()

    story(main())


def test_a_port_that_drains_closes_each_connection_after_its_next_reply() -> None:
    async def main() -> None:
        port = Port()
        port.service.answer.set()
        async with port.listening() as number:
            reader, writer = await connect(number)
            writer.write(REQUEST)
            await reader.readuntil(b"{}")
            port.listener.drain()
            writer.write(REQUEST)
            last = await read_to_end(reader)
            assert b"Connection: close" in last
            assert last.endswith(b"{}")
            writer.close()

    story(main())


def test_a_request_in_flight_is_answered_before_the_stop_ends() -> None:
    async def main() -> None:
        port = Port()
        async with port.listening() as number:
            reader, writer = await connect(number)
            writer.write(REQUEST)
            await port.service.called.wait()
            stopping = asyncio.ensure_future(port.listener.stop(asyncio.get_running_loop().time() + 3_600))
            await asyncio.sleep(0)
            port.service.answer.set()
            await stopping
            assert (await read_to_end(reader)).endswith(b"{}")
            writer.close()

    story(main())


@pytest.mark.parametrize("left_s", [-1.0, 0.0, 0.01])
def test_a_request_in_flight_ends_at_the_deadline(left_s: float) -> None:
    async def main() -> None:
        port = Port()
        async with port.listening() as number:
            reader, writer = await connect(number)
            writer.write(REQUEST)
            await port.service.called.wait()
            await port.listener.stop(asyncio.get_running_loop().time() + left_s)
            assert await read_to_end(reader) == b""
            await port.service.cancelled.wait()
            writer.close()

    story(main())
