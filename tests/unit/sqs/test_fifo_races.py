"""FIFO queues: repeated sends over a takeover, receives at the same time, and changes of visibility that come late."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from foqs.sqs.errors import SqsError
from tests.support.builders import catalog, engine_settings
from tests.support.engines import World, run_in_world
from tests.support.method_gate import start_task
from tests.support.sqs_world import SqsWorld, arn, policy

Story = Callable[[World, SqsWorld], Awaitable[None]]


def play(story: Story) -> None:
    """Play a story on a host with two shards and the FIFO queue `q.fifo`, which removes duplicates by content."""

    async def main(world: World) -> None:
        world.catalog = catalog()
        sqs = SqsWorld(world, await world.counted_engine(engine_settings(1, 2)))
        await sqs.create("q.fifo", FifoQueue="true", ContentBasedDeduplication="true")
        await story(world, sqs)

    run_in_world(main)


async def send(sqs: SqsWorld, body: str, group: str = "ada") -> Any:
    return await sqs.call("SendMessage", QueueUrl="q.fifo", MessageBody=body, MessageGroupId=group)


async def change_visibility(sqs: SqsWorld, message: Any, timeout_s: int) -> str:
    """Change the visibility timeout of a message; return the text of the error, or nothing."""
    handle = message["ReceiptHandle"]
    try:
        await sqs.call("ChangeMessageVisibility", QueueUrl="q.fifo", ReceiptHandle=handle, VisibilityTimeout=timeout_s)
    except SqsError as error:
        return error.message
    return ""


async def delete(sqs: SqsWorld, message: Any) -> None:
    await sqs.call("DeleteMessage", QueueUrl="q.fifo", ReceiptHandle=message["ReceiptHandle"])


def bodies(messages: list[Any]) -> list[str]:
    return [message["Body"] for message in messages]


def test_send_that_is_repeated_at_the_next_owner_of_the_shard_gets_the_first_message() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        first = await send(sqs, "pay")
        next_sqs = SqsWorld(world, await world.counted_engine(engine_settings(1, 2)))
        again = await send(next_sqs, "pay")
        assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
        later = await send(next_sqs, "pack")
        assert later["SequenceNumber"] > first["SequenceNumber"]
        assert bodies(await next_sqs.receive("q.fifo")) == ["pay", "pack"]

    play(story)


def test_send_whose_outcome_is_unknown_is_stored_once_however_often_it_is_repeated() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        world.stall()
        sending = start_task(send(sqs, "pay"))
        await world.pass_s(0.5)
        sending.cancel()  # its client has left, while the flush is in the database
        await asyncio.wait((sending,))
        world.resume()
        sent = [await send(sqs, "pay") for _ in range(3)]
        assert len({reply["MessageId"] for reply in sent}) == 1
        (message,) = await sqs.receive("q.fifo")
        assert message["MessageId"] == sent[0]["MessageId"]
        await delete(sqs, message)
        assert await sqs.receive("q.fifo") == []

    play(story)


def test_equal_sends_at_the_same_time_make_one_message() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        sent = await asyncio.gather(*(send(sqs, "pay") for _ in range(5)))
        assert len({reply["MessageId"] for reply in sent}) == 1
        (message,) = await sqs.receive("q.fifo")
        await delete(sqs, message)
        assert await sqs.receive("q.fifo") == []

    play(story)


def test_of_receives_at_the_same_time_one_gets_the_messages_of_a_group() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for body in ("1", "2", "3"):
            await send(sqs, body)
        waiting = [start_task(sqs.receive("q.fifo", WaitTimeSeconds=2)) for _ in range(2)]
        found = await asyncio.gather(*(sqs.receive("q.fifo") for _ in range(4)), *waiting)
        assert [bodies(messages) for messages in found if messages] == [["1", "2", "3"]]

    play(story)


def test_receive_that_waits_gets_the_next_message_when_the_former_one_is_deleted() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await send(sqs, "1")
        await send(sqs, "2")
        (first,) = await sqs.receive("q.fifo", MaxNumberOfMessages=1)
        waiting = start_task(sqs.receive("q.fifo", WaitTimeSeconds=20))
        await send(sqs, "3")
        await world.pass_s(1)
        assert not waiting.done(), "a new message unlocks no group"
        await delete(sqs, first)
        assert bodies(await waiting) == ["2", "3"]

    play(story)


def test_change_of_visibility_after_the_timeout_takes_the_message_from_nobody() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await send(sqs, "1")
        await send(sqs, "2")
        (late, _) = await sqs.receive("q.fifo", VisibilityTimeout=1)
        await world.pass_s(1.5)
        assert "not available for visibility timeout change" in await change_visibility(sqs, late, 600)
        (again,) = await sqs.receive("q.fifo", MaxNumberOfMessages=1)
        assert again["Body"] == "1"
        assert "not available for visibility timeout change" in await change_visibility(sqs, late, 0)
        await delete(sqs, late)  # it was superseded: nothing is deleted
        assert await sqs.receive("q.fifo") == []
        assert await change_visibility(sqs, again, 0) == ""
        assert bodies(await sqs.receive("q.fifo")) == ["1", "2"]

    play(story)


def test_delete_after_the_timeout_lets_the_group_go_on_until_the_message_is_received_again() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await send(sqs, "1")
        await send(sqs, "2")
        (late, _) = await sqs.receive("q.fifo", VisibilityTimeout=1)
        await world.pass_s(1.5)
        await delete(sqs, late)
        assert bodies(await sqs.receive("q.fifo")) == ["2"]

    play(story)


def test_messages_of_a_receive_that_is_not_answered_are_first_in_their_groups() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for body in ("1", "2"):
            await send(sqs, f"ada {body}")
            await send(sqs, f"bob {body}", "bob")
        assert len(await sqs.receive("q.fifo")) == 4
        sqs.requests[-1].give_back()
        await world.pass_s(0.1)
        again = await sqs.receive("q.fifo")
        assert bodies(again) == ["ada 1", "ada 2", "bob 1", "bob 2"]
        assert {message["Attributes"]["ApproximateReceiveCount"] for message in again} == {"1"}

    play(story)


def test_order_of_a_queue_does_not_follow_a_tag() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await send(sqs, "1")
        await sqs.call("TagQueue", QueueUrl="q.fifo", Tags={"foqs:priority": "-5"})
        await send(sqs, "2")
        assert bodies(await sqs.receive("q.fifo")) == ["1", "2"]

    play(story)


def test_messages_move_between_queues_of_one_type_only() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await sqs.create("dead.fifo", FifoQueue="true")
        await sqs.create("plain")
        await sqs.call("SetQueueAttributes", QueueUrl="q.fifo", Attributes={"RedrivePolicy": policy("dead.fifo", 1)})
        with pytest.raises(SqsError, match="same type of queue"):
            await sqs.call("StartMessageMoveTask", SourceArn=arn("dead.fifo"), DestinationArn=arn("plain"))
        assert not sqs.jobs.jobs.by_id
        await sqs.call("StartMessageMoveTask", SourceArn=arn("dead.fifo"))
        (job,) = sqs.jobs.jobs.by_id.values()
        assert job.spec.change.move_to == "q.fifo"

    play(story)
