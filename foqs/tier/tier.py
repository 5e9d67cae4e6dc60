"""All that a host does with the others of its tier, put together.

Holds `Tier`, of one host. Knows nothing of sockets; `host` starts and stops it.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from foqs.service.engine import Engine
from foqs.tier.byid import by_id
from foqs.tier.calls import TierCalls
from foqs.tier.dequeues import Dequeues
from foqs.tier.enqueues import Enqueues
from foqs.tier.exchange import ExchangeSettings
from foqs.tier.limits import TierLimits
from foqs.tier.peers import Peers
from foqs.tier.scatter import Scatter, ShardMap
from foqs.tier.telling import Telling
from foqs.wire.handlers import Handlers


class Tier:
    """Args:
    alone: the calls as this host serves them by itself.
    shards: who owns those of the tier.
    page_bytes_max: what a page of items carries.
    load: what waits here to be written, in items.
    is_served: see `foqs.tier.topics.TierTopics`.
    seconds: a stop watch.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        alone: Handlers,
        engine: Engine,
        peers: Peers,
        shards: ShardMap,
        page_bytes_max: int,
        load: Callable[[], float],
        is_served: Callable[[], bool],
        seconds: Callable[[], float],
        rng: Random,
    ) -> None:
        methods = alone.methods
        self.peers = peers
        self.telling = Telling(settings, engine, peers, load, is_served, rng)
        self.limits = TierLimits(
            engine.queue.quota,
            lambda: engine.namespaces.limited,
            lambda: peers.others.values(),
            seconds,
            settings.exchange_ms / 1_000,
        )
        self.limits.follow(self.telling.exchange)
        self.enqueues = Enqueues(methods[b"enqueue"].serve, peers)
        self.dequeues = Dequeues(methods[b"dequeue"].serve, peers, engine.queue.stock, self.telling.summaries)
        self.calls = TierCalls(
            alone,
            {
                b"enqueue": self.enqueues.serve,
                b"dequeue": self.dequeues.serve,
                **self.telling.served(alone),
                **by_id(methods, peers),
                **Scatter(methods, peers, shards, page_bytes_max).served,
            },
        )

    async def run(self) -> None:
        """Asks the others what they have, until it is cancelled."""
        await self.telling.exchange.run()

    async def close(self) -> None:
        """Closes the connections to the others."""
        await self.peers.close()
