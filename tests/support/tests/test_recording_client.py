"""The recording client records the begin and the end of every call, whatever its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from foqs_client import (
    Client,
    Deliveries,
    Delivery,
    Enqueued,
    Item,
    Nack,
    Outcome,
    RateLimited,
    StaleLease,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.retried_calls import RetriedCallById
from foqs_contract.thrift_method import ThriftMethod
from tests.support.checker import check
from tests.support.history import UNKNOWN, Event, History, mark
from tests.support.recording_client import RecordingClient, row_event
from tests.support.request_time_client import RequestTimeClient
from tests.support.virtual_time import SimulatedLoop, run_virtual

DELIVERY = Delivery("0-1", 5, "t", 3, b"payload", b"", 1, 0, 900, 10, 0)
WALL_MS = 1_000_000.0


class Answering(Client):
    """Each host answers a poll with one delivery, after a second."""

    async def _dequeue_from(self, *_: Any, **options: Any) -> Deliveries:
        await asyncio.sleep(1)
        return Deliveries([DELIVERY])


class Polling(RequestTimeClient, Answering):
    """A call brings what a poll brought that began with the call before."""

    _poll: asyncio.Task[Deliveries] | None = None

    async def dequeue(self, *arguments: Any, **options: Any) -> Deliveries:
        poll, self._poll = self._poll, asyncio.ensure_future(self._dequeue_from())
        return Deliveries() if poll is None else await poll


class Scripted(Client):
    """Answers each call with the next thing of a script: a list of results, or an error."""

    def __init__(self, *script: Any) -> None:
        super().__init__("foqs://nowhere", namespace="n")
        self._script = list(script)

    async def answer(self) -> Any:
        await asyncio.sleep(1)
        answer = self._script.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def enqueue(
        self, items: Sequence[Item], *, atomic: bool = False, timeout_ms: int | None = None
    ) -> list[Enqueued]:
        return list(await self.answer())

    async def dequeue(
        self,
        wants: Mapping[str, int],
        *,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        items_max: int | None = None,
        run_max: int = 1,
        timeout_ms: int | None = None,
    ) -> Deliveries:
        return Deliveries(await self.answer())

    async def _call_by_id(
        self,
        method: ThriftMethod,
        make_request: Any,
        entries: list[Any],
        retry_class: type[RetriedCallById],
        timeout_ms: int | None,
        *,
        immediate: bool = False,
    ) -> list[Outcome]:
        return list(await self.answer())


def recorder(*script: Any) -> tuple[RecordingClient, History]:
    loop = asyncio.get_running_loop()
    history = History(lambda: loop.time() * 1000)
    return RecordingClient(Scripted(*script), history, "worker", lambda: WALL_MS), history


def kinds(history: History) -> list[str]:
    return [event["event"] for event in history.events]


def test_the_calls_of_an_item_are_recorded_without_violation() -> None:
    async def program() -> list[Event]:
        client, history = recorder(
            [Enqueued("0-1"), Enqueued(None, RateLimited("later"))],
            [DELIVERY],
            [Outcome()],
            [Outcome(StaleLease("over"))],
            [Outcome(already_gone=True)],
        )
        lost = Item("t", b"lost", deliver_after_ms=int(WALL_MS) + 70)
        await client.enqueue([Item("t", b"payload", priority=3), lost])
        (delivery,) = await client.dequeue({"t": 2}, wait_ms=50)
        await client.extend([delivery], lease_ms=500)
        await client.nack([Nack("0-1", 5, delay_ms=7, metadata=b"m")])
        await client.cancel(["0-1"])
        return history.events

    events = run_virtual(program)
    assert [event["event"] for event in events] == ["invoke", "ok"] * 5
    assert [event["at"] for event in events] == [0, 1000, 1000, 2000, 2000, 3000, 3000, 4000, 4000, 5000]
    enqueue, enqueued, dequeue, dequeued, extend, _, nack, nacked, cancel, cancelled = events
    assert [item["mark"] for item in enqueue["items"]] == [mark(b"payload"), mark(b"lost")]
    assert enqueue["items"][1]["deliver_after_in_ms"] == 70
    assert (enqueue["process"], enqueue["op"], enqueue["args"]) == ("worker", "enqueue", {"namespace": "n"})
    assert enqueued["results"] == [{"id": "0-1", "repeated": False}, {"error": "RATE_LIMITED"}]
    assert dequeue["args"]["topics"] == {"t": 2}
    assert dequeued["results"][0]["token"] == 5
    assert extend["items"] == [{"id": "0-1", "token": 5, "lease_ms": 500}]
    assert nack["items"][0]["delay_ms"] == 7
    assert nacked["results"] == [{"error": "STALE_LEASE"}]
    assert cancel["items"] == [{"id": "0-1"}]
    assert cancelled["results"] == [{"already_gone": True}]
    assert not check(events)


def test_a_failed_call_differs_from_one_of_unknown_outcome() -> None:
    async def program() -> History:
        client, history = recorder(
            Unreachable("nobody there"),
            UnknownOutcome("lost"),
            [Outcome(UnknownOutcome("perhaps"))],
            ValueError("a bug"),
        )
        with pytest.raises(Unreachable):
            await client.enqueue([Item("t")])
        with pytest.raises(UnknownOutcome):
            await client.ack([("0-1", 5)])
        await client.release([DELIVERY])
        with pytest.raises(ValueError, match="a bug"):
            await client.dequeue({"t": 1})
        return history

    history = run_virtual(program)
    assert kinds(history) == ["invoke", "fail", "invoke", "unknown", "invoke", "ok", "invoke", "unknown"]
    assert history.events[1]["error"] == "UNREACHABLE"
    assert history.events[5]["results"] == [{"error": UNKNOWN}]


def test_a_cancelled_call_has_an_unknown_outcome() -> None:
    async def program() -> History:
        client, history = recorder([DELIVERY])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.dequeue({"t": 1})
        return history

    assert kinds(run_virtual(program)) == ["invoke", "unknown"]


def test_a_killed_process_records_no_end() -> None:
    async def program() -> History:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        client, history = recorder([DELIVERY])
        process = loop.process("worker")
        process.spawn(client.dequeue({"t": 1}))
        await asyncio.sleep(0.5)
        process.kill()
        await asyncio.sleep(5)
        return history

    assert kinds(run_virtual(program)) == ["invoke"]


@pytest.mark.parametrize(
    ("between_s", "dated"),
    [
        pytest.param(0.25, True, id="before it came"),
        pytest.param(1.5, True, id="soon after it had come"),
        pytest.param(1.75, False, id="long after it had come"),
    ],
)
def test_a_delivery_that_an_earlier_poll_requested_has_the_moment_of_that_poll(between_s: float, dated: bool) -> None:
    async def program() -> list[Event]:
        loop = asyncio.get_running_loop()
        history = History(lambda: loop.time() * 1000)
        client = RecordingClient(Polling("foqs://nowhere"), history, "worker", lambda: WALL_MS)
        for _ in range(2):
            await client.dequeue({"t": 1})
            await asyncio.sleep(between_s)
        return history.events

    first, _, second, ended = run_virtual(program)
    assert (first["at"], second["at"]) == (0, between_s * 1000)
    assert [result.get("asked_at") for result in ended["results"]] == [0 if dated else None]


def test_a_row_of_the_tables_matches_what_was_enqueued() -> None:
    async def program() -> list[Event]:
        client, history = recorder([Enqueued("0-1")])
        await client.enqueue([Item("t", b"payload", metadata=b"meta")])
        row = row_event(
            id="0-1",
            payload=b"payload",
            topic="t",
            priority=0,
            state="ready",
            token=0,
            attempt=0,
            attempts_max=0,
            due_in_ms=None,
            metadata=b"meta",
        )
        history.present([row])
        return history.events

    assert not check(run_virtual(program))
