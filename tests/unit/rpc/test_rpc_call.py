"""One call: one reply, ended by its deadline, a lost connection or the host's stop. The clock is virtual."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from foqs.core.items.validation import MalformedRequest
from foqs.queue.port import PendingCall
from foqs.rpc.auth_session import AuthSession
from foqs.rpc.call import Call, Handler, ServerMethod
from foqs.rpc.messages import read_head
from foqs.rpc.methods import contract_methods, task_handler
from foqs.rpc.rpc_call import RpcCall
from foqs.runtime.deadlines import DeadlineSweeper
from foqs_contract.call_table import CALLS
from foqs_contract.errors import ErrorCode, FoqsError, NotFound
from foqs_contract.idl import ttypes
from tests.support.rpc_server import call as call_frame
from tests.support.rpc_server import parse_reply
from tests.support.virtual_time import run_virtual

GRACE_S = 0.5


class FakeLine:
    """A connection that records the sent replies."""

    session: AuthSession | None = None
    peer_address = "test"

    def __init__(self) -> None:
        self.calls: dict[RpcCall, None] = {}
        self.backstop = DeadlineSweeper(asyncio.get_running_loop(), self.calls)
        self.reply_bytes_max = 10_000
        self.results: list[Any] = []
        self.ends: list[str | None] = []
        self.complaints: list[str] = []
        self.lost = False

    def send(self, frame: bytes, give_back: Callable[[], None] | None = None) -> None:
        if not self.lost:
            self.results.append(parse_reply(frame[4:], "getItem")[1])
        elif give_back is not None:
            give_back()

    def log_warning(self, text: str) -> None:
        self.complaints.append(text)

    def abandon_dequeues(self, sequence_ids: Collection[int]) -> None:
        for call in list(self.calls):
            if call.sequence_id in sequence_ids:
                call.abandon_dequeue()

    def on_call_ended(self, call: RpcCall, code: str | None) -> None:
        del self.calls[call]
        self.ends.append(code)

    def awaited(self) -> int:
        """How many calls are still to expire."""
        return 0 if self.backstop.next_sweep_at == inf else len(self.calls)

    def codes(self) -> list[ErrorCode | None]:
        """Return the sent replies: a code for each failure, None for each success."""
        return [result.failed and ErrorCode(result.failed.error.code) for result in self.results]


class Work:
    """A `Pending` that counts how often it was abandoned."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.abandoned = 0
        self._failure = failure

    def abandon(self) -> None:
        self.abandoned += 1
        if self._failure is not None:
            raise self._failure


def method(serve: Handler, *, writes: bool = False) -> ServerMethod:
    return replace(contract_methods({"getItem": serve})[b"getItem"], row=replace(CALLS["getItem"], writes=writes))


def begin(line: FakeLine, serve: Handler, *, writes: bool = False) -> RpcCall:
    """Start a call with a deadline in one second."""
    head, seqid = read_head(call_frame("getItem", ttypes.GetItemRequest("default"))[4:])
    deadline = asyncio.get_running_loop().time() + 1
    call = RpcCall(line, head, seqid, method(serve, writes=writes), ttypes.GetItemRequest(), deadline, None, 0, 0.0)
    line.calls[call] = None
    call.start(GRACE_S)
    return call


def view(number: int) -> Any:
    return ttypes.ItemView(attempt=number)


def waiting(work: PendingCall, callers: list[Call]) -> Handler:
    """Return a handler that replies nothing and appends its caller to `callers`."""

    def serve(call: Call) -> PendingCall:
        callers.append(call)
        return work

    return serve


def virtually(test: Callable[[FakeLine], Any]) -> None:
    async def main() -> None:
        await test(FakeLine())

    run_virtual(main)


def test_reply_before_the_handler_returns_is_the_only_one_and_sets_no_deadline() -> None:
    async def test(line: FakeLine) -> None:
        def serve(call: Call) -> PendingCall:
            call.reply(view, 1)
            return work

        work = Work()
        call = begin(line, serve)
        assert line.awaited() == 0
        await asyncio.sleep(5)
        call.abandon()
        assert (line.codes(), line.ends, work.abandoned) == ([None], ["OK"], 0)

    virtually(test)


def test_only_the_first_reply_is_sent_and_the_others_are_given_back() -> None:
    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        back: list[int] = []
        begin(line, waiting(Work(), callers))
        for number in (1, 2, 3):
            callers[0].reply(view, number, lambda number=number: back.append(number))  # type: ignore[misc]
        callers[0].fail(NotFound("too late"))
        assert [result.success.attempt for result in line.results] == [1]
        assert (back, line.ends) == ([2, 3], ["OK"])

    virtually(test)


def test_failure_after_a_reply_is_not_sent() -> None:
    async def test(line: FakeLine) -> None:
        def serve(call: Call) -> PendingCall:
            call.reply(view, 1)
            raise NotFound("after the answer")

        begin(line, serve)
        assert (line.codes(), line.ends) == ([None], ["OK"])

    virtually(test)


