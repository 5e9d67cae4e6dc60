"""Hosts of one tier under virtual time that tell each other what they have, without a wire between them.

Always true: a call takes a moment each way; one to a host that is dead, or that
`TierWorld.parted` names, is not answered. Everything else is as in `cluster_world`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NoReturn

from foqs.core.errors import Unavailable
from foqs.core.item import State
from foqs.service.api import TopicStats
from foqs.tier.exchange import ExchangeSettings
from foqs.tier.peers import Peer, Peers, Unreached
from foqs.tier.telling import Telling
from tests.support.cluster_world import ClusterHost, ClusterWorld
from tests.support.virtual import run_virtual

SETTINGS = ExchangeSettings(exchange_ms=1_000, exchange_topics_max=50, peer_topics_max=10_000, gone_topics_max=100)
ONE_WAY_S = 0.002
ALL = list(State)


class DirectPeers(Peers):
    """Peers that are called in the same event loop."""

    def __init__(self, world: TierWorld, host: TierHost) -> None:
        service = host.membership.service(host.engine.queue.shards, dict)
        super().__init__(lambda: service.hosts, host.nonce, "default", "", _no_pool)
        self.is_served: Callable[[], bool] = lambda: service.is_served
        self._world = world
        self._me = host
        self.calls = 0

    async def call(self, peer: Peer, method: Any, request: Any, deadline: float) -> Any:
        self.calls += 1
        await asyncio.sleep(ONE_WAY_S)
        world = self._world
        found = next((each for each in world.tier if each.nonce == peer.nonce), None)
        if found is None or not found.alive:
            raise Unreached("nobody listens there")
        if {found.name, self._me.name} & world.parted:
            await asyncio.sleep(max(0.0, deadline - world.loop.time()))
            raise Unavailable("no answer came")
        answer = _Answer()
        found.telling.exchange.serve(request, deadline, answer)
        await asyncio.sleep(ONE_WAY_S)
        world.told += len(answer.reply.topics)
        return answer.reply


class _Answer:
    visitor = None

    def __init__(self) -> None:
        self.reply: Any = None

    def answer(self, shape: Callable[[Any], Any], value: Any, give_back: Callable[[], None] | None = None) -> None:
        self.reply = shape(value)

    def fail(self, error: Exception) -> NoReturn:
        raise error

    def complain(self, text: str) -> NoReturn:
        raise AssertionError(text)


class TierHost(ClusterHost):
    """One host and what it knows of the others."""

    def __init__(self, world: TierWorld, name: str, number: int) -> None:
        super().__init__(world, name, number)
        self.alive = True
        self.peers = DirectPeers(world, self)
        rng = Random(f"{number}/telling")
        self.telling = Telling(world.settings, self.engine, self.peers, lambda: 0.0, self.peers.is_served, rng)
        self._exchanging: asyncio.Task[None]

    async def start(self) -> None:
        await super().start()
        self._exchanging = asyncio.create_task(self.telling.exchange.run())

    async def stop(self) -> None:
        await super().stop()
        self._end()

    async def die(self) -> None:
        self._end()
        await super().die()

    def _end(self) -> None:
        self.alive = False
        self._exchanging.cancel()

    async def listed(
        self, prefix: str = "", states: list[State] | None = ALL, limit: int = 3, namespace: str = "default"
    ) -> dict[str, TopicStats]:
        """All pages, by name."""
        found: list[TopicStats] = []
        cursor: str | None = None
        while True:
            page, cursor = await self.telling.topics.topics(namespace, prefix, states, cursor, limit)
            assert len(page) <= limit
            found += page
            if cursor is None:
                break
            assert cursor == page[-1].topic
        assert [each.topic for each in found] == sorted({each.topic for each in found})
        return {each.topic: each for each in found}


class TierWorld(ClusterWorld):
    """Args:
    settings: of every host's exchange.
    """

    def __init__(self, shards: int, settings: ExchangeSettings) -> None:
        super().__init__(shards)
        self.settings = settings
        self.tier: list[TierHost] = []
        self.parted: set[str] = set()
        """Names of hosts that others do not reach, nor they them."""
        self.told = 0
        """Topics in answers of all exchanges."""

    async def host(self, name: str) -> TierHost:
        self._started += 1
        host = TierHost(self, name, self._started)
        self.hosts.append(host)
        self.tier.append(host)
        await host.start()
        return host

    async def three(self) -> list[TierHost]:
        """Three hosts that serve all shards and have heard of each other."""
        hosts = [await self.host(name) for name in ("one", "two", "three")]
        await self.settled(*hosts)
        await self.pass_s(3)
        return hosts


def _no_pool(address: object) -> NoReturn:
    raise AssertionError("nothing is sent over a network")


def play_tier(
    story: Callable[[TierWorld], Coroutine[Any, Any, None]], shards: int = 6, settings: ExchangeSettings = SETTINGS
) -> None:
    """Runs a story in a fresh tier."""

    async def main() -> None:
        world = TierWorld(shards, settings)
        await world.begin()
        await story(world)
        assert world.overlaps == []

    run_virtual(main, until_s=3_600.0)
