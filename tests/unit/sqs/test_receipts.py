"""Receipts: what they may do after the timeout of their message has ended, and how a wrong one is refused."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from foqs.sqs.errors import SqsError
from tests.support.builders import engine_settings
from tests.support.engines import World, run_in_world
from tests.support.sqs_world import SqsWorld

Story = Callable[[World, SqsWorld, str], Coroutine[Any, Any, None]]


def run_story(story: Story) -> None:
    """Run a story in a world with a queue `mail` and a message; the story gets the handle of a receive that has timed out."""

    async def run(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("mail")
        await sqs.send("mail", "x")
        [message] = await sqs.receive("mail", VisibilityTimeout=1)
        await world.pass_s(2)
        await story(world, sqs, message["ReceiptHandle"])

    run_in_world(run)


async def change(sqs: SqsWorld, handle: str, seconds: int) -> None:
    await sqs.call("ChangeMessageVisibility", QueueUrl="mail", ReceiptHandle=handle, VisibilityTimeout=seconds)


async def change_all(sqs: SqsWorld, *changes: tuple[str, int]) -> list[str]:
    """Change visibilities by a batch; return the places of those that were changed."""
    entries = [
        {"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": seconds}
        for place, (handle, seconds) in enumerate(changes)
    ]
    reply = await sqs.call("ChangeMessageVisibilityBatch", QueueUrl="mail", Entries=entries)
    return [entry["Id"] for entry in reply["Successful"]]


async def received_counts(sqs: SqsWorld) -> list[str]:
    """Receive all messages; return their counts."""
    return [message["Attributes"]["ApproximateReceiveCount"] for message in await sqs.receive("mail")]


def test_a_late_change_hides_the_message_again_and_counts_no_receive() -> None:
    async def story(world: World, sqs: SqsWorld, handle: str) -> None:
        await change(sqs, handle, 10)
        assert await sqs.receive("mail") == []
        await world.pass_s(5)
        await change(sqs, handle, 10)
        await world.pass_s(9)
        assert await sqs.receive("mail") == []
        await world.pass_s(2)
        assert await received_counts(sqs) == ["2"]

    run_story(story)


def test_a_message_that_was_made_visible_is_hidden_again() -> None:
    async def story(world: World, sqs: SqsWorld, handle: str) -> None:
        await change(sqs, handle, 10)
        await change(sqs, handle, 0)
        await change(sqs, handle, 10)
        assert await sqs.receive("mail") == []

    run_story(story)


def test_a_message_that_was_received_with_timeout_0_is_hidden_by_its_receipt() -> None:
    async def story(world: World, sqs: SqsWorld, handle: str) -> None:
        [message] = await sqs.receive("mail", VisibilityTimeout=0)
        await change(sqs, message["ReceiptHandle"], 10)
        assert await sqs.receive("mail") == []

    run_story(story)


def test_a_visible_message_may_be_made_visible() -> None:
    async def story(world: World, sqs: SqsWorld, handle: str) -> None:
        for _ in range(2):  # the SDK repeats a call whose reply was lost
            await change(sqs, handle, 0)
        await change(sqs, handle, 10)
        await change(sqs, handle, 0)
        assert await received_counts(sqs) == ["2"]

    run_story(story)


@pytest.mark.parametrize("seconds", [0, 10])
def test_a_late_change_takes_no_message_from_another_consumer(seconds: int) -> None:
    async def story(world: World, sqs: SqsWorld, handle: str) -> None:
        [message] = await sqs.receive("mail", VisibilityTimeout=60)
        with pytest.raises(SqsError, match="not available for visibility timeout change"):
            await change(sqs, handle, seconds)
        assert await change_all(sqs, (handle, seconds), (message["ReceiptHandle"], 60)) == ["1"]
        assert await sqs.receive("mail") == []

    run_story(story)


@pytest.mark.parametrize(
    ("seconds", "counts"), [((10,), []), ((0,), ["2"]), ((0, 10), []), ((10, 0), ["2"]), ((0, 10, 0), ["2"])]
)
def test_late_changes_of_a_batch_apply_in_order(seconds: tuple[int, ...], counts: list[str]) -> None:
    async def story(world: World, sqs: SqsWorld, handle: str) -> None:
        changed = await change_all(sqs, *((handle, each) for each in seconds))
        assert changed == [str(place) for place in range(len(seconds))]
        assert await received_counts(sqs) == counts

    run_story(story)


@pytest.mark.parametrize("seconds", [0, 10])
def test_a_deleted_message_has_no_visibility(seconds: int) -> None:
    async def story(world: World, sqs: SqsWorld, handle: str) -> None:
        await sqs.call("DeleteMessage", QueueUrl="mail", ReceiptHandle=handle)
        with pytest.raises(SqsError) as refused:
            await change(sqs, handle, seconds)
        assert refused.value.shape == "InvalidParameterValueException"
        assert refused.value.message.startswith(f"Value {handle} for parameter ReceiptHandle is invalid.")

    run_story(story)


@pytest.mark.parametrize("action", ["DeleteMessage", "ChangeMessageVisibility"])
def test_a_refusal_of_a_handle_names_it_also_in_a_batch(action: str) -> None:
    async def story(world: World, sqs: SqsWorld, handle: str) -> None:
        wanted = 'The input receipt handle "garbage" is not a valid receipt handle.'
        members = {"ReceiptHandle": "garbage", "VisibilityTimeout": 1}
        with pytest.raises(SqsError) as refused:
            await sqs.call(action, QueueUrl="mail", **members)
        assert (refused.value.shape, refused.value.message) == ("ReceiptHandleIsInvalid", wanted)
        reply = await sqs.call(f"{action}Batch", QueueUrl="mail", Entries=[{"Id": "a", **members}])
        assert [entry["Message"] for entry in reply["Failed"]] == [wanted]

    run_story(story)
