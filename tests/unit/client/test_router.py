"""Tests a client with a routing table. Two hosts in this process have two shards and half of the slots each."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from random import Random
from typing import Any, cast

import pytest

from foqs.queue.port import PendingCall
from foqs.routing.port import RoutingChange
from foqs_client import Client, Delivery, FoqsError, Item, Overloaded, Unavailable, UnknownOutcome, routed_calls, router
from foqs_client.connection_pool import ConnectionPool
from foqs_client.router import RECHECK_S_MIN, Router
from foqs_client.routing_table import Address
from foqs_client.types import Routing
from foqs_contract import errors
from foqs_contract.key_slots import group_slot_of, key_slot_of
from tests.support.aio import run
from tests.support.inner_parts import polls_of, router_of
from tests.support.poll import soon
from tests.support.two_hosts import (
    EASILY_OPENED,
    SHARDS,
    TwoHosts,
    call_and_wait_for_routing,
    slots,
    two_hosts,
    wait_for_routing,
)
from tests.support.virtual_time import run_virtual


def test_item_is_acked_at_the_host_of_its_shard_with_any_seed() -> None:
    async def main() -> None:
        async with (
            two_hosts() as two,
            Client(two.urls[0]) as client,
            Client(two.urls[1], automatic_keys=False) as other,
        ):
            await other.enqueue([Item("t", b"1"), Item("t", b"2")])
            deliveries = await other.dequeue({"t": 2})
            assert len(deliveries) == 2
            assert [outcome.error for outcome in await client.ack(deliveries)] == [None, None]

    run(main())


def test_acks_of_one_turn_are_coalesced_by_host() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            leases = []
            for url in two.urls:
                async with Client(url, automatic_keys=False) as other:
                    await other.enqueue([Item("t", b"x")] * 3)
                    leases.append(await other.dequeue({"t": 3}))
            await wait_for_routing(client)
            asked = []
            for engine, shards in zip(two.engines, SHARDS, strict=True):

                def ack(
                    namespace: str, ids: Any, *rest: Any, real: Any = engine.queue.ack, owner: int = shards[0]
                ) -> PendingCall:
                    asked.append((two.owners[owner], len(ids)))
                    return cast(PendingCall, real(namespace, ids, *rest))

                engine.queue.ack = ack  # type: ignore[assignment,method-assign]
            here, there = leases
            calls = ([here[0]], [there[0]], [here[1]], [there[1]], [here[2], there[2]])
            outcomes = await asyncio.gather(*(client.ack(each) for each in calls))
            assert [[outcome.error for outcome in each] for each in outcomes] == [[None]] * 4 + [[None] * 2]
            owners = [two.owners[1], two.owners[3]]
            assert set(asked) == {
                (at, size) for at in owners for size in (1, 2)
            }  # some perhaps twice, on a busy machine

    run(main())


def test_items_of_several_hosts_are_acked_in_one_call() -> None:
    async def main() -> None:
        async with two_hosts() as two, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(url, automatic_keys=False)) for url in two.urls]
            deliveries: list[Delivery] = []
            for client in clients:
                await client.enqueue([Item("t", b"x")] * 3)
                deliveries += await client.dequeue({"t": 3})
            mixed = [deliveries[place] for place in (0, 3, 1, 4, 2, 5)]
            assert [outcome.error for outcome in await clients[0].ack([*mixed, mixed[0]])][:6] == [None] * 6
            assert two.item_count(0) == two.item_count(1) == 0

    run(main())


def test_automatic_keys_use_the_hosts_in_turn() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            for _ in range(20):
                [result] = await client.enqueue([Item("t", b"x")])
                assert result.require()
            assert min(two.item_count(0), two.item_count(1)) >= 8

    run(main())


def test_client_with_one_seed_finds_the_owner_of_another_hosts_key() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.urls[0]) as client:
            results = [await client.enqueue([Item("t", b"x")], timeout_ms=5_000) for _ in range(8)]
            assert all(result.require() for [result] in results)
            assert min(two.item_count(0), two.item_count(1)) >= 1

    run(main())


def test_call_with_keys_of_several_hosts_is_split_and_its_results_are_in_order() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            items = [Item("t", bytes([n]), idempotency_key=f"key-{n}") for n in range(12)]
            assert {key_slot_of((item.idempotency_key or "").encode()) % 4 // 2 for item in items} == {0, 1}
            first = [result.require() for result in await client.enqueue(items)]
            again = await client.enqueue(list(reversed(items)))
            assert [result.id for result in reversed(again)] == first
            assert all(result.repeated for result in again)
            assert two.item_count(0) + two.item_count(1) == len(items)

    run(main())


@pytest.mark.parametrize("automatic_keys", [True, False])
def test_items_are_sent_to_the_owner_of_their_group(automatic_keys: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both, automatic_keys=automatic_keys) as client:
            await call_and_wait_for_routing(client)
            sent: list[tuple[int, set[str | None]]] = []
            original = client._send_known_items_to

            async def send(host: Any, items: Any, timeout_ms: int, **options: Any) -> Any:
                results = await original(host, items, timeout_ms, **options)
                sent.append((host[1], {item.group for item in items}))
                return results

            monkeypatch.setattr(client, "_send_known_items_to", send)
            groups = [f"group {n}" for n in range(12)]
            slots = [group_slot_of(b"default", group.encode()) for group in groups]
            assert {slot % 4 // 2 for slot in slots} == {0, 1}
            items = [Item("t", group=group, idempotency_key=key) for group in groups for key in ("k", None)]
            assert all(result.require() for result in await client.enqueue(items))
            ports = {port: {slots[groups.index(str(group))] % 4 // 2 for group in names} for port, names in sent}
            assert sorted(ports.values(), key=min) == [{0}, {1}]
            del sent[:]
            atomic = [Item("t"), Item("t", group=groups[0])]
            assert all(result.require() for result in await client.enqueue(atomic, atomic=True))
            [(port, _)] = sent
            assert ports[port] == {slots[0] % 4 // 2}

    run(main())


def test_waiting_dequeue_gets_an_item_of_any_host() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await call_and_wait_for_routing(client)
            for place in (0, 1, 0, 1):
                waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=30_000))
                await soon(lambda: all(len(engine.queue.waiters) for engine in two.engines))
                async with Client(two.urls[place], automatic_keys=False) as producer:
                    [result] = await producer.enqueue([Item("t", b"x")])
                [delivery] = await waiting
                assert delivery.id == result.require()
                assert [outcome.error for outcome in await client.ack([delivery])] == [None]

    run(main())


def test_first_dequeue_of_a_client_with_several_seeds_sees_all_hosts() -> None:
    async def main() -> None:
        async with two_hosts() as two:
            for url in two.urls:
                async with Client(url, automatic_keys=False) as producer:
                    await producer.enqueue([Item("t", b"x")])
                async with Client(two.both) as consumer:
                    [delivery] = await consumer.dequeue({"t": 1})
                    assert [outcome.error for outcome in await consumer.ack([delivery])] == [None]
            async with Client(two.both) as consumer:
                waiting = asyncio.ensure_future(consumer.dequeue({"t": 1}, wait_ms=30_000))
                await soon(lambda: all(len(engine.queue.waiters) for engine in two.engines))
                waiting.cancel()

    run(main())


def test_item_of_a_poll_without_a_waiting_call_is_released() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await call_and_wait_for_routing(client)
            waiting = asyncio.ensure_future(client.dequeue({"t": 1}, wait_ms=30_000))
            await soon(lambda: all(len(engine.queue.waiters) for engine in two.engines))
            ids = []
            for url in two.urls:
                async with Client(url, automatic_keys=False) as producer:
                    [result] = await producer.enqueue([Item("t", b"x")])
                    ids.append(result.require())
            [first] = await waiting
            assert first.id == ids[0]
            await polls_of(client).close()
            [second] = await client.dequeue({"t": 1}, wait_ms=5_000)
            assert second.id == ids[1]
            assert second.attempt == 1

    run(main())


@pytest.mark.parametrize("gone", [0, 1])
def test_client_continues_after_a_host_is_lost(gone: int) -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            for _ in range(4):
                await client.enqueue([Item("t", b"x")])
            await two.stacks[gone].aclose()
            for _ in range(4):
                [result] = await client.enqueue([Item("t", b"x")])
                assert result.require()
            assert await client.dequeue({"t": 1}, wait_ms=5_000)
            two.map.set_hosts((two.hosts[1 - gone], SHARDS[1 - gone]))
            await client.refresh_routing()
            assert client.hosts == [two.owners[SHARDS[1 - gone][0]]]
            [result] = await client.enqueue([Item("t", b"x")], timeout_ms=5_000)
            assert result.require()

    run(main())


def test_client_with_one_seed_continues_with_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "DISCOVER_S", 0.0)

    async def main() -> None:
        async with two_hosts() as two, Client(two.urls[0], automatic_keys=False) as client:
            await client.dequeue({"t": 1})
            await client.dequeue({"t": 1})  # reads the routing table
            await router_of(client).wait_refreshed()
            assert not client.hosts  # it still calls the host that it was given
            await two.stacks[0].aclose()
            two.map.set_hosts((two.hosts[1], SHARDS[1]))
            await client.enqueue([Item("t", b"x", idempotency_key=key_of(SHARDS[1][0]))], timeout_ms=5_000)
            assert two.item_count(1) == 1

    run(main())


def test_client_with_one_seed_follows_its_routing_table_after_not_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "DISCOVER_S", 0.0)

    async def main() -> None:
        async with two_hosts() as two, Client(two.urls[0]) as client:
            await client.dequeue({"t": 1})
            await client.dequeue({"t": 1})
            routes = router_of(client)
            await routes.wait_refreshed()
            routes.mark_stale()  # as after NOT_OWNER
            assert client.hosts

    run(main())


async def mislead(client: Client, two: TwoHosts) -> None:
    """Give the client a routing table with the owners of all shards swapped."""
    two.map.set_hosts(*zip(two.hosts, reversed(SHARDS), strict=True))
    await wait_for_routing(client)
    while client.owner("3-1") != two.owners[1]:  # it had another
        await client.refresh_routing()


def key_of(shard: int) -> str:
    """Return a key whose slot is assigned to a shard."""
    return next(key for key in map(str, itertools.count()) if key_slot_of(key.encode()) in slots(shard))


def test_old_routing_table_is_read_again() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await mislead(client, two)
            two.map.set_hosts(*zip(two.hosts, SHARDS, strict=True))
            for _ in range(4):
                [result] = await client.enqueue([Item("t", b"x")])
                assert result.require()

    run(main())


def test_routing_table_is_read_again_after_unavailable() -> None:
    """A stopping host replies UNAVAILABLE although its shards have moved."""

    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await wait_for_routing(client)
            await client.enqueue([Item("t", b"x", idempotency_key=key_of(1))])  # a host that stops takes no connections
            await mislead(client, two)
            two.hosts[0].server.is_stopping = True
            read_count = two.map.change_read_count
            calling = asyncio.ensure_future(
                client.enqueue([Item("t", b"x", idempotency_key=key_of(3))], timeout_ms=60_000)
            )
            await soon(lambda: two.map.change_read_count > read_count)
            assert not calling.done(), "the map was read, and still names the host that stops"
            two.map.set_hosts(*zip(two.hosts, SHARDS, strict=True))
            [result] = await calling
            assert result.require().startswith("3-")
            two.hosts[0].server.is_stopping = False

    run(main())


def test_routing_table_doubted_before_its_first_read_is_read_again() -> None:
    async def main() -> None:
        reads_s: list[float] = []
        loop = asyncio.get_running_loop()

        async def read(pool: ConnectionPool, last: Routing | None, timeout_ms: int) -> Routing:
            reads_s.append(loop.time())
            await asyncio.sleep(RECHECK_S_MIN / 2)
            return Routing(1, [], [])

        def open_pool(host: Address) -> ConnectionPool:
            return ConnectionPool([host], 1)

        seed = ("host", 1)
        routes = Router(open_pool(seed), [seed], open_pool, read, follow=True, region=None, rng=Random(1))
        routes.mark_stale()
        routes.on_call_errors([Unavailable("not now")])
        await routes.wait_refreshed()
        routes.refresh_if_due()
        await routes.wait_refreshed()
        assert len(reads_s) == 1
        await asyncio.sleep(RECHECK_S_MIN / 2)
        routes.refresh_if_due()
        await routes.wait_refreshed()
        assert len(reads_s) == 2
        assert reads_s[1] - reads_s[0] <= RECHECK_S_MIN
        await routes.close()

    run_virtual(main)


def test_refresh_during_a_read_returns_a_table_that_was_read_after_it_began() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await wait_for_routing(client)
            read = two.map.changes_since
            refreshes: list[asyncio.Future[None]] = []

            def change_after_read(version: int) -> RoutingChange | None:
                found = read(version)
                two.map.changes_since = read  # type: ignore[method-assign]
                two.map.set_hosts((two.hosts[1], SHARDS[1]))
                refreshes.append(asyncio.ensure_future(client.refresh_routing()))
                return found

            two.map.changes_since = change_after_read  # type: ignore[method-assign]
            await client.refresh_routing()
            [refresh] = refreshes
            await refresh
            assert client.hosts == [two.owners[SHARDS[1][0]]]

    run(main())


def test_closed_client_connects_to_no_host() -> None:
    """A call that waited for the routing table may ask for a host after `close`."""

    async def main() -> None:
        async with two_hosts() as two:
            attempts = 0

            async def connect(*arguments: Any) -> Any:
                nonlocal attempts
                attempts += 1
                return await asyncio.get_running_loop().create_connection(*arguments)

            client = Client(two.both, connect=connect)
            await wait_for_routing(client)
            await client.close()
            attempts_before = attempts
            with pytest.raises(Unavailable, match="the client is closed"):
                await client.enqueue([Item("t", b"x", idempotency_key=key_of(3))])
            assert attempts == attempts_before

    run(main())


def test_client_does_not_wait_for_a_host_that_refuses_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await mislead(client, two)
            await two.stacks[0].aclose()
            two.map.set_hosts((two.hosts[1], SHARDS[1]))
            [result] = await client.enqueue([Item("t", b"x", idempotency_key=key_of(3))], timeout_ms=20_000)
            assert result.require().startswith("3-")

    monkeypatch.setattr(routed_calls, "CONNECT_S_MAX", 3_600.0)
    run(main())


def test_item_is_read_at_its_new_owner_when_its_host_refuses_connections() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client, Client(two.urls[1], automatic_keys=False) as other:
            [result] = await other.enqueue([Item("t", b"x")])
            await mislead(client, two)
            await two.stacks[0].aclose()
            two.map.set_hosts((two.hosts[1], SHARDS[1]))
            assert (await client.item(result.require(), timeout_ms=20_000)).topic == "t"

    run(main())


def test_client_leaves_a_stopping_host_even_if_one_host_is_left() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await client.dequeue({"t": 1})
            await wait_for_routing(client)
            two.hosts[0].server.is_stopping = True  # it answers UNAVAILABLE, and closes nothing
            two.map.set_hosts((two.hosts[1], SHARDS[1]))
            await client.refresh_routing()
            for _ in range(4):
                [result] = await client.enqueue([Item("t", b"x")], timeout_ms=20_000)
                assert result.require().partition("-")[0] in {"3", "4"}
            two.hosts[0].server.is_stopping = False

    run(main())


def test_host_that_replied_is_no_longer_avoided() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client:
            await client.dequeue({"t": 1})
            await wait_for_routing(client)
            routes = router_of(client)
            routes.on_unreachable(two.owners[1])
            assert routes.hosts() == [two.owners[3]]
            [result] = await client.enqueue([Item("t", b"x", idempotency_key=key_of(1))])
            assert result.require().startswith("1-")
            assert len(routes.hosts()) == 2

    run(main())


def test_client_with_one_seed_reads_no_routing_table_after_unavailable() -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.urls[0]) as client:
            await client.dequeue({"t": 1})
            two.hosts[0].server.is_stopping = True
            with pytest.raises(Unavailable):
                await client.enqueue([Item("t", b"x", idempotency_key="a")], timeout_ms=2_000)
            assert two.map.full_routing_count == 0
            two.hosts[0].server.is_stopping = False

    run(main())


@pytest.mark.parametrize("kind", [Unavailable, Overloaded, UnknownOutcome])
@pytest.mark.parametrize("wait_ms", [0, 5_000])
def test_dequeue_continues_at_the_host_that_replies(
    kind: type[FoqsError], wait_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with two_hosts() as two, Client(two.both) as client, Client(two.urls[1], automatic_keys=False) as other:
            await call_and_wait_for_routing(client)
            failure = getattr(errors, kind.__name__)("not here")

            def fails(*arguments: Any) -> PendingCall:
                raise failure

            monkeypatch.setattr(two.engines[0].queue, "dequeue", fails)
            [result] = await other.enqueue([Item("t", b"x")])
            [delivery] = await client.dequeue({"t": 1}, wait_ms=wait_ms)
            assert delivery.id == result.require()

    run(main())


def test_client_uses_another_host_instead_of_waiting_for_an_unavailable_one() -> None:
    async def main() -> None:
        async with two_hosts(**EASILY_OPENED) as two, Client(two.both) as client:
            await call_and_wait_for_routing(client)
            await two.open_breakers(0)
            for _ in range(4):
                [result] = await client.enqueue([Item("t", b"x")], timeout_ms=900)
                assert result.require().partition("-")[0] in {"3", "4"}

    run(main())
