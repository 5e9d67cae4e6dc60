"""Every kind of malformed traffic on real sockets: a typed error or a clean end, one log line, and no effect on other clients."""

from __future__ import annotations

import asyncio
import logging
import resource
import struct
from collections.abc import Awaitable, Callable, Mapping

import pytest
from thrift.Thrift import TApplicationException, TMessageType, TType

from foqs.rpc.peer_log import PeerLog, peer_name
from foqs_contract.errors import ErrorCode
from foqs_contract.idl import ttypes
from tests.support.aio import run
from tests.support.builders import rpc_limits
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import RawConnection, call, enqueue, frame, head, serve_queue

LIMITS = rpc_limits(stall_timeout_ms=300, reply_grace_ms=100)


def field(ttype: int, number: int) -> bytes:
    return struct.pack(">bh", ttype, number)


def text(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


REQUEST = field(TType.STRUCT, 1)
NAMESPACE = field(TType.STRING, 1) + text(b"default")
GOOD = call("enqueue", enqueue("topic"))[4:]

CLOSED: dict[str, bytes] = {
    "the greatest length": b"\x7f\xff\xff\xff" + b"x" * 100,
    "a length just over the limit": struct.pack(">i", LIMITS.frame_bytes_max + 1),
    "a negative length": b"\xff\xff\xff\xff" + b"x" * 100,
    "an empty frame": b"\0\0\0\0",
    "an unframed binary call": GOOD,
    "an unframed compact call": call("getRouting", ttypes.GetRoutingRequest(), compact=True)[4:],
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030102000100") + b"x" * 505,
    "a frame of no protocol": frame(b"hello, this is not Thrift at all"),
    "a frame of one byte": frame(b"\x80"),
    "a binary head of another version": frame(b"\x80\x02" + GOOD[2:]),
    "a binary message without a version": frame(text(b"enqueue") + b"\1\0\0\0\1\0"),
    "a method name longer than its frame": frame(struct.pack(">II", 0x80010001, 0x7FFFFFFF) + b"x" * 20),
    "a method name of no bytes": frame(struct.pack(">II", 0x80010001, 0) + b"\0\0\0\1\0"),
    "a compact head without an end": frame(b"\x82\x21" + b"\xff" * 20),
    "a compact head of another version": frame(b"\x82\x22\x01\x01a\0"),
    "half a frame, then silence": frame(GOOD)[:30],
    "half a length, then silence": b"\0\0",
    "silence": b"",
}

REFUSED: dict[str, bytes] = {
    "a truncated body": frame(GOOD[:-5]),
    "no body": frame(head("enqueue")),
    "trailing bytes": frame(GOOD + b"\0"),
    "a request that is no struct": frame(head("enqueue") + field(TType.I32, 1) + b"\0\0\0\1\0"),
    "a field of the wrong type": frame(
        head("enqueue") + REQUEST + NAMESPACE + field(TType.STRING, 2) + text(b"x") + b"\0\0"
    ),
    "a list of the wrong elements": frame(
        head("enqueue") + REQUEST + NAMESPACE + field(TType.LIST, 2) + b"\x08" + b"\0\0\0\1\0\0\0\1\0\0"
    ),
    "a list that claims 2^31 - 1 elements": frame(
        head("enqueue") + REQUEST + field(TType.LIST, 2) + b"\x0c\x7f\xff\xff\xff" + b"\0" * 40
    ),
    "a list that claims -1 elements": frame(
        head("enqueue") + REQUEST + field(TType.LIST, 2) + b"\x0c\xff\xff\xff\xff" + b"\0" * 40
    ),
    "an unknown map that claims 2^31 - 1 entries": frame(
        head("enqueue") + field(TType.MAP, 9) + b"\x0b\x0b\x7f\xff\xff\xff" + b"\0" * 40
    ),
    "a string that claims 2^31 - 1 bytes": frame(
        head("enqueue") + REQUEST + field(TType.STRING, 1) + b"\x7f\xff\xff\xff" + b"a" * 40
    ),
    "structs nested a hundred thousand deep": frame(
        head("enqueue") + field(TType.STRUCT, 9) * 100_000 + b"\0" * 100_001
    ),
    "lists nested a hundred thousand deep": frame(
        head("enqueue") + field(TType.LIST, 9) + b"\x0f\0\0\0\1" * 100_000 + b"\x02\0\0\0\0\0"
    ),
    "a type that does not exist": frame(head("enqueue") + field(99, 9) + b"\0\0\0"),
    "a namespace that is not UTF-8": frame(
        head("enqueue") + REQUEST + field(TType.STRING, 1) + text(b"\xff\xfe") + b"\0\0"
    ),
}


OTHER_MESSAGES = {
    "a call of no method": (TMessageType.CALL, "frobnicate", TApplicationException.UNKNOWN_METHOD),
    "a reply": (TMessageType.REPLY, "ack", TApplicationException.INVALID_MESSAGE_TYPE),
    "a oneway call": (TMessageType.ONEWAY, "ack", TApplicationException.INVALID_MESSAGE_TYPE),
}


async def answers(raw: RawConnection, queue: FakeQueue) -> None:
    """Check that an earlier connection still works."""
    before = len(queue.calls)
    raw.send(call("enqueue", enqueue("topic"), 77))
    seqid, result = await raw.reply("enqueue")
    assert seqid == 77
    assert result.success.results[0].id is not None
    assert len(queue.calls) == before + 1


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno < logging.ERROR for record in caplog.records)
    return [record.getMessage() for record in caplog.records if record.name.startswith("foqs")]


