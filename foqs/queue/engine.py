"""A host without its sockets: the supervisors of its shards, and the queue over them.

All dependencies are passed in, so that the same engine runs on real databases
and clocks and in a simulation. In a cluster, its shards are assigned to it
(`shardmgr.port.AssignmentListener`). A standalone engine has fixed shards; it
ends if another host takes one over or a store must not be used.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from foqs.catalog.administration import Administration
from foqs.catalog.key_slot_sync import KeySlotSync
from foqs.catalog.port import Catalog, CatalogError
from foqs.core.groups.host_turns import HostTurns
from foqs.core.groups.rule_changes import RuleChanges
from foqs.core.memory.demand import Demand, DemandSettings
from foqs.core.memory.reservations import Budget, CacheLimits, PrefetchBudget, WrittenRowsBudget
from foqs.core.memory.row_cache import RowCache
from foqs.core.timing.arrivals import Arrivals
from foqs.options.options import NamespaceOptions
from foqs.options.shard_options import ShardOptions
from foqs.queue.call_limits import CallLimits
from foqs.queue.host_state import HostState
from foqs.queue.queue_service import QueueService
from foqs.queue.suspension import STARTING, WITHOUT_SESSION
from foqs.queue.tier import Tier
from foqs.runtime.clock import Clock
from foqs.runtime.unwritten_replies import UnwrittenReplies
from foqs.shard.host_services import HostDatabase, HostServices
from foqs.shard.observer import ShardObserver
from foqs.shard.shard_constants import ShardConstants
from foqs.shard.shard_takeover import ShardTakeover
from foqs.shard.supervisor import ShardSupervisor
from foqs.store.port import Store
from foqs_contract.backoff import Backoff
from shardmgr.ownership import OwnershipState
from shardmgr.port import Coordinator, CoordinatorFailed
from shardmgr.primary import Primary

log = logging.getLogger(__name__)

_RESTART_S: Final = 1.0
"""The wait before a failed background task is restarted."""
DELIVERY_START_S: Final = 5.0
"""How long a standalone host that has started waits for all its shards before it delivers from those that it serves.

The best item may be in a shard that it does not serve yet. It is longer than a takeover on a busy machine.
"""


@dataclass(slots=True, frozen=True)
class EngineSettings:
    """The settings of an engine; they do not change while it runs."""

    standalone_shards: Mapping[int, str] | None
    """The shards of a standalone host, each with the name of its database. None in a cluster, which assigns shards."""
    namespace: NamespaceOptions
    """The settings that apply to a namespace unless it has its own."""
    calls: CallLimits
    shard: ShardOptions
    shard_constants: ShardConstants
    cache: CacheLimits
    demand: DemandSettings
    item_bytes_max: int = 1 << 21
    """The most bytes of payload and metadata that a call can carry beside an item's other fields. No namespace allows more."""
    tier: str = "default"
    """The tier of this host and its shards."""


