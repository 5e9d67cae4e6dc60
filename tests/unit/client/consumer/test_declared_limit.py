"""Tasks that declare a limit on the leases of a group, with a whole host in memory under virtual time."""

from __future__ import annotations

import asyncio
import logging

import pytest

from foqs.testing import FakeHost
from foqs_client import Client, InvalidArgument, Item, NotImplementedYet, TopicPolicy, Unavailable
from foqs_client.consumer import Consumer, Job
from foqs_client.consumer.declared_limit import CHECK_S
from tests.support.consumer_stories import play, until, worked


async def ignore(job: Job) -> None:
    pass


async def attempts(fake: FakeHost, topic: str = "orders") -> list[int]:
    return [item.attempt for item in await fake.items(topic)]


@pytest.mark.parametrize("limits", [(1, 1), (3, 1), (3, 3)])
def test_a_task_works_whose_topics_allow_at_most_what_it_declares(limits: tuple[int, int]) -> None:
    declared, allowed = limits

    async def story(fake: FakeHost, client: Client) -> None:
        for topic in ("orders", "returns"):
            await client.set_topic_policy(TopicPolicy(topic, allowed))
        await client.enqueue([Item(topic, group="ada") for topic in ("orders", "returns") for _ in range(3)])
        done: list[str] = []

        async def handle(job: Job) -> None:
            done.append(job.topic)

        options = {"group_leases_max": declared}
        counts = await worked(client, handle, ["orders", "returns"], lambda: len(done) == 6, **options)
        assert counts.done == 6

    play(story)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (None, "allows any number"),
        (TopicPolicy("orders", 2), "allows 2;"),
        (TopicPolicy("orders", fair="items"), "allows any number"),
    ],
)
def test_nothing_is_dequeued_while_a_policy_allows_more(policy: TopicPolicy | None, words: str) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        if policy is not None:
            await client.set_topic_policy(policy)
        await client.enqueue([Item("orders", group="ada")])
        consumer = Consumer(client, ignore, ["orders"], group_leases_max=1)
        with pytest.raises(InvalidArgument, match=words) as refused:
            await consumer.run()
        assert refused.value.field == "group_leases_max"
        assert "foqs topic policy orders --group-leases-max 1" in refused.value.message
        assert await attempts(fake) == [0]

    play(story)


def test_a_policy_that_is_raised_or_removed_stops_the_consumer_in_order() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        for changed in (TopicPolicy("orders", 2), TopicPolicy("orders")):
            await client.set_topic_policy(TopicPolicy("orders", 1))
            await client.enqueue([Item("orders", group="ada")])
            begun, may_end = asyncio.Event(), asyncio.Event()

            async def handle(job: Job, begun: asyncio.Event = begun, may_end: asyncio.Event = may_end) -> None:
                begun.set()
                await may_end.wait()

            consumer = Consumer(client, handle, ["orders"], group_leases_max=1)
            running = asyncio.ensure_future(consumer.run())
            await begun.wait()
            await client.set_topic_policy(changed)
            await asyncio.sleep(CHECK_S + 1)
            assert not running.done(), "it waits for its handler"
            may_end.set()
            with pytest.raises(InvalidArgument, match="this task is made for at most 1 leased item of a group"):
                await running
            assert consumer.counts.done == 1
            assert await fake.items("orders") == []

    play(story)


def test_a_host_that_does_not_answer_is_asked_again_and_a_stop_ends_the_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        await client.set_topic_policy(TopicPolicy("orders", 1))
        read, asked, is_away = client.topic_policies, [0], [True]

        async def topic_policies() -> list[TopicPolicy]:
            asked[0] += 1
            if is_away[0]:
                raise Unavailable("no host answers")
            return await read()

        monkeypatch.setattr(client, "topic_policies", topic_policies)
        await client.enqueue([Item("orders", group="ada")])
        stopped = Consumer(client, ignore, ["orders"], group_leases_max=1)
        running = asyncio.ensure_future(stopped.run())
        await until(lambda: asked[0] > 2)
        stopped.stop()
        assert (await running).done == 0
        consumer = Consumer(client, ignore, ["orders"], group_leases_max=1)
        running = asyncio.ensure_future(consumer.run())
        await until(lambda: asked[0] > 6)
        assert await attempts(fake) == [0]
        is_away[0] = False
        await until(lambda: consumer.counts.done == 1)
        is_away[0] = True  # policies that were read once count until others are read
        await asyncio.sleep(3 * CHECK_S)
        await client.enqueue([Item("orders", group="ada")])
        await until(lambda: consumer.counts.done == 2)
        consumer.stop()
        await running

    with caplog.at_level(logging.WARNING, "foqs.consumer"):
        play(story)
    assert "reading of policies failed: UNAVAILABLE: no host answers" in caplog.text


def test_a_host_without_policies_is_too_old_for_a_declared_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        async def topic_policies() -> list[TopicPolicy]:
            raise NotImplementedYet("the host serves version 1 of the contract")

        monkeypatch.setattr(client, "topic_policies", topic_policies)
        with pytest.raises(NotImplementedYet):
            await Consumer(client, ignore, ["orders"], group_leases_max=1).run()

    play(story)


@pytest.mark.parametrize(
    ("topics", "limit", "words"),
    [
        (["orders.*"], 1, "name each topic"),
        (["orders", "*"], 1, "name each topic"),
        (["orders"], 0, "0 is not a number from 1 to 1000"),
        (["orders"], 1_001, "1001 is not"),
    ],
)
def test_bad_declarations_are_refused(topics: list[str], limit: int, words: str) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        with pytest.raises(InvalidArgument, match=words) as refused:
            Consumer(client, ignore, topics, group_leases_max=limit)
        assert refused.value.field == "group_leases_max"

    play(story)
