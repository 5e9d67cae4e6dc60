"""Calls of `abandonDequeues`: dequeues whose callers have left get a reply without items, in front of its own."""

from __future__ import annotations

import asyncio

import pytest

from foqs_contract.errors import ErrorCode
from foqs_contract.idl import ttypes
from tests.support.aio import run
from tests.support.fake_queue import FakeQueue
from tests.support.poll import soon
from tests.support.rpc_server import call, enqueue, serve_queue

DEQUEUE = ttypes.DequeueRequest("default", [ttypes.TopicCount("t", 1)], wait_ms=20_000, timeout_ms=30_000)


@pytest.mark.parametrize("compact", [False, True])
@pytest.mark.parametrize("seqid", [5, 200, (1 << 31) - 1, -3])
def test_an_abandoned_dequeue_is_answered_without_items_and_others_go_on(seqid: int, compact: bool) -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue) as host:
            raw = await host.raw()
            raw.send(call("dequeue", DEQUEUE, 7, compact=compact) + call("dequeue", DEQUEUE, seqid, compact=compact))
            raw.send(call("enqueue", enqueue("t"), 9, compact=compact))
            await soon(lambda: queue.running == 3)
            abandon = ttypes.AbandonDequeuesRequest([seqid, 9, 77])
            raw.send(call("abandonDequeues", abandon, 10, compact=compact))
            number, reply = await raw.reply("dequeue", compact)
            assert (number, list(reply.success.items)) == (seqid, [])
            number, reply = await raw.reply("abandonDequeues", compact)
            assert (number, reply.success) == (10, ttypes.DoneReply())
            assert queue.cancelled == ["dequeue"]
            await soon(lambda: queue.running == 2)
            queue.gate.set()
            assert {(await raw.reply(name, compact))[0] for name in ("dequeue", "enqueue")} == {7, 9}
            await raw.close()

    run(main())


def test_a_dequeue_of_another_connection_cannot_be_abandoned() -> None:
    async def main() -> None:
        queue = FakeQueue()
        queue.gate = asyncio.Event()
        async with serve_queue(queue) as host:
            own, other = await host.raw(), await host.raw()
            own.send(call("dequeue", DEQUEUE, 5))
            await soon(lambda: queue.running == 1)
            other.send(call("abandonDequeues", ttypes.AbandonDequeuesRequest([5]), 1))
            await other.reply("abandonDequeues")
            assert queue.cancelled == []
            await own.close()
            await other.close()

    run(main())


def test_a_request_without_numbers_is_refused() -> None:
    async def main() -> None:
        async with serve_queue(FakeQueue()) as host:
            raw = await host.raw()
            raw.send(call("abandonDequeues", ttypes.AbandonDequeuesRequest(), 1))
            _, reply = await raw.reply("abandonDequeues")
            error = reply.failed.error
            assert (error.code, error.field) == (ErrorCode.INVALID_ARGUMENT, "sequence_ids")
            await raw.close()

    run(main())
