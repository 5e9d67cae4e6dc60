"""A host without its sockets: the keepers of its shards and the queue over them.

Everything it depends on is passed in, so that the same engine runs on real
databases and clocks or in a simulation. Which shards it keeps, and for how
long, it is told (`shardmgr.port.Holder`); one that is alone keeps those it was
started with, and ends by itself when one is taken by another host or its store
must not be used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from foqs.catalog.port import Catalog, CatalogError
from foqs.catalog.slots import Holdings
from foqs.clock import Clock
from foqs.core.budget import Budget, LoadBudget, WriteBudget
from foqs.core.demand import Demand, DemandSettings
from foqs.core.rows import RowCache
from foqs.service.admin import Administration
from foqs.service.api import CallLimits, NamespaceSettings
from foqs.service.deletion import Deletions
from foqs.service.namespaces import Namespaces
from foqs.service.queue import QueueService
from foqs.service.slots import Slots
from foqs.shard.facts import Facts
from foqs.shard.keeper import Keeper
from foqs.shard.retry import Retry
from foqs.shard.settings import ShardSettings
from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus
from foqs.store.port import Store
from shardmgr.ownership import Ownership
from shardmgr.port import Coordinator, CoordinatorFailed

log = logging.getLogger(__name__)

_ANEW_S: Final = 1.0
"""What failed beside the shards begins anew after so long."""


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

    shards: Sequence[int] | None
    """Those of a host alone. None: what it is assigned, in a cluster."""
    namespace_default: NamespaceSettings
    """What a namespace has that it does not set."""
    limits: CallLimits
    shard: ShardSettings
    buffer: BufferSettings
    handout_wait_ms_max: int
    handout_bytes_max: int
    item_bytes_max: int = 1 << 21
    """Payload and metadata of an item that a call can carry: no namespace may allow more."""
    tier: str = "default"
    """Of this host and its shards."""


class Engine:
    """The shards of one host and the queue that serves them; what a `shardmgr.port.Holder` is.

    In a cluster it hands nothing out before the first `resumed`.

    Args:
        open_store: a fresh, unopened store of a shard, in the database of that name; empty where the host is alone.
            Raises `StoreUnusable` where it knows of no such database.
        catalog: keeps namespaces, grants and pauses.
        nonce: of this incarnation of the host; no two incarnations share one.
        sharing: all shards of the tier, here or elsewhere, none while that is not known; left out where
            there are no other hosts.
        everywhere: likewise of every tier; left out where there is one tier.
    """

    def __init__(
        self,
        settings: EngineSettings,
        open_store: Callable[[int, str], Store],
        coordinator: Coordinator,
        catalog: Catalog,
        clock: Clock,
        rng: Random,
        facts: Facts,
        nonce: str,
        sharing: Callable[[], Collection[int]] | None = None,
        everywhere: Callable[[], Collection[int]] | None = None,
    ) -> None:
        buffer = settings.buffer
        self.shards: dict[int, Shard] = {}
        self.statuses: dict[int, ShardStatus] = {}
        self.namespaces = Namespaces(settings.namespace_default, settings.tier)
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
            rng,
            settings.tier,
        )
        self._deletions = None
        if sharing is not None:
            self._deletions = Deletions(self.admin, self.namespaces, self.shards, everywhere or sharing)
            self.admin.share(self._deletions)
        self._sharing = sharing or (lambda: settings.shards or ())
        self._shared: frozenset[int] | None = None
        """What `sharing` said when the view changed last."""
        self._slots = Slots(
            self.admin,
            self.namespaces,
            self.shards,
            settings.tier,
            self._sharing,
            self.queue.placement.slots_moved,
            self._look,
        )
        self.queue.placement.recorded_holder = self._slots.holder
        written = WriteBudget(buffer.written_bytes_max, buffer.written_items_max)
        loaded = LoadBudget(buffer.loaded_bytes_max, buffer.loaded_items_max)
        self.budgets: Mapping[str, Budget] = {"written": written, "loaded": loaded}
        """Of rows in memory, by pool."""

        count_turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by database

        def make_shard(number: int, database: str, store: Store) -> Shard:
            cache = RowCache(written, loaded, self.namespaces.longest)
            policies, weight = self.namespaces.policies, self.namespaces.weight
            turn = count_turns[database]
            return Shard(number, store, settings.shard, policies, weight, cache, clock, rng, facts, self.queue, turn)

        retry = Retry(settings.shard.retry_ms_min, settings.shard.retry_ms_max)

        def make_keeper(number: int, database: str) -> Keeper:
            return Keeper(
                number,
                nonce,
                coordinator,
                lambda: open_store(number, database),
                lambda store: make_shard(number, database, store),
                self.shards,
                self.statuses,
                retry,
                rng,
                facts,
                self._on_owned,
                alone=settings.shards is not None,
                taken_over=self._read_catalog,
            )

        self._alone = settings.shards
        self._make_keeper = make_keeper
        self._keepers: dict[int, Keeper] = {}
        self._tasks: dict[asyncio.Task[None], Keeper] = {}
        """Of all keepers, also of those that were dropped and have not ended yet."""
        self._closing = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ready = asyncio.Event()
        """Set once it may hand out, and every shard that it has is served and has its slots."""
        self._beside: list[asyncio.Task[None]] = []
        if self._alone is None:
            self.queue.suspend()
        else:
            for number in self._alone:
                self._keepers[number] = make_keeper(number, "")

    async def open(self) -> None:
        """Reads the catalog, before anything is served. Raises `CatalogError`."""
        await self.admin.open()

    def start(self) -> None:
        """Begins to acquire the shards of a host alone; from now on others may be assigned."""
        for keeper in self._keepers.values():
            self._run(keeper)
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [self.admin.watch, self._slots.run]
        if self._deletions is not None:
            works.append(self._deletions.run)
        self._beside = [asyncio.ensure_future(_for_good(work)) for work in works]

    async def run(self) -> None:
        """Returns when `release` was asked and every shard was released.

        Raises:
            TakenByAnother, StoreUnusable: the host must stop, for this reason.
        """
        try:
            await self._ended
        finally:
            for task in self._beside:
                task.cancel()

    # ------------------------------------------------------------ what is ours

    def assigned(self, shard: int, database: str) -> None:
        """Begins to acquire it, to serve it until it is released or dropped."""
        if not self._closing:
            self.dropped(shard)
            self._keepers[shard] = keeper = self._make_keeper(shard, database)
            self._run(keeper)

    def release(self, shard: int | None = None) -> None:
        """Takes in nothing more for the shard, or for all and for good: then `run` returns when what waits is written."""
        if shard is None:
            self._closing = True
        for number, keeper in self._keepers.items():
            if shard in (None, number):
                keeper.release()
        self._look()

    def dropped(self, shard: int) -> None:
        """Serves it no more, at once: what is being written ends as unknown, the rest as not ours."""
        keeper = self._keepers.pop(shard, None)
        if keeper is not None:
            try:
                keeper.drop()
            finally:
                for task, its in self._tasks.items():
                    if its is keeper:
                        task.cancel()
            self._look()

    def suspended(self) -> None:
        """Hands nothing out."""
        self.queue.suspend()

    def resumed(self) -> None:
        """Hands out again, first to those who waited."""
        self.queue.resume()
        self._look()

    def view_changed(self, drained: Collection[int], gone: Collection[int]) -> None:
        """Layout or plan are others than before.

        Args:
            drained: shards of this host that take new items only with keys of their own.
            gone: those that take no new items at all.
        """
        placement = self.queue.placement
        placement.drained, placement.gone = drained, gone
        before, self._shared = self._shared, frozenset(self._sharing())
        if self._shared != before:
            self._slots.look()

    def _run(self, keeper: Keeper) -> None:
        task = asyncio.ensure_future(keeper.run())
        self._tasks[task] = keeper
        task.add_done_callback(self._keeper_ended)

    def _keeper_ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._ended.done():
            self._ended.set_exception(error)
        self._look()

    async def _read_catalog(self) -> None:
        """What was stored before a takeover holds before its shard is served: else a namespace that is being deleted,
        of which the former owner has found it empty, could take something in.
        """
        try:
            await self.admin.refresh()
        except CatalogError as error:
            if self._alone is None:
                raise CoordinatorFailed(f"the catalog cannot be read: {error}") from error

    def _on_owned(self) -> None:
        self._slots.look()
        self._look()

    def _look(self) -> None:
        """Something has changed that it may be ready by, or have ended."""
        if self._serves_all() and self._slots.is_settled:
            self.ready.set()
        if self._closing and not self._tasks and not self._ended.done():
            self._ended.set_result(None)

    def _serves_all(self) -> bool:
        """It may hand out, and serves every shard that it has and shall go on having."""
        if self._closing or self.queue.suspended:
            return False
        return all(keeper.releasing or number in self.shards for number, keeper in self._keepers.items())

    def unready(self) -> dict[str, str]:
        """Why it is not ready, by shard and by what else it waits for. A shard that is being handed over is no reason."""
        found = {
            f"shard {status.shard}": status.reason or status.state
            for status in self.queue.shards()
            if (status.state != Ownership.OWNED.value or status.reason)
            and (self._closing or not self._keepers[status.shard].releasing)
        }
        if not found and not self._slots.is_settled:
            found["slots"] = "slots of idempotency keys are being written down"
        return found

    async def abort(self) -> None:
        """Stops at once; what was being written has an unknown outcome."""
        tasks = [*self._tasks, *self._beside]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ended.cancel()

    @property
    def slots(self) -> Holdings:
        """The slots that each shard of the tier shall hold."""
        return self._slots.recorded

    @property
    def is_ready(self) -> bool:
        """It may hand out, and every shard is served, its store answers, and it has its slots."""
        kept = [shard for number, shard in self.shards.items() if not self._keepers[number].releasing]
        return (
            self._serves_all()
            and self._slots.is_settled
            and all(shard.serving and shard.trouble is None for shard in kept)
        )


async def _for_good(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs what goes on until it is cancelled; where it fails all the same, it is told and begun anew."""
    while True:
        try:
            return await work()
        except Exception:
            log.exception("%s failed; it is begun anew", getattr(work, "__qualname__", work))
        await asyncio.sleep(_ANEW_S)
