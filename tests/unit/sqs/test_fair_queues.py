"""Fair queues: standard queues whose messages name a group, so that one group does not delay the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from foqs.catalog.document import PolicyRecord
from foqs.catalog.namespaces import FAIR_QUEUE
from foqs.core.groups.group_rules import Fairness, GroupRules
from foqs.sqs import queue_directory
from foqs.sqs.errors import SqsError
from foqs.sqs.queue_directory import MARK_RETRY_S
from foqs_contract.errors import LimitExceeded
from tests.support.builders import catalog
from tests.support.engines import World, run_in_world
from tests.support.sqs_world import SqsWorld

TOPIC = ("default", "q")
Story = Callable[[World, SqsWorld], Awaitable[None]]


def play(story: Story) -> None:
    """Play a story on a host with the standard queue `q`."""

    async def main(world: World) -> None:
        world.catalog = catalog()
        sqs = SqsWorld(world, await world.counted_engine())
        await sqs.create("q")
        await story(world, sqs)

    run_in_world(main)


async def send(sqs: SqsWorld, body: str, group: str | None) -> None:
    more = {} if group is None else {"MessageGroupId": group}
    await sqs.call("SendMessage", QueueUrl="q", MessageBody=body, **more)


async def receive_groups(sqs: SqsWorld, count: int) -> list[str]:
    """Receive and delete messages one by one. Return their groups."""
    groups = []
    for _ in range(count):
        (message,) = await sqs.receive("q", MaxNumberOfMessages=1, WaitTimeSeconds=5)
        groups.append(message["Attributes"]["MessageGroupId"])
        await sqs.call("DeleteMessage", QueueUrl="q", ReceiptHandle=message["ReceiptHandle"])
    return groups


def rules(world: World) -> Any:
    """Return the rules of the queue's topic."""
    assert world.newest is not None
    return world.newest.namespaces.group_rules.get(TOPIC)


def policies(world: World) -> Any:
    assert world.newest is not None
    return world.newest.admin.namespace("default").policies


async def set_policy(world: World, policy: PolicyRecord) -> None:
    assert world.newest is not None
    await world.newest.admin.set_policy("default", "q", policy, world.deadline_in(5))


def test_tenant_with_a_backlog_does_not_delay_another_one() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        for number in range(40):
            await send(sqs, f"noisy {number}", "noisy")
        await send(sqs, "quiet", "quiet")
        await world.until(lambda: rules(world) == FAIR_QUEUE)
        await world.pass_s(1)
        assert "quiet" in await receive_groups(sqs, 5)
        assert set(await receive_groups(sqs, 36)) == {"noisy"}, "nothing is lost"

    play(story)


def test_queue_becomes_fair_with_its_first_message_of_a_group() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await send(sqs, "1", None)
        await world.pass_s(1)
        assert rules(world) is None
        entries = [{"Id": str(n), "MessageBody": str(n), "MessageGroupId": f"g{n}"} for n in range(3)]
        await sqs.call("SendMessageBatch", QueueUrl="q", Entries=entries)
        await world.until(lambda: rules(world) == FAIR_QUEUE)
        assert not policies(world), "a namespace has few policies, and many queues"
        await sqs.call("DeleteQueue", QueueUrl="q")
        assert rules(world) is None

    play(story)


@pytest.mark.parametrize("policy", [PolicyRecord(3), PolicyRecord(fair=Fairness.ITEMS)])
def test_topic_keeps_rules_of_its_own(policy: PolicyRecord) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await set_policy(world, policy)
        await send(sqs, "1", "ada")
        await world.pass_s(1)
        assert rules(world) == policy.rules
        await set_policy(world, PolicyRecord())
        assert rules(world) is None
        await send(sqs, "2", "ada")
        await world.until(lambda: rules(world) == FAIR_QUEUE)
        await set_policy(world, policy)
        assert rules(world) == policy.rules, "it comes before what the queue says"

    play(story)


def test_policy_without_rules_for_groups_leaves_a_queue_fair() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        await set_policy(world, PolicyRecord(is_relaxed=True))
        await send(sqs, "1", "ada")
        await world.until(lambda: rules(world) == FAIR_QUEUE)

    play(story)


def test_message_that_is_refused_changes_nothing_and_many_queues_become_fair_in_one_change() -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        assert world.newest is not None
        names = [f"q{number}" for number in range(20)]
        for name in names:
            await sqs.create(name)
        before = world.newest.admin.document().version
        with pytest.raises(SqsError):
            await sqs.call("SendMessage", QueueUrl="q0", MessageBody="x" * 20_000, MessageGroupId="ada")
        await world.pass_s(3)
        assert world.newest.admin.document().version == before
        for name in names:
            await sqs.call("SendMessage", QueueUrl=name, MessageBody="1", MessageGroupId="ada")
        await world.until(lambda: len(world.newest.namespaces.group_rules) == 20 if world.newest else False)
        assert world.newest.admin.document().version - before <= 3

    play(story)


def test_messages_are_sent_while_the_catalog_takes_no_change_and_it_is_not_asked_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(world: World, sqs: SqsWorld) -> None:
        asked = 0

        def refuse(*_: object, **__: object) -> None:
            nonlocal asked
            asked += 1
            raise LimitExceeded("the share of the namespace is used up")

        with monkeypatch.context() as patch:
            patch.setattr(queue_directory, "mark_fair", refuse)
            for number in range(5):
                await send(sqs, str(number), "ada")
                await world.pass_s(0.1)
            assert asked == 1
            await world.pass_s(MARK_RETRY_S)
            await send(sqs, "5", "ada")
            await world.until(lambda: asked == 2)
        await world.pass_s(MARK_RETRY_S)
        await send(sqs, "6", "ada")
        await world.until(lambda: rules(world) == GroupRules(fair=Fairness.TIME))
        assert len(await receive_groups(sqs, 7)) == 7

    play(story)
