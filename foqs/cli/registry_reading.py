"""Reads a cluster from ZooKeeper, without a host.

Always true: the session ends before the function returns, and nothing is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foqs.options.config import Config
    from shardmgr.cluster_reader import ClusterReading


async def read_registry(config: Config) -> ClusterReading:
    """Read the cluster. Raises `RegistryError`, `MalformedDocument`."""
    from foqs.cluster.connections import COMMAND_SESSION_MS, registry_from_config
    from foqs.runtime.clock import SystemClock
    from shardmgr.cluster_reader import read_cluster

    registry = registry_from_config(config, SystemClock(), COMMAND_SESSION_MS)
    try:
        await registry.open()
        return await read_cluster(registry)
    finally:
        await registry.close()
