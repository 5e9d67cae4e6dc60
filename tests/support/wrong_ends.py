"""A consumer survives handlers that end in each wrong way.

Holds the story. Knows nothing of how the handlers run.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from foqs.testing import FakeHost
from foqs_client import Item
from foqs_client.consumer import Consumer, Counts
from tests.support.child_handlers import WRONG_ENDS
from tests.support.consumer_stories import until


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
