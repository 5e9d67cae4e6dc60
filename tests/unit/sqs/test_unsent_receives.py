"""Receives whose client has left: the messages are visible again, as if they had not been received."""

from __future__ import annotations

import asyncio

from tests.support.builders import engine_settings
from tests.support.engines import World, run_in_world
from tests.support.method_gate import start_task
from tests.support.sqs_world import SqsWorld, policy


def test_messages_of_a_reply_that_is_not_sent_are_visible_again() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1, 2)))
        await sqs.create("mail", VisibilityTimeout="600")
        await sqs.send("mail", *map(str, range(5)))
        assert len(await sqs.receive("mail")) == 5
        assert await sqs.receive("mail") == []
        sqs.requests[-2].give_back()
        await world.pass_s(0.1)
        again = await sqs.receive("mail")
        assert [message["Attributes"]["ApproximateReceiveCount"] for message in again] == ["1"] * 5

    run_in_world(story)


def test_messages_beside_a_dead_letter_are_visible_again_if_the_client_leaves() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("dead")
        await sqs.create("mail", VisibilityTimeout="600", RedrivePolicy=policy("dead", 1))
        await sqs.send("mail", "letter")
        await sqs.receive_times(world, "mail", 1)
        await sqs.send("mail", "good")
        world.stall()
        receiving = start_task(sqs.receive("mail"))
        await world.pass_s(0.01)
        world.resume()
        await world.until(lambda: bool(sqs.requests[-1].give_backs))
        receiving.cancel()  # while the letter is moved
        await asyncio.wait((receiving,))
        sqs.requests[-1].give_back()
        await world.pass_s(0.5)
        [message] = await sqs.receive("mail")
        assert (message["Body"], message["Attributes"]["ApproximateReceiveCount"]) == ("good", "1")

    run_in_world(story)
