"""What a command reads in ZooKeeper by itself, without a host.

Always true: its session ends before it returns, and it writes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foqs.options.config import Config
    from shardmgr.cluster_reader import ClusterReading


async def read_registry(config: Config) -> ClusterReading:
    """The whole cluster. Raises `RegistryError`, `Malformed`."""
    from foqs.cluster.registry_factory import COMMAND_SESSION_MS, registry_from_config
    from foqs.runtime.clock import SystemClock
    from shardmgr.cluster_reader import read_cluster

    registry = registry_from_config(config, SystemClock(), COMMAND_SESSION_MS)
    try:
        await registry.open()
        return await read_cluster(registry)
    finally:
        await registry.close()
