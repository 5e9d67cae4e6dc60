"""Calls inside the host: one reply or one error, and nothing is held for a caller that has left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from foqs.rpc.methods import Caller, MethodHandler, ServerMethod, contract_methods, unchanged
from foqs.sqs.in_host_calls import InHostCalls
from foqs_contract.errors import DeadlineExceeded, FoqsError, NotFound, Unavailable, UnknownOutcome
from tests.support.virtual_time import run_virtual

GRACE_S = 1.0


class Pending:
    """A pending call that records whether it was abandoned."""

    def __init__(self) -> None:
        self.abandoned = 0

    def abandon(self) -> None:
        self.abandoned += 1


class Service:
    """Serves `ack` and `getItem` by one handler."""

    def __init__(self, handle: MethodHandler) -> None:
        self.methods: Mapping[bytes, ServerMethod] = contract_methods({"ack": handle, "getItem": handle})

    def timeout_s(self, request: Any) -> float:
        return 1.0


async def call(handle: MethodHandler, name: str = "ack") -> Any:
    return await InHostCalls(Service(handle), GRACE_S).call(name, "request", 5.0, None)


def test_a_reply_is_returned_now_or_later() -> None:
    async def run() -> None:
        def now(request: Any, deadline: float, caller: Caller) -> None:
            caller.reply(lambda value: [request, value], 1)

        def later(request: Any, deadline: float, caller: Caller) -> Pending:
            asyncio.get_running_loop().call_later(2.0, caller.reply, unchanged, "late")
            return Pending()

        assert await call(now) == ["request", 1]
        assert await call(later) == "late"

    run_virtual(run)


@pytest.mark.parametrize("is_raised", [False, True])
def test_an_error_of_foqs_is_raised(is_raised: bool) -> None:
    async def run() -> None:
        def handle(request: Any, deadline: float, caller: Caller) -> None:
            if is_raised:
                raise NotFound("x")
            caller.fail(NotFound("x"))

        with pytest.raises(NotFound):
            await call(handle)

    run_virtual(run)


@pytest.mark.parametrize(("name", "kind"), [("ack", UnknownOutcome), ("getItem", Unavailable)])
def test_a_bug_hides_a_write_but_no_read(name: str, kind: type[FoqsError]) -> None:
    async def run() -> None:
        def handle(request: Any, deadline: float, caller: Caller) -> None:
            raise KeyError("bug")

        with pytest.raises(kind):
            await call(handle, name)

    run_virtual(run)


@pytest.mark.parametrize(("name", "kind"), [("ack", UnknownOutcome), ("getItem", DeadlineExceeded)])
def test_a_call_that_is_not_done_in_time_is_abandoned(name: str, kind: type[FoqsError]) -> None:
    async def run() -> None:
        pending = Pending()
        started = asyncio.get_running_loop().time()
        with pytest.raises(kind):
            await call(lambda *_: pending, name)
        assert pending.abandoned == 1
        assert asyncio.get_running_loop().time() - started == pytest.approx(5.0 + GRACE_S)

    run_virtual(run)


def test_a_call_whose_caller_leaves_is_abandoned() -> None:
    async def run() -> None:
        pending = Pending()
        task = asyncio.ensure_future(call(lambda *_: pending))
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

        def handle(request: Any, deadline: float, caller: Caller) -> Pending:
            replies.append(lambda: caller.reply(unchanged, 1, lambda: unsent.append(1)))
            return Pending()

        task = asyncio.ensure_future(call(handle))
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

        def handle(request: Any, deadline: float, caller: Caller) -> None:
            caller.reply(unchanged, 1, lambda: unsent.append(1))

        assert await call(handle) == 1
        assert unsent == []

    run_virtual(run)
