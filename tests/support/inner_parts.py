"""Inner parts of shards, stores and clients, for tests that break them or wait for them.

Always true: tests get these parts here, so that a part that is renamed is mended in one
place. A test that can see the same from outside does so.
"""

from __future__ import annotations

from typing import Any

from foqs.shard.shard import OwnedShard
from foqs.shard.timer_service import TimerService
from foqs.shard.writer import Writer
from foqs.store.mysql.mysql_driver import MysqlLink
from foqs.store.mysql.mysql_store import MysqlStore
from foqs.store.port import Store
from foqs_client import Client, SyncClient
from foqs_client.coalescing import Coalescer
from foqs_client.connection_pool import ConnectionPool
from foqs_client.long_polls import LongPolls
from foqs_client.releases import Releases
from foqs_client.router import Router


def writer_of(shard: OwnedShard) -> Writer:
    """Return the writer of a shard."""
    return shard._writer


def timer_service_of(shard: OwnedShard) -> TimerService:
    """Return the timer service of a shard."""
    return shard._timer_service


def store_of(shard: OwnedShard) -> Any:
    """Return the store of a shard, with the attributes of its class."""
    return shard._writer._store


def connection_of(shard: OwnedShard) -> int:
    """Return the id of the connection of a shard whose store is in memory."""
    connection: int = store_of(shard)._connection
    return connection


def link_of(store: Store) -> MysqlLink:
    """Return the open connection of a MySQL store."""
    assert isinstance(store, MysqlStore)
    return store._require_link()


def polls_of(client: Client) -> LongPolls:
    """Return the long polls of a client."""
    return client._polls


def releases_of(client: Client) -> Releases:
    """Return the releases of a client."""
    return client._releases


def router_of(client: Client) -> Router:
    """Return what chooses the hosts of a client."""
    return client._router


def pool_of(client: Client | SyncClient) -> ConnectionPool:
    """Return the connections to the hosts that a client was given."""
    return (client._client if isinstance(client, SyncClient) else client)._pool


def coalescer_of(client: Client) -> Coalescer:
    """Return what joins the calls of a client."""
    coalescer = client._coalescer
    assert coalescer is not None
    return coalescer
