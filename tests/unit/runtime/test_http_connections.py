"""What a peer of an HTTP server may cost: connections, time, and replies that it does not read."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pytest
import uvloop
from aiohttp import web

from foqs.runtime.http_connections import HttpConnection, HttpConnections, parser_log
from tests.support.aio import TIMEOUT_S
from tests.support.certificates import Authority
from tests.support.poll import soon

REQUEST: Final = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE: Final = 32 << 20
"""More than the buffers of two sockets hold."""
UNREAD_MAX: Final = 5 * LARGE // 2
Answer: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
LOOPS: Final = [asyncio.new_event_loop, uvloop.new_event_loop]


class CountedConnections(HttpConnections):
    """Connections whose number can be waited for."""

    def __init__(self, answer: Answer, connections_max: int, stall_timeout_s: float) -> None:
        self.warnings: list[str] = []

        def warn(peer: object, text: str) -> None:
            self.warnings.append(text)

        server = web.Server(answer, logger=parser_log(logging.getLogger("test"), warn))
        super().__init__(server, connections_max, stall_timeout_s, UNREAD_MAX, warn)
        self._changed = asyncio.Event()

    def on_made(self, connection: HttpConnection, peer: object) -> web.RequestHandler | None:
        handler = super().on_made(connection, peer)
        self._changed.set()
        return handler

    def on_lost(self, handler: web.RequestHandler) -> None:
        super().on_lost(handler)
        self._changed.set()

    async def until(self, count: int) -> None:
        while len(self) != count:
            self._changed.clear()
            await self._changed.wait()


class Port:
    """A port on loopback whose replies have `reply_bytes`."""

    def __init__(
        self, connections_max: int = 10, stall_timeout_s: float = 60.0, reply_bytes: int = 2, proves: bool = True
    ) -> None:
        self._reply_bytes = reply_bytes
        self.proves = proves
        self._writers: list[asyncio.StreamWriter] = []
        self.requested = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.connections = CountedConnections(self._answer, connections_max, stall_timeout_s)
        self.port = 0

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        with self.connections.serving(request):
            if self.proves:
                self.connections.prove(request)
            self.requested.set()
            await self.may_answer.wait()
            return web.Response(body=b"x" * self._reply_bytes)

    @asynccontextmanager
    async def listening(self, context: ssl.SSLContext | None = None) -> AsyncIterator[Port]:
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(self.connections.connection, "127.0.0.1", 0, ssl=context)
        async with listener:
            self.port = listener.sockets[0].getsockname()[1]
            yield self
            self.connections.abort()
            await self.connections.until(0)
            for writer in self._writers:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    async def connect(
        self, context: ssl.SSLContext | None = None, source: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = None if context is None else "localhost"
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=name, local_addr=(source, 0)
        )
        self._writers.append(writer)
        return reader, writer


async def status(reader: asyncio.StreamReader) -> int:
    """Return the status of the next reply; 0 if the connection ended, also by a reset, because its server had not read all."""
    try:
        line = await reader.readline()
    except ConnectionResetError:
        return 0
    return int(line.split()[1]) if line else 0


def tls_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return the contexts of a host and of a client."""
    authority = Authority(folder)
    files = authority.sign("host")
    host = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    host.load_cert_chain(files.cert, files.key)
    return host, ssl.create_default_context(cafile=str(authority.file))


