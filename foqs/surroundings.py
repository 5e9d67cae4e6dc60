"""The surroundings of a host: clocks, randomness, the stores of its shards, and the registry of its cluster.

Always true: nothing is opened here. The network is that of the event loop. Knows
nothing of what a host does with them.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from foqs.cluster.connections import registry_from_config
from foqs.options.config import Config
from foqs.runtime.clock import Clock, SystemClock
from foqs.store import factories
from shardmgr.registry.port import Registry


@dataclass(slots=True, frozen=True)
class Surroundings:
    """The surroundings of one run of a host.

    Attributes:
        nonce: names the run; no two runs share one.
        open_store: makes an unopened store of a shard. Raises `StoreUnusable` if its database or server is not configured.
        make_registry: makes the unopened registry of a host in a cluster.
    """

    clock: Clock
    rng: random.Random
    nonce: str
    open_store: factories.ShardStoreFactory
    make_registry: Callable[[], Registry]

    @classmethod
    def of(cls, config: Config, clock: Clock | None = None) -> Surroundings:
        """Return the surroundings that a configuration names, with the machine's clock by default."""
        clock = clock or SystemClock()
        return cls(
            clock,
            random.Random(secrets.randbits(128)),
            secrets.token_hex(16),
            factories.shard_store_factory(config, clock),
            lambda: registry_from_config(config, clock),
        )
