"""Two hosts in this process, each with two shards and half of the key slots, and their common routing table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from foqs.cluster.routing.routing_log import RoutingLog
from foqs.core.items.item import NewItem, State
from foqs.queue.engine import Engine
from foqs.queue.port import EnqueueOutcome
from foqs.routing.port import HostIdentity, HostView, RoutingChange, RoutingTable, ShardView, StandaloneCluster
from foqs.rpc.cluster_handlers import cluster_handlers
from foqs.store.port import WriteRefused
from foqs_client import Client, Item
from foqs_contract.errors import Unavailable
from foqs_contract.key_slots import KEY_SLOT_COUNT
from tests.support.aio import call_result
from tests.support.builders import engine_settings, new_item
from tests.support.engines import World, tier_of
from tests.support.rpc_server import ServedQueue, serve_queue

SHARDS: Final = ((1, 2), (3, 4))
EASILY_OPENED: Final = {"breaker_flushes_min": 1, "breaker_error_percent": 1, "breaker_reset_ms": 60_000}
"""Options with which one failed flush opens a breaker, for longer than a test lasts."""


class SharedRouting(StandaloneCluster):
    """The routing table that both hosts report."""

    def __init__(self) -> None:
        super().__init__(HostIdentity("nowhere", 1, 1), list)
        self.current = RoutingTable(1, [], [])
        self.full_routing_count = 0
        """How often the full table was read."""
        self.change_read_count = 0
        """How often the changes since a version were read."""
        self._log = RoutingLog()

    @property
    def version(self) -> int:
        return self.current.version

    def routing(self) -> RoutingTable:
        self.full_routing_count += 1
        return self.current

    def changes_since(self, version: int) -> RoutingChange | None:
        self.change_read_count += 1
        return self._log.changes_since(version)

    def host_loads(self) -> Sequence[float]:
        return [host.load or 0.0 for host in sorted(self.current.hosts, key=lambda host: host.nonce)]

    def set_load(self, place: int, items: float) -> None:
        """Set the load of a host; the routing table stays the same."""
        hosts = [replace(host, load=items if at == place else host.load) for at, host in enumerate(self.current.hosts)]
        self.current = replace(self.current, hosts=hosts)

    def set_hosts(self, *hosts: tuple[ServedQueue, tuple[int, ...]]) -> None:
        addresses = [(host.host, host.port) for host, _ in hosts]
        self.current = RoutingTable(
            self.current.version + 1,
            [
                HostView(f"host{address[1]}", address, "default", region, 2, f"nonce{address[1]}")
                for region, address in zip(("west", "east"), addresses, strict=False)
            ],
            [
                ShardView(shard, "default", "", address, f"host{address[1]}", 1, "owned", key_slots=slots(shard))
                for address, (_, shards) in zip(addresses, hosts, strict=True)
                for shard in shards
            ],
        )
        self._log.add(self.current)


def slots(shard: int) -> range:
    """Return every fourth slot."""
    return range(shard - 1, KEY_SLOT_COUNT, 4)


class TwoHosts:
    """Both hosts."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stacks = [AsyncExitStack(), AsyncExitStack()]
        for each in self.stacks:
            stack.push_async_exit(each)
        self.world = World()
        self.engines: list[Engine] = []
        self.hosts: list[ServedQueue] = []
        self.owners: dict[int, tuple[str, int]] = {}
        self.map = SharedRouting()

    @property
    def urls(self) -> list[str]:
        return [host.url for host in self.hosts]

    @property
    def both(self) -> str:
        return ",".join([self.urls[0], self.urls[1].removeprefix("foqs://")])

    def refuse_new_items(self, place: int) -> None:
        """Make a host refuse new items, as it does while the breakers of its shards are open."""
        queue = self.engines[place].queue

        def refuse(
            namespace: str, items: Sequence[NewItem], deadline: float, on_done: Callable[[list[EnqueueOutcome]], None]
        ) -> None:
            on_done([Unavailable("its database does not respond", retry_after_ms=2_000)] * len(items))

        queue.enqueue = refuse  # type: ignore[assignment,method-assign]

    async def open_breakers(self, place: int) -> None:
        """Open the breakers of a host's shards, by a full disk. Needs `EASILY_OPENED` as options."""
        queue, loop = self.engines[place].queue, asyncio.get_running_loop()
        database, shards = self.world.database, self.engines[place].shards.values()
        real = database.refuse
        database.refuse = lambda writes: WriteRefused("the disk is full", is_full=True) if writes.inserts else None
        while any(shard.breaker_state != "open" for shard in shards):
            await call_result(lambda done: queue.enqueue("default", [new_item()], loop.time() + 10, done))
        database.refuse = real

    def item_count(self, place: int) -> int:
        """Items in a host's shards."""
        return sum(
            shard.counts.count(("default", "t"), state)
            for shard in self.engines[place].shards.values()
            for state in State
        )


@asynccontextmanager
async def two_hosts(**options: Any) -> AsyncIterator[TwoHosts]:
    """Start both hosts. `options`: see `engine_settings`."""
    async with AsyncExitStack() as stack:
        two = TwoHosts(stack)
        world = two.world
        for place, shards in enumerate(SHARDS):
            for shard in shards:
                world.database.store(shard, world.faults)
                world.database.tables[shard].key_slots.update(slots(shard))
            engine = await world.engine(engine_settings(*shards, **options), sharing=shards)
            tier_of(engine).owners = two.owners
            two.stacks[place].push_async_callback(engine.abort)
            host = await two.stacks[place].enter_async_context(
                serve_queue(engine.queue, calls=cluster_handlers(two.map))
            )
            two.engines.append(engine)
            two.hosts.append(host)
            two.owners.update(dict.fromkeys(shards, (host.host, host.port)))
        two.map.set_hosts(*zip(two.hosts, SHARDS, strict=True))
        yield two


async def wait_for_routing(client: Client) -> None:
    """Return once the client knows the routing table. Retries failed reads."""
    while not client.hosts:
        await client.refresh_routing()


async def call_and_wait_for_routing(client: Client) -> None:
    """Make a call, then wait as `wait_for_routing` does."""
    await client.enqueue([Item("else", b"")])
    await wait_for_routing(client)
