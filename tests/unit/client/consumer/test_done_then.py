"""`Job.done(then=[...])` with a whole host in memory: an item is done with the items that follow from it, or it is not done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from foqs.testing import FakeHost
from foqs_client import (
    Client,
    Completed,
    Completion,
    Item,
    ItemFilter,
    LimitExceeded,
    Outcome,
    RateLimited,
    StaleLease,
    UnknownOutcome,
    Unreachable,
)
from foqs_client.consumer import Consumer, Counts, Job, Retry
from tests.support.consumer_stories import play, until


async def work_until_done(client: Client, handler: Any, count: int) -> Counts:
    """Run a consumer of topic `t` until so many items are done."""
    consumer = Consumer(client, handler, ["t"], rng=Random(1))
    running = asyncio.ensure_future(consumer.run())
    await until(lambda: consumer.counts.done == count)
    consumer.stop()
    return await running


async def topics_of(fake: FakeHost, *topics: str) -> list[int]:
    return [len(await fake.items(topic)) for topic in topics]


def test_items_follow_when_the_handler_returns_and_are_dropped_when_it_raises() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        async def handle(job: Job) -> None:
            job.done(then=[Item("u", job.payload), Item("v", b"%d" % job.attempt)])
            if job.payload == b"fails" and job.attempt == 1:
                raise Retry(0)

        await client.enqueue([Item("t", b"fine"), Item("t", b"fails")])
        counts = await work_until_done(client, handle, 2)
        assert counts == Counts(done=2, retried=1)
        assert await topics_of(fake, "t", "u", "v") == [0, 2, 2]
        assert sorted(item.payload or b"" for item in await fake.items("v")) == [b"1", b"2"]

    play(story)


def test_plain_functions_in_threads_and_items_without_followers_are_done_as_before() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        def handle(job: Job) -> None:
            if job.payload:
                job.done([Item("u")])

        await client.enqueue([Item("t", b"more"), Item("t"), Item("t", b"more")])
        counts = await work_until_done(client, handle, 3)
        assert counts == Counts(done=3)
        assert await topics_of(fake, "t", "u") == [0, 2]

    play(story)


def test_completion_with_an_unknown_outcome_is_retried_and_adds_no_second_item() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        complete, tries = client.complete, 0

        async def unsure(completions: Sequence[Completion], **options: Any) -> list[Completed]:
            nonlocal tries
            tries += 1
            if tries == 1:
                await complete(completions, **options)  # it was written, and the reply is lost
            if tries < 4:
                raise UnknownOutcome("no reply")
            return await complete(completions, **options)

        client.complete = unsure  # type: ignore[method-assign]

        async def handle(job: Job) -> None:
            job.done([Item("u"), Item("u")])

        await client.enqueue([Item("t"), Item("t")])
        counts = await work_until_done(client, handle, 2)
        assert counts == Counts(done=2)
        assert tries == 4
        assert await topics_of(fake, "t", "u") == [0, 4]

    play(story)


def test_items_that_are_refused_make_the_handler_fail_and_harm_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        async def handle(job: Job) -> None:
            job.done([Item("u"), Item("" if job.payload == b"bad" and job.attempt == 1 else "v")])

        await client.enqueue([Item("t", b"good"), Item("t", b"bad"), Item("t", b"good")])
        with caplog.at_level(logging.WARNING, "foqs.consumer"):
            counts = await work_until_done(client, handle, 3)
        assert counts == Counts(done=3, retried=1)
        assert await topics_of(fake, "t", "u", "v") == [0, 3, 3]
        assert "is not done, because the items that follow are refused: INVALID_ARGUMENT (then[1].topic)" in caplog.text

    play(story)


def test_limits_of_a_host_divide_a_batch_and_rates_delay_it() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        complete = client.complete
        sizes: list[int] = []

        async def limited(completions: Sequence[Completion], **options: Any) -> list[Completed]:
            sizes.append(len(completions))
            if len(completions) > 2:
                raise LimitExceeded("too many", field="completions")
            if len(sizes) == 3:
                return [Completed(error=RateLimited("later")) for _ in completions]
            return await complete(completions, **options)

        client.complete = limited  # type: ignore[method-assign]

        async def handle(job: Job) -> None:
            await asyncio.sleep(0.01)
            job.done([Item("u")])

        await client.enqueue([Item("t")] * 9)
        counts = await work_until_done(client, handle, 9)
        assert counts == Counts(done=9)
        assert max(sizes[2:]) <= 4
        assert await topics_of(fake, "t", "u") == [0, 9]

    play(story)


def refuses_for(client: Client, seconds: float) -> None:
    """Let the client refuse completions for some time, as a namespace over its rate does."""
    complete, loop = client.complete, asyncio.get_running_loop()
    until_s = loop.time() + seconds

    async def limited(completions: Sequence[Completion], **options: Any) -> list[Completed]:
        if loop.time() < until_s:
            return [Completed(error=RateLimited("later", retry_after_ms=1_000)) for _ in completions]
        return await complete(completions, **options)

    client.complete = limited  # type: ignore[method-assign]


def test_lease_is_renewed_while_a_completion_waits() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        refuses_for(client, 100.0)
        attempts: list[int] = []

        async def handle(job: Job) -> None:
            attempts.append(job.attempt)
            job.done([Item("u")])

        await client.enqueue([Item("t", lease_ms=2_000)])
        assert await work_until_done(client, handle, 1) == Counts(done=1)
        assert attempts == [1]
        assert await topics_of(fake, "t", "u") == [0, 1]

    play(story)


def test_item_that_was_delivered_again_while_its_completion_waited_is_done_by_its_newer_lease() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        refuses_for(client, 10.0)

        async def unreachable(*leases: Any, **options: Any) -> list[Outcome]:
            raise Unreachable("nobody there")

        client.extend = unreachable  # type: ignore[method-assign]
        attempts: list[int] = []

        async def handle(job: Job) -> None:
            attempts.append(job.attempt)
            job.done([Item("u", b"%d" % job.attempt)])

        await client.enqueue([Item("t", lease_ms=7_000)])
        assert await work_until_done(client, handle, 1) == Counts(done=1, lost=1)
        assert attempts == [1, 2]
        assert [item.payload for item in await fake.items("u")] == [b"2"]
        assert await topics_of(fake, "t") == [0]

    play(story)


def test_refused_completion_is_nacked_and_its_lease_is_renewed_no_more() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        extend, nack = client.extend, client.nack
        extended_ids: list[str] = []
        nacks_refused = 0

        async def extended(leases: Any, **options: Any) -> list[Outcome]:
            extended_ids.extend(lease.id for lease in leases)
            return await extend(leases, **options)

        async def refused(nacks: Any, **options: Any) -> list[Outcome]:
            nonlocal nacks_refused
            nacks_refused += 1
            raise Unreachable("nobody there")

        client.extend, client.nack = extended, refused  # type: ignore[method-assign]

        async def handle(job: Job) -> None:
            if job.attempt > 1:
                client.nack = nack  # type: ignore[method-assign]
            else:
                job.done([Item("")])

        await client.enqueue([Item("t", lease_ms=2_000)])
        assert await work_until_done(client, handle, 1) == Counts(done=1, lost=1)
        assert nacks_refused
        assert not extended_ids

    play(story)


def test_handler_whose_lease_was_lost_adds_nothing() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        await client.enqueue([Item("t", lease_ms=1_000)])
        [late] = await client.dequeue({"t": 1})
        await fake.advance(5_000)
        [now] = await client.dequeue({"t": 1}, wait_ms=5_000)
        stale, done = (
            await client.complete([Completion(late, [Item("u")])]),
            await client.complete([Completion((now.id, now.token), [Item("u")])]),
        )
        assert isinstance(stale[0].error, StaleLease)
        assert len(done[0].require()) == 1
        assert await client.complete([Completion(now, [Item("u")])]) == [Completed(done[0].ids, repeated=True)]
        assert (await client.count(ItemFilter())).items == 1

    play(story)
