"""A coordinator that notes with which epochs shards are served."""

from __future__ import annotations

from collections.abc import Callable

from shardmgr.ownership import OwnershipState
from shardmgr.port import Coordinator


class WatchedCoordinator:
    """Passes all calls to another coordinator, and calls `on_served` with shard and epoch when a host begins to serve."""

    def __init__(self, coordinator: Coordinator, on_served: Callable[[int, int], None]) -> None:
        self._coordinator = coordinator
        self._on_served = on_served

    async def issue_epoch(self, shard: int, above: int) -> int:
        return await self._coordinator.issue_epoch(shard, above)

    def report_state(self, shard: int, epoch: int, state: str) -> None:
        if state == OwnershipState.OWNED.value:
            self._on_served(shard, epoch)
        self._coordinator.report_state(shard, epoch, state)