@pytest.mark.parametrize(("writes", "code"), [(True, ErrorCode.UNKNOWN_OUTCOME), (False, ErrorCode.DEADLINE_EXCEEDED)])
def test_unanswered_call_fails_after_its_deadline_and_grace_and_is_abandoned(writes: bool, code: ErrorCode) -> None:
    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        work, back = Work(), []
        begin(line, waiting(work, callers), writes=writes)
        await asyncio.sleep(1 + GRACE_S - 0.01)
        assert (line.results, work.abandoned) == ([], 0)
        await asyncio.sleep(0.03)
        assert (line.codes(), line.ends, work.abandoned) == ([code], [code.name], 1)
        callers[0].reply(view, 1, lambda: back.append(1))
        assert (len(line.results), back, len(line.ends)) == (1, [1], 1)

    virtually(test)


@pytest.mark.parametrize(("writes", "code"), [(True, ErrorCode.UNKNOWN_OUTCOME), (False, ErrorCode.LIMIT_EXCEEDED)])
def test_reply_that_is_too_long_never_says_that_a_write_did_not_happen(writes: bool, code: ErrorCode) -> None:
    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        begin(line, waiting(Work(), callers), writes=writes)
        callers[0].reply(lambda size: ttypes.ItemView(payload=bytes(size)), line.reply_bytes_max)
        assert line.codes() == [code]

    virtually(test)


def test_an_answered_call_does_not_expire() -> None:
    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        work = Work()
        begin(line, waiting(work, callers))
        assert line.awaited() == 1
        callers[0].reply(view, 1)
        assert line.awaited() == 0
        await asyncio.sleep(5)
        assert (line.codes(), work.abandoned) == ([None], 0)

    virtually(test)


def test_an_abandoned_call_sends_nothing_and_does_not_expire() -> None:
    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        work, back = Work(), []
        call = begin(line, waiting(work, callers))
        call.abandon()
        call.abandon()
        await asyncio.sleep(5)
        callers[0].reply(view, 1, lambda: back.append(1))
        assert (line.results, line.ends, work.abandoned, back) == ([], [None], 1, [1])

    virtually(test)


def test_error_in_abandon_is_logged_and_affects_no_other_call(caplog: pytest.LogCaptureFixture) -> None:
    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        begin(line, waiting(Work(RuntimeError("planted")), callers))
        begin(line, waiting(Work(), callers))
        await asyncio.sleep(5)
        assert len(line.results) == 2

    with caplog.at_level(logging.WARNING, "foqs"):
        virtually(test)
    assert len(caplog.records) == 1
    assert "planted" in caplog.text


def test_reply_to_a_lost_connection_is_given_back() -> None:
    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        back: list[int] = []
        begin(line, waiting(Work(), callers))
        line.lost = True
        callers[0].reply(view, 1, lambda: back.append(1))
        assert back == [1]

    virtually(test)


def test_reply_that_is_too_long_or_cannot_be_encoded_is_given_back_and_fails_the_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(number: int) -> Any:
        raise RuntimeError("planted")

    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        back: list[int] = []
        begin(line, waiting(Work(), callers))
        begin(line, waiting(Work(), callers))
        callers[0].reply(lambda payload: ttypes.ItemView(payload=payload), b"x" * 10_001, lambda: back.append(1))
        callers[1].reply(broken, 1, lambda: back.append(2))
        assert line.codes() == [ErrorCode.LIMIT_EXCEEDED, ErrorCode.UNAVAILABLE]
        assert (back, line.ends) == ([1, 2], ["LIMIT_EXCEEDED", "UNAVAILABLE"])

    virtually(test)
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("error", "code", "complaints"),
    [
        (NotFound("planted"), ErrorCode.NOT_FOUND, 0),
        (MalformedRequest("planted"), ErrorCode.INVALID_ARGUMENT, 1),
        (RuntimeError("planted"), ErrorCode.UNAVAILABLE, 0),
    ],
)
@pytest.mark.parametrize("task", [False, True])
def test_error_of_a_handler_is_the_reply(error: Exception, code: ErrorCode, complaints: int, task: bool) -> None:
    async def test(line: FakeLine) -> None:
        async def later(call: Call) -> Any:
            raise error

        def now(call: Call) -> PendingCall:
            raise error

        begin(line, task_handler(later) if task else now)
        await asyncio.sleep(0.01)
        assert (line.codes(), len(line.complaints)) == ([code], complaints)

    virtually(test)


def test_coroutine_handler_is_cancelled_when_abandoned_and_replies_when_it_returns() -> None:
    async def test(line: FakeLine) -> None:
        seen: list[str] = []

        async def serve(call: Call) -> Any:
            try:
                await asyncio.sleep(0.2)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            return view(7)

        begin(line, task_handler(serve)).abandon()
        begin(line, task_handler(serve))
        await asyncio.sleep(0.1)
        begin(line, task_handler(serve)).abandon()
        call = begin(line, task_handler(serve))
        await asyncio.sleep(0.15)
        call.abandon()
        await asyncio.sleep(1)
        assert [result.success.attempt for result in line.results] == [7]
        assert (seen, line.ends) == (["cancelled"], [None, None, "OK", None])

    virtually(test)


def test_failure_is_sent_once() -> None:
    async def test(line: FakeLine) -> None:
        callers: list[Call] = []
        begin(line, waiting(Work(), callers))
        errors: list[FoqsError] = [NotFound("first"), NotFound("second")]
        for error in errors:
            callers[0].fail(error)
        assert [result.failed.error.message for result in line.results] == ["first"]
        assert line.ends == ["NOT_FOUND"]

    virtually(test)
