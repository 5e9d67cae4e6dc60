"""Tests long polls with futures as polls: who gets the items of a poll that no call waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from foqs_client import Delivery
from foqs_client.long_polls import HOLD_S, DequeueKind, LongPolls
from foqs_client.releases import Releases
from foqs_client.routing_table import Address
from tests.support.virtual_time import run_virtual

HOSTS: Sequence[Address] = (("one.example", 7411), ("two.example", 7411))
DELIVERY = Delivery("0-1", 5, "t", 3, b"payload", b"", 1, 0, 900, 10, 0)
ONE = DequeueKind((("t", 1),), None, None, is_long_poll=True)
TWO = DequeueKind((("t", 2),), None, None, is_long_poll=True)


class World:
    """Long polls of a client, whose polls end when a test sets their results.

    Attributes:
        released: the items that were released, in order.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.released: list[Delivery] = []
        self.polls = LongPolls(Releases(self._release))
        self.replies: dict[Address, asyncio.Future[list[Delivery]]] = {host: loop.create_future() for host in HOSTS}

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        self.released += deliveries

    def detached_poll(self, kind: DequeueKind = TWO) -> asyncio.Future[list[Delivery]]:
        """Start a poll at the first host, for which no call waits."""
        self.polls.start_detached(kind, HOSTS[0], self.replies.__getitem__)
        return self.replies[HOSTS[0]]

    def waiting_call(self, kind: DequeueKind = ONE) -> asyncio.Task[list[Delivery]]:
        """Start a call that waits for the second host."""
        return asyncio.ensure_future(self.polls.poll_all(kind, HOSTS[1:], self.replies.__getitem__, 60.0))


def test_a_waiting_call_gets_the_items_of_a_detached_poll_and_the_rest_is_released() -> None:
    async def program() -> None:
        world = World()
        poll, call = world.detached_poll(), world.waiting_call()
        await asyncio.sleep(1)
        other = Delivery("0-2", 5, "t", 3, b"", b"", 1, 0, 900, 10, 0)
        poll.set_result([DELIVERY, other])
        assert await call == [DELIVERY]
        await asyncio.sleep(0)
        assert world.released == [other]

    run_virtual(program)


def test_a_run_goes_to_a_call_that_asked_for_one_and_what_it_does_not_take_to_no_other() -> None:
    async def program() -> None:
        world = World()
        poll = world.detached_poll(TWO._replace(run_max=2))
        calls = [world.waiting_call(kind) for kind in (ONE, ONE._replace(run_max=3), ONE._replace(run_max=2))]
        await asyncio.sleep(1)
        behind = Delivery("0-2", 5, "t", 3, b"", b"", 1, 0, 900, 10, 0)
        poll.set_result([DELIVERY, behind])
        await asyncio.sleep(2 * HOLD_S)
        assert [call.done() for call in calls] == [False, True, False]
        assert (await calls[1], world.released) == ([DELIVERY], [behind])
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    run_virtual(program)


def test_a_call_that_is_cancelled_when_it_gets_items_releases_them() -> None:
    async def program() -> None:
        world = World()
        poll, call = world.detached_poll(), world.waiting_call()
        await asyncio.sleep(1)
        # Called after the callback that assigns the items to the call.
        poll.add_done_callback(lambda _: call.cancel())
        poll.set_result([DELIVERY])
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(2 * HOLD_S)
        assert world.released == [DELIVERY]

    run_virtual(program)
