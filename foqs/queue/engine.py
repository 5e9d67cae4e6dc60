"""A host without its sockets: the keepers of its shards and the queue over them.

Everything it depends on is passed in, so that the same engine runs on real
databases and clocks or in a simulation. Which shards it keeps, and for how
long, it is told (`shardmgr.port.AssignmentListener`); one that is alone keeps those it was
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
from typing import Any, Final, Protocol

from foqs.catalog.administration import Administration
from foqs.catalog.key_slot_assignment import SlotAssignment
from foqs.catalog.key_slot_sync import KeySlotSync
from foqs.catalog.namespace_deletion import NamespaceDeletions
from foqs.catalog.namespaces import Namespaces
from foqs.catalog.port import Catalog, CatalogError
from foqs.core.memory.demand import Demand, DemandSettings
from foqs.core.memory.reservations import Budget, PrefetchBudget, WrittenRowsBudget
from foqs.core.memory.row_cache import RowCache
from foqs.options.options import NamespaceOptions
from foqs.options.rpc_options import CallOptions
from foqs.options.shard_options import RowCacheOptions, ShardOptions
from foqs.queue.queue_service import QueueService
from foqs.runtime.clock import Clock
from foqs.shard.host_shards import HostShards
from foqs.shard.observer import ShardObserver
from foqs.shard.retry import Backoff
from foqs.shard.shard import Shard
from foqs.shard.supervisor import ShardSupervisor
from foqs.store.port import Store
from shardmgr.ownership import OwnershipState
from shardmgr.port import Coordinator, CoordinatorFailed

log = logging.getLogger(__name__)

_RESTART_S: Final = 1.0
"""What failed beside the shards begins anew after so long."""


@dataclass(slots=True, frozen=True)
class EngineSettings:
    """What an engine is told once, at its start."""

    standalone_shards: Sequence[int] | None
    """Those of a host alone. None: what it is assigned, in a cluster."""
    namespace: NamespaceOptions
    """What a namespace has that it does not set."""
    calls: CallOptions
    shard: ShardOptions
    row_cache: RowCacheOptions
    item_bytes_max: int = 1 << 21
    """Payload and metadata of an item that a call can carry: no namespace may allow more."""
    tier: str = "default"
    """Of this host and its shards."""


class ShardPlan(Protocol):
    """The shards of a cluster, as they are planned."""

    def tier_shards(self) -> Collection[int]:
        """All shards of this host's tier; none while that is not known."""
        ...

    def all_shards(self) -> Collection[int]:
        """All shards of every tier; none while that is not known."""
        ...


