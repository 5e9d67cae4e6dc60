"""The connections of the SQS server: while it stops, and while peers send bodies that nobody has proved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from foqs.rpc.rpc_limits import RpcLimits
from foqs.sqs.errors import SqsError
from foqs.sqs.http_messages import HttpHead, HttpReply
from foqs.sqs.service import Proof
from foqs.sqs.sqs_connections import MESSAGE_COPIES, SMALL_BODY_BYTES, SqsConnections, _HeldBytes
from tests.support.aio import run
from tests.support.builders import rpc_limits
from tests.support.poll import soon

REQUEST: Final = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"


class Service:
    """Answers a request when `answer` is set."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.called = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.before_reply: Callable[[], None] = lambda: None
        self.unsent = self.written = 0
        self.received_bytes = 0

    def check_head(self, head: HttpHead) -> None:
        """Refuse nothing."""

    def prove(self, head: HttpHead, body: bytes) -> Proof:
        if head.header("authorization") == "forged":
            raise SqsError("InvalidSignatureException", "It is forged.")
        return Proof(None, "region")

    async def delay_refusal(self, error: SqsError) -> None:
        if error.shape == "InvalidSignatureException":
            self.called.set()
            await self.answer.wait()

    async def serve(
        self,
        head: HttpHead,
        body: bytes,
        proof: Proof,
        need_peer: Callable[[], None],
        reserve_reply: Callable[[int], None],
    ) -> HttpReply:
        if body == b"receive":
            need_peer()
            reserve_reply(self.received_bytes)
        self.called.set()
        try:
            await self.answer.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        self.before_reply()
        return HttpReply(
            200, {}, body[:2], "SendMessage", give_back=self.give_back, before_write=self.count_written_reply
        )

    def give_back(self) -> None:
        self.unsent += 1

    def count_written_reply(self) -> None:
        self.written += 1


