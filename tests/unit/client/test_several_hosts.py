"""Tests a client with hosts that are busy, frozen, distant or lost; see `two_hosts`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from foqs.core.items.life import Event, EventKind
from foqs.queue.port import PendingCall
from foqs_client import Client, Item, UnknownOutcome
from foqs_client.host_loads import BUSY_ITEMS
from foqs_client.router import Router
from tests.support.aio import run
from tests.support.frozen_dequeues import FrozenDequeues
from tests.support.poll import soon
from tests.support.ports import free_port
from tests.support.two_hosts import SHARDS, TwoHosts, call_and_wait_for_routing, two_hosts


def at(two: TwoHosts, place: int) -> tuple[str, int]:
    host = two.hosts[place]
    return host.host, host.port


def record_releases(two: TwoHosts, place: int) -> list[str]:
    """Return a list that gets the ids of all items that are released at a host."""
    queue, released = two.engines[place].queue, list[str]()
    real = queue.apply

    def apply(namespace: str, events: Sequence[tuple[int, Event]], *rest: Any) -> PendingCall:
        released.extend(f"{shard}-{event.id}" for shard, event in events if event.kind is EventKind.RELEASE)
        return real(namespace, events, *rest)

    queue.apply = apply  # type: ignore[assignment,method-assign]
    return released


@pytest.mark.parametrize("automatic_keys", [True, False])
@pytest.mark.parametrize("busy", [0, 1])
def test_a_busy_host_gets_no_new_items(busy: int, automatic_keys: bool) -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both, automatic_keys=automatic_keys) as client:
            await call_and_wait_for_routing(client)
            two.map.set_load(busy, 100.0 * BUSY_ITEMS)
            version = two.map.current.version
            await client.refresh_routing()
            for _ in range(6):
                assert [result.require() for result in await client.enqueue([Item("t", b"x")])]
            assert (two.item_count(busy), two.item_count(1 - busy)) == (0, 6)
            assert two.map.current.version == version

    run(main())


@pytest.mark.parametrize(("region", "near"), [("west", 0), ("east", 1)])
def test_new_items_are_sent_to_the_clients_region_while_it_has_room(region: str, near: int) -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both, region=region) as client:
            await call_and_wait_for_routing(client)
            for _ in range(6):
                await client.enqueue([Item("t", b"x")])
            assert (two.item_count(near), two.item_count(1 - near)) == (6, 0)
            two.refuse_new_items(near)
            [result] = await client.enqueue([Item("t", b"x")], timeout_ms=2_000)
            assert result.require()
            assert two.item_count(1 - near) == 1

    run(main())


def test_only_changes_of_the_routing_are_sent() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await call_and_wait_for_routing(client)
            assert two.map.full_routing_count == 1
            for _ in range(3):
                two.map.set_hosts(*zip(two.hosts, reversed(SHARDS), strict=True))
                two.map.set_hosts(*zip(two.hosts, SHARDS, strict=True))
                await client.refresh_routing()
            two.map.set_hosts(*zip(two.hosts, reversed(SHARDS), strict=True))
            await client.refresh_routing()
            assert two.map.full_routing_count == 1
            assert client.owner("3-1") == at(two, 0)

    run(main())


def test_client_uses_the_hosts_of_its_routing_table_after_the_seeds_are_lost() -> None:
    async def main() -> None:
        nobody = f"127.0.0.1:{free_port()}"
        async with two_hosts() as two, Client(f"{two.urls[0]},{nobody}") as client:
            await call_and_wait_for_routing(client)
            await two.stacks[0].aclose()
            routing = await client.routing()  # of no host in particular
            assert len(routing.hosts) == 2
            two.map.set_hosts((two.hosts[1], SHARDS[1]))
            await client.refresh_routing()
            assert client.hosts == [at(two, 1)]  # one host is left, and it is none that was given
            [result] = await client.enqueue([Item("t", b"x")], timeout_ms=5_000)
            assert result.require()
            [delivery] = await client.dequeue({"t": 1})
            assert [outcome.error for outcome in await client.ack([delivery])] == [None]

    run(main())


def test_dequeue_does_not_wait_for_a_frozen_host() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await call_and_wait_for_routing(client)
            frozen = FrozenDequeues(two.engines[0].queue)
            async with Client(two.urls[1], automatic_keys=False) as other:
                for _ in range(4):
                    await other.enqueue([Item("t", b"x")])
                    [_] = await client.dequeue({"t": 1})
            assert len(frozen.held) == 1  # it is asked once
            assert await client.dequeue({"t": 1}) == []

            async with Client(two.urls[0], automatic_keys=False) as other:
                [result] = await other.enqueue([Item("t", b"late")])
            released = record_releases(two, 0)
            frozen.thaw()
            await soon(lambda: bool(released))  # no call waited for the item
            assert released == [result.require()]
            [delivery] = await client.dequeue({"t": 1}, wait_ms=5_000)
            assert (delivery.id, delivery.attempt) == (result.require(), 1)

    run(main())


@pytest.mark.parametrize("wait_ms", [0, 1])
@pytest.mark.parametrize("frozen", [0, 1, None])
def test_dequeue_waits_for_the_first_reply_if_all_hosts_are_slow(
    frozen: int | None, wait_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that is slow for a moment causes no error while the call has time."""
    monkeypatch.setattr("foqs_client.long_polls.SLOW_HOST_S", 0.01)

    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await call_and_wait_for_routing(client)
            for place, url in enumerate(two.urls):
                # A client that learned the routing in time may send the item to the other host.
                while not two.item_count(place):
                    async with Client(url, automatic_keys=False) as other:
                        await other.enqueue([Item("t", b"x")])
            slow = [FrozenDequeues(engine.queue) for engine in two.engines]
            given_up: set[tuple[str, int]] = set()
            monkeypatch.setattr(Router, "on_unreachable", lambda router, host: given_up.add(host))
            call = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=wait_ms))
            # Neither host replied in time. A request may reach its host after that.
            await soon(lambda: len(given_up) == 2 and all(host.held for host in slow))
            for place, host in enumerate(slow):
                if place != frozen:
                    host.thaw()
            [delivery] = await call
            assert delivery.payload == b"x"
            for host in slow:
                host.thaw()

    run(main())


@pytest.mark.parametrize("wait_ms", [0, 1])
def test_dequeue_without_a_reply_ends_with_the_error_of_its_own_time(
    wait_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs_client.long_polls.SLOW_HOST_S", 0.01)

    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await call_and_wait_for_routing(client)

            frozen = [FrozenDequeues(engine.queue) for engine in two.engines]
            with pytest.raises(UnknownOutcome, match="was not done by its deadline"):
                await client.dequeue({"t": 1}, wait_ms=wait_ms, timeout_ms=300)
            assert all(host.held for host in frozen)

    run(main())
