"""Tests one connection: when calls are written, replies in any pieces, and calls without a reply."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from thrift.Thrift import TApplicationException, TMessageType

from foqs_client.host_connection import UNSENT_BYTES_MAX, HostConnection, NoReply, NotSent
from foqs_contract.idl import Foqs, ttypes
from foqs_contract.thrift_method import Refused, ThriftMethod
from tests.support.rpc_server import call, frame, head
from tests.support.virtual_time import run_virtual

ITEM = ThriftMethod("getItem")
BODY = ITEM.encode(ttypes.GetItemRequest("default", "3-1", timeout_ms=5))


class FakeTransport(asyncio.Transport):
    """Records what the connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True

    def close(self) -> None:
        self.closing = True


def linked(program: Callable[[HostConnection, FakeTransport], Awaitable[None]]) -> None:
    """Run a program with an open connection under virtual time."""

    async def main() -> None:
        link, transport = HostConnection(asyncio.get_running_loop()), FakeTransport()
        link.connection_made(transport)
        assert link.is_ready
        await program(link, transport)

    run_virtual(main)


def answer(seqid: int, text: str = "") -> bytes:
    """Return the frame of a reply with the body `text`, which the connection does not decode."""
    return frame(head(text, seqid)[:3] + b"\2" + head("getItem", seqid)[4:] + text.encode())


async def turn() -> None:
    await asyncio.sleep(0)


def test_first_call_is_sent_at_once_and_further_calls_of_the_turn_in_one_write() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        request = ttypes.GetItemRequest("default", "3-1", timeout_ms=5)
        first = link.send(ITEM, BODY, 9.0)[0]
        assert transport.written == [call("getItem", request, first)]
        numbers = [link.send(ITEM, BODY, 9.0)[0] for _ in range(3)]
        assert len(transport.written) == 1
        await turn()
        assert transport.written[1:] == [b"".join(call("getItem", request, number) for number in numbers)]
        link.send(ITEM, BODY, 9.0)
        await turn()
        assert len(transport.written) == 3

    linked(program)


def test_calls_of_callers_woken_by_replies_are_sent_in_one_write() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        async def caller() -> None:
            await link.send(ITEM, BODY, 9.0)[1]
            link.send(ITEM, BODY, 9.0)

        tasks = [asyncio.ensure_future(caller()) for _ in range(3)]
        await turn()
        await turn()
        assert len(transport.written) == 2
        link.data_received(b"".join(answer(number) for number in (1, 2, 3)))
        await turn()
        assert all(task.done() for task in tasks)
        assert len(transport.written) == 3

    linked(program)


