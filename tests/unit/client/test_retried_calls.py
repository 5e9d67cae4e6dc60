"""Tests retries of calls by id: which entries, how long, and the results of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeAlias

import pytest

from foqs.core.items.life import Event
from foqs.queue.port import ALREADY_GONE, Outcome, PendingCall
from foqs_client import (
    Client,
    Enqueued,
    Item,
    NotOwner,
    Overloaded,
    RateLimited,
    StaleLease,
    Unavailable,
    UnknownOutcome,
)
from foqs_client import Outcome as ClientOutcome
from foqs_client.automatic_keys import RetriedEnqueue
from foqs_client.retried_calls import BACKOFF_S_MAX, BACKOFF_S_MIN, JITTER_MAX, RetriedCallById
from foqs_contract import errors
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue, HeldCall
from tests.support.poll import soon
from tests.support.rpc_server import ServedQueue, serve_queue

Answer: TypeAlias = list[Outcome] | errors.FoqsError | None
"""The reply to one attempt: outcomes, a failure, or None for a lost connection."""
Call: TypeAlias = Callable[..., Awaitable[list[ClientOutcome]]]

UNKNOWN = errors.UnknownOutcome("perhaps")
UNAVAILABLE = errors.Unavailable("not now", retry_after_ms=1)
STALE = errors.StaleLease("over")
NOT_FOUND = errors.NotFound("no such item")

IDS = [f"3-{(1 << 43) + n}" for n in (1, 2, 3)]
LEASES = [(id_, 7) for id_ in IDS]

DELETING = {
    "ack": lambda client, **more: client.ack(LEASES, **more),
    "cancel": lambda client, **more: client.cancel(IDS, **more),
}
LEASED = {
    "nack": lambda client, **more: client.nack(LEASES, **more),
    "extend": lambda client, **more: client.extend(LEASES, **more),
    "release": lambda client, **more: client.release(LEASES, **more),
}
every_call = pytest.mark.parametrize(
    "call", [pytest.param(call, id=name) for name, call in (DELETING | LEASED).items()]
)
deleting_call = pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in DELETING.items()])
leased_call = pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in LEASED.items()])


class Scripted(FakeQueue):
    """Replies to calls by id by a script, then with success."""

    def __init__(self, *script: Answer) -> None:
        super().__init__()
        self.script = list(script)
        self.sent: list[list[int]] = []
        """The indexes in `IDS` of each attempt's entries."""
        self.left_s: list[float] = []
        """The remaining time of each attempt when it arrived."""
        self.lose: Callable[[], None] = lambda: None

    def ack(
        self,
        namespace: str,
        ids: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        return self._answer([number for _, number in ids], deadline, on_done)

    def apply(
        self,
        namespace: str,
        events: Sequence[tuple[int, Event]],
        deadline: float,
        on_done: Callable[[list[Outcome]], None],
    ) -> PendingCall:
        return self._answer([event.id for _, event in events], deadline, on_done)

    def _answer(self, numbers: list[int], deadline: float, on_done: Callable[[list[Outcome]], None]) -> PendingCall:
        self.sent.append([(number & 3) - 1 for number in numbers])
        self.left_s.append(deadline - asyncio.get_running_loop().time())
        done_all: list[Outcome] = [None] * len(numbers)
        answer = self.script.pop(0) if self.script else done_all
        if isinstance(answer, errors.FoqsError):
            raise answer
        if answer is None:
            self.lose()
        else:
            on_done(answer)
        return HeldCall(self, "by id")


@asynccontextmanager
async def asked(queue: Scripted) -> AsyncIterator[Client]:
    async with serve_queue(queue) as host, Client(host.url) as client:
        queue.lose = lambda: _cut(host)
        yield client


def _cut(host: ServedQueue) -> None:
    for connection in list(host.server.connections):
        asyncio.get_running_loop().call_soon(connection.abort)


def run_story(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(story())


def kinds(outcomes: Sequence[ClientOutcome | Enqueued]) -> list[type[Exception] | None]:
    return [None if outcome.error is None else type(outcome.error) for outcome in outcomes]


@every_call
def test_only_entries_that_were_not_done_are_retried(call: Call) -> None:
    async def story() -> None:
        queue = Scripted([None, UNAVAILABLE, STALE], [errors.NotOwner("elsewhere")], [errors.Overloaded("full")])
        async with asked(queue) as client:
            assert kinds(await call(client)) == [None, None, StaleLease]
        assert queue.sent == [[0, 1, 2], [1], [1], [1]]

    run_story(story)


@every_call
@pytest.mark.parametrize(
    "failure", [UNAVAILABLE, UNKNOWN, errors.NotOwner("elsewhere"), errors.Overloaded("full"), None]
)
def test_call_that_failed_as_a_whole_is_retried_as_a_whole(call: Call, failure: Answer) -> None:
    async def story() -> None:
        queue = Scripted(failure)
        async with asked(queue) as client:
            assert kinds(await call(client)) == [None] * 3
        assert queue.sent == [[0, 1, 2]] * 2

    run_story(story)


@leased_call
@pytest.mark.parametrize("lost", [UNKNOWN, None])
@pytest.mark.parametrize("found", [STALE, NOT_FOUND])
def test_retry_that_finds_the_lease_ended_has_an_unknown_outcome(
    call: Call, lost: Answer, found: errors.FoqsError
) -> None:
    async def story() -> None:
        queue = Scripted(lost, [found, None, UNAVAILABLE], [found])
        async with asked(queue) as client:
            assert kinds(await call(client)) == [UnknownOutcome, None, UnknownOutcome]
        assert queue.sent == [[0, 1, 2], [0, 1, 2], [2]]

    run_story(story)


@every_call
def test_entries_missing_in_a_reply_are_unknown_and_retried(call: Call) -> None:
    async def story() -> None:
        queue = Scripted([UNAVAILABLE] * 3, [None], [None, errors.RateLimited("too fast")])
        async with asked(queue) as client:
            assert kinds(await call(client)) == [None, None, UnknownOutcome]
        assert queue.sent == [[0, 1, 2], [0, 1, 2], [1, 2]]

    run_story(story)


def test_items_missing_in_an_enqueue_reply_are_unknown() -> None:
    refused = Enqueued(error=Unavailable("not now"))
    items = [Item("t", idempotency_key="a"), Item("t")]
    attempts = RetriedEnqueue(items, items, None)
    assert attempts.record_results([refused, refused])  # the second item has no key and is sent once
    assert attempts.record_results([])
    assert kinds(attempts.results) == [UnknownOutcome, Unavailable]
    assert attempts.unfinished_entries == items[:1]


@deleting_call
def test_repeated_ack_or_cancel_shows_the_outcome_of_the_first(call: Call) -> None:
    async def story() -> None:
        queue = Scripted(None, [STALE, ALREADY_GONE, None])
        async with asked(queue) as client:
            outcomes = await call(client)
            assert kinds(outcomes) == [StaleLease, None, None]
            assert [outcome.already_gone for outcome in outcomes] == [False, True, False]

    run_story(story)


@every_call
def test_finally_refused_entry_is_not_retried(call: Call) -> None:
    async def story() -> None:
        for refusal in (STALE, NOT_FOUND, errors.InvalidArgument("no"), errors.DeadlineExceeded("late")):
            queue = Scripted([refusal] * 3)
            async with asked(queue) as client:
                assert None not in kinds(await call(client))
            assert len(queue.sent) == 1
        queue = Scripted(errors.RateLimited("slow down", retry_after_ms=1))
        async with asked(queue) as client:
            with pytest.raises(RateLimited):
                await call(client)
        assert len(queue.sent) == 1

    run_story(story)


@every_call
def test_call_ends_within_its_time_with_the_known_results(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_client.routed_calls.REPLY_GRACE_S", 30.0)  # every attempt gets its reply

    async def story() -> None:
        queue = Scripted(*[UNAVAILABLE] * 1_000)
        async with asked(queue) as client:
            await client.topics()  # connected
            begun = asyncio.get_running_loop().time()
            with pytest.raises(Unavailable):
                await call(client, timeout_ms=60)
            took_s = asyncio.get_running_loop().time() - begun
        assert len(queue.sent) < 20
        assert len(queue.sent) > 1 or took_s >= 0.06 - BACKOFF_S_MIN * (1 + JITTER_MAX), (
            "there was time for another attempt"
        )
        assert queue.left_s[0] < 0.061
        assert queue.left_s == sorted(queue.left_s, reverse=True)
        queue = Scripted(UNKNOWN, *[UNAVAILABLE] * 1_000)
        async with asked(queue) as client:
            await client.topics()
            with pytest.raises(UnknownOutcome):
                await call(client, timeout_ms=60)
        later: Answer = [UNAVAILABLE, UNAVAILABLE]
        queue = Scripted([None, UNKNOWN, UNAVAILABLE], *[later] * 1_000)
        async with asked(queue) as client:
            await client.topics()
            assert kinds(await call(client, timeout_ms=60)) == [None, UnknownOutcome, Unavailable]

    run_story(story)


@every_call
def test_call_is_not_retried_before_retry_after(call: Call) -> None:
    async def story() -> None:
        queue = Scripted(errors.Overloaded("full", retry_after_ms=50_000))
        async with asked(queue) as client:
            with pytest.raises(Overloaded):
                await call(client, timeout_ms=20_000)
        assert len(queue.sent) == 1

    run_story(story)


@every_call
def test_pause_before_a_retry_ends_when_the_client_is_closed(call: Call) -> None:
    async def story() -> None:
        queue = Scripted(errors.NotOwner("elsewhere", retry_after_ms=40_000))
        async with asked(queue) as client:
            pending = asyncio.ensure_future(call(client, timeout_ms=60_000))
            await soon(lambda: bool(queue.sent))
            await asyncio.sleep(0.01)
            await client.close()
            with pytest.raises(NotOwner):
                await pending

    run_story(story)


def test_dequeue_is_not_sent_twice() -> None:
    async def story() -> None:
        queue = Scripted()
        queue.failure = UNAVAILABLE
        async with asked(queue) as client:
            with pytest.raises(Unavailable):
                await client.dequeue({"t": 1})
        assert len(queue.calls) == 1

    run_story(story)


def test_calls_refused_together_retry_at_different_times_and_not_before_retry_after() -> None:
    asked_s = 0.1

    async def pauses_of(rng: Random) -> list[float]:
        pauses: list[float] = []

        async def pause(seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) < 8

        async def refused(entries: Sequence[str], timeout_ms: int) -> list[ClientOutcome]:
            return [ClientOutcome(Unavailable("not now", retry_after_ms=round(asked_s * 1_000)))]

        attempts = RetriedCallById(["3-1"])
        await attempts.retry_until_done(
            await refused([], 0), refused, asyncio.get_running_loop().time(), 60_000, pause, rng
        )
        return pauses

    async def story() -> None:
        one, other = await pauses_of(Random(1)), await pauses_of(Random(2))
        assert len(one) == len(other) == 8
        assert all(mine != others for mine, others in zip(one, other, strict=True))
        plain = [max(asked_s, min(BACKOFF_S_MIN * 2**n, BACKOFF_S_MAX)) for n in range(8)]
        for pauses in (one, other):
            assert all(least <= pause <= least * (1 + JITTER_MAX) for pause, least in zip(pauses, plain, strict=True))

    run_story(story)
