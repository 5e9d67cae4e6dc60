"""Receives from FIFO queues that are repeated with their ReceiveRequestAttemptId."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from foqs.queue.port import ITEM_OVERHEAD_BYTES
from foqs.sqs.errors import SqsError
from foqs.sqs.receive_attempts import KEPT_S, AttemptName, ReceiveAttempts
from foqs_contract.idl import ttypes
from tests.support.builders import catalog, engine_settings
from tests.support.engines import World, run_in_world
from tests.support.sqs_world import SqsWorld

Story = Callable[[World, SqsWorld], Awaitable[None]]


def play(story: Story) -> None:
    """Play a story on a host with the FIFO queue `q.fifo`, in which two groups have two messages each."""

    async def main(world: World) -> None:
        world.catalog = catalog()
        sqs = SqsWorld(world, await world.counted_engine(engine_settings(1, 2)))
        await sqs.create("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")
        for body in ("1", "2"):
            for group in ("ada", "bob"):
                await sqs.call("SendMessage", QueueUrl="q.fifo", MessageBody=f"{group} {body}", MessageGroupId=group)
        await story(world, sqs)

    run_in_world(main)


async def receive(sqs: SqsWorld, attempt: str = "one", **parameters: Any) -> list[Any]:
    return await sqs.receive("q.fifo", ReceiveRequestAttemptId=attempt, **parameters)


async def delete(sqs: SqsWorld, message: Any) -> None:
    await sqs.call("DeleteMessage", QueueUrl="q.fifo", ReceiptHandle=message["ReceiptHandle"])


def bodies(messages: Sequence[Any]) -> list[str]:
    return sorted(message["Body"] for message in messages)


def test_repeated_receive_gets_the_same_reply_and_begins_the_visibility_timeout_again() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await receive(sqs)
        assert bodies(first) == ["ada 1", "ada 2", "bob 1", "bob 2"]
        await world.pass_s(20)
        assert await receive(sqs, MaxNumberOfMessages=1) == first
        await world.pass_s(20)
        assert await receive(sqs, "two") == [], "the timeout of 30 s has begun again"
        await world.pass_s(11)
        late = await receive(sqs, "three")
        counts = [message["Attributes"]["ApproximateReceiveCount"] for message in late]
        assert counts == ["2", "1", "2", "1"], "behind the first message of a group, nothing was begun"

    play(story)


def test_receive_without_its_attempt_id_gets_nothing_of_a_locked_group() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await receive(sqs)
        assert await sqs.receive("q.fifo") == []
        assert await receive(sqs, "two") == []
        assert bodies(await receive(sqs)) == ["ada 1", "ada 2", "bob 1", "bob 2"]

    play(story)


def test_attempt_of_which_a_message_was_deleted_is_a_new_receive() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await receive(sqs, MaxNumberOfMessages=1)
        await delete(sqs, first[0])
        again = await receive(sqs)
        assert bodies(again) == ["ada 2", "bob 1", "bob 2"]
        assert await receive(sqs) == again

    play(story)


def test_attempt_of_which_a_visibility_timeout_was_changed_is_a_new_receive() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await receive(sqs)
        change = {"QueueUrl": "q.fifo", "ReceiptHandle": first[0]["ReceiptHandle"], "VisibilityTimeout": 0}
        await sqs.call("ChangeMessageVisibility", **change)
        again = await receive(sqs)
        assert bodies(again) == bodies(first)[:2], "the other message of the group is superseded"
        assert again[0]["ReceiptHandle"] != first[0]["ReceiptHandle"]

    play(story)


def test_attempt_of_which_a_visibility_timeout_was_made_longer_does_not_make_it_shorter() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await receive(sqs)
        change = {"QueueUrl": "q.fifo", "ReceiptHandle": first[0]["ReceiptHandle"], "VisibilityTimeout": 600}
        await sqs.call("ChangeMessageVisibility", **change)
        assert await receive(sqs) == [], "both groups are locked"
        await world.pass_s(40)
        assert bodies(await receive(sqs)) == ["bob 1", "bob 2"], "the other group is still locked"

    play(story)


def test_attempt_whose_visibility_timeout_has_ended_is_a_new_receive() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await receive(sqs, VisibilityTimeout=1)
        await world.pass_s(1.5)
        again = await receive(sqs)
        assert bodies(again) == bodies(first)
        assert [message["Attributes"]["ApproximateReceiveCount"] for message in again] == ["2", "1", "2", "1"]
        await delete(sqs, first[0])  # its receipt was superseded
        assert len(await receive(sqs)) == 4

    play(story)


def test_another_host_does_not_know_an_attempt_and_what_it_deletes_is_left_out_of_the_next_reply() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        other = SqsWorld(world, world.newest)
        deleted, *left = await receive(sqs, MaxNumberOfMessages=3)
        assert await receive(other) == []
        await delete(other, deleted)
        for _ in range(2):
            assert await receive(sqs, VisibilityTimeout=43_200) == left
        assert await sqs.receive("q.fifo") == [], "the groups are locked"
        for message in left:
            await delete(sqs, message)
        assert bodies(await receive(sqs)) == ["bob 2"]

    play(story)


def test_attempt_of_which_a_lease_has_ended_keeps_the_others_and_no_group_waits_for_it() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        other = SqsWorld(world, world.newest)
        ended, behind, *longer = await receive(sqs, VisibilityTimeout=5)
        for handle in [message["ReceiptHandle"] for message in longer]:
            await other.call("ChangeMessageVisibility", QueueUrl="q.fifo", ReceiptHandle=handle, VisibilityTimeout=60)
        await world.pass_s(10)
        assert await receive(sqs) == longer
        again = await sqs.receive("q.fifo")
        assert bodies(again) == bodies([ended, behind])
        assert [message["Attributes"]["ApproximateReceiveCount"] for message in again] == ["2", "1"]
        assert await receive(sqs) == longer
        await world.pass_s(31)
        assert bodies(await receive(sqs)) == ["ada 1", "ada 2", "bob 1", "bob 2"], "nothing is left of the attempt"

    play(story)


def test_receive_whose_reply_is_given_back_after_its_repeat_leaves_the_repeat_the_messages() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        sqs.writes_replies = False
        first = await receive(sqs, VisibilityTimeout=600, MaxNumberOfMessages=3)
        assert await receive(sqs, VisibilityTimeout=600) == [], "the reply with the messages may still be given back"
        sqs.writes_replies = True
        sqs.requests[-2].give_back()  # the host sees only now that the first connection is closed
        await world.pass_s(0.1)
        again = await receive(sqs, VisibilityTimeout=600, MaxNumberOfMessages=3)
        assert bodies(again) == bodies(first)
        handles = {message["ReceiptHandle"] for message in first}
        assert handles.isdisjoint(message["ReceiptHandle"] for message in again)
        assert {message["Attributes"]["ApproximateReceiveCount"] for message in again} == {"1"}
        assert await sqs.receive("q.fifo") == []
        for message in again:
            await delete(sqs, message)
        assert bodies(await sqs.receive("q.fifo")) == ["bob 2"]

    play(story)


def test_attempt_is_kept_while_the_database_does_not_answer() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await receive(sqs, VisibilityTimeout=600)
        world.stall()
        with pytest.raises(SqsError):
            await receive(sqs, VisibilityTimeout=600)
        world.resume()
        await world.pass_s(5)
        assert await receive(sqs, VisibilityTimeout=600) == first

    play(story)


def test_receive_with_a_visibility_timeout_of_0_cannot_be_repeated() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await receive(sqs, VisibilityTimeout=0)
        again = await receive(sqs, VisibilityTimeout=0)
        assert bodies(again) == bodies(first)
        assert {message["Attributes"]["ApproximateReceiveCount"] for message in again} == {"2"}

    play(story)


def test_attempt_id_that_is_too_long_is_refused() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        with pytest.raises(SqsError, match="ReceiveRequestAttemptId is invalid"):
            await receive(sqs, "x" * 129)
        assert len(await receive(sqs, "x" * 128)) == 4

    play(story)


# ----------------------------------------------------------------------- bounds


def name(text: str, queue: str = "q.fifo", namespace: str = "default") -> AttemptName:
    return AttemptName(namespace, queue, 0, None, text)


class Known:
    """Attempts with a clock of their own, each with one message."""

    def __init__(self, **bounds: int) -> None:
        self.now_s = 0.0
        self.attempts = ReceiveAttempts(lambda: self.now_s, **bounds)

    def add(self, text: str, payload_bytes: int = 1, token: int = 7, namespace: str = "default") -> None:
        messages = [ttypes.Delivery(payload=bytes(payload_bytes))]
        self.attempts.remember(name(text, namespace=namespace), messages, [(text, token)], 0.0)

    def texts(self, *texts: str, namespace: str = "default") -> list[str]:
        return [text for text in texts if self.attempts.find(name(text, namespace=namespace)) is not None]


def test_oldest_attempts_are_forgotten_first() -> None:
    known = Known(attempts_max=2)
    for text in "abc":
        known.add(text)
    assert known.texts(*"abc") == ["b", "c"]
    known.add("b")
    known.add("d")
    assert known.texts(*"abcd") == ["b", "d"]


def test_messages_of_attempts_have_a_limit() -> None:
    known = Known(bytes_max=10 + 2 * ITEM_OVERHEAD_BYTES)
    known.add("a", 6)
    known.add("b", 4)
    assert known.texts("a", "b") == ["a", "b"]
    known.add("c", 5)
    assert known.texts(*"abc") == ["b", "c"]
    known.add("d", 11 + ITEM_OVERHEAD_BYTES)
    assert known.texts(*"bcd") == ["b", "c"]
    for text in "bc":
        known.attempts.on_settled((text, 7))
    known.add("e", 10 + ITEM_OVERHEAD_BYTES)
    assert known.texts("e") == ["e"]
    for text in ("empty", "empty too"):
        known.add(text, 0)
    assert known.texts("e", "empty", "empty too") == ["empty", "empty too"], (
        "a message without a payload occupies memory"
    )


def test_namespace_with_more_attempts_or_bytes_loses_its_own_first() -> None:
    for bounds, payload_bytes in (({"attempts_max": 4}, 0), ({"bytes_max": 4 * (ITEM_OVERHEAD_BYTES + 100)}, 100)):
        known = Known(**bounds)
        known.add("small", payload_bytes, namespace="other")
        for text in "abcdef":
            known.add(text, payload_bytes)
        assert known.texts("small", namespace="other") == ["small"]
        assert known.texts(*"abcdef") == ["d", "e", "f"]
        for text in ("more", "still more"):
            known.add(text, payload_bytes, namespace="other")
        assert known.texts("small", "more", "still more", namespace="other") == ["more", "still more"]
        assert known.texts(*"def") == ["e", "f"]
        assert len(known.attempts) == 4


@pytest.mark.parametrize("field", ["payload", "metadata", "trace_context", "group"])
def test_each_part_of_a_message_counts(field: str) -> None:
    known = Known(bytes_max=2 * ITEM_OVERHEAD_BYTES + 100)
    part: Any = "x" * 60 if field == "group" else bytes(60)
    known.attempts.remember(name("a"), [ttypes.Delivery(**{field: part})], [("a", 7)], 0.0)
    known.add("b", 40)
    assert known.texts("a", "b") == ["a", "b"]
    known.add("b", 41)
    assert known.texts("a", "b") == ["b"]


def test_attempt_is_forgotten_after_five_minutes() -> None:
    known = Known()
    known.add("a")
    known.now_s = KEPT_S - 1
    assert known.texts("a") == ["a"]
    known.now_s = KEPT_S
    assert known.texts("a") == []
    assert len(known.attempts) == 0


def test_attempt_is_forgotten_by_its_own_leases_only() -> None:
    known = Known()
    known.add("a")
    known.attempts.on_settled(("a", 6))
    assert known.texts("a") == ["a"]
    known.add("a", token=8)
    known.attempts.on_settled(("a", 7))
    assert known.texts("a") == ["a"]
    known.attempts.on_settled(("a", 8))
    assert known.texts("a") == []


def test_attempt_keeps_some_of_its_messages_and_is_forgotten_by_their_leases_only() -> None:
    known = Known(bytes_max=9 + 2 * ITEM_OVERHEAD_BYTES)
    messages = [ttypes.Delivery(payload=bytes(size)) for size in (2, 3)]
    known.attempts.remember(name("a"), messages, [("a", 1), ("b", 2)], 5.0)
    attempt = known.attempts.find(name("a"))
    assert attempt is not None
    assert known.attempts.keep_only(name("a"), attempt, [0, 1]) is attempt
    kept = known.attempts.keep_only(name("a"), attempt, [1])
    assert kept is not None
    assert (kept.deliveries, kept.leases, kept.received_s) == (messages[1:], [("b", 2)], 5.0)
    assert known.attempts.find(name("a")) is kept
    known.attempts.on_settled(("a", 1))
    known.add("c", 6)
    assert known.texts("a", "c") == ["a", "c"], "the bytes of the other message are free"
    known.attempts.on_settled(("b", 2))
    assert known.texts("a", "c") == ["c"]
    found = known.attempts.find(name("c"))
    assert found is not None
    assert known.attempts.keep_only(name("c"), found, []) is None
    assert len(known.attempts) == 0


def test_attempt_that_took_the_place_of_another_one_is_not_changed_with_it() -> None:
    known = Known()
    known.add("a")
    former = known.attempts.find(name("a"))
    assert former is not None
    known.add("a", token=8)
    later = known.attempts.find(name("a"))
    assert known.attempts.keep_only(name("a"), former, []) is None
    assert known.attempts.find(name("a")) is later


def test_queue_that_was_created_again_and_another_principal_know_no_attempt() -> None:
    known = Known()
    known.add("a")
    same = name("a")
    for other in (same._replace(created_at_s=1), same._replace(principal="eve"), name("a", "r.fifo")):
        assert known.attempts.find(other) is None
    assert known.attempts.find(same) is not None
