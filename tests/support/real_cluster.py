"""Real host processes that share shards through a real ZooKeeper, on one MariaDB.

Always true: the layout exists before the first host starts; every process is ended
by its id. Knows nothing of items.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from foqs.runtime.clock import SystemClock
from shardmgr import layout_changes
from shardmgr.model import ClusterView, ShardSpec
from shardmgr.ownership import OwnershipState
from shardmgr.registry.port import RegistryFailed
from shardmgr.registry.zookeeper_registry import ZooKeeperRegistry
from tests.support.mariadb import MariaDb
from tests.support.poll import until
from tests.support.processes import PROGRAM, RestartableHost, quick_host
from tests.support.zookeeper import Ensemble, ZooKeeper

SESSION_TIMEOUT_MS: Final = 6_000
"""The hosts' timeout. A machine that stalls for some seconds ends the session, and their shards move."""
_LOOK_TIMEOUT_MS: Final = 20_000
"""The timeout of a session that only reads, so that it outlives the faults."""
_ROOT: Final = "/foqs/v1"


class RealCluster:
    """Args:
    folder: for the hosts' configurations and logs.
    shards: how many there are.
    port: where hosts reach the database, when that is not its own.
    """

    def __init__(
        self, folder: Path, zookeeper: ZooKeeper | Ensemble, mariadb: MariaDb, shards: int = 8, port: int = 0
    ) -> None:
        self._folder = folder
        self._zookeeper = zookeeper
        self._port = port or mariadb.port
        self.database = mariadb.database()
        self.shards = range(shards)

    def init(self) -> None:
        """Makes the layout."""
        asyncio.run(self._init())

    def host(
        self,
        name: str,
        port: int = 0,
        options: Mapping[str, Any] = MappingProxyType({}),
        **constants: Mapping[str, Any],
    ) -> RestartableHost:
        """A place for a host, not started.

        Args:
            port: where it reaches the database, when the others reach it elsewhere.
            options: more of its configuration, as `section.option`.
            constants: see `quick_host`.
        """
        given = {
            "server.name": name,
            "cluster.zookeeper": self._zookeeper.hosts,
            "cluster.zookeeper_tick_ms": self._zookeeper.tick_ms,
            "cluster.session_timeout_ms": SESSION_TIMEOUT_MS,
            "shard.breaker_latency_ms_max": 60_000,
            "databases.main.url": f"mysql://root@127.0.0.1:{port or self._port}/{self.database}",
        }
        return RestartableHost(self._folder / name, "sqlite:unused", {**given, **options}, quick_host(**constants))

    def view(self) -> ClusterView:
        """The cluster as it is now."""
        return asyncio.run(self._read_view())

    def wait_until_served(self, hosts: Sequence[str]) -> None:
        """Waits until hosts of these names, and no others, serve all shards, each as many as its part is, and none moves."""

        def served() -> bool:
            try:
                parts = self._served()
            except RegistryFailed:  # ZooKeeper is slow to answer: it is asked again
                return False
            return set(parts) == set(hosts) and max(parts.values()) - min(parts.values()) <= 1

        until(served, f"{', '.join(hosts)} serve all shards", 120, pause_s=0.2)

    def _served(self) -> Counter[str]:
        """Return the number of shards that each host serves; nothing while a shard is unserved or moving."""
        view = self.view()
        members = {member.nonce: member for member in view.members}
        owners: Counter[str] = Counter()
        for number in self.shards:
            assignment = view.plan.assignments.get(number)
            member = None if assignment is None else members.get(assignment.nonce)
            holding = None if member is None else member.held_shards.get(number)
            if assignment is None or assignment.leaving or member is None or holding is None:
                return Counter()
            if (holding.epoch, holding.state) != (assignment.epoch, OwnershipState.OWNED.value):
                return Counter()
            owners[member.name] += 1
        return owners

    def _registry(self) -> ZooKeeperRegistry:
        return ZooKeeperRegistry(self._zookeeper.hosts, _ROOT, _LOOK_TIMEOUT_MS, SystemClock().monotonic_ms)

    async def _init(self) -> None:
        registry = self._registry()
        await registry.open()
        try:
            await layout_changes.create_layout(registry, [ShardSpec(number, "main") for number in self.shards])
        finally:
            await registry.close()

    async def _read_view(self) -> ClusterView:
        registry = self._registry()
        await registry.open()
        try:
            return await layout_changes.read_cluster_view(registry)
        finally:
            await registry.close()


def initialise_again(config: Path, shards: str, *options: str) -> None:
    """Give a ZooKeeper that has lost its data the cluster again, as docs/cluster.md says."""
    init = [str(PROGRAM), "cluster", "init", "--config", str(config), "--shards", shards, "--yes", *options]
    refused = subprocess.run(init, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2, refused.stderr
    named = re.search(r"--adopt-cluster [0-9a-f]{16}", refused.stderr)
    assert named is not None, refused.stderr
    subprocess.run([*init, *named[0].split()], check=True, timeout=60)
