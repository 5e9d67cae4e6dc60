"""Receives that wait while their queue changes: each waits for one queue with one set of attributes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from foqs.sqs.dead_letters import DeadLetters
from foqs.sqs.errors import SqsError
from foqs_contract.errors import PermissionDenied
from tests.support.builders import catalog, engine_settings
from tests.support.engines import World, run_in_world
from tests.support.method_gate import MethodGate, closed, start_task
from tests.support.sqs_world import SqsWorld, policy

SOON_S = 1.0
"""Less than a wait, more than a change needs."""


def waiting(sqs: SqsWorld, queue: str, **more: Any) -> Any:
    return start_task(sqs.receive(queue, WaitTimeSeconds=20, **more))


def test_a_receive_ends_when_its_queue_is_deleted() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        for name in ("mail", "other"):
            await sqs.create(name)
        poll, other = waiting(sqs, "mail"), waiting(sqs, "other")
        await world.pass_s(SOON_S)
        began_s = world.loop.time()
        await sqs.call("DeleteQueue", QueueUrl="mail")
        with pytest.raises(SqsError) as ended:
            await poll
        assert ended.value.shape == "QueueDoesNotExist"
        assert world.loop.time() < began_s + SOON_S
        await sqs.send("other", "x")
        assert [message["Body"] for message in await other] == ["x"]

    run_in_world(story)


def test_a_receive_takes_nothing_of_a_new_queue_with_the_name_of_a_deleted_one() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1, 2)))
        await sqs.create("mail", VisibilityTimeout="300")
        poll = waiting(sqs, "mail")
        await world.pass_s(SOON_S)
        await sqs.call("DeleteQueue", QueueUrl="mail")
        await sqs.create("mail", VisibilityTimeout="1")
        await sqs.send("mail", "fresh")
        [message] = await sqs.receive("mail", WaitTimeSeconds=4)
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"
        with pytest.raises(SqsError):
            await poll
        await world.pass_s(1.5)  # the visibility timeout of the new queue
        assert len(await sqs.receive("mail")) == 1

    run_in_world(story)


def test_a_receive_gets_nothing_of_a_queue_that_changed_while_dead_letters_were_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = MethodGate(monkeypatch, DeadLetters, "move", on_the_way_back=True)

    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("dead")
        await sqs.create("mail", VisibilityTimeout="300", RedrivePolicy=policy("dead", 1))
        await sqs.send("mail", "letter")
        await sqs.receive_times(world, "mail", 1)
        with closed(gate):
            poll = waiting(sqs, "mail")
            await world.until(lambda: bool(gate.held))
            await sqs.call("SetQueueAttributes", QueueUrl="mail", Attributes={"VisibilityTimeout": "1"})
            await sqs.send("mail", "fresh")
        assert await poll == []
        [message] = await sqs.receive("mail")
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"

    run_in_world(story)


def test_a_receive_ends_when_the_attributes_of_its_queue_change_and_the_next_one_has_the_new_ones() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("mail", VisibilityTimeout="300")
        poll = waiting(sqs, "mail")
        await world.pass_s(SOON_S)
        await sqs.call("TagQueue", QueueUrl="mail", Tags={"a": "b"})
        await world.pass_s(SOON_S)
        assert not poll.done()
        await sqs.call("SetQueueAttributes", QueueUrl="mail", Attributes={"VisibilityTimeout": "1"})
        assert await poll == []
        next_poll = waiting(sqs, "mail")
        await sqs.send("mail", "x")
        assert len(await next_poll) == 1
        await world.pass_s(1.5)
        assert len(await sqs.receive("mail")) == 1

    run_in_world(story)


def test_a_receive_waits_on_when_other_queues_of_its_account_are_created_and_deleted() -> None:
    async def story(world: World) -> None:
        world.catalog = catalog()
        sqs = SqsWorld(world, await world.counted_engine(engine_settings(1)))
        await sqs.create("mail")
        poll = waiting(sqs, "mail")
        await world.pass_s(SOON_S)
        for other, attributes in (("other", {}), ("other.fifo", {"FifoQueue": "true"})):
            await sqs.create(other, **attributes)
            await world.pass_s(SOON_S)
            await sqs.call("DeleteQueue", QueueUrl=other)
            await world.pass_s(SOON_S)
            assert not poll.done(), other
        await sqs.send("mail", "x")
        assert [message["Body"] for message in await poll] == ["x"]

    run_in_world(story)


def test_a_receive_ends_when_the_grant_of_its_principal_is_taken_away() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("mail")
        poll = waiting(sqs, "mail")
        await world.pass_s(SOON_S)
        sqs.is_granted = False
        await sqs.create("other")
        with pytest.raises(PermissionDenied):
            await poll
        await sqs.send("mail", "x")
        sqs.is_granted = True
        [message] = await sqs.receive("mail", WaitTimeSeconds=1)
        assert message["Attributes"]["ApproximateReceiveCount"] == "1"

    run_in_world(story)


def test_a_receive_that_ends_takes_no_notice_of_further_changes() -> None:
    async def story(world: World) -> None:
        engine = await world.engine(engine_settings(1))
        sqs = SqsWorld(world, engine)
        await sqs.create("mail")
        poll = waiting(sqs, "mail")
        await world.pass_s(SOON_S)
        sqs.is_granted = False
        for _ in range(3):
            sqs.on_catalog_changed(["default"])
            await asyncio.sleep(0)
        with pytest.raises(PermissionDenied):
            await poll

    run_in_world(story)
