"""Replies of one turn of the loop: written together, or given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from foqs.queue.port import NOTHING_LEASED
from foqs.rpc import reply_structs
from foqs.rpc.client_connection import PENDING_REPLIES_BYTES_MAX, READ_TURN_BYTES, ClientConnection
from foqs.rpc.rpc_limits import RpcLimits
from foqs.rpc.server import RpcServer
from foqs_contract.idl import ttypes
from tests.support.aio import run
from tests.support.builders import rpc_limits
from tests.support.fake_queue import FakeQueue
from tests.support.rpc_server import (
    RecordingTransport,
    call,
    connect_to,
    enqueue,
    frame,
    head,
    parse_replies,
    server_in_memory,
)


def dequeues(seqids: range) -> bytes:
    """Return one dequeue of one item for each sequence id."""
    request = ttypes.DequeueRequest("default", [ttypes.TopicCount("t", 1)])
    return b"".join(call("dequeue", request, seqid) for seqid in seqids)


async def connection_with_items(
    items: int, limits: RpcLimits | None = None, payload: bytes = b"x"
) -> tuple[FakeQueue, ClientConnection, RecordingTransport]:
    """Return a connection to a queue with this many items; no reply is written yet."""
    queue = FakeQueue()
    connection, transport = connect_to(server_in_memory(queue, limits or rpc_limits()))
    connection.data_received(call("enqueue", enqueue(*["t"] * items, payload=payload)))
    await asyncio.sleep(0)
    transport.writes.clear()
    return queue, connection, transport


def seqids(transport: RecordingTransport) -> list[list[int]]:
    """Return the calls that each write answers."""
    return [[seqid for seqid, _ in parse_replies(data, "dequeue")] for data in transport.writes]


def test_replies_of_one_turn_are_written_together_in_order() -> None:
    async def main() -> None:
        queue, connection, transport = await connection_with_items(9)
        for _ in range(2):
            connection.data_received(dequeues(range(3)))
            connection.data_received(dequeues(range(3, 5)))
            await asyncio.sleep(0)
        connection.connection_lost(None)
        assert seqids(transport) == [[0, 1, 2, 3, 4]] * 2
        assert queue.released == []

    run(main())


def test_write_replies_writes_the_pending_replies_of_all_connections() -> None:
    async def main() -> None:
        server, lines = waiting(2, 2)
        for connection, transport in lines:
            next(iter(connection.calls)).reply(reply_structs.dequeue_reply, NOTHING_LEASED)
            assert transport.writes == []
        server.replies.write()
        assert [seqids(transport) for _, transport in lines] == [[[0]], [[0]]]
        await asyncio.sleep(0)
        server.replies.write()
        assert [len(transport.writes) for _, transport in lines] == [1, 1]
        for connection, _ in lines:
            connection.connection_lost(None)

    run(main())


def test_failed_write_closes_its_connection_and_does_not_stop_other_writes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        server, lines = waiting(2, 2)
        (broken, broken_transport), (well, transport) = lines

        def write(data: bytes) -> None:
            raise RuntimeError("the transport is broken")

        monkeypatch.setattr(broken_transport, "write", write)
        for connection in (broken, well):
            next(iter(connection.calls)).reply(reply_structs.dequeue_reply, NOTHING_LEASED)
        with caplog.at_level(logging.ERROR):
            server.replies.write()
        assert broken_transport.closed == "aborted"
        assert "cannot be written" in caplog.text
        assert seqids(transport) == [[0]]
        for connection in (broken, well):
            connection.connection_lost(None)

    run(main())


@pytest.mark.parametrize("broken_call", ["write", "is_closing"])
def test_transport_error_is_not_raised_to_the_code_that_replies(
    broken_call: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        _, [(connection, transport)] = waiting(1, 1)

        def refuse(*arguments: object) -> None:
            raise RuntimeError("the transport is broken")

        monkeypatch.setattr(transport, broken_call, refuse)
        given_back: list[str] = []
        [only] = connection.calls
        with caplog.at_level(logging.ERROR):
            only.reply(reply_structs.dequeue_reply, NOTHING_LEASED, lambda: given_back.append("it"))
        assert transport.closed == "aborted"
        assert "cannot be written" in caplog.text
        # The transport may have sent a part of the bytes that it got. Only replies that it never got are given back.
        assert given_back == ([] if broken_call == "write" else ["it"])
        monkeypatch.undo()
        connection.connection_lost(None)

    run(main())


def test_reply_is_sent_even_if_the_metrics_fail(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        server, [(connection, transport)] = waiting(1, 2)

        def observe(method: str, code: str, seconds: float) -> None:
            raise RuntimeError("the metrics are broken")

        server.on_call_replied = observe
        first, second = connection.calls
        with caplog.at_level(logging.ERROR):
            first.reply(reply_structs.dequeue_reply, NOTHING_LEASED)
            second.reply(reply_structs.dequeue_reply, NOTHING_LEASED)
        assert seqids(transport) == [[0, 1]]
        assert "the metrics are broken" in caplog.text
        connection.connection_lost(None)

    run(main())


def waiting(connections: int, calls: int) -> tuple[RpcServer, list[tuple[ClientConnection, RecordingTransport]]]:
    """Return a server, and connections that each have this number of waiting dequeues."""
    queue = FakeQueue()
    queue.gate = asyncio.Event()
    server = server_in_memory(queue, rpc_limits())
    lines = [connect_to(server) for _ in range(connections)]
    for connection, _ in lines:
        connection.data_received(dequeues(range(calls)))
    return server, lines


def test_last_reply_is_written_at_once_with_the_pending_ones() -> None:
    async def main() -> None:
        queue, connection, transport = await connection_with_items(2)
        queue.gate = asyncio.Event()
        connection.data_received(dequeues(range(2)))
        first, second = connection.calls
        first.reply(reply_structs.dequeue_reply, NOTHING_LEASED)
        assert transport.writes == []
        second.reply(reply_structs.dequeue_reply, NOTHING_LEASED)
        assert seqids(transport) == [[0, 1]]
        await asyncio.sleep(0)
        assert len(transport.writes) == 1
        connection.connection_lost(None)

    run(main())


def test_single_reply_is_written_at_once() -> None:
    async def main() -> None:
        _, connection, transport = await connection_with_items(1)
        connection.data_received(dequeues(range(1)))
        await asyncio.sleep(0)
        assert seqids(transport) == [[0]]
        connection.connection_lost(None)

    run(main())


def test_large_pending_replies_are_written_at_once_in_order() -> None:
    async def main() -> None:
        payload = b"x" * (PENDING_REPLIES_BYTES_MAX // 10 * 4)
        queue, connection, transport = await connection_with_items(8, payload=payload[:10_000])
        for row in queue.rows.values():
            row.payload = payload
        connection.data_received(dequeues(range(8)))
        assert seqids(transport) == [[0, 1, 2], [3, 4, 5]]
        await asyncio.sleep(0)
        assert seqids(transport) == [[0, 1, 2], [3, 4, 5], [6, 7]]
        await asyncio.sleep(0)
        connection.data_received(dequeues(range(8, 9)))
        await asyncio.sleep(0)
        assert seqids(transport)[3:] == [[8]]
        connection.connection_lost(None)
        assert queue.released == []

    run(main())


@pytest.mark.parametrize(
    "end",
    [
        lambda connection, transport: connection.connection_lost(None),
        lambda connection, transport: connection.abort(),
        lambda connection, transport: transport.close(),
    ],
    ids=["lost", "aborted", "closed by its peer"],
)
def test_closed_connection_gives_each_pending_reply_back_once(
    end: Callable[[ClientConnection, RecordingTransport], None],
) -> None:
    async def main() -> None:
        queue, connection, transport = await connection_with_items(5)
        connection.data_received(dequeues(range(2)))
        await asyncio.sleep(0)
        transport.writes.clear()
        connection.data_received(dequeues(range(2, 5)))
        assert queue.released == []
        end(connection, transport)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert transport.writes == []
        assert queue.released == [f"3-{number}" for number in list(queue.rows)[2:]]

    run(main())


def test_pending_replies_for_a_peer_that_does_not_read_are_given_back() -> None:
    async def main() -> None:
        queue, connection, transport = await connection_with_items(3, rpc_limits(write_buffer_bytes_max=1_000))
        connection.data_received(dequeues(range(3)))
        transport.unread_bytes = 1_001
        connection.pause_writing()
        await asyncio.sleep(0)
        assert (transport.writes, transport.closed, len(queue.released)) == ([], "aborted", 3)
        connection.connection_lost(None)
        assert len(queue.released) == 3

    run(main())


def test_replies_that_wait_for_a_slow_peer_are_given_back_when_it_leaves() -> None:
    async def main() -> None:
        queue, connection, transport = await connection_with_items(3)
        transport.unread_bytes = 200_000
        connection.pause_writing()
        connection.data_received(dequeues(range(3)))
        await asyncio.sleep(0)
        assert (transport.writes, queue.released) == ([], [])
        connection.connection_lost(None)
        assert len(queue.released) == 3

    run(main())


def test_error_while_giving_a_reply_back_is_logged_and_the_others_are_given_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> None:
        raise RuntimeError("planted")

    async def main() -> None:
        back: list[int] = []
        queue, connection, _ = await connection_with_items(0)
        queue.gate = asyncio.Event()
        connection.data_received(dequeues(range(1)))
        connection.send(b"first", broken)
        connection.send(b"second", lambda: back.append(2))
        connection.connection_lost(None)
        assert back == [2]

    with caplog.at_level(logging.ERROR, "foqs"):
        run(main())
    assert "planted" in caplog.text


def test_close_writes_the_pending_replies_first() -> None:
    async def main() -> None:
        queue, connection, transport = await connection_with_items(2)
        connection.data_received(dequeues(range(2)))
        connection.close()
        assert (seqids(transport), transport.closed) == ([[0, 1]], "closed")
        await asyncio.sleep(0)
        connection.connection_lost(None)
        assert (len(transport.writes), queue.released) == (1, [])

    run(main())


def test_replies_to_frames_before_a_bad_frame_are_written() -> None:
    async def main() -> None:
        _, connection, transport = await connection_with_items(2)
        connection.data_received(dequeues(range(2)) + b"\xff\xff\xff\xff")
        assert (seqids(transport), transport.closed) == ([[0, 1]], "closed")
        connection.connection_lost(None)

    run(main())


def test_stop_without_grace_writes_its_replies() -> None:
    async def main() -> None:
        queue, connection, transport = await connection_with_items(2, rpc_limits(reply_grace_ms=0))
        queue.gate = asyncio.Event()
        connection.data_received(dequeues(range(2)))
        loop = asyncio.get_running_loop()
        server = connection._server
        assert isinstance(server, RpcServer)
        await server.stop(loop.time())
        connection.connection_lost(None)
        assert seqids(transport) == [[0, 1]]

    run(main())


def test_a_call_that_ends_within_its_sequence_id_is_not_answered() -> None:
    async def main() -> None:
        queue, connection, transport = await connection_with_items(1)
        connection.data_received(frame(head("dequeue")[:-2]))
        await asyncio.sleep(0)
        assert (transport.writes, transport.closed, len(queue.calls)) == ([], "closed", 1)
        connection.connection_lost(None)

    run(main())


def test_connection_with_much_to_read_pauses_for_the_others() -> None:
    async def main() -> None:
        _, connection, transport = await connection_with_items(0)
        connection.data_received(call("enqueue", enqueue("t", payload=b"x" * (READ_TURN_BYTES // 2))))
        assert transport.reading
        connection.data_received(call("enqueue", enqueue("t", payload=b"x" * READ_TURN_BYTES)))
        assert not transport.reading
        await asyncio.sleep(0)
        assert transport.reading
        connection.connection_lost(None)

    run(main())


def test_paused_connection_does_not_resume_if_its_peer_is_stuck_or_gone() -> None:
    async def main() -> None:
        for end in (
            ClientConnection.pause_writing,
            ClientConnection.close,
            lambda connection: connection.connection_lost(None),
        ):
            _, connection, transport = await connection_with_items(0)
            connection.data_received(call("enqueue", enqueue("t", payload=b"x" * READ_TURN_BYTES)))
            transport.unread_bytes = 1 << 30
            end(connection)
            await asyncio.sleep(0)
            assert not transport.reading
            connection.connection_lost(None)

    run(main())