def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await story

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(bounded())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_connections_beyond_the_limit_are_refused_until_one_ends(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        async with Port(connections_max=1).listening() as port:
            port.may_answer.clear()
            reader, writer = await port.connect()
            writer.write(REQUEST)
            await port.requested.wait()
            surplus, surplus_writer = await port.connect()
            assert await status(surplus) == 503
            assert port.connections.warnings == ["refused: there are 1 HTTP connections already"]
            surplus_writer.close()
            port.may_answer.set()
            assert await status(reader) == 200
            writer.close()
            await port.connections.until(0)
            again, again_writer = await port.connect()
            again_writer.write(REQUEST)
            assert await status(again) == 200
            again_writer.close()

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_connections_without_a_request_keep_no_other_out(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        async with Port(connections_max=4).listening() as port:
            idle, idle_writer = await port.connect(source="127.0.0.2")
            idle_writer.write(REQUEST)
            await idle.readuntil(b"xx")
            silent = [await port.connect(source="127.0.0.2") for _ in range(2)]
            early, early_writer = await port.connect()
            await port.connections.until(4)
            for source in ("127.0.0.1", "127.0.0.2"):
                reader, writer = await port.connect(source=source)
                writer.write(REQUEST)
                assert await status(reader) == 200
            assert [await status(reader) for reader, _ in silent] == [0, 0], "those of the peer with most of them"
            for reader, writer in ((early, early_writer), (idle, idle_writer)):
                writer.write(REQUEST)
                assert await status(reader) == 200
            assert port.connections.warnings == []

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_requests_that_are_not_proved_keep_no_other_out(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], source: str
) -> None:
    """A peer of the same address, and one of another."""

    async def story() -> None:
        async with Port(connections_max=3, proves=False).listening() as port:
            port.may_answer.clear()
            strangers = []
            for _ in range(3):
                strangers.append(await port.connect(source="127.0.0.2"))
                port.requested.clear()
                strangers[-1][1].write(REQUEST)
                await port.requested.wait()
            port.proves = True
            port.requested.clear()
            reader, writer = await port.connect(source=source)
            writer.write(REQUEST)
            await port.requested.wait()
            assert await status(strangers[0][0]) == 0, "the oldest"
            _, second_writer = await port.connect(source=source)
            port.requested.clear()
            second_writer.write(REQUEST)
            await port.requested.wait()
            assert len(port.connections.warnings) == 2
            port.may_answer.set()
            assert await status(reader) == await status(strangers[2][0]) == 200

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_connection_between_two_requests_gives_way(loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def story() -> None:
        async with Port(connections_max=1).listening() as port:
            for _ in range(3):
                reader, writer = await port.connect()
                writer.write(REQUEST)
                assert await status(reader) == 200
                await reader.readuntil(b"xx")

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_failed_tls_handshakes_leave_room_for_others(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    host, client = tls_contexts(tmp_path)

    async def story() -> None:
        async with Port(connections_max=1).listening(host) as port:
            for _ in range(3):
                _, writer = await port.connect()
                writer.write(b"this is no handshake\r\n\r\n")
                writer.close()
            reader, writer = await port.connect(client)
            writer.write(REQUEST)
            assert await status(reader) == 200
            writer.close()

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("is_tls", [False, True])
def test_a_peer_that_completes_no_head_is_disconnected(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], is_tls: bool, tmp_path: Path
) -> None:
    host, client = tls_contexts(tmp_path) if is_tls else (None, None)

    async def story() -> None:
        async with Port(stall_timeout_s=0.1).listening(host) as port:
            for start in (b"", REQUEST[:-2]):
                reader, writer = await port.connect(client)
                writer.write(start)
                assert await status(reader) == 0
                writer.close()

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("is_tls", [False, True])
def test_a_peer_that_does_not_complete_its_next_head_is_disconnected(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], is_tls: bool, tmp_path: Path
) -> None:
    host, client = tls_contexts(tmp_path) if is_tls else (None, None)

    async def story() -> None:
        async with Port().listening(host) as port:
            reader, writer = await port.connect(client)
            writer.write(REQUEST)
            await reader.readuntil(b"xx")
            [connection] = port.connections
            connection._stall_timeout_s = 0.0
            writer.write(REQUEST[:-2])
            assert await reader.read() == b""
            writer.close()

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
def test_a_head_that_was_sent_ahead_is_not_late_while_its_peer_waits_for_a_reply(
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def story() -> None:
        async with Port().listening() as port:
            port.may_answer.clear()
            reader, writer = await port.connect()
            writer.write(REQUEST)
            await port.requested.wait()
            [connection] = port.connections
            assert connection._head_timer is None
            writer.write(REQUEST[:-2])
            await soon(lambda: connection._owes_head)
            assert connection._head_timer is None
            port.may_answer.set()
            await reader.readuntil(b"xx")
            await soon(lambda: connection._head_timer is not None)
            writer.write(REQUEST[-2:])
            await reader.readuntil(b"xx")
            writer.close()

    run(loop_factory, story())


SECRET: Final = b"foqs=2.YWRtaW4.1790000000.c2VjcmV0"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nCookie: " + SECRET + b"; other=\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nCookie: " + SECRET + b"; other=" + b"a" * 9_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + SECRET + b"\r\nnocolon\r\n\r\n",
        b"GET /" + SECRET + b" HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET /" + SECRET + b"a" * 9_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://" + SECRET + b":port/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"Cookie: " + SECRET + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + SECRET + b"\r\n",
    ],
)
def test_what_a_peer_sent_is_neither_in_the_log_nor_in_the_answer(
    head: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with Port().listening() as port:
            reader, writer = await port.connect()
            writer.write(head)
            answer = await reader.read()
            assert b" 400 " in answer.splitlines()[0]
            assert b"The request cannot be read: " in answer
            assert SECRET not in answer
            writer.close()
            [warning] = port.connections.warnings
            assert warning.startswith("an HTTP request cannot be read: ")
            assert SECRET.decode() not in warning

    caplog.set_level(logging.DEBUG)
    run(asyncio.new_event_loop, story())
    assert SECRET.decode() not in caplog.text


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("sent", [REQUEST, REQUEST * 5, REQUEST.replace(b"x", b"x\r\nConnection: close", 1)])
def test_a_peer_that_does_not_read_is_disconnected(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], sent: bytes
) -> None:
    async def story() -> None:
        async with Port(stall_timeout_s=0.1, reply_bytes=LARGE).listening() as port:
            with socket.create_connection(("127.0.0.1", port.port)) as peer:
                peer.sendall(sent)
                await port.connections.until(1)
                await port.connections.until(0)

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("is_tls", [False, True])
def test_unread_replies_have_a_limit_and_a_peer_that_reads_gets_its_own(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], is_tls: bool, tmp_path: Path
) -> None:
    host, client = tls_contexts(tmp_path) if is_tls else (None, None)

    async def story() -> None:
        async with Port(reply_bytes=LARGE).listening(host) as port:
            unread = port.connections.unread
            lazy = [await port.connect(client, "127.0.0.2") for _ in range(4)]

            def holds(kept: int, closed: int) -> bool:
                assert unread.amount <= UNREAD_MAX
                return unread.amount >= kept * LARGE and len(port.connections.warnings) == closed

            for (_, writer), kept, closed in zip(lazy, (1, 2, 2, 2), (0, 0, 1, 2), strict=True):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(REQUEST)
                await soon(partial(holds, kept, closed))
            reader, writer = await port.connect(client)
            writer.write(REQUEST)
            assert await status(reader) == 200
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(LARGE) == b"x" * LARGE
            assert len(port.connections.warnings) == 3, "the fourth of the peer that holds most"
            for _, other in lazy:
                other.transport.abort()

    run(loop_factory, story())


@pytest.mark.parametrize("loop_factory", LOOPS)
@pytest.mark.parametrize("is_tls", [False, True])
def test_a_large_reply_is_kept_once(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], is_tls: bool, tmp_path: Path
) -> None:
    host, client = tls_contexts(tmp_path) if is_tls else (None, None)

    async def story() -> None:
        async with Port(reply_bytes=LARGE).listening(host) as port:
            tracemalloc.start()
            try:
                _, writer = await port.connect(client)
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(REQUEST)
                await soon(lambda: port.connections.unread.amount >= LARGE)
                await soon(lambda: tracemalloc.get_traced_memory()[0] < 1.2 * LARGE)
            finally:
                tracemalloc.stop()
            writer.transport.abort()

    run(loop_factory, story())
