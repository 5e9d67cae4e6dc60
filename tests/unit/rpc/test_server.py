"""The server over real sockets: pipelining, limits, lost connections and the stop."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from unittest.mock import Mock

import pytest

from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.rpc.client_connection import WAIT_RETRY_AFTER_MS
from foqs.rpc.messages import Decoder
from foqs.rpc.peer_log import PeerLog
from foqs.rpc.rpc_limits import RpcLimits
from foqs_contract.errors import ErrorCode
from foqs_contract.idl import ttypes
from tests.support.aio import run
from tests.support.builders import rpc_limits
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import (
    RecordingTransport,
    ServedQueue,
    call,
    connect_to,
    enqueue,
    parse_replies,
    parse_reply,
    serve_queue,
    server_in_memory,
)
from tests.support.virtual_time import run_virtual

FAST = rpc_limits(reply_grace_ms=50)


def wants(count: int = 1, timeout_ms: int | None = None) -> Any:
    return ttypes.DequeueRequest("default", [ttypes.TopicCount("t", count)], timeout_ms=timeout_ms)


def routing() -> Any:
    return ttypes.GetRoutingRequest()


async def answers(host: ServedQueue) -> None:
    """Another connection is served as if nothing had happened."""
    raw = await host.raw()
    raw.send(call("getRouting", routing(), 5))
    seqid, result = await raw.reply("getRouting")
    assert (seqid, result.success.version) == (5, 42)
    await raw.close()


@pytest.mark.parametrize("compact", [False, True])
def test_calls_sent_at_once_are_all_answered_by_their_sequence_ids(compact: bool) -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host:
            raw = await host.raw()
            seqids = [1, 200, 2**31 - 1, 0, 70_000]
            raw.send(b"".join(call("enqueue", enqueue(f"t{n}"), n, compact=compact) for n in seqids))
            replies = [await raw.reply("enqueue", compact) for _ in seqids]
            assert sorted(seqid for seqid, _ in replies) == sorted(seqids)
            assert all(len(result.success.results) == 1 for _, result in replies)
            await raw.close()

    run(main())


def test_both_protocols_work_on_one_connection() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host:
            raw = await host.raw()
            raw.send(call("getRouting", routing(), 1) + call("getRouting", routing(), 2, compact=True))
            messages = sorted([await raw.message(), await raw.message()], key=lambda message: message[0] == 0x82)
            assert parse_reply(messages[0], "getRouting")[0] == 1
            assert parse_reply(messages[1], "getRouting", compact=True)[0] == 2
            await raw.close()

    run(main())


def test_a_waiting_call_does_not_hold_back_the_next_one() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue) as host:
            raw = await host.raw()
            raw.send(call("dequeue", wants(), 1) + call("getRouting", routing(), 2))
            assert (await raw.reply("getRouting"))[0] == 2
            queue.gate.set()
            assert (await raw.reply("dequeue"))[0] == 1
            await raw.close()

    run(main())


def test_a_lost_connection_ends_its_waiting_calls() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue) as host:
            raw = await host.raw()
            raw.send(call("dequeue", wants(), 1) + call("dequeue", wants(), 2))
            await soon(lambda: queue.running == 2)
            await raw.close()
            await soon(lambda: queue.running == 0)
            assert queue.cancelled == ["dequeue", "dequeue"]
            await soon(lambda: host.server.calls_in_flight == 0)

    run(main())


def test_items_for_a_lost_connection_are_released_and_others_are_not() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host:
            raw = await host.raw()
            raw.send(call("enqueue", enqueue("t", "t")))
            await raw.reply("enqueue")
            raw.send(call("dequeue", wants(1)))
            await raw.reply("dequeue")
            assert queue.released == []
            queue.gate, queue.stubborn = asyncio.Event(), True
            raw.send(call("dequeue", wants(1)))
            await soon(lambda: queue.running == 1)
            await raw.close()
            await soon(lambda: queue.cancelled == ["dequeue"])
            queue.gate.set()
            await soon(lambda: len(queue.released) == 1)

    run(main())


@pytest.mark.parametrize(
    ("name", "request_", "code"),
    [
        ("enqueue", enqueue("t"), ErrorCode.UNKNOWN_OUTCOME),
        ("dequeue", wants(), ErrorCode.UNKNOWN_OUTCOME),
        ("ack", ttypes.AckRequest("default", [ttypes.Lease("3-8796093022209", 1)]), ErrorCode.UNKNOWN_OUTCOME),
        ("getActiveTopics", ttypes.GetActiveTopicsRequest("default"), ErrorCode.DEADLINE_EXCEEDED),
    ],
)
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_call_ends_at_its_deadline_whatever_its_handler_does(
    name: str, request_: Any, code: ErrorCode, stubborn: bool
) -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate, queue.stubborn = asyncio.Event(), stubborn
        async with serve_queue(queue, FAST) as host:
            request_.timeout_ms = 20
            raw = await host.raw()
            raw.send(call(name, request_, 9))
            seqid, result = await raw.reply(name)
            assert (seqid, result.failed.error.code) == (9, code)
            await soon(lambda: queue.cancelled != [])
            queue.gate.set()
            await soon(lambda: host.server.calls_in_flight == 0)
            raw.send(call("getRouting", routing(), 10))
            assert (await raw.reply("getRouting"))[0] == 10
            await raw.close()

    run(main())


@pytest.mark.parametrize(
    ("name", "request_", "code"),
    [
        ("enqueue", enqueue("t"), ErrorCode.UNKNOWN_OUTCOME),
        ("getActiveTopics", ttypes.GetActiveTopicsRequest("default"), ErrorCode.UNAVAILABLE),
    ],
)
def test_unexpected_error_is_logged_once_and_fails_only_its_call(
    name: str, request_: Any, code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.failure = RuntimeError("planted")
        async with serve_queue(queue) as host:
            raw = await host.raw()
            raw.send(call(name, request_))
            _, result = await raw.reply(name)
            assert result.failed.error.code == code
            raw.send(call("getRouting", routing(), 10))
            assert (await raw.reply("getRouting"))[0] == 10
            await raw.close()

    with caplog.at_level(logging.WARNING, "foqs"):
        run(main())
    assert len(caplog.records) == 1
    assert "planted" in caplog.text


def test_calls_over_the_limit_of_a_connection_are_overloaded_and_others_are_served() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue, rpc_limits(calls_in_flight_per_connection_max=2)) as host:
            raw = await host.raw()
            raw.send(b"".join(call("dequeue", wants(), n) for n in range(3)))
            seqid, result = await raw.reply("dequeue")
            assert (seqid, result.failed.error.code) == (2, ErrorCode.OVERLOADED)
            assert result.failed.error.retry_after_ms > 0
            await answers(host)
            queue.gate.set()
            assert {(await raw.reply("dequeue"))[0] for _ in range(2)} == {0, 1}
            raw.send(call("dequeue", wants(), 4))
            assert (await raw.reply("dequeue"))[1].success is not None
            await raw.close()

    run(main())


def test_calls_over_the_limit_of_the_host_are_overloaded() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue, rpc_limits(calls_in_flight_max=1)) as host:
            first, second = await host.raw(), await host.raw()
            first.send(call("dequeue", wants(), 1))
            await soon(lambda: queue.running == 1)
            second.send(call("dequeue", wants(), 2))
            assert (await second.reply("dequeue"))[1].failed.error.code == ErrorCode.OVERLOADED
            queue.gate.set()
            assert (await first.reply("dequeue"))[1].success is not None
            await first.close()
            await second.close()

    run(main())


class OpenQueue(FakeQueue):
    """A queue with every namespace."""

    def namespace_settings(self, name: str) -> NamespaceSettings:
        return super().namespace_settings("default")


def poll(namespace: str, topics: int = 1) -> Any:
    wanted = [ttypes.TopicCount(f"t{n}", 1) for n in range(topics)]
    return ttypes.DequeueRequest(namespace, wanted, wait_ms=20_000)


def test_long_polls_of_one_namespace_leave_room_for_all_calls_of_others() -> None:
    async def main() -> None:
        queue = OpenQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue, rpc_limits(calls_in_flight_max=4)) as host:
            noisy, quiet = await host.raw(), await host.raw()
            noisy.send(b"".join(call("dequeue", poll("noisy"), n) for n in range(5)))
            seqid, result = await noisy.reply("dequeue")
            assert (seqid, result.failed.error.code) == (4, ErrorCode.OVERLOADED)
            assert result.failed.error.retry_after_ms == WAIT_RETRY_AFTER_MS
            quiet.send(b"".join(call("dequeue", poll("quiet"), n) for n in range(2)))
            quiet.send(b"".join(call("enqueue", enqueue("t"), n) for n in (2, 3)))
            await soon(lambda: queue.running == 8)
            noisy.send(call("ack", ttypes.AckRequest("noisy", [ttypes.Lease("3-8796093022209", 1)]), 9))
            await soon(lambda: queue.running == 9)
            queue.gate.set()
            for _ in range(5):
                await noisy.message()
            for _ in range(4):
                await quiet.message()
            quiet.send(call("dequeue", poll("x" * 300), 5))
            assert (await quiet.reply("dequeue"))[1].failed.error.code == ErrorCode.INVALID_ARGUMENT
            waiting = host.server.waiting_calls
            assert waiting.call_count == waiting.byte_count == waiting.holder_count == 0
            await noisy.close()
            await quiet.close()

    run(main())


def test_long_polls_for_many_topics_leave_half_of_the_memory() -> None:
    async def main() -> None:
        queue = OpenQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue, rpc_limits(in_flight_bytes_max=200_000)) as host:
            raw = await host.raw()
            raw.send(b"".join(call("dequeue", poll(f"namespace {n % 10}", 10), n) for n in range(30)))
            for _ in range(21):
                assert (await raw.reply("dequeue"))[1].failed.error.code == ErrorCode.OVERLOADED
            assert 80_000 < host.server.byte_budget.reserved_bytes < 100_000
            queue.gate.set()
            for _ in range(9):
                await raw.message()
            await raw.close()

    run(main())


def test_long_polls_and_calls_of_one_connection_count_apart() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue, rpc_limits(calls_in_flight_per_connection_max=2)) as host:
            raw = await host.raw()
            raw.send(b"".join(call("dequeue", poll("default"), n) for n in range(3)))
            assert (await raw.reply("dequeue"))[0] == 2
            raw.send(b"".join(call("enqueue", enqueue("t"), n) for n in (3, 4, 5)))
            seqid, result = await raw.reply("enqueue")
            assert (seqid, result.failed.error.code) == (5, ErrorCode.OVERLOADED)
            queue.gate.set()
            for _ in range(4):
                await raw.message()
            await raw.close()

    run(main())


def test_calls_that_settle_deliveries_have_room_when_others_have_none() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue, rpc_limits(calls_in_flight_max=20)) as host:
            raw = await host.raw()
            raw.send(b"".join(call("enqueue", enqueue("t"), n) for n in range(19)))
            seqid, result = await raw.reply("enqueue")
            assert (seqid, result.failed.error.code) == (18, ErrorCode.OVERLOADED)
            lease = [ttypes.Lease("3-8796093022209", 1)]
            raw.send(call("ack", ttypes.AckRequest("default", lease), 20))
            raw.send(call("release", ttypes.ReleaseRequest("default", lease), 21))
            raw.send(call("ack", ttypes.AckRequest("default", lease), 22))
            seqid, result = await raw.reply("ack")
            assert (seqid, result.failed.error.code) == (22, ErrorCode.OVERLOADED)
            queue.gate.set()
            for _ in range(20):
                await raw.message()
            await raw.close()

    run(main())


def test_call_over_the_byte_budget_is_overloaded_and_its_bytes_are_dropped() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue, rpc_limits(in_flight_bytes_max=50_000)) as host:
            raw = await host.raw()
            raw.send(call("enqueue", enqueue(*["t"] * 20, payload=b"x" * 10_000), 7))
            seqid, result = await raw.reply("enqueue")
            assert (seqid, result.failed.error.code) == (7, ErrorCode.OVERLOADED)
            assert host.server.byte_budget.reserved_bytes == 0
            raw.send(call("enqueue", enqueue(*["t"] * 2_000), 8))
            assert (await raw.reply("enqueue"))[1].failed.error.code == ErrorCode.OVERLOADED
            raw.send(call("enqueue", enqueue("t", payload=b"x" * 10_000), 9))
            assert (await raw.reply("enqueue"))[1].success is not None
            assert len(queue.calls) == 1
            await raw.close()

    run(main())


def test_connections_over_the_limit_are_closed_and_the_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue(), rpc_limits(connections_max=1, refusals_in_flight_max=0)) as host:
            first = await host.raw()
            await soon(lambda: len(host.server.connections) == 1)
            second = await host.raw()
            assert await second.read_to_end() == b""
            await second.close()
            first.send(call("getRouting", routing(), 3))
            assert (await first.reply("getRouting"))[0] == 3
            await first.close()

    run(main())
    assert len(caplog.records) == 1


def test_client_that_never_reads_is_closed_and_uses_limited_memory(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        queue = FakeQueue()
        limits = rpc_limits(write_buffer_bytes_max=400_000, stall_timeout_ms=300)
        async with serve_queue(queue, limits) as host:
            setup = await host.raw()
            setup.send(call("enqueue", enqueue(*["t"] * 100, payload=b"x" * 10_000)))
            await setup.reply("enqueue")
            raw = await host.raw()
            await soon(lambda: len(host.server.connections) == 2)
            [connection] = [each for each in host.server.connections if each is not next(iter(host.server.connections))]
            transport = connection._transport
            assert transport is not None
            peek = call("peek", ttypes.PeekRequest("default", "t", with_payload=True))
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            most = 0
            for _ in range(200):
                raw.send(peek)
                await asyncio.sleep(0)
                most = max(most, transport.get_write_buffer_size())
            await soon(lambda: connection not in host.server.connections)
            assert most < 400_000 + 2 * 1_100_000
            setup.send(call("getRouting", routing(), 3))
            assert (await setup.reply("getRouting"))[0] == 3
            raw.writer.transport.abort()
            await setup.close()

    run(main())
    lines = [record.getMessage() for record in caplog.records if record.name == "foqs.rpc"]
    assert len(lines) == 1
    assert "does not read" in lines[0]


def test_reply_over_the_limit_fails_and_its_items_are_released() -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue, rpc_limits(reply_bytes_max=15_000)) as host:
            raw = await host.raw()
            raw.send(call("enqueue", enqueue("t", "t", payload=b"x" * 10_000)))
            await raw.reply("enqueue")
            raw.send(call("dequeue", wants(2)))
            error = (await raw.reply("dequeue"))[1].failed.error
            assert error.code == ErrorCode.UNKNOWN_OUTCOME
            assert error.message.endswith("; its items are released")
            assert len(queue.released) == 2
            await raw.close()

    run(main())


def test_items_of_a_reply_that_cannot_be_encoded_are_released(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        queue = FakeQueue()
        async with serve_queue(queue) as host:
            raw = await host.raw()
            raw.send(call("enqueue", enqueue("t")))
            await raw.reply("enqueue")
            next(iter(queue.rows.values())).priority = 1 << 40
            raw.send(call("dequeue", wants(1)))
            assert (await raw.reply("dequeue"))[1].failed.error.code == ErrorCode.UNKNOWN_OUTCOME
            assert len(queue.released) == 1
            await raw.close()

    run(main())
    assert len(caplog.records) == 1


def test_a_stopping_host_refuses_new_calls_and_lets_those_in_flight_end() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue) as host:
            loop = asyncio.get_running_loop()
            raw = await host.raw()
            raw.send(call("enqueue", enqueue("t"), 1))
            await soon(lambda: queue.running == 1)
            host.listener.close()
            stopping = loop.create_task(host.server.stop(loop.time() + 30))
            await soon(lambda: host.server.is_stopping)
            raw.send(call("enqueue", enqueue("t"), 2))
            seqid, result = await raw.reply("enqueue")
            assert (seqid, result.failed.error.code) == (2, ErrorCode.UNAVAILABLE)
            queue.gate.set()
            seqid, result = await raw.reply("enqueue")
            assert seqid == 1
            assert result.success.results[0].id is not None
            await stopping
            assert await raw.read_to_end() == b""
            await raw.close()

    run(main())


def test_a_stopping_host_answers_a_call_that_it_had_not_read_yet() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host:
            loop = asyncio.get_running_loop()
            raw = await host.raw()
            await soon(lambda: len(host.server.connections) == 1)
            raw.send(call("enqueue", enqueue("t"), 1))
            await host.server.stop(loop.time() + 30)
            assert (await raw.reply("enqueue"))[1].failed.error.code == ErrorCode.UNAVAILABLE
            assert await raw.read_to_end() == b""
            await raw.close()

    run(main())


def test_call_that_is_unfinished_at_the_stop_deadline_has_an_unknown_outcome() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue, FAST) as host:
            loop = asyncio.get_running_loop()
            raw = await host.raw()
            raw.send(call("enqueue", enqueue("t"), 1))
            await soon(lambda: queue.running == 1)
            await host.server.stop(loop.time() + 0.05)
            assert (await raw.reply("enqueue"))[1].failed.error.code == ErrorCode.UNKNOWN_OUTCOME
            assert await raw.read_to_end() == b""
            await raw.close()

    run(main())


def test_every_reply_is_reported_to_the_observer() -> None:
    reported: list[tuple[str, str]] = []

    async def main() -> None:
        def observe(method: str, code: str, seconds: float) -> None:
            assert seconds >= 0
            reported.append((method, code))

        async with serve_queue(FakeQueue(), on_call_replied=observe) as host:
            raw = await host.raw()
            raw.send(call("getRouting", routing()) + call("enqueue", ttypes.EnqueueRequest("other")))
            await raw.message()
            await raw.message()
            raw.send(call("ack", ttypes.AckRequest(timeout_ms=-1)))
            await raw.message()
            await raw.close()

    run(main())
    assert sorted(reported) == [("ack", "INVALID_ARGUMENT"), ("enqueue", "NAMESPACE_NOT_FOUND"), ("getRouting", "OK")]


def silent(chunks: tuple[bytes, ...], waited_s: tuple[float, ...], limits: RpcLimits) -> RecordingTransport:
    """Return the transport of a connection that sends a chunk, waits, sends the next one, and so on."""

    async def main() -> RecordingTransport:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        connection, transport = connect_to(server_in_memory(queue, limits))
        for step, step_s in enumerate(waited_s):
            if step < len(chunks):
                connection.data_received(chunks[step])
            await asyncio.sleep(step_s)
        connection.connection_lost(None)
        return transport

    return run_virtual(main)


@pytest.mark.parametrize(
    ("chunks", "waited_s", "end"),
    [
        ((), (59.0,), ""),
        ((), (61.0,), "aborted"),
        ((b"\0\0\1\0abc",), (59.0,), ""),
        ((b"\0\0\1\0abc",), (61.0,), "aborted"),
        ((call("getRouting", routing()),), (61.0, 61.0), ""),
        ((call("getRouting", routing()),), (61.0,) * 10, "closed"),
        ((call("getRouting", routing()) + b"\0",), (61.0,), "aborted"),
        ((b"\0\0\1\0",) + (b"x",) * 9, (20.0,) * 4, "aborted"),
        ((call("dequeue", wants(timeout_ms=60_000)),), (50.0,), ""),
    ],
)
def test_silent_connection_is_closed_if_a_frame_is_incomplete_or_after_a_long_time(
    chunks: tuple[bytes, ...], waited_s: tuple[float, ...], end: str
) -> None:
    assert silent(chunks, waited_s, rpc_limits(stall_timeout_ms=60_000, idle_timeout_ms=600_000)).closed == end


def test_repeated_dequeue_is_decoded_once_and_a_different_one_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Mock(wraps=Decoder.decode)
    monkeypatch.setattr(Decoder, "decode", lambda *arguments: decode(*arguments))

    async def main() -> None:
        queue = FakeQueue()
        connection, _ = connect_to(server_in_memory(queue, rpc_limits()))
        again, other = call("dequeue", wants(1)), call("dequeue", wants(2))
        bad = again[:-10] + b"\x0b" + again[-9:]
        for frame in (again, again, other, again, bad, bad, again, call("dequeue", wants(1), compact=True)):
            connection.data_received(frame)
        counts = [details[0][0][1] for _, details in queue.calls]  # type: ignore[index]
        assert counts == [1, 1, 2, 1, 1, 1]
        assert decode.call_count == 6
        connection.connection_lost(None)

    run(main())
    assert len(caplog.records) == 2


def test_a_connection_is_not_read_while_its_replies_wait() -> None:
    async def main() -> None:
        connection, transport = connect_to(server_in_memory(FakeQueue(), rpc_limits()))
        transport.unread_bytes = rpc_limits().write_buffer_bytes_max // 4 + 1
        connection.pause_writing()
        assert not transport.reading
        connection.resume_writing()
        assert transport.reading
        connection.connection_lost(None)

    run(main())


def test_reply_beyond_the_write_buffer_closes_the_connection_and_releases_its_items() -> None:
    async def main() -> None:
        queue = FakeQueue()
        connection, transport = connect_to(server_in_memory(queue, rpc_limits(write_buffer_bytes_max=1_000)))
        connection.data_received(call("enqueue", enqueue("t")))
        await soon(lambda: transport.written != b"")
        before, transport.unread_bytes = transport.written, 1_001
        connection.pause_writing()
        connection.data_received(call("dequeue", wants()))
        await soon(lambda: transport.closed == "aborted")
        assert transport.written == before
        assert len(queue.released) == 1
        connection.connection_lost(None)

    run(main())


def test_unread_replies_of_all_connections_have_a_limit() -> None:
    """The peer that holds most loses its oldest connection; the transports show nothing, as if they encrypted."""

    async def main() -> None:
        queue = FakeQueue()
        server = server_in_memory(queue, rpc_limits(in_flight_bytes_max=1 << 20))
        connections = [connect_to(server) for _ in range(4)]
        first, _ = connections[0]
        first.data_received(call("enqueue", enqueue(*["t"] * 40, payload=b"x" * 10_000)))
        await soon(lambda: not first.calls)
        for connection, _ in connections:
            connection.pause_writing()
            connection.data_received(call("peek", ttypes.PeekRequest("default", "t", with_payload=True)))
            await soon(lambda: not any(each.calls for each, _ in connections))
            assert server.unread_replies.amount <= 1 << 20
        assert [transport.closed for _, transport in connections] == ["aborted", "aborted", "", ""]
        last, transport = connections[-1]
        last.resume_writing()
        assert len(parse_replies(transport.written, "peek")[-1][1].success.items) == 40
        for connection, _ in connections:
            connection.connection_lost(None)
        assert server.unread_replies.amount == 0

    run(main())


def test_calls_after_a_bad_frame_are_ignored() -> None:
    async def main() -> None:
        queue = FakeQueue()
        connection, transport = connect_to(server_in_memory(queue, rpc_limits()))
        connection.data_received(b"\xff\xff\xff\xff" + call("enqueue", enqueue("t")))
        connection.data_received(call("enqueue", enqueue("t")))
        for _ in range(3):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        assert (queue.calls, transport.written, transport.closed) == ([], b"", "closed")

    run(main())


def test_flood_of_warnings_writes_few_lines_and_counts_the_suppressed_ones(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    complaints = PeerLog(lambda: now[0], lines_per_second_max=3)
    for _ in range(10):
        complaints.warn("peer", "bad")
    assert len(caplog.records) == 3
    now[0] = 1.0
    complaints.warn("peer", "bad")
    assert len(caplog.records) == 4
    assert "7 lines were suppressed" in caplog.text
