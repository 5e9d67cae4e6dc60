"""Tests a worker that dies whole: only what its handlers had begun is charged an attempt."""

from __future__ import annotations

import asyncio
from random import Random

from foqs.testing import FakeHost
from foqs_client import Client, Item
from foqs_client.consumer import Consumer, Job
from tests.support.consumer_stories import play, until
from tests.support.poison import DEATHS_MAX, POISON, Begun, poisoned_items, problems_of


def problems_with(in_flight: int | None) -> list[str]:
    """Start workers, each after the death of the one before, until nothing is left to do. Return what is wrong."""
    found: list[str] = []

    async def story(fake: FakeHost, client: Client) -> None:
        begun: list[Begun] = []

        async def handle(job: Job) -> None:
            begun.append((job.payload, job.attempt))
            await asyncio.sleep(1)
            if job.payload == POISON:
                consumer.abort()  # as if it was killed: it settles nothing
                await asyncio.Event().wait()

        await client.enqueue(poisoned_items())
        for _ in range(DEATHS_MAX):
            consumer = Consumer(client, handle, ["t"], concurrency=1, in_flight=in_flight, rng=Random(1))
            running = asyncio.ensure_future(consumer.run())
            await asyncio.wait({running}, timeout=60)  # of virtual time: all leases end within it
            consumer.stop()
            await running
        found.extend(await problems_of(fake, begun))

    play(story)
    return found


def test_item_that_kills_its_worker_is_charged_and_no_other_one() -> None:
    assert problems_with(None) == []


def test_planted_items_that_wait_in_a_worker_are_found_to_be_charged() -> None:
    """What `in_flight` above the concurrency costs, and that the test above would see it."""
    assert any("innocent" in problem for problem in problems_with(3))


def test_short_item_does_not_wait_behind_a_long_one_while_a_worker_is_idle() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        end = asyncio.Event()
        begun: list[tuple[str, bytes]] = []

        def worker(name: str) -> Consumer:
            async def handle(job: Job) -> None:
                begun.append((name, job.payload))
                if job.payload == b"long":
                    await end.wait()

            return Consumer(client, handle, ["t"], concurrency=1, rng=Random(1))

        await client.enqueue([Item("t", b"long"), Item("t", b"short"), Item("t", b"short")])
        first, second = worker("first"), worker("second")
        running = [asyncio.ensure_future(first.run())]
        await until(lambda: bool(begun))
        running.append(asyncio.ensure_future(second.run()))
        await until(lambda: len(begun) == 3)
        assert begun == [("first", b"long"), ("second", b"short"), ("second", b"short")]
        end.set()
        for consumer in (first, second):
            consumer.stop()
        await asyncio.gather(*running)

    play(story)