class Port:
    """A listener on a free port."""

    def __init__(self, limits: RpcLimits | None = None) -> None:
        self.service = Service()
        self.listener = SqsConnections(
            self.service,  # type: ignore[arg-type]
            limits or rpc_limits(),
            lambda action, outcome, seconds: None,
            time.monotonic,
            request_bytes_max=65_536,
        )

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.get_running_loop().create_server(self.listener.connection, "127.0.0.1", 0)
        async with server:
            yield int(server.sockets[0].getsockname()[1])

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Listen, and open one connection, which is closed at the end."""
        async with self.listening() as number:
            reader, writer = await connect(number)
            try:
                yield reader, writer
            finally:
                writer.close()


async def connect(port: int, source: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def read_to_end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


def story(coro: Coroutine[Any, Any, None]) -> None:
    run(coro)


def test_an_idle_connection_does_not_hold_up_the_stop() -> None:
    async def main() -> None:
        port = Port()
        port.service.answer.set()
        async with port.connection() as (reader, writer):
            writer.write(REQUEST)
            assert b"200 OK" in await reader.readuntil(b"{}")
            await port.listener.stop(asyncio.get_running_loop().time() + 3_600)
            assert await read_to_end(reader) == b""

    story(main())


def test_a_port_that_stops_closes_each_connection_after_its_next_reply() -> None:
    async def main() -> None:
        port = Port()
        port.service.answer.set()
        async with port.connection() as (reader, writer):
            writer.write(REQUEST)
            await reader.readuntil(b"{}")
            port.listener.close_after_replies()
            writer.write(REQUEST)
            last = await read_to_end(reader)
            assert b"Connection: close" in last
            assert last.endswith(b"{}")

    story(main())


def test_a_request_in_flight_is_answered_before_the_stop_ends() -> None:
    async def main() -> None:
        port = Port()
        async with port.connection() as (reader, writer):
            writer.write(REQUEST)
            await port.service.called.wait()
            stopping = asyncio.ensure_future(port.listener.stop(asyncio.get_running_loop().time() + 3_600))
            await asyncio.sleep(0)
            port.service.answer.set()
            await stopping
            assert (await read_to_end(reader)).endswith(b"{}")

    story(main())


@pytest.mark.parametrize("left_s", [-1.0, 0.0, 0.01])
def test_a_request_in_flight_ends_at_the_deadline(left_s: float) -> None:
    async def main() -> None:
        port = Port()
        async with port.connection() as (reader, writer):
            writer.write(REQUEST)
            await port.service.called.wait()
            await port.listener.stop(asyncio.get_running_loop().time() + left_s)
            assert await read_to_end(reader) == b""
            await port.service.cancelled.wait()

    story(main())


LONG: Final = 60_000
BODIES: Final = 4
"""The bodies of this size that are held before they are proved."""


def post(size: int, sent: int | None = None, authorization: str = "right") -> bytes:
    """Return a request whose body is sent in part."""
    head = f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + b"x" * (size if sent is None else sent)


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_bodies_that_stay_incomplete_keep_no_other_out(source: str) -> None:
    """A peer of the same address, and one of another."""

    async def main() -> None:
        port = Port(rpc_limits(in_flight_bytes_max=1 << 20))
        port.service.answer.set()
        async with port.listening() as number:
            slow = [await connect(number, "127.0.0.2") for _ in range(BODIES + 3)]
            for _, writer in slow:
                writer.write(post(LONG, LONG - 1))
            # Which of them are the oldest depends on the order in which the loop reads them.
            answered = [asyncio.ensure_future(each.readline()) for each, _ in slow]
            await soon(lambda: sum(line.done() for line in answered) == 3)
            assert all(b" 503 " in line.result() for line in answered if line.done())
            reader, writer = await connect(number, source)
            writer.write(post(LONG))
            assert b" 200 " in await reader.readline()
            for _, other in (*slow, (reader, writer)):
                other.close()
            await soon(lambda: port.listener.unproved.amount == 0)
            await asyncio.gather(*answered)

    story(main())


@pytest.mark.parametrize("authorization", ["right", "forged"])
def test_requests_that_are_not_proved_keep_no_connection(authorization: str) -> None:
    """One whose body is slow, and one whose refusal is delayed."""

    async def main() -> None:
        port = Port(rpc_limits(connections_max=3))
        async with port.listening() as number:
            strangers = [await connect(number, "127.0.0.2") for _ in range(3)]
            for _, writer in strangers:
                writer.write(post(2, 1 if authorization == "right" else 2, authorization))
            await soon(lambda: port.listener.calls_in_flight == 3)
            reader, writer = await connect(number)
            writer.write(REQUEST)
            await soon(lambda: len(port.listener.connections) == port.listener.calls_in_flight == 3)
            port.service.answer.set()
            assert b" 200 " in await reader.readline()
            for _, other in (*strangers, (reader, writer)):
                other.close()

    story(main())


def test_small_bodies_need_no_room() -> None:
    async def main() -> None:
        port = Port(rpc_limits(in_flight_bytes_max=1 << 20))
        port.service.answer.set()
        async with port.listening() as number:
            slow = [await connect(number) for _ in range(BODIES)]
            for _, writer in slow:
                writer.write(post(LONG, LONG - 1))
            await soon(lambda: port.listener.unproved.amount == BODIES * (LONG - 1))
            reader, writer = await connect(number)
            writer.write(post(SMALL_BODY_BYTES))
            assert b" 200 " in await reader.readline()
            assert port.listener.unproved.amount == BODIES * (LONG - 1)
            for _, other in (*slow, (reader, writer)):
                other.close()

    story(main())


def test_a_body_with_a_forged_signature_is_not_held_until_the_reply() -> None:
    async def main() -> None:
        port = Port()
        async with port.connection() as (reader, writer):
            writer.write(post(LONG, authorization="forged"))
            await port.service.called.wait()
            assert port.listener.unproved.amount == port.listener.budget.reserved_bytes == 0
            port.service.answer.set()
            assert b"InvalidSignatureException" in await read_to_end(reader)

    story(main())


def test_a_reply_is_unsent_only_if_its_client_has_disconnected() -> None:
    async def main() -> None:
        port = Port()
        port.service.answer.set()
        async with port.connection() as (reader, writer):
            writer.write(REQUEST)
            await reader.readuntil(b"{}")
            assert (port.service.unsent, port.service.written) == (0, 1)
            # From now on the connection ends just when its reply is ready.
            port.service.before_reply = port.listener.connections.abort
            writer.write(REQUEST)
            assert await read_to_end(reader) == b""
            assert (port.service.unsent, port.service.written) == (1, 1)

    story(main())


def test_the_messages_of_replies_that_are_not_written_yet_have_room_or_are_refused() -> None:
    async def main() -> None:
        port = Port(rpc_limits(in_flight_bytes_max=1 << 20))
        budget, service = port.listener.budget, port.service
        held = [_HeldBytes(peer, port.listener.unproved, budget) for peer in "ab"]
        held[0].reserve_reply(100 << 20)
        assert budget.reserved_bytes == budget.bytes_max // 2, "the largest receive has room"
        service.received_bytes = (budget.bytes_max - budget.reserved_bytes) // MESSAGE_COPIES - 7
        async with port.connection() as (reader, writer):
            writer.write(post(7, 0) + b"receive")
            await service.called.wait()
            assert budget.reserved_bytes == budget.bytes_max - 7
            with pytest.raises(SqsError) as refused:
                held[1].reserve_reply(7)
            assert refused.value.shape == "ServiceUnavailableException"
            service.answer.set()
            assert (await reader.readuntil(b"re")).startswith(b"HTTP/1.1 200")
            await soon(lambda: budget.reserved_bytes == budget.bytes_max // 2)
        for each in held:
            each.release()
        assert budget.reserved_bytes == 0

    story(main())


def is_half_closed(port: Port) -> bool:
    [connection] = port.listener.connections
    return connection.is_half_closed


@pytest.mark.parametrize("is_early", [False, True])
@pytest.mark.parametrize("size", [2, LONG])
def test_a_client_that_sends_no_more_gets_its_reply(is_early: bool, size: int) -> None:
    async def main() -> None:
        port = Port()
        async with port.connection() as (reader, writer):
            writer.write(post(size))
            if is_early:
                writer.write_eof()
            await port.service.called.wait()
            if not is_early:
                writer.write_eof()
                await soon(lambda: is_half_closed(port))
            port.service.answer.set()
            assert (await read_to_end(reader)).endswith(b"xx")

    story(main())


@pytest.mark.parametrize("is_early", [False, True])
def test_a_receive_of_a_client_that_sends_no_more_is_cancelled(is_early: bool) -> None:
    """It may have left, and its messages would be invisible for a while."""

    async def main() -> None:
        port = Port()
        async with port.connection() as (reader, writer):
            writer.write(post(7, 0) + b"receive")
            if is_early:
                writer.write_eof()
            await port.service.called.wait()
            if not is_early:
                writer.write_eof()
            await port.service.cancelled.wait()
            assert await read_to_end(reader) == b""

    story(main())


@pytest.mark.parametrize("sent", [b"", post(LONG, LONG - 1), post(2)[:-5]])
def test_a_connection_ends_at_once_with_a_client_that_has_no_complete_request(sent: bytes) -> None:
    async def main() -> None:
        port = Port()
        async with port.connection() as (reader, writer):
            writer.write(sent)
            writer.write_eof()
            assert await read_to_end(reader) == b""
            await soon(lambda: not len(port.listener.connections))

    story(main())
