"""Connections beyond the limit: their calls are refused for a moment, and they hold no memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.rpc.client_connection import SURPLUS_CONNECTION_S
from foqs.rpc.rpc_limits import RpcLimits
from foqs.rpc.server import RpcServer
from foqs_client import Client, Item, Overloaded
from foqs_contract.errors import ErrorCode
from foqs_contract.idl import ttypes
from tests.support.aio import run
from tests.support.builders import rpc_limits
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import call, connect_to, enqueue, parse_replies, serve_queue, server_in_memory
from tests.support.virtual_time import run_virtual

ONE = rpc_limits(connections_max=1, reply_grace_ms=200)


def wants() -> Any:
    return ttypes.DequeueRequest("default", [ttypes.TopicCount("t", 1)])


def full(queue: FakeQueue, limits: RpcLimits = ONE) -> RpcServer:
    """A server, of a loop without sockets, that has all the connections it may have."""
    server = server_in_memory(queue, limits)
    connect_to(server)
    return server


@pytest.mark.parametrize("compact", [False, True])
def test_calls_on_a_surplus_connection_are_overloaded_and_it_is_closed(compact: bool) -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue, ONE) as host:
            first = await host.raw()
            await soon(lambda: len(host.server.connections) == 1)
            second = await host.raw()
            large = enqueue(*["t"] * 50, payload=b"x" * 10_000)
            second.send(call("enqueue", large, 7, compact=compact) + call("enqueue", enqueue("t"), 8, compact=compact))
            for seqid in (7, 8):
                answered, result = await second.reply("enqueue", compact)
                error = result.failed.error
                assert (answered, error.code, error.retry_after_ms) == (seqid, ErrorCode.OVERLOADED, ONE.retry_after_ms)
            assert await second.read_to_end() == b""
            await soon(lambda: not host.server.surplus_connections)
            assert queue.calls == []
            first.send(call("enqueue", enqueue("t"), 3))
            assert (await first.reply("enqueue"))[1].success is not None
            await second.close()
            await first.close()
            await soon(lambda: not host.server.connections)
            third = await host.raw()
            third.send(call("enqueue", enqueue("t"), 4))
            assert (await third.reply("enqueue"))[1].success is not None
            await third.close()

    run(main())


def test_surplus_connections_over_their_limit_are_closed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server = full(FakeQueue(), rpc_limits(connections_max=1, refusals_in_flight_max=2))
        transports = [connect_to(server)[1] for _ in range(4)]
        assert [transport.closed for transport in transports] == ["", "", "aborted", "aborted"]
        assert (len(server.connections), len(server.surplus_connections), server.refused_connection_count) == (1, 2, 4)
        for connection in list(server.surplus_connections):
            connection.connection_lost(None)
        assert connect_to(server)[1].closed == ""

    run(main())
    assert len(caplog.records) == 5


def test_surplus_connection_without_a_complete_call_is_closed_soon_and_holds_no_memory() -> None:
    async def main() -> None:
        queue = FakeQueue()
        server = full(queue)
        silent, half, reading_nothing = (connect_to(server) for _ in range(3))
        half[0].data_received((1_000_000).to_bytes(4, "big"))
        reading_nothing[1].unread_bytes = 100
        for _ in range(90):
            half[0].data_received(b"x" * 10_000)
            await asyncio.sleep(SURPLUS_CONNECTION_S / 100)
        assert server.byte_budget.reserved_bytes == 0
        assert sum(map(len, half[0]._frame_reader._parts)) < 1_000
        assert (silent[1].closed, half[1].closed) == ("", "")
        await asyncio.sleep(SURPLUS_CONNECTION_S / 5)
        assert (silent[1].closed, half[1].closed, reading_nothing[1].closed) == ("closed",) * 3
        await asyncio.sleep(2 * SURPLUS_CONNECTION_S)
        assert queue.calls == []

    run_virtual(main)


def test_surplus_connection_that_keeps_calling_is_closed() -> None:
    async def main() -> None:
        server = full(FakeQueue())
        connection, transport = connect_to(server)
        calls = 0
        while not transport.closed:
            calls += 1
            connection.data_received(call("dequeue", wants(), calls))
            await asyncio.sleep(0.01)
        replies = parse_replies(transport.written, "dequeue")
        assert {result.failed.error.code for _, result in replies} == {ErrorCode.OVERLOADED}
        assert calls - 1 <= len(replies) <= calls <= 100 * SURPLUS_CONNECTION_S + 2

    run_virtual(main, until_s=60)


def test_surplus_connection_is_closed_soon_after_its_last_reply() -> None:
    async def main() -> None:
        server = full(FakeQueue())
        connection, transport = connect_to(server)
        connection.data_received(call("dequeue", wants(), 1))
        await asyncio.sleep(0.04)
        assert len(parse_replies(transport.written, "dequeue")) == 1
        assert transport.closed == ""
        await asyncio.sleep(0.07)
        assert transport.closed == "closed"

    run_virtual(main)


def test_refused_client_is_served_once_a_connection_is_free() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue, ONE) as host:
            first = await host.raw()
            await soon(lambda: len(host.server.connections) == 1)
            async with Client(host.url) as client:
                with pytest.raises(Overloaded):
                    await client.dequeue({"t": 1})
                enqueued = asyncio.ensure_future(client.enqueue([Item("t")]))
                refused = host.server.refused_connection_count
                await soon(lambda: host.server.refused_connection_count > refused)
                await first.close()
                assert (await enqueued)[0].id is not None
            assert len(queue.calls) == 1

    run(main())
