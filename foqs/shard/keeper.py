"""Keeps one shard owned by this host, for one assignment: acquires, recovers, serves, and does so again.

Every acquisition asks the coordinator for an epoch and opens a fresh store, so
nothing of a former ownership lives on; an epoch that has served is never used
again. Of what stands in the way it reports and tries again, until it is
released or dropped. A host alone gives a shard up for good that another has
taken, with the reason: two hosts never duel.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from random import Random

from foqs.core.fence import Owner
from foqs.core.item import EPOCH_MAX
from foqs.shard.facts import Facts
from foqs.shard.retry import Retry
from foqs.shard.shard import Shard
from foqs.shard.status import ShardStatus
from foqs.shard.writer import GivenUp, ShardLost
from foqs.store.port import Store, StoreLost, StoreUnusable, Superseded
from shardmgr.ownership import Happening, Ownership, advance
from shardmgr.port import Coordinator, CoordinatorFailed

log = logging.getLogger(__name__)


class TakenByAnother(Exception):
    """Another host took the shard over; this one must stop serving it."""


class _Released(Exception):
    """It is not wanted any more, and there is nothing to write."""


class Keeper:
    """The life of one shard on this host, from an assignment to its end.

    Args:
        number: the shard.
        nonce: of this incarnation of the host.
        open_store: a fresh, unopened store.
        make_shard: a fresh shard over an open store.
        shards: where the shard stands while it is ours, for the service.
        statuses: where its status stands, always.
        on_owned: called each time the shard is about to be served.
        alone: there is no plan. Where another host has come, or the store must
            not be used, this host has no business here; in a cluster the
            keeper reports it, and the plan decides.
        taken_over: awaited between a takeover and serving. Raises
            `CoordinatorFailed`: it cannot be served yet.
    """

    def __init__(
        self,
        number: int,
        nonce: str,
        coordinator: Coordinator,
        open_store: Callable[[], Store],
        make_shard: Callable[[Store], Shard],
        shards: dict[int, Shard],
        statuses: dict[int, ShardStatus],
        retry: Retry,
        rng: Random,
        facts: Facts,
        on_owned: Callable[[], None],
        *,
        alone: bool,
        taken_over: Callable[[], Awaitable[None]],
    ) -> None:
        self._number = number
        self._nonce = nonce
        self._coordinator = coordinator
        self._open_store = open_store
        self._make_shard = make_shard
        self._shards = shards
        self._statuses = statuses
        self._retry = retry
        self._rng = rng
        self._facts = facts
        self._on_owned = on_owned
        self._alone = alone
        self._taken_over = taken_over
        self._state = Ownership.FREE
        self._seen_epoch = 0
        self._held_epoch = 0
        self._wanted_s = 0.0
        """Since when it is to be served, or given back, on the loop's clock."""
        self._release = asyncio.Event()
        self._dropped = False
        self._show(None)

    @property
    def releasing(self) -> bool:
        """It takes in nothing more, or has given the shard back."""
        return self._release.is_set()

    async def run(self) -> None:
        """Returns once `release` was asked and all that waited is written.

        Raises:
            TakenByAnother: another host owns the shard now.
            StoreUnusable: the store must not be used as it is. Both only where the host is alone.
        """
        loop = asyncio.get_running_loop()
        attempt = 0
        self._wanted_s = loop.time()
        self._advance(Happening.ASSIGNED)
        while not (self.releasing or self._dropped):
            try:
                shard = await self._acquire()
            except _Released:
                break
            except (StoreLost, Superseded, CoordinatorFailed, StoreUnusable) as error:
                if self._alone and isinstance(error, StoreUnusable):
                    raise
                log.warning("shard %d: %s", self._number, error)
                self._advance(Happening.FAILED, str(error))
                if isinstance(error, Superseded):
                    self._seen_epoch = error.seen
            except Exception as error:
                if self._alone:
                    raise
                # The next host would meet it too: one shard's trouble must not end one host after the other.
                log.exception("shard %d could not be taken over; it will be tried again", self._number)
                self._advance(Happening.FAILED, repr(error))
            else:
                begun = loop.time()
                if await self._serve(shard):
                    return
                # One that breaks as soon as it is served must not use up its epochs at full speed.
                if loop.time() - begun > self._retry.ms_max / 1000:
                    attempt = 0
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._release.wait(), self._retry.pause_s(attempt, self._rng))
            attempt += 1
        self._advance(Happening.RELEASE_ASKED)

    def release(self) -> None:
        """Takes in nothing more; `run` returns when what waits is written. Safe to repeat."""
        if not self.releasing:
            self._release.set()
            self._wanted_s = asyncio.get_running_loop().time()
            self._drain()

    def drop(self) -> None:
        """The shard is another's, or may be: nothing of it is served or told from now on. The caller cancels `run`."""
        self._dropped = True
        self._state = advance(self._state, Happening.DROPPED)
        self._statuses.pop(self._number, None)
        shard = self._shards.pop(self._number, None)
        if shard is not None:
            shard.drop()

    def _drain(self) -> None:
        shard = self._shards.get(self._number)
        if shard is not None:
            self._advance(Happening.RELEASE_ASKED)
            shard.close()

    async def _acquire(self) -> Shard:
        store = self._open_store()
        shard = self._make_shard(store)
        try:
            await store.open()
            if self._alone and self._held_epoch:
                self._check_not_taken(await store.owner())
            epoch = await self._epoch()
            self._check_epoch(epoch)
            await shard.take_over(epoch, self._nonce)
            self._advance(Happening.TAKEN_OVER)
            await shard.recover()
            await self._taken_over()
        except BaseException:
            await shard.disconnect()
            raise
        self._seen_epoch = self._held_epoch = epoch
        self._shards[self._number] = shard
        self._advance(Happening.RECOVERED)
        log.info("shard %d is owned with epoch %d", self._number, epoch)
        if not self.releasing:
            self._facts.taken_over(self._number, asyncio.get_running_loop().time() - self._wanted_s)
        return shard

    async def _epoch(self) -> int:
        """An epoch for a takeover. Somebody may have to plan first; a release does not wait for that. Raises `_Released`."""
        asking = asyncio.ensure_future(self._coordinator.issue_epoch(self._number, self._seen_epoch))
        released = asyncio.ensure_future(self._release.wait())
        try:
            await asyncio.wait((asking, released), return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise _Released
            return asking.result()
        finally:
            asking.cancel()
            released.cancel()

    def _check_not_taken(self, owner: Owner) -> None:
        """Whoever has come since we held the shard is another host, and the shard is its."""
        if owner.epoch > self._held_epoch and owner.nonce != self._nonce:
            raise TakenByAnother(
                f"shard {self._number} was taken over by another host with epoch {owner.epoch}; "
                "run only one host on these shards"
            )

    def _check_epoch(self, epoch: int) -> None:
        if epoch > EPOCH_MAX:
            raise StoreUnusable(
                f"shard {self._number} has used up its {EPOCH_MAX} epochs; move its items to a new shard"
            )

    async def _serve(self, shard: Shard) -> bool:
        """Serves until released (True) or lost (False: acquire it anew)."""
        reason: str
        try:
            self._on_owned()
            if self.releasing:
                self._drain()
            await shard.run()
        except ShardLost as lost:
            reason = lost.reason
            self._advance(Happening.FENCED, reason)
            if self._alone and lost.owner is not None:
                self._check_not_taken(lost.owner)
            log.warning("shard %d: %s; taking it over anew", self._number, lost.reason)
        except GivenUp as given_up:
            log.warning("shard %d: %s; taking it over anew", self._number, given_up)
            reason = str(given_up)
            self._advance(Happening.FAILED, reason)
        except Exception as error:
            log.exception("shard %d failed; taking it over anew", self._number)
            reason = repr(error)
            self._advance(Happening.FAILED, reason)
            await shard.disconnect()
        else:
            self._advance(Happening.RELEASED)
            self._facts.handed_over(self._number, asyncio.get_running_loop().time() - self._wanted_s)
            return True
        finally:
            if self._shards.get(self._number) is shard:
                del self._shards[self._number]
        self._advance(Happening.ASSIGNED, reason)
        if not self.releasing:
            self._wanted_s = asyncio.get_running_loop().time()
        return False

    def _advance(self, happening: Happening, reason: str | None = None) -> None:
        if self._dropped:
            return
        self._state = advance(self._state, happening)
        self._tell(reason)

    def _show(self, reason: str | None) -> None:
        self._statuses[self._number] = ShardStatus(self._number, self._state.value, self._seen_epoch, 0, reason)

    def _tell(self, reason: str | None) -> None:
        self._show(reason)
        self._coordinator.tell(self._number, self._seen_epoch, self._state.value)
