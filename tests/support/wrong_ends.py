"""Handlers that end in each wrong way, and the story that a consumer survives them.

Holds plain functions that a worker process can import. Knows nothing of how they run.
"""

from __future__ import annotations

import asyncio
import sys
from random import Random
from typing import Any, Final

from foqs.testing import FakeHost
from foqs_client import Item
from foqs_client.consumer import Consumer, Counts, Dead, Job, Retry
from tests.support.consumer_stories import until


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def _dead_with_a_file_name(job: Job) -> None:
    raise Dead("cannot read caf\udce9.txt")


def _unreadable(job: Job) -> None:
    raise Unreadable


def _exit(job: Job) -> None:
    sys.exit("no more")


def _retry_with_a_fraction(job: Job) -> None:
    raise Retry(1.5 * 100)  # type: ignore[arg-type]


def _changed_retry(job: Job) -> None:
    retry = Retry(100)
    retry.delay_ms = 0.5  # type: ignore[assignment]
    raise retry


def _extend_by_a_text(job: Job) -> None:
    job.extend("x")  # type: ignore[arg-type]


WRONG_ENDS: Final = (
    _dead_with_a_file_name, _unreadable, _exit, _retry_with_a_fraction, _changed_retry, _extend_by_a_text,
)  # fmt: skip


def wrong_end(job: Job) -> None:
    if job.attempt == 1 and job.payload != b"good":
        WRONG_ENDS[int(job.payload)](job)


async def survive_wrong_ends(handler: Any, **options: Any) -> None:
    """Give each wrong end an item, behind them a good one, and check that all end as they should."""
    async with FakeHost({"namespace.backoff_ms_min": 1, "namespace.backoff_ms_max": 2}) as fake:
        client = fake.client()
        await client.enqueue([Item("t", b"%d" % n) for n in range(len(WRONG_ENDS))] + [Item("t", b"good")])
        consumer = Consumer(client, handler, ["t"], rng=Random(1), **options)
        running = asyncio.ensure_future(consumer.run())
        await until(lambda: consumer.counts.done == len(WRONG_ENDS) or running.done())
        consumer.stop()
        assert await running == Counts(done=len(WRONG_ENDS), dead=1, retried=len(WRONG_ENDS) - 1)
        [dead] = await fake.items("t")
        assert dead.metadata == b"cannot read caf\\udce9.txt"
