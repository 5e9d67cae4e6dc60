"""Tests automatic idempotency keys and the retries that use them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, TypeAlias

import pytest

from foqs.core.items.item import KeyedItem, NewItem
from foqs.queue.port import EnqueueOutcome, PendingCall, Repeated
from foqs_client import (
    Client,
    InvalidArgument,
    Item,
    KeyConflict,
    NotOwner,
    Overloaded,
    Unavailable,
    UnknownOutcome,
    retried_calls,
)
from foqs_client.automatic_keys import AutomaticKeys
from foqs_client.host_connection import NotSent
from foqs_contract import errors
from foqs_contract.key_slots import KEY_SLOT_COUNT, group_slot_of, key_slot_of
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue, HeldCall
from tests.support.inner_parts import pool_of
from tests.support.poll import soon
from tests.support.rpc_server import ServedQueue, serve_queue

Answer: TypeAlias = list[EnqueueOutcome] | errors.FoqsError | None
"""The reply to one attempt: results, a failure, or None for a lost connection."""

UNKNOWN = errors.UnknownOutcome("perhaps")
UNAVAILABLE = errors.Unavailable("not now", retry_after_ms=1)


class Scripted(FakeQueue):
    """Replies to enqueues by a script, then as usual."""

    def __init__(self, *script: Answer) -> None:
        super().__init__()
        self.script = list(script)
        self.sent: list[list[NewItem]] = []
        self.lose: Callable[[], None] = lambda: None

    def enqueue(
        self,
        namespace: str,
        items: Sequence[NewItem],
        deadline: float,
        on_done: Callable[[list[EnqueueOutcome]], None],
        *,
        is_atomic: bool = False,
    ) -> PendingCall:
        self.sent.append(list(items))
        if not self.script:
            return super().enqueue(namespace, items, deadline, on_done, is_atomic=is_atomic)
        answer = self.script.pop(0)
        if isinstance(answer, errors.FoqsError):
            raise answer
        if answer is None:
            self.lose()
        else:
            on_done(answer)
        return HeldCall(self, "enqueue")

    @property
    def keys_sent(self) -> list[list[bytes | None]]:
        return [
            [item.idempotency_key if isinstance(item, KeyedItem) else None for item in items] for items in self.sent
        ]


@asynccontextmanager
async def asked(queue: Scripted, **options: Any) -> AsyncIterator[Client]:
    async with serve_queue(queue) as host, Client(host.url, rng=Random(3), **options) as client:
        queue.lose = lambda: _cut(host)
        yield client


def _cut(host: ServedQueue) -> None:
    for connection in list(host.server.connections):
        asyncio.get_running_loop().call_soon(connection.abort)


def run_story(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    run(story())


# ------------------------------------------------------------------------ the keys


def test_items_without_a_key_get_one_and_the_callers_items_are_unchanged() -> None:
    async def story() -> None:
        queue = Scripted()
        items = [
            Item("t", b"1"),
            Item("t", b"2", idempotency_key="mine"),
            Item("t", b"3", delay_ms=5, at_most_once=True),
        ]
        kept = [*items]
        async with asked(queue) as client:
            await client.enqueue(items)
            await client.enqueue(items[:1])
        assert [item.idempotency_key for item in items] == [None, "mine", None]
        assert items == kept
        (one, mine, three), (again,) = queue.keys_sent
        assert mine == b"mine"
        assert None not in {one, three, again}
        assert len({one, three, again}) == 3
        assert queue.sent[0][2].delay_ms == 5
        assert queue.sent[0][2].policy == 2

    run_story(story)


def test_items_are_sent_unchanged_without_automatic_keys() -> None:
    async def story() -> None:
        queue = Scripted()
        async with asked(queue, automatic_keys=False) as client:
            await client.enqueue([Item("t"), Item("t", idempotency_key="k")])
        assert queue.keys_sent == [[None, b"k"]]

    run_story(story)


def test_keys_of_one_call_share_a_slot_and_calls_use_all_slots() -> None:
    keys = AutomaticKeys(Random(1))
    calls = [[str(item.idempotency_key) for item in keys.with_keys([Item("t")] * 3)] for _ in range(KEY_SLOT_COUNT)]
    slots = [{key_slot_of(key.encode()) for key in call} for call in calls]
    assert all(len(slot) == 1 for slot in slots)
    assert {slot.pop() for slot in slots} == set(range(KEY_SLOT_COUNT))
    assert len({key for call in calls for key in call}) == 3 * KEY_SLOT_COUNT
    starts = {str(AutomaticKeys(Random(seed)).with_keys([Item("t")])[0].idempotency_key)[:4] for seed in range(20)}
    assert len(starts) > 15


def test_the_keys_of_an_atomic_call_are_in_the_slot_of_its_group() -> None:
    keys = AutomaticKeys(Random(1), namespace="n")
    made = keys.with_joint_keys([Item("t"), Item("t", group="g"), Item("t", group="h")])
    assert {key_slot_of((item.idempotency_key or "").encode()) for item in made} == {group_slot_of(b"n", b"g")}
    given = [Item("t"), Item("t", group="g", idempotency_key="~007")]
    assert keys.with_joint_keys(given) == given


def test_an_item_keeps_its_group_when_it_gets_a_key() -> None:
    [item] = AutomaticKeys(Random(1)).with_keys([Item("t", b"p", group="g", key_until_ms=5)])
    assert (item.group, item.payload, item.key_until_ms) == ("g", b"p", 5)


# ----------------------------------------------------------------------------- retries


@pytest.mark.parametrize("trouble", [UNKNOWN, None, [UNKNOWN, UNKNOWN]])
def test_items_that_may_have_been_written_are_retried_with_the_same_keys(trouble: Answer) -> None:
    async def story() -> None:
        queue = Scripted(trouble, [Repeated("3-9"), "3-10"])
        async with asked(queue) as client:
            first, second = await client.enqueue([Item("t"), Item("u")])
        assert [(first.id, first.repeated), (second.id, second.repeated)] == [("3-9", False), ("3-10", False)]
        once, again = queue.keys_sent
        assert once == again

    run_story(story)


def test_items_that_were_not_written_are_retried_in_another_slot() -> None:
    async def story() -> None:
        queue = Scripted(UNAVAILABLE, [UNAVAILABLE, "3-10"])
        async with asked(queue) as client:
            results = await client.enqueue([Item("t"), Item("u")])
        assert [result.error for result in results] == [None, None]
        assert results[1].id == "3-10"
        assert [len(keys) for keys in queue.keys_sent] == [2, 2, 1]
        assert len({key for keys in queue.keys_sent for key in keys}) == 5

    run_story(story)


def test_an_atomic_call_is_repeated_as_a_whole_with_keys_of_one_slot() -> None:
    async def story() -> None:
        queue = Scripted(UNAVAILABLE, UNKNOWN, None, ["3-9", "3-10", "3-11"])
        async with asked(queue) as client:
            results = await client.enqueue([Item("t"), Item("u"), Item("v")], atomic=True)
        assert [result.id for result in results] == ["3-9", "3-10", "3-11"]
        _, first, second, third = queue.keys_sent
        assert first == second == third
        for keys in queue.keys_sent:
            assert len({key_slot_of(key) for key in keys if key is not None}) == 1
            assert len(keys) == 3

    run_story(story)


def test_an_atomic_call_with_keys_of_the_caller_is_repeated_with_them() -> None:
    async def story() -> None:
        items = [Item("t", idempotency_key="~000a"), Item("u", idempotency_key="~000b")]
        queue = Scripted(UNKNOWN, ["3-9", "3-10"], ["3-9", "3-10"])
        async with asked(queue) as client:
            for _ in range(2):
                await client.enqueue(items, atomic=True)
        assert [list(keys) for keys in queue.keys_sent] == [[b"~000a", b"~000b"]] * 3

    run_story(story)


def test_an_atomic_call_of_which_some_items_have_keys_gets_no_others_and_is_refused() -> None:
    async def story() -> None:
        queue = Scripted()
        async with asked(queue) as client:
            with pytest.raises(errors.InvalidArgument, match="give each item a key, or none"):
                await client.enqueue([Item("t", idempotency_key="mine"), Item("u")], atomic=True)
        assert queue.keys_sent == []

    run_story(story)


@pytest.mark.parametrize("answer", [errors.KeyConflict("used", field="items[1]"), [UNKNOWN, UNKNOWN], UNAVAILABLE])
def test_an_atomic_call_that_fails_raises(answer: Answer) -> None:
    async def story() -> None:
        queue = Scripted(*[answer] * 100)
        async with asked(queue, automatic_keys=not isinstance(answer, list)) as client:
            with pytest.raises((KeyConflict, UnknownOutcome, Unavailable)):
                await client.enqueue([Item("t"), Item("u")], atomic=True, timeout_ms=300)
        assert all(len(keys) == 2 for keys in queue.keys_sent)
        assert (len(queue.sent) == 1) == (answer is not UNAVAILABLE)

    run_story(story)


def test_callers_keys_are_kept_and_repeats_are_reported() -> None:
    async def story() -> None:
        queue = Scripted([UNAVAILABLE], UNKNOWN, [Repeated("3-9")])
        async with asked(queue) as client:
            (result,) = await client.enqueue([Item("t", idempotency_key="k")])
        assert (result.id, result.repeated) == ("3-9", True)
        assert queue.keys_sent == [[b"k"]] * 3

    run_story(story)


def test_items_without_a_key_are_sent_once() -> None:
    async def story() -> None:
        queue = Scripted([UNKNOWN, UNKNOWN, UNAVAILABLE], ["3-1"])
        async with asked(queue, automatic_keys=False) as client:
            plain, with_key, other = await client.enqueue([Item("t"), Item("t", idempotency_key="k"), Item("t")])
        assert isinstance(plain.error, UnknownOutcome)
        assert with_key.id == "3-1"
        assert isinstance(other.error, Unavailable)
        assert queue.keys_sent == [[None, b"k", None], [b"k"]]

    run_story(story)


@pytest.mark.parametrize(
    "final", [errors.InvalidArgument("no"), errors.KeyConflict("another"), errors.RateLimited("slower")]
)
def test_final_error_is_returned_at_once(final: errors.FoqsError) -> None:
    async def story() -> None:
        queue = Scripted([final, "3-1"])
        async with asked(queue) as client:
            bad, good = await client.enqueue([Item("t", idempotency_key="k"), Item("t")])
        assert bad.error is not None
        assert bad.error.code == final.code
        assert good.id == "3-1"
        assert len(queue.sent) == 1

    run_story(story)


# ------------------------------------------------------------------- known results


@pytest.mark.parametrize(
    "later", [errors.InvalidArgument("no"), errors.NamespaceNotFound("gone"), errors.RateLimited("slower")]
)
def test_items_that_may_have_been_written_are_never_reported_as_not_written(later: errors.FoqsError) -> None:
    async def story() -> None:
        queue = Scripted([UNKNOWN, "3-2"], [later])
        async with asked(queue) as client:
            first, second = await client.enqueue([Item("t"), Item("u")])
        assert isinstance(first.error, UnknownOutcome)
        assert second.id == "3-2"
        queue = Scripted(None, later)
        async with asked(queue) as client:
            with pytest.raises(UnknownOutcome):
                await client.enqueue([Item("t"), Item("u")])

    run_story(story)


def test_item_with_a_key_conflict_was_not_written() -> None:
    async def story() -> None:
        queue = Scripted([UNKNOWN], [errors.KeyConflict("another")])
        async with asked(queue) as client:
            (result,) = await client.enqueue([Item("t", idempotency_key="k")])
        assert isinstance(result.error, KeyConflict)

    run_story(story)


def test_enqueue_ends_by_its_deadline_with_the_last_known_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_client.routed_calls.REPLY_GRACE_S", 30.0)  # every attempt gets its reply

    async def story() -> None:
        queue = Scripted(*[UNAVAILABLE] * 1_000)
        async with asked(queue) as client:
            await client.topics()  # connected
            begun = asyncio.get_running_loop().time()
            with pytest.raises(Unavailable):
                await client.enqueue([Item("t")], timeout_ms=60)
            took_s = asyncio.get_running_loop().time() - begun
        assert len(queue.sent) < 20
        longest_s = retried_calls.BACKOFF_S_MIN * (1 + retried_calls.JITTER_MAX)
        assert len(queue.sent) > 1 or took_s >= 0.06 - longest_s, "there was time for another attempt"
        later: Answer = [UNAVAILABLE]
        queue = Scripted(["3-1", UNKNOWN], *[later] * 1_000)
        async with asked(queue) as client:
            await client.topics()
            known, unknown = await client.enqueue([Item("t"), Item("t")], timeout_ms=60)
        assert known.id == "3-1"
        assert isinstance(unknown.error, UnknownOutcome)

    run_story(story)


def test_attempt_that_reaches_no_host_keeps_the_result_of_the_earlier_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_client.retried_calls.BACKOFF_S_MIN", 1.0)  # the connection is cut before the next attempt

    async def story() -> None:
        queue = Scripted(errors.NotOwner("elsewhere"), ["3-1", UNAVAILABLE])
        async with serve_queue(queue) as host:
            client = Client(host.url)
            queue.lose = lambda: None
            reached = pool_of(client).wait_for_connection

            async def once(deadline: float, *, retry_connect: bool = True) -> Any:
                if queue.sent:
                    raise NotSent("nobody is there")
                return await reached(deadline, retry_connect=retry_connect)

            pool_of(client).wait_for_connection = once  # type: ignore[method-assign]
            pending = asyncio.ensure_future(client.enqueue([Item("t")]))
            await soon(lambda: bool(queue.sent))
            _cut(host)
            with pytest.raises(NotOwner):
                await pending
            await client.close()

    run_story(story)


def test_no_retry_before_retry_after() -> None:
    async def story() -> None:
        queue = Scripted(errors.Overloaded("full", retry_after_ms=50_000))
        async with asked(queue) as client:
            with pytest.raises(Overloaded):
                await client.enqueue([Item("t")], timeout_ms=20_000)
        assert len(queue.sent) == 1

    run_story(story)


def test_no_retry_after_the_shortest_key_window(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr("foqs_client.retried_calls.RETRY_S_MAX", 0.05)
        queue = Scripted(*[UNKNOWN] * 1_000)
        async with asked(queue) as client:
            with pytest.raises(UnknownOutcome):
                await client.enqueue([Item("t")], timeout_ms=20_000)
        assert len(queue.sent) < 20
        assert retried_calls.RETRY_S_MAX < 120

    run_story(story)


def test_bad_call_is_not_retried() -> None:
    async def story() -> None:
        queue = Scripted()
        async with asked(queue) as client:
            assert await client.enqueue([]) == []
            with pytest.raises(InvalidArgument):
                await client.enqueue([Item("t")], timeout_ms=0)
        assert queue.sent == []

    run_story(story)
