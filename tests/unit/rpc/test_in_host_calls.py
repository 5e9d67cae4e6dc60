"""Calls inside the host: one reply or one error, and nothing is held for a caller that has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from foqs.rpc.call import Call, Handler, unchanged
from foqs.rpc.in_host_calls import InHostCalls
from foqs.rpc.methods import RpcService, contract_methods
from foqs_contract.errors import DeadlineExceeded, FoqsError, NotFound, Unavailable, UnknownOutcome
from foqs_contract.idl import ttypes
from tests.support.virtual_time import run_virtual

GRACE_S = 1.0
REQUEST = ttypes.AckRequest()


class Pending:
    """A pending call that records whether it was abandoned."""

    def __init__(self) -> None:
        self.abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1


async def make(handle: Handler, name: str = "ack") -> Any:
    service = RpcService(contract_methods({"ack": handle, "getItem": handle}), lambda request: 1.0)
    return await InHostCalls(service, GRACE_S).call(name, REQUEST, 5.0)


def test_a_reply_is_returned_now_or_later() -> None:
    async def run() -> None:
        def now(call: Call) -> None:
            call.reply(lambda value: [call.request, value], 1)

        def later(call: Call) -> Pending:
            asyncio.get_running_loop().call_later(2.0, call.reply, unchanged, "late")
            return Pending()

        assert await make(now) == [REQUEST, 1]
        assert await make(later) == "late"

    run_virtual(run)


@pytest.mark.parametrize("is_raised", [False, True])
def test_an_error_of_foqs_is_raised(is_raised: bool) -> None:
    async def run() -> None:
        def handle(call: Call) -> None:
            if is_raised:
                raise NotFound("x")
            call.fail(NotFound("x"))

        with pytest.raises(NotFound):
            await make(handle)

    run_virtual(run)


@pytest.mark.parametrize(("name", "kind"), [("ack", UnknownOutcome), ("getItem", Unavailable)])
def test_a_bug_hides_a_write_but_no_read(name: str, kind: type[FoqsError]) -> None:
    async def run() -> None:
        def handle(call: Call) -> None:
            raise KeyError("bug")

        with pytest.raises(kind):
            await make(handle, name)

    run_virtual(run)


@pytest.mark.parametrize(("name", "kind"), [("ack", UnknownOutcome), ("getItem", DeadlineExceeded)])
def test_a_call_that_is_not_done_in_time_is_abandoned(name: str, kind: type[FoqsError]) -> None:
    async def run() -> None:
        pending = Pending()
        started = asyncio.get_running_loop().time()
        with pytest.raises(kind):
            await make(lambda *_: pending, name)
        assert pending.abandoned == 1
        assert asyncio.get_running_loop().time() - started == pytest.approx(5.0 + GRACE_S)

    run_virtual(run)


def test_a_call_whose_caller_leaves_is_abandoned() -> None:
    async def run() -> None:
        pending = Pending()
        task = asyncio.ensure_future(make(lambda *_: pending))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait((task,))
        assert (pending.abandoned, task.cancelled()) == (1, True)

    run_virtual(run)


@pytest.mark.parametrize("leaves_first", [False, True])
def test_a_reply_that_its_caller_does_not_get_is_reported_as_unsent(leaves_first: bool) -> None:
    async def run() -> None:
        unsent: list[int] = []
        replies: list[Callable[[], None]] = []

        def handle(call: Call) -> Pending:
            replies.append(lambda: call.reply(unchanged, 1, lambda: unsent.append(1)))
            return Pending()

        task = asyncio.ensure_future(make(handle))
        await asyncio.sleep(1)
        if leaves_first:
            task.cancel()
            await asyncio.wait((task,))
            replies[0]()
        else:
            replies[0]()
            task.cancel()
            await asyncio.wait((task,))
        assert unsent == [1]
        assert task.cancelled()

    run_virtual(run)


def test_a_sent_reply_is_not_reported_as_unsent() -> None:
    async def run() -> None:
        unsent: list[int] = []

        def handle(call: Call) -> None:
            call.reply(unchanged, 1, lambda: unsent.append(1))

        assert await make(handle) == 1
        assert unsent == []

    run_virtual(run)
