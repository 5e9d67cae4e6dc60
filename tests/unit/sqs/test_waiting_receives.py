"""Receives that wait: each occupies a connection, and those of one account leave some for the others."""

from __future__ import annotations

import pytest

from foqs.sqs.errors import SqsError
from foqs.sqs.sqs_server import receive_places
from tests.support.builders import engine_settings, rpc_limits
from tests.support.engines import World, run_in_world
from tests.support.method_gate import start_task
from tests.support.sqs_world import RECEIVES_WAITING_MAX, SqsWorld


def test_receives_of_one_account_that_wait_leave_half_of_the_places() -> None:
    async def story(world: World) -> None:
        sqs = SqsWorld(world, await world.engine(engine_settings(1)))
        await sqs.create("mail")
        share = RECEIVES_WAITING_MAX // 2
        for _ in range(2):  # the places are given back
            polls = [start_task(sqs.receive("mail", WaitTimeSeconds=5)) for _ in range(share)]
            await world.pass_s(1)
            with pytest.raises(SqsError, match="Too many receives") as refused:
                await sqs.receive("mail", WaitTimeSeconds=5)
            assert refused.value.shape == "RequestThrottled"
            assert await sqs.receive("mail", WaitTimeSeconds=0) == []
            assert [await poll for poll in polls] == [[]] * share

    run_in_world(story)


def test_receives_that_wait_leave_connections_and_calls_for_sends_and_deletes() -> None:
    assert receive_places(rpc_limits(connections_max=100, calls_in_flight_max=1_000)) == 75
    assert receive_places(rpc_limits(connections_max=100, calls_in_flight_max=40)) == 30
    assert receive_places(rpc_limits(connections_max=1)) == 1
