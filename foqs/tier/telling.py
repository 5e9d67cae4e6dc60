"""What the hosts of a tier tell each other, put together for one of them.

Holds `Telling`: the journal of this host's topics, what the others told, who asks
them, and the list of the tier's topics that comes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from foqs.service.engine import Engine
from foqs.tier.exchange import Exchange, ExchangeSettings
from foqs.tier.journal import Journal
from foqs.tier.local import LocalTopics
from foqs.tier.peers import Peers
from foqs.tier.summaries import Summaries
from foqs.tier.topics import TierTopics
from foqs.wire.handlers import Handlers
from foqs.wire.methods import Serve, in_task

_VERSION_BITS: Final = 62


class Telling:
    """Args:
    load: what waits here to be written, in items.
    is_served: see `TierTopics`.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        engine: Engine,
        peers: Peers,
        load: Callable[[], float],
        is_served: Callable[[], bool],
        rng: Random,
    ) -> None:
        self.summaries = Summaries(settings.peer_topics_max)
        self.local = LocalTopics(engine.shards, Journal(rng.getrandbits(_VERSION_BITS), settings.gone_topics_max))
        placement = engine.queue.placement
        self.exchange = Exchange(settings, peers, self.local, self.summaries, load, lambda: placement.takes_items, rng)
        self.topics = TierTopics(engine, peers, self.local, self.summaries, is_served)

    def served(self, alone: Handlers) -> Mapping[bytes, Serve]:
        """The calls about it; those about this host only as it serves them alone."""

        async def get_active_topics(request: Any, deadline: float) -> Any:
            if request.filter is not None and request.filter.local_only:
                return await alone.get_active_topics(request, deadline)
            return await alone.list_topics(request, self.topics.topics)

        return {b"exchange": self.exchange.serve, b"getActiveTopics": in_task(get_active_topics)}
