"""A host without its sockets: the keepers of its shards and the queue over them.

Everything it depends on is passed in, so that the same engine runs on real
databases and clocks or in a simulation. Ends by itself when a shard is taken
by another host or its store must not be used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from foqs.catalog.port import Catalog
from foqs.clock import Clock
from foqs.core.budget import Budget, LoadBudget
from foqs.core.demand import Demand, DemandSettings
from foqs.core.keys import allot
from foqs.core.rows import RowCache
from foqs.service.admin import Administration
from foqs.service.api import CallLimits, NamespaceSettings
from foqs.service.namespaces import Namespaces
from foqs.service.queue import QueueService
from foqs.shard.facts import Facts
from foqs.shard.keeper import Keeper
from foqs.shard.shard import Shard, ShardSettings
from foqs.shard.status import ShardStatus
from foqs.shard.writer import Retry
from foqs.store.port import Store
from shardmgr.port import Coordinator


@dataclass(slots=True, frozen=True)
class BufferSettings:
    """Rows kept in memory by a host; see `[buffer]` in configs/foqs.toml for units and reasons."""

    written_bytes_max: int
    written_items_max: int
    loaded_bytes_max: int
    loaded_items_max: int
    topic_items_max: int
    horizon_ms: int
    memory_ms: int
    quiet_ms: int
    topics_max: int


@dataclass(slots=True, frozen=True)
class EngineSettings:
    """What an engine is told once, at its start."""

    shards: Sequence[int]
    namespace_default: NamespaceSettings
    """What a namespace has that it does not set."""
    limits: CallLimits
    shard: ShardSettings
    buffer: BufferSettings
    handout_wait_ms_max: int
    handout_bytes_max: int
    item_bytes_max: int = 1 << 21
    """Payload and metadata of an item that a call can carry: no namespace may allow more."""


class Engine:
    """The shards of one host and the queue that serves them.

    Args:
        open_store: a fresh, unopened store of a shard.
        catalog: keeps namespaces, grants and pauses.
        nonce: of this incarnation of the host; no two incarnations share one.
    """

    def __init__(
        self,
        settings: EngineSettings,
        open_store: Callable[[int], Store],
        coordinator: Coordinator,
        catalog: Catalog,
        clock: Clock,
        rng: Random,
        facts: Facts,
        nonce: str,
    ) -> None:
        buffer = settings.buffer
        self.shards: dict[int, Shard] = {}
        self.statuses: dict[int, ShardStatus] = {}
        self.namespaces = Namespaces(settings.namespace_default)
        self.queue = QueueService(
            self.shards,
            self.namespaces,
            settings.limits,
            settings.handout_wait_ms_max / 1000,
            settings.handout_bytes_max,
            self.statuses,
            Demand(
                DemandSettings(
                    tau_s=buffer.memory_ms / 1000,
                    horizon_s=buffer.horizon_ms / 1000,
                    quiet_s=buffer.quiet_ms / 1000,
                    items_max=buffer.topic_items_max,
                    topics_max=buffer.topics_max,
                )
            ),
            clock.seconds,
        )
        self.admin = Administration(
            catalog,
            self.namespaces,
            self.shards,
            self.statuses,
            settings.limits,
            self.queue.quota,
            settings.item_bytes_max,
            self.queue.ready,
        )
        written = Budget(buffer.written_bytes_max, buffer.written_items_max)
        loaded = LoadBudget(buffer.loaded_bytes_max, buffer.loaded_items_max)
        self.budgets: Mapping[str, Budget] = {"written": written, "loaded": loaded}
        """Of rows in memory, by pool."""

        def make_shard(number: int, store: Store) -> Shard:
            cache = RowCache(written, loaded)
            policies, weight = self.namespaces.policies, self.namespaces.weight
            return Shard(number, store, settings.shard, policies, weight, cache, clock, rng, facts, self.queue)

        retry = Retry(settings.shard.retry_ms_min, settings.shard.retry_ms_max)
        self._keepers = [
            Keeper(
                number,
                nonce,
                coordinator,
                lambda number=number: open_store(number),  # type: ignore[misc]
                lambda store, number=number: make_shard(number, store),  # type: ignore[misc]
                self.shards,
                self.statuses,
                retry,
                rng,
                self._on_owned,
            )
            for number in settings.shards
        ]
        self.ready = asyncio.Event()
        """Set once every shard has been served."""
        self._tasks: list[asyncio.Task[None]] = []
        self._beside: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Reads the catalog, before anything is served. Raises `CatalogError`."""
        await self.admin.open()

    def start(self) -> None:
        """Begins to acquire every shard."""
        self._tasks = [asyncio.ensure_future(keeper.run()) for keeper in self._keepers]
        self._beside = [asyncio.ensure_future(self.admin.watch())]

    async def run(self) -> None:
        """Returns when every shard was released.

        Raises:
            TakenByAnother, StoreUnusable: the host must stop, for this reason.
        """
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._beside:
                task.cancel()

    def _on_owned(self) -> None:
        if len(self.shards) == len(self._keepers):
            self.ready.set()
            held = {number: shard.slots for number, shard in self.shards.items()}
            for number, slots in allot(sorted(held), held).items():
                self.shards[number].hold(slots)

    def release(self) -> None:
        """Takes in nothing more; `run` returns when what waits is written."""
        for keeper in self._keepers:
            keeper.release()

    async def abort(self) -> None:
        """Stops at once; what was being written has an unknown outcome."""
        tasks = [*self._tasks, *self._beside]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_ready(self) -> bool:
        """Every shard is served, its store answers, and it has its slots."""
        return len(self.shards) == len(self._keepers) and all(
            shard.serving and shard.trouble is None and not shard.is_taking_slots for shard in self.shards.values()
        )