class Engine:
    """The shards of one host and the queue that serves them; implements `shardmgr.port.AssignmentListener`.

    In a cluster it delivers nothing before the first `on_resumed`. A standalone host delivers nothing before all its
    shards are served, or `DELIVERY_START_S` has passed: so the order of delivery outlasts a restart.

    Args:
        open_store: makes an unopened store of a shard in the named database, at the primary of its entry if it has one.
            Raises `StoreUnusable` if the host does not know the database or the server.
        catalog: stores namespaces, grants and pauses.
        replies: see `QueueService`.
    """

    def __init__(
        self,
        settings: EngineSettings,
        state: HostState,
        tier: Tier,
        open_store: Callable[[int, str, Primary | None], Store],
        coordinator: Coordinator,
        catalog: Catalog,
        clock: Clock,
        rng: Random,
        observer: ShardObserver,
        replies: UnwrittenReplies,
    ) -> None:
        shards = state.shards
        self.shards = shards.served
        self.statuses = shards.statuses
        self.namespaces = state.namespaces
        self.topic_rates = state.topic_rates
        self._suspension = state.suspension
        self._shard_statuses = state.shard_statuses
        self._tier = tier
        self.queue = QueueService(
            state,
            tier,
            settings.calls,
            Demand(settings.demand),
            replies,
        )
        self.admin = Administration(
            catalog,
            self.namespaces,
            shards,
            settings.calls.timeout_ms_max,
            self.queue.quota,
            settings.item_bytes_max,
            self.queue.on_items_ready,
            tier.deletions,
            tier.find_older_hosts,
            rng,
        )
        self.admin.add_change_listener(self.queue.end_outdated_waits)
        self._last_tier_shards: frozenset[int] | None = None
        """The shards of the tier when the view changed last."""
        self._key_slot_sync = KeySlotSync(
            self.admin,
            self.namespaces,
            state.slots,
            self.shards,
            tier.tier_shards,
            self.queue.placement.on_slots_moved,
            self._update_readiness,
        )
        cache_limits, constants = settings.cache, settings.shard_constants
        written_budget = WrittenRowsBudget(cache_limits.written_bytes_max, cache_limits.written_items_max)
        prefetch_budget = PrefetchBudget(cache_limits.prefetched_bytes_max, cache_limits.prefetched_items_max)
        self.budgets: Mapping[str, Budget] = {"written": written_budget, "prefetched": prefetch_budget}
        """The limits of rows in memory, by pool."""

        backoff = Backoff(constants.retry_ms_min / 1_000, constants.retry_ms_max / 1_000, rng)

        arrivals = Arrivals(settings.shard.clock_skew_ms_max)
        services = HostServices(
            settings.shard,
            constants,
            self.namespaces,
            clock,
            backoff,
            observer,
            self.queue,
            state.topic_rates,
            arrivals,
            HostTurns(clock.stopwatch_s, self.namespaces.weight_of),
            RuleChanges(),
        )
        databases: defaultdict[str, HostDatabase] = defaultdict(services.database)

        def make_takeover(number: int, database: str, primary: Primary | None) -> ShardTakeover:
            cache = RowCache(written_budget, prefetch_budget, self.namespaces.longest_payloads)
            store = open_store(number, database, primary)
            term = None if primary is None else primary.term
            return ShardTakeover(number, store, cache, services, databases[database], term=term)

        def make_supervisor(number: int, database: str, primary: Primary | None = None) -> ShardSupervisor:
            return ShardSupervisor(
                number,
                tier.ownership_nonce,
                coordinator,
                lambda: make_takeover(number, database, primary),
                shards,
                services,
                self,
                is_standalone=settings.standalone_shards is not None,
            )

        self._delivery_timer: asyncio.TimerHandle | None = None
        """Ends the wait of a standalone host for its shards."""
        self._standalone_shards = settings.standalone_shards
        self._make_supervisor = make_supervisor
        self._supervisors: dict[int, ShardSupervisor] = {}
        self._supervisor_tasks: dict[asyncio.Task[None], ShardSupervisor] = {}
        """The tasks of all supervisors, also of dropped ones that have not ended yet."""
        self._is_closing = False
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.became_ready = asyncio.Event()
        """Set once the host may deliver, serves all its shards, and these have their key slots."""
        self._background_tasks: list[asyncio.Task[None]] = []
        if self._standalone_shards is None:
            self.queue.suspend(WITHOUT_SESSION)
        else:
            self.queue.suspend(STARTING)
            for number, database in self._standalone_shards.items():
                self._supervisors[number] = make_supervisor(number, database)

    async def open(self) -> None:
        """Read the catalog before anything is served. Raises `CatalogError`."""
        await self.admin.open()

    def start(self) -> None:
        """Start the background tasks and, on a standalone host, acquire the shards."""
        for supervisor in self._supervisors.values():
            self._start_supervisor(supervisor)
        if self._standalone_shards is not None:
            self._delivery_timer = asyncio.get_running_loop().call_later(DELIVERY_START_S, self.on_resumed)
        loops = (self.admin.watch, self.admin.delete_with_others, self._key_slot_sync.run)
        self._background_tasks = [asyncio.ensure_future(_run_forever(loop)) for loop in loops]

    async def run(self) -> None:
        """Wait until the release of all shards was requested and has ended.

        Raises:
            ShardTakenOver, StoreUnusable: the host must stop, for this reason.
        """
        try:
            await self._stopped
        finally:
            for task in self._background_tasks:
                task.cancel()
            self._end_delivery_wait()

    # ------------------------------------------------------- assignment of shards

    def on_assigned(self, shard: int, database: str, primary: Primary | None = None) -> None:
        """Acquire a shard, and serve it until it is released or dropped; see `AssignmentListener`."""
        if not self._is_closing:
            self.on_dropped(shard)
            self._supervisors[shard] = supervisor = self._make_supervisor(shard, database, primary)
            self._start_supervisor(supervisor)

    def on_release_requested(self, shard: int | None = None) -> None:
        """Accept no more work for a shard, write what is queued, and release it.

        None releases all shards and stops the engine: `run` returns after the last one.
        """
        if shard is None:
            self._is_closing = True
        for number, supervisor in self._supervisors.items():
            if shard in (None, number):
                supervisor.release()
        self._update_readiness()

    def on_dropped(self, shard: int) -> None:
        """Stop serving a shard at once. Flushes in flight have an unknown outcome; queued calls get `NotOwner`."""
        supervisor = self._supervisors.pop(shard, None)
        if supervisor is not None:
            try:
                supervisor.drop()
            finally:
                for task, owner in self._supervisor_tasks.items():
                    if owner is supervisor:
                        task.cancel()
            self._update_readiness()

    def on_suspended(self) -> None:
        """Deliver nothing until `on_resumed`."""
        self.queue.suspend(WITHOUT_SESSION)

    def on_resumed(self) -> None:
        """Deliver again, first to dequeues that wait."""
        self.queue.resume()
        self._update_readiness()

    def _start_delivery_if_all_serve(self) -> None:
        shards = [self.shards.get(number) for number in self._supervisors]
        if self._delivery_timer is not None and all(shard is not None and shard.is_serving for shard in shards):
            self._end_delivery_wait()
            self.on_resumed()

    def _end_delivery_wait(self) -> None:
        if self._delivery_timer is not None:
            self._delivery_timer.cancel()
            self._delivery_timer = None

    def on_view_changed(self) -> None:
        """Apply a new layout or plan, which the tier has read."""
        before, self._last_tier_shards = self._last_tier_shards, frozenset(self._tier.tier_shards())
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
        """Read the catalog after a takeover, before the shard is served.

        Else a namespace that is being deleted could accept items in a shard that its former owner reported empty.
        """
        try:
            await self.admin.refresh()
        except CatalogError as error:
            if self._standalone_shards is None:
                raise CoordinatorFailed(f"the catalog cannot be read: {error}") from error

    def on_owned(self) -> None:
        self._key_slot_sync.on_change()
        self._update_readiness()
        if self._delivery_timer is not None:
            # The shard is open from the next turn on.
            asyncio.get_running_loop().call_soon(self._start_delivery_if_all_serve)

    def _update_readiness(self) -> None:
        """Set `became_ready` or end `run`, if a change made that possible."""
        if self._is_serving_all() and self._key_slot_sync.is_settled:
            self.became_ready.set()
        if self._is_closing and not self._supervisor_tasks and not self._stopped.done():
            self._stopped.set_result(None)

    def _is_serving_all(self) -> bool:
        """Return whether the host may deliver and serves all its shards, except those that it releases."""
        if self._is_closing or self._suspension.is_on:
            return False
        return all(supervisor.is_releasing or number in self.shards for number, supervisor in self._supervisors.items())

    def not_ready_reasons(self) -> dict[str, str]:
        """Return why the host is not ready, by shard or other cause. A shard that is handed over is no reason."""
        reasons = {
            f"shard {status.shard}": status.reason or status.state
            for status in self._shard_statuses()
            if (status.state != OwnershipState.OWNED.value or status.reason)
            and (self._is_closing or not self._supervisors[status.shard].is_releasing)
        }
        if not reasons and not self._key_slot_sync.is_settled:
            reasons["slots"] = "key slots are being assigned"
        return reasons

    async def abort(self) -> None:
        """Stop at once. Flushes in flight have an unknown outcome."""
        tasks = [*self._supervisor_tasks, *self._background_tasks]
        for task in tasks:
            task.cancel()
        self._end_delivery_wait()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._stopped.cancel()

    @property
    def is_ready(self) -> bool:
        """Whether the host may deliver, and all its shards are available, accept writes and have their key slots."""
        shards = [shard for number, shard in self.shards.items() if not self._supervisors[number].is_releasing]
        return (
            self._is_serving_all()
            and self._key_slot_sync.is_settled
            and all(shard.is_serving and not (shard.unavailable_reason or shard.write_refusal) for shard in shards)
        )


async def _run_forever(run: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a loop until it is cancelled. If it fails, log that and restart it."""
    while True:
        try:
            return await run()
        except Exception:
            log.exception(
                "the background task %s failed with an unexpected error; restarting it",
                getattr(run, "__qualname__", run),
            )
        await asyncio.sleep(_RESTART_S)
