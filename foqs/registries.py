"""From the configuration of a host to the coordination service of its cluster."""

from __future__ import annotations

from typing import Final

from foqs.clock import Clock
from foqs.config import Config
from shardmgr.registry import Registry

VERSION: Final = "v1"
"""Of what is kept there: a program that understands it otherwise keeps it elsewhere."""


def registry_of(config: Config, clock: Clock) -> Registry:
    """The cluster's registry, not open yet; `cluster.zookeeper` must be set. Raises `ConfigError` for bad credentials."""
    from shardmgr.zookeeper import ZooKeeperRegistry  # hosts that are alone need no kazoo

    cluster = config.cluster
    return ZooKeeperRegistry(
        cluster.zookeeper,
        f"{cluster.root}/{VERSION}",
        cluster.session_timeout_ms,
        clock.monotonic_ms,
        config.cluster_credentials(),
    )
