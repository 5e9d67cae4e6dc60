"""The interface of the coordination service: small documents, and members that vanish with their session.

Always true: a writer replaces a document only if it has seen its present version; a
member's entry lives exactly as long as the session that announced it. A registry
has one session at a time. If the session expires, the registry starts another, and
everything must be announced again. Every registry checks names and sizes before a
request, so that each implementation can store what passes. One contract suite, tests/contract/test_registry.py,
checks the ZooKeeper registry and the one of the tests. All callbacks come on the event
loop.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

DOCUMENT_BYTES_MAX: Final = 1_000_000
"""The largest document: ZooKeeper accepts 1 MiB in one message, with its names."""
NAME_CHARS_MAX: Final = 200

_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


class RegistryError(Exception):
    """An error of a registry. The text is for a person: what is wrong, where, and what to do."""


class RegistryFailed(RegistryError):
    """The registry cannot be used now; nothing was written."""


class RegistryUnreachable(RegistryFailed):
    """The registry does not answer, or there is no session. A later call may succeed. Nothing was written."""


class RegistryOutcomeUnknown(RegistryError):
    """The registry did not answer a write, which may have happened or may still happen."""


class RegistryConflict(RegistryError):
    """The document has another version than the caller named, or the entry is another session's. Nothing was written."""


@dataclass(slots=True, frozen=True)
class VersionedDocument:
    """A document and its version, which increases by one with each change."""

    data: bytes
    version: int


class ConnectionState(enum.Enum):
    """The state of the registry session."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The service does not answer; the session may live or be over."""
    LOST = "lost"
    """The session is over, and the next has not started yet."""


class Registry(Protocol):
    """One user of the coordination service. Calls may run concurrently and end within seconds.

    Names are paths without a leading slash, of parts of letters, digits, `-`, `_` and `.`.
    """

    @property
    def connection_state(self) -> ConnectionState:
        """The state of the registry session now."""
        ...

    @property
    def session_number(self) -> int:
        """The number of the session, from 1; 0 before the first. Entries of earlier sessions are gone."""
        ...

    @property
    def alive_until_ms(self) -> int:
        """The moment of the boot-time clock before which the session cannot expire.

        This is the time at which a request was *sent* that the service certainly knows, plus the session timeout. A host
        that serves because of its session stops before this moment.
        """
        ...

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` soon after a value that was read, or `connection_state`, may have changed; sometimes without cause."""
        ...

    async def open(self) -> None:
        """Start the first session. Raises `RegistryFailed` if there is none within the connect timeout."""
        ...

    async def close(self) -> None:
        """End the session; its entries vanish at once. Safe to repeat."""
        ...

    async def read(self, name: str) -> VersionedDocument | None:
        """Return a document, no older than the call; None if there is none. Raises `RegistryFailed`."""
        ...

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        """Replace the named version of a document, None if there must be none. Return its new version.

        Raises:
            RegistryConflict, RegistryFailed: nothing was written.
            RegistryOutcomeUnknown: it may have been written.
        """
        ...

    async def remove(self, name: str, version: int) -> None:
        """Remove the named version of a document. The versions of a later one of this name begin again.

        Raises:
            RegistryConflict, RegistryFailed: nothing was removed.
            RegistryOutcomeUnknown: it may have been removed.
        """
        ...

    async def names(self, folder: str) -> Sequence[str]:
        """Return the names of the documents and entries of a folder, no older than the call. Raises `RegistryFailed`."""
        ...

    async def members(self, folder: str) -> Mapping[str, bytes]:
        """Return the entries of a folder by name, no older than the call. Raises `RegistryFailed`."""
        ...

    async def announce(self, folder: str, name: str, data: bytes) -> None:
        """Set this session's entry in a folder. It replaces one of this or an earlier session of this registry.

        Raises:
            RegistryConflict: the name belongs to another session.
            RegistryFailed, RegistryOutcomeUnknown
        """
        ...

    async def withdraw(self, folder: str, name: str) -> None:
        """Remove this session's entry, if there is one. Raises `RegistryFailed`, `RegistryOutcomeUnknown`."""
        ...


def check_name(name: str) -> None:
    """Raise `ValueError` for an invalid name. Names come from programs, so this is a defect."""
    if len(name) > NAME_CHARS_MAX:
        raise ValueError(
            f"the name {name[:50]!r}... has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed; shorten it"
        )
    if not _NAME_PATTERN.fullmatch(name) or any(part in (".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a name: use parts of letters, digits, -, _ and ., with a / between them")


def check_member_name(folder: str, name: str) -> None:
    """Check a member's folder and its name, which may have no `/`. Raises `ValueError`."""
    check_name(f"{folder}/{name}")
    if "/" in name:
        raise ValueError(f"{name!r} is not a member's name: it has a /")


def check_document_size(name: str, data: bytes) -> None:
    """Raise `RegistryFailed` for a document that is too large."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise RegistryFailed(
            f"{name} would have {len(data)} bytes; at most {DOCUMENT_BYTES_MAX} can be stored: make it smaller"
        )
