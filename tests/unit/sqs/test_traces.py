"""The trace of a request is that of its messages, and does not say what they are."""

from __future__ import annotations

from typing import Final

from tests.support.builders import engine_settings
from tests.support.engines import World, run_in_world
from tests.support.sqs_world import SqsWorld

TRACE: Final = "Root=1-5759e988-bd862e3fe1be46a994272793"


async def traces(sqs: SqsWorld) -> dict[str, str | None]:
    """Receive all messages of `mail`; return their traces by body."""
    found = await sqs.receive("mail")
    return {message["Body"]: message["Attributes"].get("AWSTraceHeader") for message in found}


def test_an_attempt_with_another_trace_is_the_same_message() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("mail")
        sqs.invocation_id = "0123456789abcdef"
        sqs.trace = TRACE.encode()
        first = await sqs.send("mail", "x")
        sqs.trace = b"Root=1-of-the-second-attempt"
        assert await sqs.send("mail", "x") == first
        assert await traces(sqs) == {"x": TRACE}

    run_in_world(story)


def test_a_trace_attribute_counts_before_the_trace_of_its_request() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("mail")
        sqs.trace = TRACE.encode()
        own = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-own"}}
        await sqs.call("SendMessage", QueueUrl="mail", MessageBody="own", MessageSystemAttributes=own)
        reply = await sqs.call("SendMessage", QueueUrl="mail", MessageBody="x")
        assert "MD5OfMessageSystemAttributes" not in reply
        assert await traces(sqs) == {"own": "Root=1-own", "x": TRACE}

    run_in_world(story)


def test_a_trace_in_another_encoding_is_not_shown_as_one_of_x_ray() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("mail")
        for trace in (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"\xff"):
            sqs.trace = trace  # as another producer gives it
            await sqs.send("mail", repr(trace))
        assert set((await traces(sqs)).values()) == {None}

    run_in_world(story)
