"""From the configuration of a host to the coordination service of its cluster."""

from __future__ import annotations

from foqs.clock import Clock
from foqs.config import Config
from shardmgr.registry import Registry
from shardmgr.zookeeper import ZooKeeperRegistry


def registry_of(config: Config, clock: Clock) -> Registry:
    """The cluster's registry, not opened; `cluster.zookeeper` must be set."""
    cluster = config.cluster
    return ZooKeeperRegistry(
        cluster.zookeeper,
        cluster.root,
        cluster.session_timeout_ms,
        clock.monotonic_ms,
        config.cluster_credentials(),
    )