def abuse(
    streams: Mapping[str, bytes],
    expect: Callable[[str, RawConnection], Awaitable[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Send each stream on a connection of its own beside a good one, and let `expect` check the replies to each kind."""

    async def main() -> dict[str, str]:
        queue = FakeQueue()
        async with serve_queue(queue, LIMITS) as host:
            host.server.peer_log = PeerLog(asyncio.get_running_loop().time, lines_per_second_max=len(streams))
            async with asyncio.timeout(30):
                # Each connection sends at once: one that is silent for the stall timeout is closed.
                neighbour = await host.raw()
                await answers(neighbour, queue)
                abusers: dict[str, RawConnection] = {}
                for kind, stream in streams.items():
                    abusers[kind] = raw = await host.raw()
                    raw.send(stream)
                for _ in range(19):
                    await answers(neighbour, queue)
                for kind, raw in abusers.items():
                    await expect(kind, raw)
                await answers(neighbour, queue)
            assert [name for name, _ in queue.calls] == ["enqueue"] * 21
            peers = {kind: peer_name(raw.writer.get_extra_info("sockname")) for kind, raw in abusers.items()}
            for raw in (*abusers.values(), neighbour):
                await raw.close()
        return peers

    peers = run(main())
    found = lines(caplog)
    assert len(found) == len(streams)
    for kind, peer in peers.items():
        assert sum(peer in line for line in found) == 1, kind


def test_streams_that_cannot_be_parsed_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def expect(kind: str, raw: RawConnection) -> None:
        assert await raw.read_to_end() == b"", kind

    abuse(CLOSED, expect, caplog)


def test_unreadable_calls_get_an_error_and_their_connections_stay_open(caplog: pytest.LogCaptureFixture) -> None:
    async def expect(kind: str, raw: RawConnection) -> None:
        seqid, result = await raw.reply("enqueue")
        assert seqid == 1, kind
        assert result.failed.error.code in (ErrorCode.INVALID_ARGUMENT, ErrorCode.LIMIT_EXCEEDED), kind
        assert result.failed.error.message, kind
        raw.send(call("getRouting", ttypes.GetRoutingRequest(), 2))
        assert (await raw.reply("getRouting"))[0] == 2, kind

    abuse(REFUSED, expect, caplog)


@pytest.mark.parametrize("compact", [False, True])
def test_messages_that_are_no_calls_of_the_contract_get_a_typed_error(
    compact: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def stream(kind: int, name: str) -> bytes:
        message = call("ack", ttypes.AckRequest(), 6, compact=compact, kind=kind)[4:]
        return frame(
            message.replace(b"\0\0\0\x03ack", text(name.encode())).replace(b"\x03ack", text(name.encode())[3:])
        )

    async def expect(kind: str, raw: RawConnection) -> None:
        _, name, reason = OTHER_MESSAGES[kind]
        seqid, result = await raw.reply(name, compact)
        assert (seqid, type(result), result.type) == (6, TApplicationException, reason), kind

    abuse({kind: stream(*message[:2]) for kind, message in OTHER_MESSAGES.items()}, expect, caplog)


def test_only_the_topic_that_is_not_utf8_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue(), LIMITS) as host:
            raw = await host.raw()
            raw.send(call("enqueue", enqueue("abc", "good")).replace(b"abc", b"\xed\xa0\x80"))
            _, result = await raw.reply("enqueue")
            bad, good = result.success.results
            assert (bad.error.code, bad.error.field, good.error) == (ErrorCode.INVALID_ARGUMENT, "items[0].topic", None)
            await raw.close()

    run(main())
    assert len(lines(caplog)) == 1


def test_an_incomplete_frame_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue(), LIMITS) as host:
            raw = await host.raw()
            raw.send(frame(GOOD)[:20])
            await raw.writer.drain()
            await soon(lambda: any(each.is_mid_frame for each in host.server.connections))
            await raw.close()
            await soon(lambda: not host.server.connections)

    run(main())
    assert len(lines(caplog)) == 1


def test_frame_lengths_of_gigabytes_cost_no_memory() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue(), rpc_limits(frame_bytes_max=(1 << 31) - 1)) as host:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            raws = [await host.raw() for _ in range(50)]
            for raw in raws:
                raw.send(b"\x7f\xff\xff\xff" + GOOD)
            await soon(lambda: host.server.byte_budget.reserved_bytes == 50 * len(GOOD))
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000
            for raw in raws:
                await raw.close()

    run(main())
