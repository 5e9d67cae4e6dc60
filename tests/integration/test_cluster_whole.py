"""Three real hosts: a call about a topic or a namespace to any host covers all hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from foqs.dev.local_cluster import LocalCluster
from foqs_client import Change, Client, Item, ItemFilter, ItemView, Nack
from tests.support.aio import run
from tests.support.cluster import cluster
from tests.support.poll import until
from tests.support.single_endpoint_client import SingleEndpointClient

pytestmark = [pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper, pytest.mark.timeout(300)]

_COUNT = 60
_SHARDS = 6


@pytest.fixture(scope="module")
def running() -> Iterator[LocalCluster]:
    """Three hosts, each with its part of the shards. No shard moves any more."""
    with cluster(shards=_SHARDS) as found:
        with SingleEndpointClient(found.hosts[0].address) as client:
            part = _SHARDS // len(found.hosts)
            until(lambda: sorted(Counter(client.owners().values()).values()) == [part] * 3, "each has its part", 120)
        yield found


@asynccontextmanager
async def clients(running: LocalCluster) -> AsyncIterator[tuple[Client, Client, Client, Client]]:
    """Yield a client of all hosts, and one of each host."""
    async with AsyncExitStack() as stack:
        addresses = [running.url, *(host.address for host in running.hosts)]
        every, one, two, three = [await stack.enter_async_context(Client(address)) for address in addresses]
        yield every, one, two, three


async def spread(client: Client, topic: str) -> set[str]:
    """Enqueue a few items per call until every shard has items. Return their ids."""
    ids: set[str] = set()
    while len(ids) < _COUNT or len({id.split("-")[0] for id in ids}) < _SHARDS:
        batch = [Item(topic, b"x", priority=(len(ids) * 7 + n) % 50) for n in range(3)]
        ids |= {result.require() for result in await client.enqueue(batch)}
    return ids


async def peek_all(client: Client, topic: str) -> list[ItemView]:
    views: list[ItemView] = []
    cursor: str | None = ""
    while cursor is not None:
        page = await client.peek(topic, limit=7, cursor=cursor or None)
        views += page.items
        cursor = page.next_cursor
    return views


def test_a_call_to_one_host_covers_all_hosts(running: LocalCluster) -> None:
    async def story() -> None:
        async with clients(running) as (every, one, two, three):
            ids = await spread(every, "mail")
            kept = await spread(every, "kept")
            for client in (one, two, three):
                assert (await client.count(ItemFilter("mail"))).items == len(ids)
                usage = await client.usage()
                assert (usage.items, usage.topics) == (len(ids) + len(kept), 2)
            views = await peek_all(three, "mail")
            assert [view.priority for view in views] == sorted(view.priority for view in views)
            assert sorted(view.id for view in views) == sorted(ids)

            changed, cursor = 0, None
            while True:
                page = await two.update_matching(ItemFilter("mail"), Change(priority=7), 20, cursor)
                changed += page.changed
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert changed == sum(view.priority != 7 for view in views)

            assert await one.purge_topic("mail") == len(ids)
            assert (await two.count(ItemFilter("mail"))).items == 0
            assert (await three.peek("mail")).items == []
            assert await every.dequeue({"mail": 100}) == []
            assert (await three.count(ItemFilter("kept"))).items == len(kept)

            settled = 0
            while settled < len(kept):
                leased = await every.dequeue({"kept": 20}, wait_ms=200, lease_ms=60_000)
                for result in await every.nack([Nack(item.id, item.token, dead=True) for item in leased]):
                    result.require()
                settled += len(leased)
            dead: list[str] = []
            cursor = ""
            while cursor is not None:
                found = await one.dead(limit=7, cursor=cursor or None)
                dead += [view.id for view in found.items]
                cursor = found.next_cursor
            assert sorted(dead) == sorted(kept)

    run(story(), timeout=120)
