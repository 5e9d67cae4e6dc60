"""What a host asks of the coordination service: small documents, and members that vanish with their session.

Always true: a document is replaced only by one whose writer had seen the version
it replaces; a member's entry lives exactly as long as the session that announced
it. A registry is one session at a time; when that expires the registry begins
another by itself, and everything that was announced must be announced again.
Nothing here says ZooKeeper: implementations are `zookeeper` and `local`; one
contract suite holds both, tests/contract/test_registry.py. All callbacks come on
the event loop.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol


class RegistryError(Exception):
    """What a registry reports. The text is for a person: what is wrong, where, what to do."""


class RegistryFailed(RegistryError):
    """It cannot be asked now; nothing was written."""


class RegistryUnreachable(RegistryFailed):
    """As before, for want of an answer or of a session: asked again later, it may answer."""


class RegistryOutcomeUnknown(RegistryError):
    """It was asked, and did not answer: what was to be written may be written, or may yet be."""


class RegistryConflict(RegistryError):
    """The document is not the version that was named. Nothing was written."""


@dataclass(slots=True, frozen=True)
class VersionedDocument:
    """A document: what it holds, and its version, which goes up by one with each change."""

    data: bytes
    version: int


class ConnectionState(enum.Enum):
    """How the session stands."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The service does not answer; the session may live or be over."""
    LOST = "lost"
    """The session is over; the next one is not there yet."""


class Registry(Protocol):
    """One user of the coordination service. Calls may run at the same time, and end within seconds.

    Names are paths without a leading slash, of parts of letters, digits, `-`, `_` and `.`.
    """

    @property
    def connection_state(self) -> ConnectionState:
        """How the session stands now."""
        ...

    @property
    def session_number(self) -> int:
        """Counts the sessions, from 1; what an earlier one had announced is not there any more. 0 before the first."""
        ...

    @property
    def alive_until_ms(self) -> int:
        """The session cannot have expired before this moment of the boot-time clock: the time when a request was *sent* of
        which the service knows for certain, and the session timeout. Whoever serves because of the session stops before.
        """
        ...

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Has `on_change` called soon after anything that was read here, or `link`, may have changed; now and then without cause."""
        ...

    async def open(self) -> None:
        """Begins the first session. Raises `RegistryFailed` when it cannot be had within the connect timeout."""
        ...

    async def close(self) -> None:
        """Ends the session; what it announced is gone at once. Safe to repeat."""
        ...

    async def read(self, name: str) -> VersionedDocument | None:
        """A document, no older than the call; None where there is none. Raises `RegistryFailed`."""
        ...

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        """Stores a document in place of the version named, None where there must be none. Returns its version.

        Raises:
            RegistryConflict, RegistryFailed: nothing was written.
            RegistryOutcomeUnknown: perhaps it was.
        """
        ...

    async def members(self, folder: str) -> Mapping[str, bytes]:
        """What is announced in a folder, by name, no older than the call. Raises `RegistryFailed`."""
        ...

    async def announce(self, folder: str, name: str, data: bytes) -> None:
        """Sets this session's entry in a folder, over its own earlier one or one that an earlier session of this registry left.

        Raises:
            RegistryConflict: the name is another session's.
            RegistryFailed, RegistryOutcomeUnknown
        """
        ...

    async def withdraw(self, folder: str, name: str) -> None:
        """Removes this session's entry; nothing where there is none. Raises `RegistryFailed`, `RegistryOutcomeUnknown`."""
        ...
