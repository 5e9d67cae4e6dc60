"""FIFO queues: order and duplicates within a message group, dead letters, and what such a queue accepts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from foqs.catalog.document import PolicyRecord
from foqs.core.items.item import State
from foqs.core.items.life import Event, EventKind
from foqs.core.items.row_filter import RowFilter
from foqs.sqs.errors import SqsError
from tests.support.builders import catalog
from tests.support.engines import World, run_in_world
from tests.support.method_gate import start_task
from tests.support.sqs_world import SqsWorld, arn, policy

FIFO: Final = {"FifoQueue": "true"}
Story = Callable[[World, SqsWorld], Awaitable[None]]


def play(story: Story) -> None:
    """Play a story on a host with the FIFO queue `q.fifo`."""

    async def main(world: World) -> None:
        world.catalog = catalog()
        sqs = SqsWorld(world, await world.counted_engine())
        await sqs.create("q.fifo", **FIFO)
        await story(world, sqs)

    run_in_world(main)


async def send(sqs: SqsWorld, body: str, group: str = "ada", duplicate_id: str | None = None, **more: Any) -> Any:
    values = {"MessageBody": body, "MessageGroupId": group, "MessageDeduplicationId": duplicate_id or body, **more}
    return await sqs.call("SendMessage", QueueUrl="q.fifo", **values)


async def delete(sqs: SqsWorld, message: Any) -> None:
    await sqs.call("DeleteMessage", QueueUrl="q.fifo", ReceiptHandle=message["ReceiptHandle"])


async def refused(sqs: SqsWorld, action: str, **parameters: Any) -> str:
    with pytest.raises(SqsError) as error:
        await sqs.call(action, **parameters)
    return f"{error.value.shape}: {error.value.message}"


def test_messages_of_a_group_come_in_order_and_one_receive_after_the_other() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        steps = [(group, body) for body in ("1", "2", "3") for group in ("ada", "bob")]
        sent = [await send(sqs, body, group, f"{group}-{body}") for group, body in steps][::2]
        numbers = [reply["SequenceNumber"] for reply in sent]
        assert numbers == sorted(numbers)
        assert {len(number) for number in numbers} == {20}
        messages = await sqs.receive("q.fifo", MaxNumberOfMessages=5)
        assert [(each["Attributes"]["MessageGroupId"], each["Body"]) for each in messages] == [
            ("ada", "1"),
            ("ada", "2"),
            ("ada", "3"),
            ("bob", "1"),
            ("bob", "2"),
        ]
        for ada, number in zip(messages, numbers, strict=False):
            assert ada["Attributes"]["SequenceNumber"] == number
            assert ada["Attributes"]["MessageDeduplicationId"] == f"ada-{ada['Body']}"
        for message in messages:
            assert not await sqs.receive("q.fifo"), "the groups are locked"
            await delete(sqs, message)
        assert [each["Body"] for each in await sqs.receive("q.fifo")] == ["3"]

    play(story)


def test_message_whose_visibility_timeout_ends_comes_again_before_the_others_of_its_group() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await send(sqs, "1")
        await send(sqs, "2")
        only = {"MaxNumberOfMessages": 1}
        (first,) = await sqs.receive("q.fifo", VisibilityTimeout=1, ReceiveRequestAttemptId="attempt", **only)
        await world.pass_s(1.5)
        late = await refused(
            sqs,
            "ChangeMessageVisibility",
            QueueUrl="q.fifo",
            ReceiptHandle=first["ReceiptHandle"],
            VisibilityTimeout=30,
        )
        assert "not available for visibility timeout change" in late
        (again,) = await sqs.receive("q.fifo", **only)
        assert again["Body"] == "1"
        await sqs.call(
            "ChangeMessageVisibility", QueueUrl="q.fifo", ReceiptHandle=again["ReceiptHandle"], VisibilityTimeout=600
        )
        await world.pass_s(60)
        assert not await sqs.receive("q.fifo"), "a longer timeout keeps the group locked"
        await delete(sqs, again)
        assert [each["Body"] for each in await sqs.receive("q.fifo")] == ["2"]

    play(story)


def test_message_with_a_deduplication_id_that_was_used_is_accepted_and_not_stored() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await send(sqs, "body", duplicate_id="one")
        same = await send(sqs, "body", duplicate_id="one")
        assert (same["MessageId"], same["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
        other = await send(sqs, "other body", "bob", duplicate_id="one")
        assert (other["MessageId"], other["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
        await sqs.call("SetQueueAttributes", QueueUrl="q.fifo", Attributes={"MessageRetentionPeriod": "60"})
        sqs.invocation_id = "another-attempt-of-it"
        assert await send(sqs, "body", duplicate_id="one") == first
        (message,) = await sqs.receive("q.fifo")
        assert (message["MessageId"], message["Body"]) == (first["MessageId"], "body")
        await delete(sqs, message)
        await send(sqs, "body", duplicate_id="one")
        assert not await sqs.receive("q.fifo"), "a deleted message is remembered, too"

    play(story)


def test_deduplication_id_is_free_again_after_five_minutes() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await send(sqs, "body")
        await world.pass_s(299)
        assert (await send(sqs, "body"))["MessageId"] == first["MessageId"]
        await world.pass_s(2)
        second = await send(sqs, "body")
        assert second["MessageId"] != first["MessageId"]
        assert second["SequenceNumber"] > first["SequenceNumber"]
        (message,) = await sqs.receive("q.fifo", MaxNumberOfMessages=1)
        await delete(sqs, message)
        assert [each["Body"] for each in await sqs.receive("q.fifo")] == ["body"]

    play(story)


def test_queue_that_is_created_again_knows_no_duplicates_of_the_former_one() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await send(sqs, "body")
        await sqs.call("DeleteQueue", QueueUrl="q.fifo")
        await sqs.create("q.fifo", **FIFO)
        await send(sqs, "body")
        assert len(await sqs.receive("q.fifo")) == 1

    play(story)


def test_content_is_the_deduplication_id_if_the_queue_says_so() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        message = {"QueueUrl": "q.fifo", "MessageBody": "body", "MessageGroupId": "ada"}
        assert "ContentBasedDeduplication enabled" in await refused(sqs, "SendMessage", **message)
        changed = {"QueueUrl": "q.fifo", "Attributes": {"ContentBasedDeduplication": "true"}}
        await sqs.call("SetQueueAttributes", **changed)
        first = await sqs.call("SendMessage", **message)
        assert (await sqs.call("SendMessage", **message))["MessageId"] == first["MessageId"]
        assert len(await sqs.receive("q.fifo")) == 1

    play(story)


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"MessageGroupId": None}, "must contain the parameter MessageGroupId"),
        ({"MessageGroupId": "x" * 129}, "MessageGroupId is invalid"),
        ({"MessageDeduplicationId": "ü"}, "MessageDeduplicationId is invalid"),
        ({"DelaySeconds": 5}, "DelaySeconds is invalid"),
        ({"MessageAttributes": {"foqs.priority": {"DataType": "Number", "StringValue": "1"}}}, "foqs.priority"),
        ({"MessageAttributes": {"foqs.delay_ms": {"DataType": "Number", "StringValue": "1"}}}, "foqs.delay_ms"),
    ],
)
def test_message_that_a_fifo_queue_does_not_take(parameters: dict[str, Any], says: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        message = {"MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "d", **parameters}
        given = {name: value for name, value in message.items() if value is not None}
        text = await refused(sqs, "SendMessage", QueueUrl="q.fifo", **given)
        assert _matches(says, text), text
        assert not await sqs.receive("q.fifo")

    play(story)


def test_batch_with_a_message_without_its_group_is_refused_as_a_whole() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        good = {"Id": "a", "MessageBody": "1", "MessageGroupId": "ada", "MessageDeduplicationId": "1"}
        for bad in ({"MessageDeduplicationId": "2"}, {"MessageGroupId": "ada"}):
            entries = [good, {"Id": "b", "MessageBody": "2", **bad}]
            await refused(sqs, "SendMessageBatch", QueueUrl="q.fifo", Entries=entries)
        assert not await sqs.receive("q.fifo")
        more = {"Id": "b", "MessageBody": "2", "MessageGroupId": "ada", "MessageDeduplicationId": "2"}
        reply = await sqs.call("SendMessageBatch", QueueUrl="q.fifo", Entries=[good, more])
        numbers = [each["SequenceNumber"] for each in reply["Successful"]]
        assert numbers == sorted(numbers)
        assert [each["Body"] for each in await sqs.receive("q.fifo")] == ["1", "2"]

    play(story)


@pytest.mark.parametrize(
    ("name", "attributes", "says"),
    [
        ("a", FIFO, "must end with .fifo"),
        ("a.fifo", {}, "needs the attribute FifoQueue"),
        ("a.fifo", {"FifoQueue": "false"}, "needs the attribute FifoQueue"),
        ("a", {"ContentBasedDeduplication": "true"}, "InvalidAttributeName"),
        ("a.fifo", {**FIFO, "DeduplicationScope": "group"}, "parameter DeduplicationScope"),
        ("a.fifo", {**FIFO, "FifoThroughputLimit": "none"}, "InvalidAttributeValue"),
        ("a.fifo", {**FIFO, "RedrivePolicy": policy("dead", 2)}, "same type"),
        ("a", {"RedrivePolicy": policy("dead.fifo", 2)}, "same type"),
    ],
)
def test_queue_that_is_refused(name: str, attributes: dict[str, str], says: str) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.create("dead")
        await sqs.create("dead.fifo", **FIFO)
        assert _matches(says, await refused(sqs, "CreateQueue", QueueName=name, Attributes=attributes))

    play(story)


def test_queue_shows_what_it_is_and_a_second_creation_changes_nothing() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.create("q.fifo", **FIFO, DeduplicationScope="queue", FifoThroughputLimit="perQueue")
        shown = (await sqs.call("GetQueueAttributes", QueueUrl="q.fifo", AttributeNames=["All"]))["Attributes"]
        assert {name: shown[name] for name in shown if "Fifo" in name or "Dedup" in name} == {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "false",
            "DeduplicationScope": "queue",
            "FifoThroughputLimit": "perQueue",
        }
        assert (await sqs.call("GetQueueUrl", QueueName="q.fifo"))["QueueUrl"].endswith("/q.fifo")
        await sqs.create("plain")
        plain = (await sqs.call("GetQueueAttributes", QueueUrl="plain", AttributeNames=["All"]))["Attributes"]
        assert "FifoQueue" not in plain

    play(story)


def test_dead_letter_of_a_fifo_queue_keeps_its_group_and_unlocks_it() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.create("dead.fifo", **FIFO)
        await sqs.call("SetQueueAttributes", QueueUrl="q.fifo", Attributes={"RedrivePolicy": policy("dead.fifo", 1)})
        await send(sqs, "poison")
        await send(sqs, "next")
        received = await sqs.receive("q.fifo", VisibilityTimeout=1)
        assert [each["Body"] for each in received] == ["poison", "next"]
        await world.pass_s(1.5)
        assert [each["Body"] for each in await sqs.receive("q.fifo", WaitTimeSeconds=5)] == ["next"]
        (dead,) = await sqs.receive("dead.fifo", WaitTimeSeconds=5)
        assert dead["Body"] == "poison"
        assert dead["Attributes"]["MessageGroupId"] == "ada"
        assert dead["Attributes"]["DeadLetterQueueSourceArn"] == arn("q.fifo")

    play(story)


def test_messages_that_move_back_come_after_those_that_were_sent_meanwhile_with_higher_numbers() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        await sqs.create("dead.fifo", **FIFO)
        await sqs.call("SetQueueAttributes", QueueUrl="q.fifo", Attributes={"RedrivePolicy": policy("dead.fifo", 1)})
        for body in ("poison-1", "poison-2", "poison-3"):
            await send(sqs, body)
        for _ in range(3):
            await sqs.receive("q.fifo", VisibilityTimeout=1)
            await world.pass_s(1.5)
        assert await sqs.receive("q.fifo") == []
        for body in ("later-1", "later-2"):
            await send(sqs, body)
        await world.pass_s(10)
        move = Event(EventKind.MOVE, 0, "default", topic="q.fifo")
        only, cursor = RowFilter("dead.fifo", (State.READY, State.DEFERRED)), None
        for _ in range(3):  # as a move task does, page by page
            page = await world.newest.queue.bulk.change_matching("default", move, only, cursor, 1, world.deadline_in(5))
            assert page.changed == 1
            cursor = page.next_cursor
        await send(sqs, "last")
        received = []
        for _ in range(6):
            received += await sqs.receive("q.fifo", MaxNumberOfMessages=1)
            await delete(sqs, received[-1])
        assert [each["Body"] for each in received] == [
            "later-1",
            "later-2",
            "poison-1",
            "poison-2",
            "poison-3",
            "last",
        ]
        numbers = [each["Attributes"]["SequenceNumber"] for each in received]
        assert numbers == sorted(numbers)

    play(story)


def test_queue_without_its_policy_accepts_and_delivers_nothing_until_it_is_created_again() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        await send(sqs, "1")
        await world.newest.admin.set_policy("default", "q.fifo", PolicyRecord(), world.deadline_in(5))
        message = {"QueueUrl": "q.fifo", "MessageBody": "2", "MessageGroupId": "ada", "MessageDeduplicationId": "2"}
        assert "no policy of strict order" in await refused(sqs, "SendMessage", **message)
        assert "no policy of strict order" in await refused(sqs, "ReceiveMessage", QueueUrl="q.fifo")
        await sqs.create("q.fifo", **FIFO)
        await sqs.call("SendMessage", **message)
        assert [each["Body"] for each in await sqs.receive("q.fifo", WaitTimeSeconds=5)] == ["1", "2"]
        await sqs.call("DeleteQueue", QueueUrl="q.fifo")
        assert not world.newest.admin.namespace("default").policies

    play(story)


@pytest.mark.parametrize("group_leases_max", [None, 2])
def test_receive_that_waits_gets_no_second_message_of_a_group_when_the_policy_is_removed(
    group_leases_max: int | None,
) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        for body in "12345":
            await send(sqs, body)
        (first,) = await sqs.receive("q.fifo", VisibilityTimeout=600, MaxNumberOfMessages=1)
        poll = start_task(refused(sqs, "ReceiveMessage", QueueUrl="q.fifo", MaxNumberOfMessages=10, WaitTimeSeconds=20))
        await world.pass_s(1)
        receive = sqs.requests[-1]
        await world.newest.admin.set_policy("default", "q.fifo", PolicyRecord(group_leases_max), world.deadline_in(5))
        assert "no policy of strict order" in await poll
        receive.give_back()  # as the server does when an action fails
        await sqs.create("q.fifo", **FIFO)
        assert await sqs.receive("q.fifo") == [], "the first message is in flight"
        await delete(sqs, first)
        (second,) = await sqs.receive("q.fifo", MaxNumberOfMessages=1)
        assert (second["Body"], second["Attributes"]["ApproximateReceiveCount"]) == ("2", "1")

    play(story)


def test_receive_that_waits_for_a_message_ends_when_the_policy_is_removed() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        poll = start_task(refused(sqs, "ReceiveMessage", QueueUrl="q.fifo", WaitTimeSeconds=20))
        await world.pass_s(1)
        began_s = world.loop.time()
        await world.newest.admin.set_policy("default", "q.fifo", PolicyRecord(), world.deadline_in(5))
        assert "no policy of strict order" in await poll
        assert world.loop.time() < began_s + 1

    play(story)


def _matches(says: str, text: str) -> bool:
    places = [text.find(part) for part in says.split(".*")]
    return -1 not in places and places == sorted(places)
