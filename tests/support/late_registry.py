"""A coordination service with a network before it: calls take time, and their answers may be lost.

Holds `LateRegistry`, one user of a `LocalEnsemble`. Always true: what was asked
takes effect at one moment on the way, in the session in which it was asked, or
never; an error says of it what `registry.Registry` promises. Knows nothing of
what the documents say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from random import Random
from typing import Final, TypeVar

from shardmgr.local import LocalEnsemble, LocalRegistry
from shardmgr.registry import Entry, Link, RegistryFailed, RegistryUnknown
from tests.support.virtual import Pause, VirtualLoop

T = TypeVar("T")

_WAY_MS: Final = (0.1, 4.0)


class LateRegistry(LocalRegistry):
    """One user.

    Attributes:
        lost: how likely it is that a call, or its answer, is lost though the session goes on.
        session_over: told when a session of it has ended at the service.
    """

    def __init__(
        self,
        ensemble: LocalEnsemble,
        session_timeout_ms: int,
        boot_ms: Callable[[], int],
        loop: VirtualLoop,
        rng: Random,
        lost: float,
    ) -> None:
        super().__init__(ensemble, session_timeout_ms, boot_ms)
        self.lost = lost
        self.session_over: Callable[[], None] = lambda: None
        self._loop = loop
        self._rng = rng

    @property
    def lives(self) -> bool:
        """The service knows of a session of this user."""
        return self._lives

    async def read(self, name: str) -> Entry | None:
        return await self._ask(lambda: LocalRegistry.read(self, name), RegistryFailed("no answer"))

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        return await self._ask(lambda: LocalRegistry.replace(self, name, data, version), RegistryUnknown("no answer"))

    async def members(self, folder: str) -> Mapping[str, bytes]:
        return await self._ask(lambda: LocalRegistry.members(self, folder), RegistryFailed("no answer"))

    async def announce(self, folder: str, name: str, data: bytes) -> None:
        await self._ask(lambda: LocalRegistry.announce(self, folder, name, data), RegistryUnknown("no answer"))

    async def withdraw(self, folder: str, name: str) -> None:
        await self._ask(lambda: LocalRegistry.withdraw(self, folder, name), RegistryUnknown("no answer"))

    def _end_session(self) -> None:
        super()._end_session()
        self.session_over()

    async def _ask(self, call: Callable[[], Awaitable[T]], unanswered: Exception) -> T:
        session = self.session
        self._require_link()
        await self._travel()
        if self.session != session or self._rng.random() < self.lost:
            raise unanswered
        answer = await call()
        await self._travel()
        if self.session != session or self.link is not Link.CONNECTED or self._rng.random() < self.lost:
            raise unanswered
        return answer

    async def _travel(self) -> None:
        await Pause(self._loop, self._rng.uniform(*_WAY_MS) / 1000)
