"""The promoters of a host: for each of its databases it stands for election, and while elected it keeps or replaces the primary.

Always true: no server is connected as long as a database has no entry or another promoter is
elected. A promoter that does not reach a server which it needs gives its place to another host.
A failure of one database does not stop the promoters of others. Knows neither SQL nor the rules
of a promotion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from shardmgr.model import MalformedDocument
from shardmgr.primary import LossPolicy
from shardmgr.primary_document import name_part, read_primary
from shardmgr.primary_moves import ELECTION_FOLDER, progress_text, run_promoter
from shardmgr.promoter import Promoter, PromoterRound, ShardsFree
from shardmgr.registry.port import Registry, RegistryError
from shardmgr.server_port import DatabaseServers
from shardmgr.step_texts import StepTexts
from shardmgr.suspicion import Suspicion

log = logging.getLogger(__name__)

_BUSY_S: Final = 0.1
"""The pause before a round that waits, while the primary is being replaced."""
_PATIENCE_GRACES: Final = 2
"""An elected promoter that lacks a server withdraws after this many grace periods. Its own suspicion ends earlier."""
_LATER_PATIENCE_GRACES: Final = 24
"""The same after it has withdrawn: no host may reach the server, and metrics and alerts need one that says so."""
_REST_TICKS: Final = 10
"""Then it does not stand for election for this many ticks. The other hosts look at the election every five ticks or sooner."""
_LOG_PAUSE_MS: Final = 10_000
"""A step that differs from an earlier one by its numbers only is logged again after this time."""


@dataclass(slots=True, frozen=True)
class PromoterPace:
    """The intervals of promoters, in milliseconds.

    Attributes:
        grace_ms: a primary that nobody hears from for this time is replaced.
        session_ms: the session timeout of hosts.
        tick_ms: an elected promoter looks at the servers this often. Another one looks at the election at most as often.
    """

    grace_ms: int
    session_ms: int
    tick_ms: int = 1_000


class HostPromoters:
    """The promoters of one host.

    Args:
        registry: an open registry; it may have other users.
        nonce: identifies this run of the host.
        servers: by database, its servers as this host reaches them. Only databases with a server in each region.
        boot_ms: the boot-time clock.
    """

    def __init__(
        self,
        registry: Registry,
        nonce: str,
        servers: Mapping[str, DatabaseServers],
        pace: PromoterPace,
        boot_ms: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._nonce = nonce
        self._servers = servers
        self._pace = pace
        self._boot_ms = boot_ms
        self._changed = {database: asyncio.Event() for database in servers}
        self.rounds: dict[str, PromoterRound] = {}
        """The last rounds of the databases for which this host has the elected promoter."""
        self.unserved: set[str] = set()
        """The databases whose entry, as this host has read it last, does not serve, or could not be read."""
        self.weakened = dict.fromkeys(servers, 0)
        """By database, in how many rounds of this host the primary did not wait for acks as it must."""
        self.unacknowledged = dict.fromkeys(servers, 0)
        """By database, how many commits returned without an ack between two rounds of this host."""
        self._counted: dict[str, tuple[str, int]] = {}
        """By database, the primary of the last round, and what it counted; none before the first look at it."""
        self._texts = {database: StepTexts(_LOG_PAUSE_MS) for database in servers}
        self._patience_ms = dict.fromkeys(servers, _PATIENCE_GRACES * pace.grace_ms)
        """By database, how long this host's elected promoter may lack a server that it needs."""
        registry.subscribe(self._on_registry_change)

    @property
    def databases(self) -> Collection[str]:
        """The databases whose promoters this host runs: those that its configuration gives several servers."""
        return self._servers.keys()

    async def run(self) -> None:
        """Run the promoters of all databases until cancelled."""
        if not self._servers:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            for database in self._servers:
                group.create_task(self._run_database(database))

    async def _run_database(self, database: str) -> None:
        while True:
            try:
                if await read_primary(self._registry, database) is not None:
                    await self._promote(database)
                else:
                    self.unserved.discard(database)
            except (RegistryError, MalformedDocument) as error:
                if isinstance(error, MalformedDocument):
                    self.unserved.add(database)
                self._say(database, f"the promoter waits: {error}")
            except Exception:
                # A host serves shards, whatever its promoter meets at a server of one database.
                log.exception("the promoter of a database has failed; it begins again", extra={"database": database})
            await self._wait(database)

    async def _promote(self, database: str) -> None:
        """Run rounds until the entry cannot be read or is gone, or a server that is needed was not reached for too long."""
        pace = self._pace
        promoter = Promoter(
            self._registry,
            database,
            self._servers[database],
            ShardsFree(self._registry, database, pace.session_ms, self._boot_ms),
            Suspicion(pace.grace_ms),
            self._boot_ms,
        )

        lacking_since_ms: int | None = None

        def after(done: PromoterRound) -> bool:
            nonlocal lacking_since_ms
            if done.entry.is_serving:
                self.unserved.discard(database)
            else:
                self.unserved.add(database)
            if done.elected is not None:
                lacking_since_ms = None
                self._forget(database)
                return False
            self.rounds[database] = done
            self.weakened[database] += done.is_weakened
            self._count_unacknowledged(database, done)
            self._say(database, progress_text(done), done.version)
            if done.can_go_on:
                lacking_since_ms = None
                self._patience_ms[database] = _PATIENCE_GRACES * pace.grace_ms
                return False
            now_ms = self._boot_ms()
            lacking_since_ms = now_ms if lacking_since_ms is None else lacking_since_ms
            return now_ms - lacking_since_ms >= self._patience_ms[database]

        async def pause(done: PromoterRound | None) -> None:
            if done is None:
                self._forget(database)
            if done is not None and done.elected is not None:
                await self._wait(database)
            elif done is not None and done.entry.is_serving:
                await self._wait_for_entry(database, done.version)
            else:
                await asyncio.sleep(_BUSY_S)

        try:
            await run_promoter(self._registry, database, self._nonce, promoter, after, pause, self._boot_ms)
        finally:
            self._forget(database)
            await promoter.close()
        if lacking_since_ms is not None:
            await self._give_way(database)

    def _count_unacknowledged(self, database: str, done: PromoterRound) -> None:
        """Count what the primary counts more than in the round before: another primary, or promoter, has counted the rest."""
        if not done.is_reached or done.entry.policy is not LossPolicy.SEMI_SYNC:
            return
        server, before = self._counted.get(database, ("", 0))
        self._counted[database] = done.entry.server, done.unacknowledged
        if server == done.entry.server:
            was_restarted = done.unacknowledged < before
            self.unacknowledged[database] += done.unacknowledged - (0 if was_restarted else before)

    def _forget(self, database: str) -> None:
        """Forget the last round: another promoter may be elected."""
        self.rounds.pop(database, None)
        self._counted.pop(database, None)

    async def _give_way(self, database: str) -> None:
        """Let another host be elected: it may reach the server that this one does not."""
        self._patience_ms[database] = _LATER_PATIENCE_GRACES * self._pace.grace_ms
        self._say(database, "this host does not reach a server that it needs; another one may stand for election")
        await self._registry.withdraw(ELECTION_FOLDER, name_part(database))
        await asyncio.sleep(_REST_TICKS * self._pace.tick_ms / 1_000)

    def _say(self, database: str, text: str, version: int = 0) -> None:
        if self._texts[database].is_news(text, version, self._boot_ms()):
            log.info("the promoter of a database has done a step", extra={"database": database, "step": text})

    def _on_registry_change(self) -> None:
        for event in self._changed.values():
            event.set()

    async def _wait(self, database: str) -> None:
        """Wait for a change of the registry, at least one tick and at most five: any change of the cluster wakes all hosts."""
        await asyncio.sleep(self._pace.tick_ms / 1_000)
        try:
            async with asyncio.timeout(4 * self._pace.tick_ms / 1_000):
                await self._changed[database].wait()
        except TimeoutError:
            pass
        self._changed[database].clear()

    async def _wait_for_entry(self, database: str, version: int) -> None:
        """Wait one tick, or until the entry has another version, as when a move begins."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._pace.tick_ms / 1_000
        while loop.time() < until_s:
            self._changed[database].clear()
            try:
                found = await read_primary(self._registry, database)
            except (RegistryError, MalformedDocument):
                await asyncio.sleep(_BUSY_S)  # the next round meets the same, and says so
                return
            if found is None or found.version != version:
                return
            try:
                async with asyncio.timeout_at(until_s):
                    await self._changed[database].wait()
                    await asyncio.sleep(_BUSY_S)  # bounds the reads while much changes in the cluster
            except TimeoutError:
                return
