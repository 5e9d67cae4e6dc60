"""Tests the calls of the Spark sink: in parallel, retried until enqueued; the first failure ends the task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

import pytest

from foqs_client import (
    FoqsError,
    InvalidArgument,
    Item,
    KeyConflict,
    LimitExceeded,
    NamespaceNotFound,
    NotOwner,
    Overloaded,
    RateLimited,
    Unavailable,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.options import OnError
from foqs_client.spark.row_errors import RowErrors
from foqs_client.spark.sender import NAMESPACES_MAX, EnqueueClient, Sender
from foqs_client.types import Enqueued
from foqs_contract.key_slots import key_slot_of
from tests.support.virtual_time import run_virtual

T = TypeVar("T")
TIMEOUT_MS = 60_000


class Queue:
    """Replies to calls by a script, then accepts everything. Each call takes a second."""

    def __init__(self, *script: FoqsError | list[Enqueued]) -> None:
        self.script = list(script)
        self.sent: list[list[str]] = []
        """The keys of each call."""
        self.times: list[float] = []
        self.busy = 0
        self.busiest = 0
        self.cancelled = 0
        self.closed = False

    async def enqueue(self, items: Sequence[Item], *, timeout_ms: int) -> list[Enqueued]:
        assert timeout_ms >= 1
        self.sent.append([item.idempotency_key or "" for item in items])
        self.times.append(asyncio.get_running_loop().time())
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.busy -= 1
        answer = self.script.pop(0) if self.script else [Enqueued(f"0-{place}") for place in range(len(items))]
        if isinstance(answer, FoqsError):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True


def play(
    queue: Queue,
    story: Callable[[Sender], Awaitable[T]],
    calls: int = 4,
    timeout_ms: int = TIMEOUT_MS,
    errors: RowErrors | None = None,
) -> T:
    errors = errors or RowErrors(OnError.FAIL, "")

    async def main() -> T:
        async with Sender(lambda namespace: queue, calls, timeout_ms, Random(1), errors) as sender:
            return await story(sender)

    found = run_virtual(main)
    assert queue.closed
    return found


def items(count: int, prefix: str = "") -> list[Item]:
    return [Item("mail", b"x", idempotency_key=f"{prefix}{number}") for number in range(count)]


def test_calls_in_flight_stay_within_the_limit_and_all_items_are_enqueued() -> None:
    async def story(sender: Sender) -> tuple[int, int]:
        for number in range(10):
            await sender.submit("default", items(3, f"{number}-"))
        await sender.wait_all_enqueued()
        return sender.enqueued_count, sender.repeated_count

    queue = Queue()
    assert play(queue, story, calls=3) == (30, 0)
    assert queue.busiest == 3
    assert len(queue.sent) == 10


@pytest.mark.parametrize(
    "error",
    [
        Unavailable("not now"),
        Overloaded("full"),
        RateLimited("too many"),
        NotOwner("moved"),
        UnknownOutcome("lost"),
        Unreachable("nobody"),
    ],
)
def test_retryable_failure_is_retried_with_the_same_keys(error: FoqsError) -> None:
    async def story(sender: Sender) -> int:
        await sender.submit("default", items(3))
        await sender.wait_all_enqueued()
        return sender.enqueued_count

    queue = Queue(error, [Enqueued("0-1"), Enqueued(error=error), Enqueued("0-2")])
    assert play(queue, story) == 3
    assert queue.sent == [["0", "1", "2"], ["0", "1", "2"], ["1"]]


def test_items_of_an_earlier_attempt_are_counted_as_repeated() -> None:
    async def story(sender: Sender) -> tuple[int, int]:
        await sender.submit("default", items(2))
        await sender.wait_all_enqueued()
        return sender.enqueued_count, sender.repeated_count

    assert play(Queue([Enqueued("0-1", repeated=True), Enqueued("0-2")]), story) == (2, 1)


def test_pauses_grow_and_obey_retry_after() -> None:
    async def story(sender: Sender) -> None:
        await sender.submit("default", items(1))
        await sender.wait_all_enqueued()

    queue = Queue(RateLimited("too many", retry_after_ms=9_000), *[Unavailable("not now")] * 3)
    play(queue, story)
    pauses = [later - begun - 1 for begun, later in zip(queue.times, queue.times[1:], strict=False)]
    assert pauses[0] >= 9
    assert pauses[1] < pauses[2] < pauses[3]


def test_items_that_are_not_enqueued_in_time_end_the_task_with_the_reason() -> None:
    async def story(sender: Sender) -> None:
        await sender.submit("default", items(2))
        await sender.wait_all_enqueued()

    queue = Queue(*[Unavailable("its database is away")] * 1_000)
    with pytest.raises(SinkError, match=r"2 items for the namespace 'default' .* within 60 s .*its database is away"):
        play(queue, story)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (InvalidArgument("it is empty", field="items[0].topic"), "the column topic of a row was refused: INVALID_ARG"),
        (KeyConflict("another item has it"), "a row was refused: KEY_CONFLICT: another item has it"),
    ],
)
def test_finally_refused_row_ends_the_task_and_drops_the_other_calls(error: FoqsError, message: str) -> None:
    async def story(sender: Sender) -> None:
        await sender.submit("default", items(1))
        await asyncio.sleep(0.5)
        for _ in range(100):
            await sender.submit("default", items(1))
        await sender.wait_all_enqueued()

    queue = Queue([Enqueued(error=error)])
    with pytest.raises(SinkError, match=message):
        play(queue, story, calls=2)
    assert len(queue.sent) == 2
    assert queue.cancelled == 1


def test_error_of_a_refused_call_names_the_namespace() -> None:
    async def story(sender: Sender) -> None:
        await sender.submit("nope", items(1))
        await sender.wait_all_enqueued()

    with pytest.raises(SinkError, match="the namespace 'nope' accepted none of its rows: NAMESPACE_NOT_FOUND: make it"):
        play(Queue(NamespaceNotFound("make it")), story)


def test_number_of_namespaces_of_a_task_is_limited() -> None:
    async def story(sender: Sender) -> None:
        for number in range(NAMESPACES_MAX + 1):
            await sender.submit(f"n{number}", items(1))

    with pytest.raises(SinkError, match="repartition the frame by namespace"):
        play(Queue(), story)


def refused(*errors: FoqsError | None) -> list[Enqueued]:
    return [Enqueued("0-1") if error is None else Enqueued(error=error) for error in errors]


TOO_LARGE = LimitExceeded("this has 9 bytes; the namespace allows 5", field="items[0].payload")


def submit(count: int) -> Callable[[Sender], Awaitable[tuple[int, int]]]:
    async def story(sender: Sender) -> tuple[int, int]:
        await sender.submit("default", items(count))
        await sender.wait_all_enqueued()
        return sender.enqueued_count, sender.repeated_count

    return story


def test_refused_row_is_skipped_and_counted() -> None:
    errors = RowErrors(OnError.SKIP, "")
    assert play(Queue(refused(None, TOO_LARGE, KeyConflict("used"))), submit(3), errors=errors) == (1, 0)
    assert errors.skipped_count == 2
    assert errors.reasons[0].startswith("the column payload of a row was refused: LIMIT_EXCEEDED")


def test_refused_row_becomes_a_dead_letter_at_once() -> None:
    errors = RowErrors(OnError.DEADLETTER, "bad")
    queue = Queue(refused(None, TOO_LARGE))
    assert play(queue, submit(2), errors=errors) == (2, 0)
    assert queue.times == [0, 1]
    [key] = queue.sent[1]
    assert key.startswith(f"~{key_slot_of(b'1'):03x}dead")
    assert errors.dead_letter_count == 1


def test_dead_letter_that_an_earlier_attempt_enqueued_with_another_reason_is_a_repeat() -> None:
    errors = RowErrors(OnError.DEADLETTER, "bad")
    queue = Queue(refused(TOO_LARGE), refused(KeyConflict("used")))
    assert play(queue, submit(1), errors=errors) == (1, 1)


def test_refused_dead_letter_fails_the_task() -> None:
    queue = Queue(refused(TOO_LARGE), refused(InvalidArgument("a name must not contain NUL", field="items[0].topic")))
    with pytest.raises(SinkError, match="a dead letter cannot be enqueued; correct the option dead_letter_topic"):
        play(queue, submit(1), errors=RowErrors(OnError.DEADLETTER, "bad"))


@pytest.mark.parametrize("on_error", [OnError.SKIP, OnError.DEADLETTER])
@pytest.mark.parametrize(
    "error",
    [
        LimitExceeded("the backlog is full", field="items"),
        LimitExceeded("the namespace may have at most 1 topics", field="items[0].topic"),
        NamespaceNotFound("no such namespace"),
    ],
)
def test_refusal_that_is_not_the_fault_of_a_row_fails_the_task_in_every_mode(
    on_error: OnError, error: FoqsError
) -> None:
    with pytest.raises(SinkError):
        play(Queue(refused(error)), submit(1), errors=RowErrors(on_error, "bad"))


def test_call_is_retried_until_its_time_ends() -> None:
    attempts: list[int] = []

    async def attempt(client: EnqueueClient, timeout_ms: int) -> int:
        attempts.append(timeout_ms)
        if len(attempts) < 3:
            raise Overloaded("busy", retry_after_ms=1_000)
        return 7

    assert play(Queue(), lambda sender: sender.call("default", attempt)) == 7
    assert len(attempts) == 3

    async def refuse(client: EnqueueClient, timeout_ms: int) -> int:
        raise Overloaded("busy")

    with pytest.raises(Overloaded):
        play(Queue(), lambda sender: sender.call("default", refuse))
