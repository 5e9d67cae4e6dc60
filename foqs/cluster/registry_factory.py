"""From the configuration of a host to the coordination service of its cluster."""

from __future__ import annotations

from typing import Final

from foqs.options.config import Config
from foqs.runtime.clock import Clock
from shardmgr.registry.port import Registry

REGISTRY_FORMAT: Final = "v1"
"""Of what is kept there: a program that understands it otherwise keeps it elsewhere."""


COMMAND_SESSION_MS: Final = 30_000
"""Of a command, which holds nothing that others wait for: a ZooKeeper that is slow for seconds is no reason to fail."""


def registry_from_config(config: Config, clock: Clock, session_timeout_ms: int | None = None) -> Registry:
    """The cluster's registry, not open yet; `cluster.zookeeper` must be set. Raises `ConfigError` for bad credentials.

    Args:
        session_timeout_ms: None: as hosts have it.
    """
    from shardmgr.registry.zookeeper_registry import ZooKeeperRegistry  # hosts that are alone need no kazoo

    cluster = config.cluster
    return ZooKeeperRegistry(
        cluster.zookeeper,
        f"{cluster.root}/{REGISTRY_FORMAT}",
        session_timeout_ms or cluster.session_timeout_ms,
        clock.monotonic_ms,
        config.cluster_credentials(),
        tick_ms=cluster.zookeeper_tick_ms,
    )
