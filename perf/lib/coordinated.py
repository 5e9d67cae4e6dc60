"""A FOQS host that owns its shards through ZooKeeper, as the only host of a cluster.

Always true: it is ready when every shard is served. Its own ZooKeeper starts before
it and ends after it. Knows nothing of load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from foqs.dev.host_process import PROGRAM
from foqs.dev.local_cluster import is_served
from foqs.dev.server_process import run_program
from foqs.dev.zookeeper_server import ZooKeeper
from foqs_client import Client, FoqsError
from perf.lib.servers import FoqsHost


class CoordinatedHost(FoqsHost):
    """A host as `FoqsHost`; `store` is the only database of the cluster."""

    def __init__(
        self,
        store: str,
        shards: int,
        options: Mapping[str, Any] = MappingProxyType({}),
        command: Sequence[str] = PROGRAM,
    ) -> None:
        self.zookeeper = ZooKeeper()
        self._shards = shards
        cluster = {"cluster.zookeeper": self.zookeeper.address, "databases.main.url": store}
        super().__init__(store, shards, {**cluster, **options}, command)

    def set_up(self) -> None:
        self.zookeeper.set_up()
        run_program([*PROGRAM, "cluster", "init", "--config", str(self.config), "--shards", str(self._shards), "--yes"])
        super().set_up()

    def close(self) -> None:
        super().close()
        self.zookeeper.close()

    def _is_ready(self) -> bool:
        return super()._is_ready() and asyncio.run(self._is_served())

    async def _is_served(self) -> bool:
        try:
            async with Client(self.address) as client:
                return is_served(await client.routing(), 1)
        except FoqsError:
            return False