def test_many_bytes_are_written_before_the_turn_ends() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        link.send(ITEM, BODY, 9.0)
        link.send(ITEM, bytes(UNSENT_BYTES_MAX // 2), 9.0)
        assert len(transport.written) == 1
        link.send(ITEM, bytes(UNSENT_BYTES_MAX // 2), 9.0)
        assert len(transport.written) == 2
        link.send(ITEM, bytes(UNSENT_BYTES_MAX // 2), 9.0)
        assert len(transport.written) == 2

    linked(program)


def test_lost_connection_ends_written_calls_as_no_reply_and_others_as_not_sent() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        sent = link.send(ITEM, BODY, 9.0)[1]
        await turn()
        transport.closing = True
        unsent = link.send(ITEM, BODY, 9.0)[1]
        await turn()
        assert len(transport.written) == 1
        link.connection_lost(OSError("cut"))
        assert isinstance(sent.exception(), NoReply)
        assert isinstance(unsent.exception(), NotSent)
        assert not link.is_ready
        assert not link.is_open

    linked(program)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 11, 12, 13, 30, 1_000])
def test_replies_are_complete_in_any_pieces(size: int) -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        calls = [link.send(ITEM, BODY, 9.0) for _ in range(4)]
        texts = ["", "a", "b" * 40, "c" * 300]
        data = b"".join(answer(number, text) for (number, _), text in zip(calls, texts, strict=True))
        for position in range(0, len(data), size):
            link.data_received(data[position : position + size])
        assert [(await reply).decode() for _, reply in calls] == texts
        assert not transport.closing

    linked(program)


@pytest.mark.parametrize(
    "data",
    [
        frame(head("getItem")[:3] + b"\1" + head("getItem")[4:]),
        frame(b"\x80\1\0\2\0\0\0\xff" + bytes(100)),
        frame(b"\x80\1\0\2\0\0\0\0\0\0\0"),
        b"\x80\0\0\0",
    ],
)
def test_bytes_that_are_no_reply_end_the_connection(data: bytes) -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        reply = link.send(ITEM, BODY, 9.0)[1]
        await turn()
        link.data_received(data)
        assert transport.closing
        assert not link.is_ready
        link.connection_lost(None)
        with pytest.raises(NoReply, match="not a FOQS host"):
            await reply

    linked(program)


def test_error_quotes_a_host_that_cannot_read_a_call() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        number, reply = link.send(ITEM, BODY, 9.0)
        plain = head("getItem", number)
        message = b"\x0b\0\1\0\0\0\5what?\x08\0\2\0\0\0\1\0"
        link.data_received(frame(plain[:3] + bytes([TMessageType.EXCEPTION]) + plain[4:] + message))
        with pytest.raises(Refused, match=r"what\?") as caught:
            await reply
        assert caught.value.reason == TApplicationException.UNKNOWN_METHOD

    linked(program)


def test_each_call_ends_at_its_own_deadline() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        loop = asyncio.get_running_loop()
        ended: dict[float, float] = {}

        async def caller(deadline: float) -> None:
            with pytest.raises(NoReply, match="in time"):
                await link.send(ITEM, BODY, deadline)[1]
            ended[deadline] = loop.time()

        await asyncio.gather(*(caller(deadline) for deadline in (7.0, 2.0, 2.001, 2.5, 60.0)))
        assert list(ended) == [2.0, 2.001, 2.5, 7.0, 60.0]
        assert all(deadline <= at < deadline + 0.02 for deadline, at in ended.items())

    linked(program)


def test_call_with_a_reply_leaves_nothing_and_a_late_reply_is_dropped() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        number, reply = link.send(ITEM, BODY, 1.0)
        link.data_received(answer(number, "x") + answer(number, "again") + answer(77, "nobody's"))
        assert await reply == b"x"
        assert link.in_flight_count == 0
        late, reply = link.send(ITEM, BODY, 1.0)
        with pytest.raises(NoReply):
            await reply
        link.forget(late)
        link.data_received(answer(late, "late"))
        assert link.in_flight_count == 0
        assert not transport.closing

    linked(program)


class Successor:
    """A `LateReply` that records what it gets: the number of a call that its caller left, then (number, body)."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def on_left(self, connection: HostConnection, seqid: int) -> None:
        self.events.append(seqid)

    def on_ended(self, connection: HostConnection, seqid: int, body: bytes | None) -> None:
        self.events.append((seqid, body))


def test_reply_that_comes_after_its_caller_left_goes_to_the_late_reply() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        late = Successor()
        calls = [asyncio.ensure_future(link.call(ITEM, BODY, deadline, late)) for deadline in (9.0, 9.0, 1.0, 9.0)]
        await turn()
        await turn()
        calls[0].cancel()
        calls[1].cancel()
        await asyncio.wait(calls[:3])
        assert isinstance(calls[2].exception(), NoReply)
        assert late.events == [1, 2, 3]
        refusal = frame(head("getItem")[:3] + bytes([TMessageType.EXCEPTION]) + head("getItem", 2)[4:] + b"\0")
        link.data_received(answer(1, "x") + refusal + answer(4, "y"))
        assert late.events[3:] == [(1, b"x"), (2, None)]
        assert await calls[3] == b"y"
        link.connection_lost(None)
        assert late.events[5:] == [(3, None)]

    linked(program)


def test_reply_whose_caller_is_cancelled_in_the_same_turn_goes_to_the_late_reply() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        late = Successor()
        call = asyncio.ensure_future(link.call(ITEM, BODY, 9.0, late))
        await turn()
        link.data_received(answer(1, "x"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert late.events == [(1, b"x")]

    linked(program)


def test_calls_with_a_late_reply_can_be_handed_over_and_others_go_on() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        late = Successor()
        with_successor, other = link.send(ITEM, BODY, 9.0, late)[1], link.send(ITEM, BODY, 9.0)[1]
        await turn()
        unsent = link.send(ITEM, BODY, 9.0, late)[1]
        link.hand_over_calls()
        assert isinstance(with_successor.exception(), NoReply)
        assert isinstance(unsent.exception(), NoReply)
        assert not other.done()
        assert late.events == [1]
        link.data_received(answer(1, "x") + answer(2, "y"))
        assert late.events == [1, (1, b"x")]
        assert await other == b"y"

    linked(program)


def test_call_whose_caller_leaves_in_its_turn_is_not_sent() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        link.send(ITEM, BODY, 9.0)
        late = Successor()
        unsent = link.send(ITEM, BODY, 9.0, late)[0]
        link.forget(unsent)
        await turn()
        assert len(transport.written) == 1
        assert (link.in_flight_count, late.events) == (1, [])

    linked(program)


def test_connection_is_not_ready_while_its_peer_does_not_read() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        link.pause_writing()
        assert not link.is_ready
        assert link.is_open
        waiting = asyncio.ensure_future(link.wait_writable())
        await turn()
        assert not waiting.done()
        link.resume_writing()
        await waiting
        assert link.is_ready
        link.pause_writing()
        link.close()
        link.resume_writing()
        assert not link.is_ready

    linked(program)


def test_nothing_is_sent_after_the_host_closed_its_side() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        link.eof_received()
        assert not link.is_ready
        assert not link.is_open

    linked(program)


def test_sequence_ids_in_use_are_skipped_after_a_wrap_around() -> None:
    async def program(link: HostConnection, transport: FakeTransport) -> None:
        for sent in ([0x7FFFFFFF, 0, 1], [2]):
            link._seqid = 0x7FFFFFFE
            assert [link.send(ITEM, BODY, 9.0)[0] for _ in sent] == sent

    linked(program)


def test_every_call_of_the_contract_has_a_thrift_method() -> None:
    names = [name.removesuffix("_args") for name in vars(Foqs) if name.endswith("_args")]
    assert len(names) > 20
    for name in names:
        assert ThriftMethod(name).frame(1, b"\0").endswith(b"\0\0")
