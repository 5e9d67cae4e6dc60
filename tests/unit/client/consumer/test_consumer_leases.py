"""The leases of a consumer: they are renewed, extended by a job, and lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.testing import FakeHost
from foqs_client import Client, Item, Outcome, StaleLease, Unreachable
from foqs_client.consumer import Counts, Job
from tests.support.consumer_stories import play, worked

LEASE_MS = 30_000


def test_lease_is_renewed_while_the_item_waits_and_while_its_handler_runs() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        seen: list[int] = []

        async def handle(job: Job) -> None:
            await asyncio.sleep(100)
            assert not job.lost
            seen.append(job.attempt)

        await client.enqueue([Item("t"), Item("t", lease_ms=400), Item("t", lease_ms=3_000_000), Item("t")])
        counts = await worked(client, handle, ["t"], lambda: len(seen) == 4, concurrency=2, in_flight=4)
        assert counts == Counts(done=4)
        assert seen == [1] * 4

    play(story)


def test_job_can_ask_for_a_longer_lease() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        lengths: list[int | None] = []
        extend = client.extend

        async def extended(leases: Any, *, lease_ms: int | None = None, timeout_ms: int | None = None) -> list[Outcome]:
            lengths.append(lease_ms)
            return await extend(leases, lease_ms=lease_ms, timeout_ms=timeout_ms)

        client.extend = extended  # type: ignore[method-assign]
        over: list[bool] = []

        async def handle(job: Job) -> None:
            job.extend(200_000)
            await asyncio.sleep(90)
            over.append(job.lost)

        await client.enqueue([Item("t", lease_ms=1_000)])
        await worked(client, handle, ["t"], lambda: bool(over))
        assert over == [False]
        assert lengths == [200_000]

    play(story)


def test_extension_that_is_lost_during_a_renewal_loses_the_item_when_its_real_lease_ends() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        loop = asyncio.get_running_loop()
        extend = client.extend
        asked: list[tuple[float, int | None]] = []

        async def slow_and_lost(leases: Any, *, lease_ms: int | None = None, **options: Any) -> list[Outcome]:
            asked.append((loop.time() - begun[0], lease_ms))
            if lease_ms is not None:
                raise Unreachable("nobody there")
            outcomes = await extend(leases, **options)
            await asyncio.sleep(0.8)
            return outcomes

        client.extend = slow_and_lost  # type: ignore[method-assign]
        begun: list[float] = []
        ended: list[tuple[int, bool, float]] = []

        async def handle(job: Job) -> None:
            begun.append(loop.time())
            try:
                if job.attempt == 1:
                    await asyncio.sleep(1.2)  # the first renewal is in flight
                    job.extend(120_000)
                    await asyncio.sleep(200)
            finally:
                ended.append((job.attempt, job.lost, loop.time() - begun[0]))

        await client.enqueue([Item("t", lease_ms=2_000)])
        counts = await worked(client, handle, ["t"], lambda: len(ended) == 2)
        (first, lost, after_s), (second, _, again_s) = ended
        assert (first, lost, second) == (1, True, 2)
        assert after_s <= again_s  # the first handler ended before another started
        assert after_s < 4
        assert counts == Counts(done=1, lost=1)
        sent = [length for at, length in asked if at < after_s]
        assert sent[0] is None
        assert set(sent[1:]) == {120_000}

    play(story)


@pytest.mark.parametrize("cancel", [True, False])
def test_handler_sees_that_its_lease_was_lost_and_its_result_does_not_count(cancel: bool) -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        extend, ack = client.extend, client.ack
        acks: list[int] = []

        async def unreachable(*args: Any, **options: Any) -> list[Outcome]:
            raise Unreachable("nobody there")

        async def noted(leases: Sequence[Any], **options: Any) -> list[Outcome]:
            acks.extend(lease.token for lease in leases)
            return await ack(leases, **options)

        client.extend = unreachable  # type: ignore[method-assign]
        client.ack = noted  # type: ignore[method-assign]
        ended: list[tuple[int, bool, str]] = []

        async def handle(job: Job) -> None:
            try:
                await asyncio.sleep(LEASE_MS / 1_000 + 10 if job.attempt == 1 else 1)
            except asyncio.CancelledError:
                ended.append((job.attempt, job.lost, "cancelled"))
                raise
            ended.append((job.attempt, job.lost, "returned"))
            client.extend = extend  # type: ignore[method-assign]

        await client.enqueue([Item("t")])
        counts = await worked(client, handle, ["t"], lambda: len(ended) == 2, cancel_lost=cancel)
        assert sorted(ended) == [(1, True, "cancelled" if cancel else "returned"), (2, False, "returned")]
        assert counts == Counts(done=1, lost=1)
        assert len(acks) == 1

    play(story)


def test_lease_that_a_host_calls_stale_is_lost_at_once() -> None:
    async def story(fake: FakeHost, client: Client) -> None:
        async def stale(leases: Sequence[Any], **options: Any) -> list[Outcome]:
            return [Outcome(StaleLease("leased again"))] * len(leases)

        client.extend = stale  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        ended: list[float] = []

        async def handle(job: Job) -> None:
            begun = loop.time()
            try:
                await asyncio.sleep(1_000)
            finally:
                ended.append(loop.time() - begun)

        await client.enqueue([Item("t")])
        counts = await worked(client, handle, ["t"], lambda: bool(ended))
        assert counts.lost == 1
        assert ended[0] <= LEASE_MS / 2_000

    play(story)
