"""Runs one shard on this host, for one assignment: acquires it, recovers it, serves it, and starts again after trouble.

Every acquisition asks the coordinator for an epoch and opens a new store, so
nothing of a former ownership survives. An epoch that has served is never used
again. The supervisor reports trouble and tries again until it is released or
dropped. A standalone host stops when another host takes its shard, so that two
hosts never fight for a shard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from foqs.core.flush.fence import Owner
from foqs.core.items.item import EPOCH_MAX
from foqs.shard.host_services import HostServices
from foqs.shard.host_shards import HostShards, ShardStatus
from foqs.shard.owned_store import OwnershipGivenUp, ShardLost
from foqs.shard.shard import OwnedShard
from foqs.shard.shard_takeover import ShardTakeover
from foqs.store.port import StoreLost, StoreUnusable, Superseded
from shardmgr.ownership import OwnershipEvent, OwnershipState, next_ownership_state
from shardmgr.port import Coordinator, CoordinatorFailed

log = logging.getLogger(__name__)


class ShardTakenOver(Exception):
    """Another host took the shard over; this one must stop serving it."""


class _Released(Exception):
    """The shard was released before it was acquired; nothing waits to be written."""


class OwnershipListener(Protocol):
    """Gets the events of a shard that this host acquires."""

    async def on_taken_over(self) -> None:
        """Awaited between a takeover and serving. Raises `CoordinatorFailed`: the shard cannot be served yet."""
        ...

    def on_owned(self) -> None:
        """The shard is about to be served."""
        ...


class ShardSupervisor:
    """Runs one shard on this host, from its assignment until it is released or dropped.

    Args:
        shard: the number of the shard.
        nonce: the nonce that identifies this run of the host.
        make_takeover: returns an attempt to own the shard, over a new store. Raises `StoreUnusable`.
        is_standalone: there is no plan. `run` raises if another host took the shard or
            the store must not be used. In a cluster the supervisor reports both, and
            the plan decides.
    """

    def __init__(
        self,
        shard: int,
        nonce: str,
        coordinator: Coordinator,
        make_takeover: Callable[[], ShardTakeover],
        shards: HostShards,
        services: HostServices,
        listener: OwnershipListener,
        *,
        is_standalone: bool,
    ) -> None:
        self._shard = shard
        self._nonce = nonce
        self._coordinator = coordinator
        self._make_takeover = make_takeover
        self._shards = shards.served
        self._statuses = shards.statuses
        self._backoff = services.backoff
        self._observer = services.observer
        self._listener = listener
        self._is_standalone = is_standalone
        self._state = OwnershipState.FREE
        self._seen_epoch = 0
        self._last_own_epoch = 0
        self._requested_s = 0.0
        """When it was assigned or its release requested, on the loop's clock."""
        self._release_requested = asyncio.Event()
        self._is_dropped = False
        self._set_status(None)

    @property
    def is_releasing(self) -> bool:
        """Whether its release was requested: it accepts nothing more, or soon."""
        return self._release_requested.is_set()

    async def run(self) -> None:
        """Run until `release` was called and all queued operations are written.

        Raises, only on a standalone host:
            ShardTakenOver: another host owns the shard now.
            StoreUnusable: the store must not be used.
        """
        loop = asyncio.get_running_loop()
        attempt = 0
        self._requested_s = loop.time()
        self._advance(OwnershipEvent.ASSIGNED)
        while not (self.is_releasing or self._is_dropped):
            try:
                shard = await self._acquire()
            except _Released:
                break
            except (StoreLost, Superseded, CoordinatorFailed, StoreUnusable) as error:
                if self._is_standalone and isinstance(error, StoreUnusable):
                    raise
                log.warning("shard %d cannot be acquired; trying again: %s", self._shard, error)
                self._advance(OwnershipEvent.FAILED, str(error))
                if isinstance(error, Superseded):
                    self._seen_epoch = error.seen_epoch
            except Exception as error:
                if self._is_standalone:
                    raise
                # The next owner would meet it too: one shard's trouble must not end one host after the other.
                log.exception("acquiring shard %d failed with an unexpected error; trying again", self._shard)
                self._advance(OwnershipEvent.FAILED, repr(error))
            else:
                started_s = loop.time()
                if await self._serve(shard):
                    return
                # A shard that fails as soon as it is served must not use up its epochs at full speed.
                if loop.time() - started_s > self._backoff.s_max:
                    attempt = 0
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._release_requested.wait(), self._backoff.pause_s(attempt))
            attempt += 1
        self._advance(OwnershipEvent.RELEASE_REQUESTED)

    def release(self) -> None:
        """Accept nothing more, soon; `run` returns when all queued operations are written. May be called again.

        A shard with a journal serves until it owes few rows.
        """
        if not self.is_releasing:
            self._release_requested.set()
            self._requested_s = asyncio.get_running_loop().time()
            shard = self._shards.get(self._shard)
            if shard is not None:
                shard.begin_hand_over(self._close_shard)

    def drop(self) -> None:
        """End at once: another host owns the shard, or may. Nothing is served or reported any more. The caller cancels `run`."""
        self._is_dropped = True
        self._state = next_ownership_state(self._state, OwnershipEvent.DROPPED)
        self._statuses.pop(self._shard, None)
        shard = self._shards.pop(self._shard, None)
        if shard is not None:
            shard.drop()

    def _close_shard(self) -> None:
        shard = self._shards.get(self._shard)
        if shard is not None:
            self._advance(OwnershipEvent.RELEASE_REQUESTED)
            shard.close()

    async def _acquire(self) -> OwnedShard:
        takeover = self._make_takeover()
        try:
            await takeover.connect()
            if self._is_standalone and self._last_own_epoch:
                self._check_not_taken_over(await takeover.read_owner())
            epoch = await self._request_epoch()
            self._check_epochs_left(epoch)
            owned = await takeover.take_over(epoch, self._nonce)
            self._advance(OwnershipEvent.ACQUIRED)
            shard = await takeover.recover(owned)
            await self._listener.on_taken_over()
        except BaseException:
            await takeover.disconnect()
            raise
        self._seen_epoch = self._last_own_epoch = epoch
        shard.follow_group_rules()  # they may have changed since it was recovered
        self._shards[self._shard] = shard
        self._advance(OwnershipEvent.RECOVERED)
        log.info("shard %d is owned with epoch %d", self._shard, epoch)
        if not self.is_releasing:
            self._observer.shard_acquired(self._shard, asyncio.get_running_loop().time() - self._requested_s)
        return shard

    async def _request_epoch(self) -> int:
        """Return a new epoch for a takeover. That may wait for a plan, but no longer than until a release.

        Raises:
            _Released: the release was requested first.
            CoordinatorFailed: the coordinator issued none.
        """
        request = asyncio.ensure_future(self._coordinator.issue_epoch(self._shard, self._seen_epoch))
        released = asyncio.ensure_future(self._release_requested.wait())
        try:
            await asyncio.wait((request, released), return_when=asyncio.FIRST_COMPLETED)
            if not request.done():
                raise _Released
            return request.result()
        finally:
            request.cancel()
            released.cancel()

    def _check_not_taken_over(self, owner: Owner) -> None:
        """Raise `ShardTakenOver` if another host became the owner since this host held the shard."""
        if owner.epoch > self._last_own_epoch and owner.nonce != self._nonce:
            raise ShardTakenOver(
                f"shard {self._shard} was taken over by another host with epoch {owner.epoch}; "
                "run only one host on these shards"
            )

    def _check_epochs_left(self, epoch: int) -> None:
        if epoch > EPOCH_MAX:
            raise StoreUnusable(
                f"shard {self._shard} has used up its {EPOCH_MAX} epochs; move its items to a new shard"
            )

    async def _serve(self, shard: OwnedShard) -> bool:
        """Serve the shard. Returns True when it was released, and False when it was lost and must be acquired again."""
        reason: str
        try:
            self._listener.on_owned()
            if self.is_releasing:
                self._close_shard()
            await shard.run()
        except ShardLost as lost:
            reason = lost.reason
            self._advance(OwnershipEvent.FENCED, reason)
            if self._is_standalone and lost.owner is not None:
                self._check_not_taken_over(lost.owner)
            log.warning("shard %d: %s; acquiring it again", self._shard, lost.reason)
        except OwnershipGivenUp as given_up:
            log.warning("shard %d: %s; acquiring it again", self._shard, given_up)
            reason = str(given_up)
            self._advance(OwnershipEvent.FAILED, reason)
        except Exception as error:
            log.exception("shard %d failed with an unexpected error; acquiring it again", self._shard)
            reason = repr(error)
            self._advance(OwnershipEvent.FAILED, reason)
            await shard.disconnect()
        else:
            self._advance(OwnershipEvent.RELEASED)
            self._observer.shard_handed_over(self._shard, asyncio.get_running_loop().time() - self._requested_s)
            return True
        finally:
            if self._shards.get(self._shard) is shard:
                del self._shards[self._shard]
        self._advance(OwnershipEvent.ASSIGNED, reason)
        if not self.is_releasing:
            self._requested_s = asyncio.get_running_loop().time()
        return False

    def _advance(self, event: OwnershipEvent, reason: str | None = None) -> None:
        if self._is_dropped:
            return
        self._state = next_ownership_state(self._state, event)
        self._report_state(reason)

    def _set_status(self, reason: str | None) -> None:
        self._statuses[self._shard] = ShardStatus(self._shard, self._state.value, self._seen_epoch, 0, reason)

    def _report_state(self, reason: str | None) -> None:
        self._set_status(reason)
        self._coordinator.report_state(self._shard, self._seen_epoch, self._state.value)
