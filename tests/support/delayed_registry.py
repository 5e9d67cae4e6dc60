"""A registry behind a network: calls take time, and their replies may be lost.

Holds `DelayedRegistry`, one user of a `LocalEnsemble`. Always true: a call takes
effect once, on its way and in the session in which it was made, or never; an error
means what `registry.port.Registry` says. A user is connected to a server that
follows the leader. The leader learns of its heartbeats late, and ends its session
accordingly; the user computes the session with `SessionLifetime`, as the ZooKeeper
registry does. Knows nothing of the contents of documents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

from shardmgr.primary_document import FOLDER as PRIMARIES
from shardmgr.registry.port import ConnectionState, RegistryFailed, RegistryOutcomeUnknown, VersionedDocument
from shardmgr.registry.session_lifetime import SessionLifetime
from tests.support.local_ensemble import LocalEnsemble, LocalRegistry
from tests.support.virtual_time import Pause, SimulatedLoop

T = TypeVar("T")

_LATENCY_MS: Final = (0.1, 4.0)
TICK_MS: Final = 600
"""The tick of the ensemble: a server reports its clients to the leader twice in each."""
_ENTRIES: Final = f"{PRIMARIES}/"
_HEARTBEATS: Final = 12
"""In each session timeout."""


class DelayedRegistry(LocalRegistry):
    """One user.

    Attributes:
        lost: the probability that a call, or its reply, is lost while the session goes on.
        session_over: called when its session has ended at the service.
    """

    def __init__(
        self,
        ensemble: LocalEnsemble,
        session_timeout_ms: int,
        boot_ms: Callable[[], int],
        loop: SimulatedLoop,
        rng: Random,
        lost: float,
    ) -> None:
        super().__init__(ensemble, session_timeout_ms, boot_ms)
        self.lost = lost
        self.session_over: Callable[[], None] = lambda: None
        self._loop = loop
        self._rng = rng
        self._lifetime = SessionLifetime(TICK_MS, session_timeout_ms)
        self._heartbeat_ms = 0
        """When the next one is sent."""
        self._relay_ms = 0
        """A time at which its server reports sessions to the leader. All others differ from it by multiples of half a tick."""
        self._known_ms = 0
        """When the leader last learned that the session is alive."""
        self._loss: asyncio.TimerHandle | None = None

    @property
    def alive_until_ms(self) -> int:
        if self._connection_state is ConnectionState.CONNECTED:
            self._beat()
            return self._lifetime.alive_until_ms
        return self._alive_until_ms

    @property
    def is_session_alive(self) -> bool:
        """The service knows of a session of this user."""
        return self._is_session_alive

    async def read(self, name: str) -> VersionedDocument | None:
        if name.startswith(_ENTRIES) and self._ensemble.read(name) is None:
            # At once, and without a draw: so histories without entries are those of before there were any.
            return await LocalRegistry.read(self, name)
        return await self._ask(lambda: LocalRegistry.read(self, name), RegistryFailed("no answer"))

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        return await self._ask(
            lambda: LocalRegistry.replace(self, name, data, version), RegistryOutcomeUnknown("no answer")
        )

    async def remove(self, name: str, version: int) -> None:
        await self._ask(lambda: LocalRegistry.remove(self, name, version), RegistryOutcomeUnknown("no answer"))

    async def names(self, folder: str) -> Sequence[str]:
        return await self._ask(lambda: LocalRegistry.names(self, folder), RegistryFailed("no answer"))

    async def members(self, folder: str) -> Mapping[str, bytes]:
        return await self._ask(lambda: LocalRegistry.members(self, folder), RegistryFailed("no answer"))

    async def announce(self, folder: str, name: str, data: bytes) -> None:
        await self._ask(lambda: LocalRegistry.announce(self, folder, name, data), RegistryOutcomeUnknown("no answer"))

    async def withdraw(self, folder: str, name: str) -> None:
        await self._ask(lambda: LocalRegistry.withdraw(self, folder, name), RegistryOutcomeUnknown("no answer"))

    # ---------------------------------------------------------- of the ensemble

    def disconnect(self) -> None:
        connected = self._is_reachable and self._connection_state is ConnectionState.CONNECTED
        super().disconnect()
        if not connected:
            return
        # The leader ends the session without a notice, by the reports that it got. The user goes by its own clock.
        self._cancel_expiry()
        loop, now_ms = asyncio.get_running_loop(), self._boot_ms()
        left_ms = self._known_ms + self._timeout_ms - now_ms
        self._expiry = loop.call_later(max(1, left_ms) / 1000, self._end_at_leader)
        self._loss = loop.call_later(max(1, self._alive_until_ms - now_ms) / 1000, self._lose_by_clock)

    def reconnect(self) -> None:
        if not self._is_reachable and not self._is_closed and self._is_session_alive:
            if self._connection_state is ConnectionState.LOST:
                self._end_session()  # it was given up, and another one begins
            else:
                self._connect()
        super().reconnect()

    def _end_at_leader(self) -> None:
        self._expiry = None
        if self._is_session_alive:
            self._end_session()

    def _lose_by_clock(self) -> None:
        self._loss = None
        if self._connection_state is ConnectionState.SUSPENDED:
            self._connection_state = ConnectionState.LOST
            self._notify_listeners()

    def _cancel_expiry(self) -> None:
        super()._cancel_expiry()
        if self._loss is not None:
            self._loss.cancel()
            self._loss = None

    def _begin_session(self) -> None:
        self._connect()
        super()._begin_session()

    def _connect(self) -> None:
        """A connect and a reconnect go to the leader as such."""
        now_ms = self._boot_ms()
        self._lifetime.on_connected(now_ms, self._timeout_ms)
        self._known_ms = self._heartbeat_ms = now_ms
        self._relay_ms = now_ms + self._rng.randrange(TICK_MS // 2)

    def _beat(self) -> None:
        """Send the heartbeats that became due since the last look."""
        now_ms, every_ms = self._boot_ms(), self._timeout_ms // _HEARTBEATS
        while self._heartbeat_ms < now_ms:
            self._lifetime.on_sync_answered(self._heartbeat_ms, self._heartbeat_ms + 1)
            self._heartbeat_ms += every_ms
        half_ms = TICK_MS // 2
        self._known_ms = max(self._known_ms, now_ms - (now_ms - self._relay_ms) % half_ms)

    def _end_session(self) -> None:
        super()._end_session()
        self.session_over()

    async def _ask(self, call: Callable[[], Awaitable[T]], unanswered: Exception) -> T:
        session = self.session_number
        self._require_connection()
        await self._travel()
        if self.session_number != session or self._rng.random() < self.lost:
            raise unanswered
        answer = await call()
        await self._travel()
        if (
            self.session_number != session
            or self.connection_state is not ConnectionState.CONNECTED
            or self._rng.random() < self.lost
        ):
            raise unanswered
        return answer

    async def _travel(self) -> None:
        await Pause(self._loop, self._rng.uniform(*_LATENCY_MS) / 1000)
