"""Opens the connections of a host to its peers, and of a host or a command to the registry, by the configuration.

Always true: nothing is connected before the first use, and the registry session of a command
ends with the command. Knows nothing of what is sent over the connections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from foqs.access.host_secrets import cluster_credentials
from foqs.options.config import Config, ConfigError
from foqs.routing.port import Address
from foqs.runtime.clock import Clock, SystemClock
from foqs_client.connection_pool import ConnectionPool
from foqs_client.credentials import Tls, make_handshake, tls_connect
from foqs_client.errors import InvalidArgument
from shardmgr.cluster_reader import ClusterReading, read_cluster
from shardmgr.primary import Primaries
from shardmgr.primary_document import read_primaries
from shardmgr.primary_moves import elected_promoters
from shardmgr.promoter import ElectedPromoter
from shardmgr.registry.port import Registry

REGISTRY_FORMAT: Final = "v1"
"""Part of the registry's path: programs with another format use another path."""

COMMAND_SESSION_MS: Final = 30_000
"""The timeout of the registry session of a command. It is long, because nothing waits for the end of that session: the command survives a slow ZooKeeper."""


def peer_pool_opener(config: Config) -> Callable[[Address], ConnectionPool]:
    """Return a function that opens authenticated connections to a peer. Raises ConfigError."""
    cluster, server = config.cluster, config.server
    token_file = cluster.token_file if config.auth.enabled else ""
    try:
        connect = None
        if server.tls_cert_file:
            connect = tls_connect(Tls(cluster.ca_file or None, server.tls_cert_file, server.tls_key_file).context())
        handshake = make_handshake(None, token_file or None, config.auth.enabled and not token_file)
    except InvalidArgument as error:
        key = "cluster.token_file" if error.field == "token_file" else "cluster.ca_file"
        raise ConfigError("", key, error.message, "correct [cluster] in the host's configuration") from None
    return lambda address: ConnectionPool([address], 1, connect, handshake)


def registry_from_config(config: Config, clock: Clock, session_timeout_ms: int | None = None) -> Registry:
    """Return the cluster's registry, not opened; `cluster.zookeeper` must be set. Raises ConfigError for bad credentials.

    Args:
        session_timeout_ms: None: the session timeout of hosts.
    """
    from shardmgr.registry.zookeeper_registry import ZooKeeperRegistry  # hosts without a cluster need no kazoo

    cluster = config.cluster
    return ZooKeeperRegistry(
        cluster.zookeeper,
        f"{cluster.root}/{REGISTRY_FORMAT}",
        session_timeout_ms or cluster.session_timeout_ms,
        clock.monotonic_ms,
        cluster_credentials(config),
        tick_ms=cluster.zookeeper_tick_ms,
    )


@dataclass(slots=True, frozen=True)
class RegistryReading:
    """What the registry has of a cluster.

    Attributes:
        primaries: the entries of the databases in the layout.
        elected: by database with an entry, what its elected promoter has published; none if nobody is elected.
    """

    cluster: ClusterReading
    primaries: Primaries = field(default_factory=Primaries)
    elected: Mapping[str, ElectedPromoter] = field(default_factory=dict)


async def read_registry(config: Config) -> RegistryReading:
    """Read the registry in a session of its own. Raises `RegistryError`, `MalformedDocument`."""
    registry = registry_from_config(config, SystemClock(), COMMAND_SESSION_MS)
    try:
        await registry.open()
        cluster = await read_cluster(registry)
        shards = {} if cluster.layout is None else cluster.layout.shards
        primaries = await read_primaries(registry, (spec.database for spec in shards.values()))
        return RegistryReading(cluster, primaries, await elected_promoters(registry, primaries.entries))
    finally:
        await registry.close()