class Engine:
    """The shards of one host and the queue that serves them; what a `shardmgr.port.AssignmentListener` is.

    In a cluster it hands nothing out before the first `resumed`.

    Args:
        open_store: a fresh, unopened store of a shard, in the database of that name; empty where the host is alone.
            Raises `StoreUnusable` where it knows of no such database.
        catalog: keeps namespaces, grants and pauses.
        nonce: of this incarnation of the host; no two incarnations share one.
        plan: which shards there are, here or elsewhere; None where there are no other hosts.
    """

    def __init__(
        self,
        settings: EngineSettings,
        open_store: Callable[[int, str], Store],
        coordinator: Coordinator,
        catalog: Catalog,
        clock: Clock,
        rng: Random,
        observer: ShardObserver,
        nonce: str,
        plan: ShardPlan | None = None,
    ) -> None:
        buffer = settings.row_cache
        shards = HostShards()
        self.shards = shards.served
        self.statuses = shards.statuses
        self.namespaces = Namespaces(settings.namespace, settings.tier)
        self.queue = QueueService(
            shards,
            self.namespaces,
            settings.calls,
            Demand(
                DemandSettings(
                    tau_s=buffer.demand_decay_ms / 1000,
                    horizon_s=buffer.prefetch_horizon_ms / 1000,
                    idle_s=buffer.prefetch_idle_ms / 1000,
                    items_max=buffer.prefetch_topic_items_max,
                    topics_max=buffer.demand_topics_max,
                )
            ),
            clock.stopwatch_s,
        )
        self.admin = Administration(
            catalog,
            self.namespaces,
            shards,
            settings.calls,
            self.queue.quota,
            settings.item_bytes_max,
            self.queue.on_items_ready,
            rng,
        )
        self._namespace_deletions = None
        if plan is not None:
            self._namespace_deletions = NamespaceDeletions(self.admin, self.namespaces, self.shards, plan.all_shards)
            self.admin.use_cluster_deletion(self._namespace_deletions)
        self._tier_shards: Callable[[], Collection[int]] = (
            (lambda: settings.standalone_shards or ()) if plan is None else plan.tier_shards
        )
        self._last_tier_shards: frozenset[int] | None = None
        """What `sharing` said when the view changed last."""
        self._key_slot_sync = KeySlotSync(
            self.admin,
            self.namespaces,
            self.shards,
            settings.tier,
            self._tier_shards,
            self.queue.placement.on_slots_moved,
            self._update_readiness,
        )
        self.queue.placement.shard_of_slot = self._key_slot_sync.shard_of_slot
        written = WrittenRowsBudget(buffer.written_bytes_max, buffer.written_items_max)
        loaded = PrefetchBudget(buffer.prefetched_bytes_max, buffer.prefetched_items_max)
        self.budgets: Mapping[str, Budget] = {"written": written, "prefetched": loaded}
        """Of rows in memory, by pool."""

        count_turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # by database

        backoff = Backoff(settings.shard.retry_ms_min, settings.shard.retry_ms_max, rng)

        def make_shard(number: int, database: str) -> Shard:
            cache = RowCache(written, loaded, self.namespaces.longest_payloads)
            return Shard(
                number,
                open_store(number, database),
                settings.shard,
                self.namespaces,
                cache,
                clock,
                backoff,
                observer,
                self.queue,
                count_turns[database],
            )

        def make_keeper(number: int, database: str) -> ShardSupervisor:
            return ShardSupervisor(
                number,
                nonce,
                coordinator,
                lambda: make_shard(number, database),
                shards,
                backoff,
                observer,
                self,
                is_standalone=settings.standalone_shards is not None,
            )

        self._standalone_shards = settings.standalone_shards
        self._make_supervisor = make_keeper
        self._supervisors: dict[int, ShardSupervisor] = {}
        self._supervisor_tasks: dict[asyncio.Task[None], ShardSupervisor] = {}
        """Of all keepers, also of those that were dropped and have not ended yet."""
        self._is_closing = False
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.became_ready = asyncio.Event()
        """Set once it may hand out, and every shard that it has is served and has its slots."""
        self._background_tasks: list[asyncio.Task[None]] = []
        if self._standalone_shards is None:
            self.queue.suspend()
        else:
            for number in self._standalone_shards:
                self._supervisors[number] = make_keeper(number, "")

    async def open(self) -> None:
        """Reads the catalog, before anything is served. Raises `CatalogError`."""
        await self.admin.open()

    def start(self) -> None:
        """Begins to acquire the shards of a host alone; from now on others may be assigned."""
        for keeper in self._supervisors.values():
            self._start_supervisor(keeper)
        works: list[Callable[[], Coroutine[Any, Any, None]]] = [self.admin.watch, self._key_slot_sync.run]
        if self._namespace_deletions is not None:
            works.append(self._namespace_deletions.run)
        self._background_tasks = [asyncio.ensure_future(_run_forever(work)) for work in works]

    async def run(self) -> None:
        """Returns when `release` was asked and every shard was released.

        Raises:
            ShardTakenOver, StoreUnusable: the host must stop, for this reason.
        """
        try:
            await self._stopped
        finally:
            for task in self._background_tasks:
                task.cancel()

    # ------------------------------------------------------------ what is ours

    def on_assigned(self, shard: int, database: str) -> None:
        """Begins to acquire it, to serve it until it is released or dropped."""
        if not self._is_closing:
            self.on_dropped(shard)
            self._supervisors[shard] = keeper = self._make_supervisor(shard, database)
            self._start_supervisor(keeper)

    def on_release_requested(self, shard: int | None = None) -> None:
        """Takes in nothing more for the shard, or for all and for good: then `run` returns when what waits is written."""
        if shard is None:
            self._is_closing = True
        for number, keeper in self._supervisors.items():
            if shard in (None, number):
                keeper.release()
        self._update_readiness()

    def on_dropped(self, shard: int) -> None:
        """Serves it no more, at once: what is being written ends as unknown, the rest as not ours."""
        keeper = self._supervisors.pop(shard, None)
        if keeper is not None:
            try:
                keeper.drop()
            finally:
                for task, its in self._supervisor_tasks.items():
                    if its is keeper:
                        task.cancel()
            self._update_readiness()

    def on_suspended(self) -> None:
        """Hands nothing out."""
        self.queue.suspend()

    def on_resumed(self) -> None:
        """Hands out again, first to those who waited."""
        self.queue.resume()
        self._update_readiness()

    def on_view_changed(self, drained_shards: Collection[int], removed_shards: Collection[int]) -> None:
        """Layout or plan are others than before.

        Args:
            drained_shards: shards of this host that take new items only with keys of their own.
            removed_shards: those that take no new items at all.
        """
        placement = self.queue.placement
        placement.drained_shards, placement.removed_shards = drained_shards, removed_shards
        before, self._last_tier_shards = self._last_tier_shards, frozenset(self._tier_shards())
        if self._last_tier_shards != before:
            self._key_slot_sync.on_change()

    def _start_supervisor(self, supervisor: ShardSupervisor) -> None:
        task = asyncio.ensure_future(supervisor.run())
        self._supervisor_tasks[task] = supervisor
        task.add_done_callback(self._on_supervisor_ended)

    def _on_supervisor_ended(self, task: asyncio.Task[None]) -> None:
        del self._supervisor_tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._stopped.done():
            self._stopped.set_exception(error)
        self._update_readiness()

    async def on_taken_over(self) -> None:
        """What was stored before a takeover holds before its shard is served: else a namespace that is being deleted,
        of which the former owner has found it empty, could take something in.
        """
        try:
            await self.admin.refresh()
        except CatalogError as error:
            if self._standalone_shards is None:
                raise CoordinatorFailed(f"the catalog cannot be read: {error}") from error

    def on_owned(self) -> None:
        self._key_slot_sync.on_change()
        self._update_readiness()

    def _update_readiness(self) -> None:
        """Something has changed that it may be ready by, or have ended."""
        if self._is_serving_all() and self._key_slot_sync.is_settled:
            self.became_ready.set()
        if self._is_closing and not self._supervisor_tasks and not self._stopped.done():
            self._stopped.set_result(None)

    def _is_serving_all(self) -> bool:
        """It may hand out, and serves every shard that it has and shall go on having."""
        if self._is_closing or self.queue.is_suspended:
            return False
        return all(keeper.is_releasing or number in self.shards for number, keeper in self._supervisors.items())

    def not_ready_reasons(self) -> dict[str, str]:
        """Why it is not ready, by shard and by what else it waits for. A shard that is being handed over is no reason."""
        found = {
            f"shard {status.shard}": status.reason or status.state
            for status in self.queue.shard_statuses()
            if (status.state != OwnershipState.OWNED.value or status.reason)
            and (self._is_closing or not self._supervisors[status.shard].is_releasing)
        }
        if not found and not self._key_slot_sync.is_settled:
            found["slots"] = "slots of idempotency keys are being written down"
        return found

    async def abort(self) -> None:
        """Stops at once; what was being written has an unknown outcome."""
        tasks = [*self._supervisor_tasks, *self._background_tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stopped.cancel()

    @property
    def slot_assignment(self) -> SlotAssignment:
        """The slots that each shard of the tier shall hold."""
        return self._key_slot_sync.assignment

    @property
    def is_ready(self) -> bool:
        """It may hand out, and every shard is served, its store answers, and it has its slots."""
        kept = [shard for number, shard in self.shards.items() if not self._supervisors[number].is_releasing]
        return (
            self._is_serving_all()
            and self._key_slot_sync.is_settled
            and all(shard.is_serving and shard.unavailable_reason is None for shard in kept)
        )


async def _run_forever(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Runs what goes on until it is cancelled; where it fails all the same, it is told and begun anew."""
    while True:
        try:
            return await run()
        except Exception:
            log.exception("%s failed; it is begun anew", getattr(run, "__qualname__", run))
        await asyncio.sleep(_RESTART_S)
