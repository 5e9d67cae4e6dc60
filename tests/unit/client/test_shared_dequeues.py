"""Tests coalesced dequeues: which caller gets an item, which sends again, and which items are released."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import pytest

from foqs_client import Deliveries, Delivery, FoqsError, InvalidArgument, Overloaded, UnknownOutcome
from foqs_client.coalescing import Coalescer
from foqs_client.shared_dequeues import SharedDequeues, distribute
from tests.support.virtual_time import run_virtual


class Host:
    """Replies to dequeues by a script, then with an empty list.

    Attributes:
        asked: (wants, wait_ms, timeout_ms) of each call.
        after_s: how long a call takes.
    """

    def __init__(self, *script: Sequence[str] | FoqsError, after_s: float = 0.001) -> None:
        self.script = list(script)
        self.after_s = after_s
        self.asked: list[tuple[dict[str, int], int, int]] = []
        self.released: list[str] = []
        self.coalescer = Coalescer()
        self.dequeues = SharedDequeues(self.coalescer, lambda found: self.released.extend(each.id for each in found))

    async def ask(self, wants: Mapping[str, int], wait_ms: int, timeout_ms: int) -> Deliveries:
        self.asked.append((dict(wants), wait_ms, timeout_ms))
        answer = self.script.pop(0) if self.script else []
        await asyncio.sleep(self.after_s)
        if isinstance(answer, FoqsError):
            raise answer
        return Deliveries(Delivery(id_, topic=id_[0]) for id_ in answer)

    async def take(self, wants: Mapping[str, int], wait_ms: int = 0, timeout_ms: int = 1_000) -> list[str]:
        return [each.id for each in await self.dequeues.dequeue(wants, wait_ms, None, timeout_ms, self.ask)]


def run_story(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run_virtual(story)


async def together(*calls: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_counts_are_summed_and_the_first_callers_are_served_first() -> None:
    async def story() -> None:
        host = Host(["t1", "t2", "t3", "t4"])
        found = await together(host.take({"t": 2}), host.take({"t": 1}), host.take({"t": 3}))
        assert found == [["t1", "t2"], ["t3"], ["t4"]]
        assert host.asked == [({"t": 6}, 0, 1_000)]
        assert not host.released

    run_story(story)


def test_each_caller_gets_at_most_its_count_of_each_topic() -> None:
    async def story() -> None:
        host = Host(["t1", "t2", "t3", "u1", "u2"])
        found = await together(host.take({"t": 1, "u": 2}), host.take({"t": 2, "u": 1}))
        assert found == [["t1", "u1", "u2"], ["t2", "t3"]]
        assert host.asked[0][0] == {"t": 3, "u": 3}

    run_story(story)


def test_single_dequeue_is_sent_unchanged() -> None:
    async def story() -> None:
        host = Host(["t1", "t2"])
        assert await host.take({"t": 5}, wait_ms=70, timeout_ms=900) == ["t1", "t2"]
        assert host.asked == [({"t": 5}, 70, 900)]
        assert host.coalescer.in_flight_count == 0

    run_story(story)


def test_caller_without_items_dequeues_again_with_the_rest_of_its_time() -> None:
    async def story() -> None:
        host = Host(["t1"], ["t2"], [], after_s=0.1)
        found = await together(*(host.take({"t": 1}, wait_ms=1_000, timeout_ms=2_000) for _ in range(4)))
        assert found == [["t1"], ["t2"], [], []]
        assert host.asked == [({"t": 4}, 1_000, 2_000), ({"t": 3}, 900, 1_900), ({"t": 2}, 800, 1_800)]

    run_story(story)


def test_caller_without_a_wait_gets_nothing_only_after_an_empty_reply() -> None:
    async def story() -> None:
        host = Host(["t1"], ["t2"])  # as a host whose answers are small
        assert await together(*(host.take({"t": 1}) for _ in range(2))) == [["t1"], ["t2"]]
        assert await together(*(host.take({"t": 1}) for _ in range(2))) == [[], []]
        assert [wait_ms for _, wait_ms, _ in host.asked] == [0, 0, 0]

    run_story(story)


def test_no_call_exceeds_its_time() -> None:
    async def story() -> None:
        host = Host(*(["t1"] for _ in range(9)), after_s=0.4)
        found = await together(*(host.take({"t": 1}, wait_ms=500, timeout_ms=1_000) for _ in range(9)))
        assert found == [["t1"]] * 3 + [[]] * 6
        assert [(wait_ms, timeout_ms) for _, wait_ms, timeout_ms in host.asked] == [(500, 1_000), (100, 600), (0, 200)]

    run_story(story)


def test_refusal_reaches_all_callers_unless_others_may_have_caused_it() -> None:
    async def story() -> None:
        host = Host(UnknownOutcome("perhaps"))
        outcomes = await together(*(host.take({"t": 1}) for _ in range(3)))
        assert [type(each) for each in outcomes] == [UnknownOutcome] * 3
        assert len(set(map(id, outcomes))) == 3
        host = Host(Overloaded("full"), ["t1"], Overloaded("full"), [])
        outcomes = await together(*(host.take({"t": n}) for n in (1, 2, 3)))
        assert (outcomes[0], type(outcomes[1]), outcomes[2]) == (["t1"], Overloaded, [])
        assert [wants["t"] for wants, _, _ in host.asked] == [6, 1, 2, 3]

    run_story(story)


def test_error_of_a_later_call_reaches_the_callers_that_still_wait() -> None:
    async def story() -> None:
        host = Host(["t1"], UnknownOutcome("perhaps"))
        outcomes = await together(*(host.take({"t": 1}) for _ in range(3)))
        assert [each if isinstance(each, list) else type(each) for each in outcomes] == [
            ["t1"], UnknownOutcome, UnknownOutcome,
        ]  # fmt: skip

    run_story(story)


@pytest.mark.parametrize("wants", [{}, {"t": 0}, {"t": -1}, {"t": 33}, {"t": 1.5}])
def test_large_or_malformed_dequeue_is_sent_alone(wants: Mapping[str, Any]) -> None:
    async def story() -> None:
        host = Host()
        await together(host.take(wants), host.take({"t": 1}), host.take(wants))
        assert [asked for asked, _, _ in host.asked].count(dict(wants)) == 2

    run_story(story)


def test_bad_time_is_refused_as_without_coalescing() -> None:
    async def story() -> None:
        host = Host(InvalidArgument("no time"), InvalidArgument("no time"), InvalidArgument("no time"))
        outcomes = await together(*(host.take({"t": 1}, wait_ms=-5, timeout_ms=0) for _ in range(2)))
        assert [type(each) for each in outcomes] == [InvalidArgument] * 2
        assert host.asked[0][1:] == (-5, 0)

    run_story(story)


# ------------------------------------------------------------------------ cancellation


@pytest.mark.parametrize("gone", [0, 1])
def test_item_for_a_cancelled_caller_is_given_to_another(gone: int) -> None:
    async def story() -> None:
        host = Host(["t1"], after_s=0.1)
        calls = [asyncio.ensure_future(host.take({"t": 1})) for _ in range(2)]
        await asyncio.sleep(0.05)
        calls[gone].cancel()
        results = await together(*calls)
        assert isinstance(results[gone], asyncio.CancelledError)
        assert results[1 - gone] == ["t1"]
        assert not host.released

    run_story(story)


def test_item_that_no_caller_wants_is_released() -> None:
    async def story() -> None:
        host = Host(["t1", "t2", "t3"], after_s=0.1)
        calls = [asyncio.ensure_future(host.take({"t": 1})) for _ in range(3)]
        await asyncio.sleep(0.05)
        calls[0].cancel()
        calls[1].cancel()
        assert (await together(*calls))[2] == ["t1"]
        assert host.released == ["t2", "t3"]
        assert len(host.asked) == 1

    run_story(story)


def test_call_is_cancelled_after_all_callers_are_cancelled() -> None:
    async def story() -> None:
        host = Host(["t1"], after_s=0.1)
        calls = [asyncio.ensure_future(host.take({"t": 1}, wait_ms=9_000, timeout_ms=10_000)) for _ in range(2)]
        await asyncio.sleep(0.05)
        for call in calls:
            call.cancel()
        await together(*calls)
        assert host.coalescer.in_flight_count == 0
        await asyncio.sleep(1)
        assert len(host.asked) == 1

    run_story(story)


def test_item_given_to_a_caller_while_it_is_cancelled_is_released() -> None:
    async def story() -> None:
        host = Host()

        async def ask(wants: Mapping[str, int], wait_ms: int, timeout_ms: int) -> Deliveries:
            await asyncio.sleep(0.1)
            # It runs when the callers have their answers, and before they do.
            asyncio.get_running_loop().call_soon(calls[0].cancel)
            return Deliveries([Delivery("t1", topic="t"), Delivery("t2", topic="t")])

        calls = [asyncio.ensure_future(host.dequeues.dequeue({"t": 1}, 0, None, 1_000, ask)) for _ in range(2)]
        results = await together(*calls)
        assert isinstance(results[0], asyncio.CancelledError)
        assert [each.id for each in results[1]] == ["t2"]
        assert host.released == ["t1"]

    run_story(story)


def test_distribute_gives_no_caller_more_than_it_wants_and_returns_the_surplus() -> None:
    found = [Delivery(id_, topic=id_[0]) for id_ in ("t1", "u1", "t2", "t3", "x1", "u2")]
    shares, surplus = distribute(found, [{"t": 1}, {"u": 1}, {"t": 1, "u": 0}])
    assert [[each.id for each in share] for share in shares] == [["t1"], ["u1"], ["t2"]]
    assert [each.id for each in surplus] == ["t3", "x1", "u2"]
