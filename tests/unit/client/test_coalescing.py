"""Tests coalesced calls: which calls are sent as one, and what each caller gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from foqs.core.items.item import KeyedItem, NewItem
from foqs.queue.call_limits import CallLimits
from foqs.queue.port import EnqueueOutcome, PendingCall
from foqs_client import (
    Client,
    FoqsError,
    InvalidArgument,
    Item,
    KeyConflict,
    LimitExceeded,
    Nack,
    NamespaceNotFound,
    RateLimited,
    Unavailable,
    UnknownOutcome,
)
from foqs_client.coalescing import ENTRIES_PER_CALL_MAX, ENTRIES_PER_CALLER_MAX
from foqs_contract import errors
from foqs_contract.key_slots import key_slot_of
from tests.support.aio import run
from tests.support.fake_queue import LIMITS, FakeQueue, HeldCall
from tests.support.inner_parts import coalescer_of
from tests.support.poll import soon
from tests.support.rpc_server import serve_queue

IDS = [f"3-{(1 << 43) + n}" for n in range(1, 6)]


class Counting(FakeQueue):
    """Records the sizes of calls. Enqueues get replies by a script, then ids."""

    def __init__(self, *script: errors.FoqsError | list[EnqueueOutcome], limits: CallLimits = LIMITS) -> None:
        super().__init__(limits)
        self.script = list(script)

    def sizes(self, name: str) -> list[int]:
        return [len(details) for called, details in self.calls if called == name]  # type: ignore[arg-type]

    def enqueue(
        self,
        namespace: str,
        items: Sequence[NewItem],
        deadline: float,
        on_done: Callable[[list[EnqueueOutcome]], None],
        *,
        is_atomic: bool = False,
    ) -> PendingCall:
        if not self.script:
            return super().enqueue(namespace, items, deadline, on_done, is_atomic=is_atomic)
        self.calls.append(("enqueue", list(items)))
        answer = self.script.pop(0)
        if isinstance(answer, errors.FoqsError):
            raise answer
        on_done(answer)
        return HeldCall(self, "enqueue")


@asynccontextmanager
async def asked(queue: FakeQueue, **more: Any) -> AsyncIterator[Client]:
    async with serve_queue(queue) as host, Client(host.url, **more) as client:
        await client.topics()
        queue.calls.clear()
        yield client


def run_story(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(story())


def test_atomic_calls_are_sent_alone_and_whole() -> None:
    async def story() -> None:
        queue = FakeQueue()
        async with asked(queue) as client:
            await asyncio.gather(*(client.enqueue([Item("t"), Item("u")], atomic=True) for _ in range(3)))
        assert [len(details) for name, details in queue.calls if name == "enqueue"] == [2, 2, 2]  # type: ignore[arg-type]
        assert queue.atomic_calls == 3

    run_story(story)


async def together(*calls: Awaitable[Any]) -> list[Any]:
    """Return the results of calls made in one turn of the event loop."""
    return await asyncio.gather(*calls, return_exceptions=True)


# ---------------------------------------------------------------- which calls coalesce


def test_calls_of_one_turn_are_coalesced_and_each_caller_gets_its_own_results() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            results = await together(*(client.enqueue([Item(f"t{n}")] * (1 + n % 2)) for n in range(20)))
            ids = [[result.require() for result in each] for each in results]
            assert [len(each) for each in ids] == [1, 2] * 10
            assert queue.sizes("enqueue") == [30]
            for n, each in enumerate(ids):
                assert [(await client.item(id_)).topic for id_ in each] == [f"t{n}"] * len(each)
            outcomes = await together(*(client.ack([(id_, 1) for id_ in each]) for each in ids))
            assert [len(each) for each in outcomes] == [1, 2] * 10
            assert queue.sizes("ack") == [30]
            assert not queue.rows

    run_story(story)


def test_call_by_id_is_coalesced_only_with_its_own_kind() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            one, two = IDS[:2]
            await together(
                *(client.nack([Nack(id_, 1)]) for id_ in (one, two)),
                *(client.extend([(id_, 1)]) for id_ in (one, two)),
                *(client.release([(id_, 1)]) for id_ in (one, two)),
                *(client.cancel([id_]) for id_ in (one, two)),
                *(client.ack([(id_, 1)]) for id_ in (one, two)),
            )
            assert queue.sizes("apply") == [2, 2, 2, 2]
            assert queue.sizes("ack") == [2]

    run_story(story)


def test_callers_woken_by_one_reply_are_coalesced_again() -> None:
    async def story() -> None:
        queue = Counting()

        async def work(client: Client, number: int) -> None:
            for _ in range(3):
                await client.enqueue([Item("t")])
                [delivery] = await client.dequeue({"t": 1})
                await client.ack([delivery])

        async with asked(queue) as client:
            await asyncio.gather(*(work(client, number) for number in range(10)))
            assert queue.sizes("enqueue") == queue.sizes("ack") == [10] * 3
            assert [wants for name, (wants, *_) in queue.calls if name == "dequeue"] == [[("t", 10)]] * 3  # type: ignore[misc,has-type]

    run_story(story)


def test_single_call_is_sent_by_its_caller() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            queue.gate = asyncio.Event()
            tasks = asyncio.all_tasks()
            calls = [
                asyncio.ensure_future(call)
                for call in (client.enqueue([Item("t")]), client.ack([(IDS[0], 1)]), client.dequeue({"t": 1}))
            ]
            await soon(lambda: queue.running == 3)
            assert coalescer_of(client).in_flight_count == 0
            assert len(asyncio.all_tasks() - tasks) == len(calls) + queue.running  # of the host
            queue.gate.set()
            await asyncio.gather(*calls)

    run_story(story)


def test_client_without_coalescing_sends_every_call_alone() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue, coalesce=False) as client:
            await together(*(client.enqueue([Item("t")]) for _ in range(3)))
            found = await together(*(client.dequeue({"t": 1}) for _ in range(3)))
            await together(*(client.ack(each) for each in found))
            assert [name for name, _ in queue.calls] == ["enqueue"] * 3 + ["dequeue"] * 3 + ["ack"] * 3

    run_story(story)


def test_calls_with_different_times_topics_or_leases_are_not_coalesced() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            await together(client.enqueue([Item("t")], timeout_ms=500), client.enqueue([Item("t")], timeout_ms=501))
            await together(
                client.dequeue({"t": 1}),
                client.dequeue({"u": 1}),
                client.dequeue({"t": 1}, lease_ms=7),
                client.dequeue({"t": 1}, wait_ms=7, timeout_ms=10_000),
                client.dequeue({"t": 1}, timeout_ms=7_000),
            )
            await together(client.ack([(IDS[0], 1)], timeout_ms=500), client.ack([(IDS[1], 1)], timeout_ms=501))
            assert queue.sizes("enqueue") == queue.sizes("ack") == [1, 1]
            assert len(queue.sizes("dequeue")) == 5

    run_story(story)


def test_large_calls_are_sent_alone_and_a_coalesced_call_has_a_limit() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            await together(client.enqueue([Item("t")]), client.enqueue([Item("t")] * (ENTRIES_PER_CALLER_MAX + 1)))
            await together(client.enqueue([Item("t")]), client.enqueue([Item("t", b"x" * 10_000)] * 7))
            assert sorted(queue.sizes("enqueue")) == [1, 1, 7, ENTRIES_PER_CALLER_MAX + 1]
            queue.calls.clear()
            await together(*(client.enqueue([Item("t")]) for _ in range(ENTRIES_PER_CALL_MAX + 10)))
            await together(*(client.enqueue([Item("t", b"x" * 10_000)] * 5) for _ in range(7)))
            assert queue.sizes("enqueue") == [ENTRIES_PER_CALL_MAX, 10, 25, 10]

    run_story(story)


def test_id_that_two_callers_name_is_sent_in_two_calls() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            [one], [two], [three] = await together(
                client.ack([(IDS[0], 1)]), client.ack([(IDS[0], 2)]), client.ack([(IDS[1], 1)])
            )
            assert [one.error, two.error, three.error] == [None] * 3
            assert sorted(queue.sizes("ack")) == [1, 2]
            [bad, worse], [good] = await together(client.ack([(IDS[0], 1), (IDS[0], 1)]), client.ack([(IDS[2], 1)]))
            assert [type(outcome.error) for outcome in (bad, worse, good)] == [type(None), InvalidArgument, type(None)]
            assert worse.error.field == "leases[1].id"

    run_story(story)


# -------------------------------------------------------------------------------- keys


def test_automatic_keys_of_a_coalesced_call_share_one_slot() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            await together(*(client.enqueue([Item("t")] * 2) for _ in range(10)))
            [(_, items)] = queue.calls
            assert isinstance(items, list)
            keys = [item.idempotency_key.decode() for item in items if isinstance(item, KeyedItem)]
            assert len(set(keys)) == 20
            assert len({key_slot_of(key.encode()) for key in keys}) == 1

    run_story(story)


def test_calls_with_keys_of_their_callers_are_not_coalesced() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            await together(
                client.enqueue([Item("t", idempotency_key="k")]), client.enqueue([Item("t", idempotency_key="l")])
            )
            assert queue.sizes("enqueue") == [1, 1]

    run_story(story)


def test_each_caller_retries_its_entries_of_a_coalesced_call_with_unknown_outcome() -> None:
    async def story() -> None:
        queue = Counting(errors.UnknownOutcome("perhaps"))
        async with asked(queue) as client:
            results = await together(client.enqueue([Item("t")]), client.enqueue([Item("u"), Item("u")]))
            assert [[result.error for result in each] for each in results] == [[None], [None, None]]
            keys = [[item.idempotency_key for item in items] for _, items in queue.calls]  # type: ignore[attr-defined]
            assert sorted(map(len, keys)) == [1, 2, 3]
            assert sorted(keys[1] + keys[2]) == sorted(keys[0])
            assert len(queue.rows) == 3
        queue = Counting(errors.UnknownOutcome("perhaps"))
        async with asked(queue, automatic_keys=False) as client:
            results = await together(client.enqueue([Item("t")]), client.enqueue([Item("u")]))
            assert [type(result) for result in results] == [UnknownOutcome] * 2
            assert results[0] is not results[1]
            assert queue.sizes("enqueue") == [2]

    run_story(story)


# ------------------------------------------------------------------------------ errors


def test_error_of_a_bad_item_has_the_index_of_its_own_caller() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            [good], [fine, bad] = await together(client.enqueue([Item("t")]), client.enqueue([Item("t"), Item("")]))
            assert good.error is fine.error is None
            assert isinstance(bad.error, InvalidArgument)
            assert bad.error.field == "items[1].topic"
            assert queue.sizes("enqueue") == [2]
            [one], [_, two] = await together(client.ack([(IDS[0], 1)]), client.ack([(IDS[1], 1), ("nonsense", 1)]))
            assert one.error is None
            assert two.error.field == "leases[1].id"

    run_story(story)


@pytest.mark.parametrize(
    "bad", [Item("t", priority=1 << 31), Item("\ud800"), Item("t", ttl_ms=1 << 70), Item("t", metadata=b"m" * 20_000)]
)
def test_item_that_spoils_a_whole_call_affects_only_its_caller(bad: Item) -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            [one], refused, [two] = await together(
                client.enqueue([Item("t")]), client.enqueue([bad]), client.enqueue([Item("t")])
            )
            assert one.error is two.error is None
            error = refused if isinstance(refused, FoqsError) else refused[0].error
            assert isinstance(error, InvalidArgument | LimitExceeded)
            assert len(queue.rows) == 2

    run_story(story)


@pytest.mark.parametrize(
    "refusal",
    [
        errors.LimitExceeded("too many"),
        errors.RateLimited("slower", retry_after_ms=9),
        errors.Overloaded("full"),
        errors.InvalidArgument("bad"),
    ],
)
def test_callers_send_alone_after_an_error_that_others_may_have_caused(refusal: errors.FoqsError) -> None:
    async def story() -> None:
        queue = Counting(refusal, ["3-1"], errors.RateLimited("slower", retry_after_ms=7), ["3-3"])
        async with asked(queue) as client:
            one, two, three = await together(*(client.enqueue([Item("t")]) for _ in range(3)))
            assert (one[0].id, three[0].id) == ("3-1", "3-3")
            assert isinstance(two, RateLimited)
            assert two.retry_after_ms == 7
            assert queue.sizes("enqueue") == [3, 1, 1, 1]

    run_story(story)


def test_callers_send_alone_if_all_items_together_were_too_many() -> None:
    async def story() -> None:
        beyond = errors.RateLimited("slower", retry_after_ms=9)
        queue = Counting([beyond, beyond, "3-9", beyond], ["3-1"], ["3-2"])
        async with asked(queue) as client:
            one, two, [third, fourth] = await together(
                client.enqueue([Item("t")]), client.enqueue([Item("t")]), client.enqueue([Item("t"), Item("t")])
            )
            assert (one[0].id, two[0].id, third.id) == ("3-1", "3-2", "3-9")
            assert isinstance(fourth.error, RateLimited)  # a part of it was written
            assert queue.sizes("enqueue") == [4, 1, 1]

    run_story(story)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [(errors.NamespaceNotFound("no"), NamespaceNotFound), (errors.Unavailable("later", retry_after_ms=9), Unavailable)],
)
def test_error_that_is_true_of_all_reaches_every_caller(refusal: errors.FoqsError, kind: type[FoqsError]) -> None:
    async def story() -> None:
        queue = Counting(refusal)
        async with asked(queue, automatic_keys=False) as client:
            errors = await together(*(client.enqueue([Item("t")]) for _ in range(3)))
            assert [type(error) for error in errors] == [kind] * 3
            assert len(set(map(id, errors))) == 3
            assert {error.retry_after_ms for error in errors} == {refusal.retry_after_ms}
            assert queue.sizes("enqueue") == [3]

    run_story(story)


def test_host_with_a_lower_limit_gets_smaller_calls() -> None:
    async def story() -> None:
        queue = Counting(limits=replace(LIMITS, items_per_call_max=2))
        async with asked(queue) as client:
            results = await together(*(client.enqueue([Item("t")]) for _ in range(5)))
            assert [result.error for [result] in results] == [None] * 5
            found = await together(*(client.dequeue({"t": 1}) for _ in range(5)))
            assert [len(each) for each in found] == [1] * 5
            outcomes = await together(*(client.ack(each) for each in found))
            assert [outcome.error for [outcome] in outcomes] == [None] * 5

    run_story(story)


def test_key_conflict_or_repeat_reaches_only_its_caller() -> None:
    async def story() -> None:
        queue = Counting(["3-1", errors.KeyConflict("another"), "3-3"])
        async with asked(queue) as client:
            [one], [two], [three] = await together(*(client.enqueue([Item("t")]) for _ in range(3)))
            assert (one.id, three.id) == ("3-1", "3-3")
            assert isinstance(two.error, KeyConflict)

    run_story(story)


# ------------------------------------------------------------------------ cancellation


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_caller_cancelled_before_the_call_is_sent_removes_only_its_entries(gone: int) -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            calls = [asyncio.ensure_future(client.enqueue([Item(f"t{n}")])) for n in range(3)]
            await asyncio.sleep(0)
            calls[gone].cancel()
            results = await together(*calls)
            assert isinstance(results.pop(gone), asyncio.CancelledError)
            topics = [(await client.item(result.require())).topic for [result] in results]
            assert topics == [f"t{n}" for n in range(3) if n != gone]
            assert queue.sizes("enqueue") == [2]

    run_story(story)


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_caller_cancelled_during_the_call_affects_no_other(gone: int) -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            queue.gate = asyncio.Event()
            calls = [asyncio.ensure_future(client.enqueue([Item(f"t{n}")])) for n in range(3)]
            await soon(lambda: queue.running == 1)
            calls[gone].cancel()
            await asyncio.sleep(0)
            assert calls[gone].cancelled()
            queue.gate.set()
            results = await together(*calls)
            topics = [(await client.item(each[0].require())).topic for n, each in enumerate(results) if n != gone]
            assert topics == [f"t{n}" for n in range(3) if n != gone]

    run_story(story)


def test_single_caller_that_is_cancelled_sends_nothing() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue) as client:
            call = asyncio.ensure_future(client.enqueue([Item("t")]))
            await asyncio.sleep(0)
            call.cancel()
            await together(call)
            await client.topics()
            assert queue.sizes("enqueue") == []

    run_story(story)


def test_closing_the_client_ends_coalesced_calls() -> None:
    async def story() -> None:
        queue = Counting()
        async with asked(queue, automatic_keys=False) as client:
            queue.gate = asyncio.Event()
            calls: list[asyncio.Future[Any]] = [asyncio.ensure_future(client.enqueue([Item("t")])) for _ in range(2)]
            calls += [asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=9_000)) for _ in range(2)]
            await soon(lambda: queue.running == 2)
            await client.close()
            assert coalescer_of(client).in_flight_count == 0
            assert [type(each) for each in await together(*calls)] == [UnknownOutcome] * 4

    run_story(story)


class Breakable(Random):
    """Makes the idempotency keys of enqueues, until it breaks."""

    is_broken = False

    def getrandbits(self, bits: int, /) -> int:
        if self.is_broken:
            raise ZeroDivisionError
        return super().getrandbits(bits)


def test_internal_error_reaches_every_caller() -> None:
    async def story() -> None:
        rng = Breakable()
        async with asked(Counting(), rng=rng) as client:
            rng.is_broken = True
            errors = await together(*(client.enqueue([Item("t")]) for _ in range(3)))
            assert [type(error) for error in errors] == [ZeroDivisionError] * 3

    run_story(story)
