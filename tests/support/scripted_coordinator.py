"""A coordinator whose plan a test sets, for engines that are assigned their shards."""

from __future__ import annotations

import asyncio

from shardmgr.port import Coordinator


class ScriptedCoordinator(Coordinator):
    """Issues the epochs of `plan`. A caller that needs a higher one waits until the test assigns it."""

    def __init__(self, plan: dict[int, int] | None = None) -> None:
        self.plan = plan or {}
        self.wanted: dict[int, int] = {}
        """By shard, the epoch above which a caller waits for one."""
        self.reported: list[tuple[int, str]] = []
        self._changed = asyncio.Event()

    def assign(self, shard: int, epoch: int) -> None:
        self.plan[shard] = epoch
        self._changed.set()

    async def issue_epoch(self, shard: int, above: int) -> int:
        while self.plan.get(shard, 0) <= above:
            self.wanted[shard] = above
            self._changed.clear()
            await self._changed.wait()
        self.wanted.pop(shard, None)
        return self.plan[shard]

    def report_state(self, shard: int, epoch: int, state: str) -> None:
        self.reported.append((shard, state))

    def states(self, shard: int) -> list[str]:
        """Return the reported states of a shard in order, without repetitions."""
        found: list[str] = []
        for number, state in self.reported:
            if number == shard and found[-1:] != [state]:
                found.append(state)
        return found
