"""Receives while shards cannot deliver."""

from __future__ import annotations

import logging

import pytest

from foqs.queue.suspension import WITHOUT_SESSION
from foqs_contract.errors import Unavailable
from tests.support.builders import catalog
from tests.support.engines import World, run_in_world
from tests.support.sqs_world import SqsWorld


def test_a_receive_that_may_miss_messages_fails_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: World) -> None:
        world.catalog = catalog()
        engine = await world.counted_engine()
        sqs = SqsWorld(world, engine)
        await sqs.create("q")
        await sqs.send("q", "hello")
        engine.queue.suspend(WITHOUT_SESSION)
        for _ in range(3):
            with pytest.raises(Unavailable):
                await sqs.receive("q")
        engine.queue.resume()
        empty = next(shard for shard in engine.shards.values() if not shard.may_deliver(("default", "q")))
        empty.close()
        await world.pass_s(10)
        assert await sqs.receive("q")
        assert await sqs.receive("q") == [], "it is invisible now"

    with caplog.at_level(logging.WARNING, "foqs.sqs"):
        run_in_world(story)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("foqs.sqs")]
    assert [message for message in messages if "there may be items" in message][1:] == [], "one line in ten seconds"
    assert any("1 shard may hold messages and cannot deliver them" in message for message in messages), messages
