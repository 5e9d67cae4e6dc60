"""Two hosts in this process, of which each has two shards and half of the slots, and the map that both tell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Final

from foqs.core.item import State
from foqs.core.keys import SLOTS
from foqs.service.cluster import Alone, HostView, Identity, MapChange, Routing, ShardView
from foqs.service.engine import Engine
from foqs.service.map_log import MapLog
from foqs.wire.cluster import cluster_calls
from foqs_client import Client, Item
from tests.support.builders import engine_settings
from tests.support.engines import World
from tests.support.wire import Served, served

SHARDS: Final = ((1, 2), (3, 4))


class Map(Alone):
    """What both hosts say of the cluster."""

    def __init__(self) -> None:
        super().__init__(Identity("nowhere", 1, 1), list)
        self.now = Routing(1, [], [])
        self.told_whole = 0
        """How often all of it was told."""
        self._log = MapLog()

    @property
    def version(self) -> int:
        return self.now.version

    def routing(self) -> Routing:
        self.told_whole += 1
        return self.now

    def changes(self, version: int) -> MapChange | None:
        return self._log.since(version)

    def loads(self) -> Sequence[float]:
        return [host.load or 0.0 for host in sorted(self.now.hosts, key=lambda host: host.nonce)]

    def load(self, place: int, items: float) -> None:
        """So much waits at a host; the map is the same."""
        hosts = [replace(host, load=items if at == place else host.load) for at, host in enumerate(self.now.hosts)]
        self.now = replace(self.now, hosts=hosts)

    def show(self, *hosts: tuple[Served, tuple[int, ...]]) -> None:
        addresses = [(host.host, host.port) for host, _ in hosts]
        self.now = Routing(
            self.now.version + 1,
            [
                HostView(f"host{address[1]}", address, "default", region, 2, f"nonce{address[1]}")
                for region, address in zip(("west", "east"), addresses, strict=False)
            ],
            [
                ShardView(shard, "default", "", address, f"host{address[1]}", 1, "owned", slots=slots(shard))
                for address, (_, shards) in zip(addresses, hosts, strict=True)
                for shard in shards
            ],
        )
        self._log.add(self.now)


def slots(shard: int) -> range:
    """A quarter of them each, in turn."""
    return range(shard - 1, SLOTS, 4)


class Two:
    """Both hosts."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stacks = [AsyncExitStack(), AsyncExitStack()]
        for each in self.stacks:
            stack.push_async_exit(each)
        self.world = World()
        self.engines: list[Engine] = []
        self.hosts: list[Served] = []
        self.map = Map()

    @property
    def urls(self) -> list[str]:
        return [host.url for host in self.hosts]

    @property
    def both(self) -> str:
        return ",".join([self.urls[0], self.urls[1].removeprefix("foqs://")])

    def owner_of(self, shard: int) -> tuple[str, int]:
        host = self.hosts[(shard - 1) // 2]
        return host.host, host.port

    def has(self, place: int) -> int:
        """Items in a host's shards."""
        return sum(
            shard.counts.of(("default", "t"), state) for shard in self.engines[place].shards.values() for state in State
        )


@asynccontextmanager
async def two_hosts() -> AsyncIterator[Two]:
    async with AsyncExitStack() as stack:
        two = Two(stack)
        world = two.world
        for place, shards in enumerate(SHARDS):
            for shard in shards:
                world.database.store(shard, world.faults)
                world.database.tables[shard].slots.update(slots(shard))
            engine = await world.engine(engine_settings(*shards))
            engine.queue.placement.recorded_holder = lambda slot: slot % 4 + 1
            engine.queue.placement.owner_of = two.owner_of
            two.stacks[place].push_async_callback(engine.abort)
            host = await two.stacks[place].enter_async_context(served(engine.queue, calls=cluster_calls(two.map)))
            two.engines.append(engine)
            two.hosts.append(host)
        two.map.show(*zip(two.hosts, SHARDS, strict=True))
        yield two


async def told(client: Client) -> None:
    """Returns once the client knows the map; asks for it anew where that failed."""
    while client._router.routes is None:
        client._router.stale()
        await client._router.settled()


async def mapped(client: Client) -> None:
    """As `told`, of a client that has made a call."""
    await client.enqueue([Item("else", b"")])
    await told(client)
