"""A registry inside the process, for tests and the simulation.

`LocalEnsemble` is the service, `LocalRegistry` one user of it. Always true: with a
file, a replaced document is durable before anybody reads it. One process at a time
uses the file. Knows nothing of the documents' content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardmgr.registry.port import (
    ConnectionState,
    RegistryConflict,
    RegistryFailed,
    RegistryUnreachable,
    VersionedDocument,
    check_document_size,
    check_member_name,
    check_name,
)
from tests.support.registry_file import RegistryFile

_EXPIRY_MARGIN_MS: Final = 1
"""Timers of some event loops fire up to a millisecond early; a session never ends early."""


@dataclass(slots=True, frozen=True)
class _AnnouncedEntry:
    data: bytes
    owner: LocalRegistry


class LocalEnsemble:
    """Documents and members, and the controls of a test over its sessions.

    Args:
        path: of the file that keeps the documents; None keeps them in memory. It is read when the first session begins.
        boot_ms: the boot-time clock, integer milliseconds.
    """

    def __init__(self, path: Path | None, boot_ms: Callable[[], int]) -> None:
        self._file = None if path is None else RegistryFile(path)
        self._boot_ms = boot_ms
        self._documents: dict[str, VersionedDocument] | None = None
        self._members: dict[str, dict[str, _AnnouncedEntry]] = {}
        self._users: list[LocalRegistry] = []

    def registry(self, session_timeout_ms: int, boot_ms: Callable[[], int] | None = None) -> LocalRegistry:
        """Return one more user without a session. `boot_ms` is its own clock, if that differs."""
        return LocalRegistry(self, session_timeout_ms, boot_ms or self._boot_ms)

    # ---------------------------------------------------------------- controls

    def disconnect(self, registry: LocalRegistry) -> None:
        """Cuts a user off. To everybody else that is what its death looks like: its session ends after its timeout."""
        registry.disconnect()

    def reconnect(self, registry: LocalRegistry) -> None:
        """It is reached again: in its session, or in a new one where that is over."""
        registry.reconnect()

    def expire(self, registry: LocalRegistry) -> None:
        """End its session now. A connected user begins another; a disconnected one learns of it by its timeout or when it reconnects."""
        registry.expire()

    def announced_by(self, registry: LocalRegistry) -> set[str]:
        """Return the entries that a user has announced, each with its folder, such as those of the elections that it has won."""
        return {
            f"{folder}/{name}"
            for folder, entries in self._members.items()
            for name, entry in entries.items()
            if entry.owner is registry
        }

    def delete(self, name: str) -> None:
        """Remove a document, as an operator does by hand."""
        assert self._documents is not None
        self._documents = {each: entry for each, entry in self._documents.items() if each != name}
        self._notify_users()

    def wipe(self) -> None:
        """Lose all documents, as a registry that gets an empty disk. The users learn of it when they read again."""
        assert self._documents is not None
        self._documents.clear()

    # ------------------------------------------------------------ for sessions

    def add_user(self, registry: LocalRegistry) -> None:
        """A user's first session begins. Raises `RegistryFailed` when the file cannot be read."""
        if self._documents is None:
            self._documents = {} if self._file is None else self._file.load()
        self._users.append(registry)

    def remove_user(self, registry: LocalRegistry) -> None:
        """A user has closed."""
        self._users.remove(registry)

    def end_session(self, registry: LocalRegistry) -> None:
        """Remove the entries that a session announced."""
        for folder, entries in self._members.items():
            kept = {name: entry for name, entry in entries.items() if entry.owner is not registry}
            if len(kept) != len(entries):
                self._members[folder] = kept
                self._notify_users()

    def read(self, name: str) -> VersionedDocument | None:
        assert self._documents is not None
        return self._documents.get(name)

    def replace(self, name: str, data: bytes, version: int | None) -> int:
        assert self._documents is not None
        former = self._documents.get(name)
        if (None if former is None else former.version) != version:
            found = "is not there" if former is None else f"has version {former.version}"
            raise RegistryConflict(f"{name} {found}, and not version {version}: read it again")
        entry = VersionedDocument(data, 0 if former is None else former.version + 1)
        documents = {**self._documents, name: entry}
        if self._file is not None:
            self._file.save(documents)
        self._documents = documents
        self._notify_users()
        return entry.version

    def remove(self, name: str, version: int) -> None:
        former = self.read(name)
        if former is None or former.version != version:
            raise RegistryConflict(f"{name} does not have version {version}: read it again")
        assert self._documents is not None
        documents = {each: document for each, document in self._documents.items() if each != name}
        if self._file is not None:
            self._file.save(documents)
        self._documents = documents
        self._notify_users()

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of what is in a folder. A document below it has a folder of its own there."""
        assert self._documents is not None
        paths = [*self._documents, *(f"{folder}/{name}" for name in self._members.get(folder, {}))]
        below = [path.removeprefix(f"{folder}/") for path in paths if path.startswith(f"{folder}/")]
        return tuple(sorted({path.partition("/")[0] for path in below}))

    def members(self, folder: str) -> Mapping[str, bytes]:
        return {name: entry.data for name, entry in self._members.get(folder, {}).items()}

    def announce(self, registry: LocalRegistry, folder: str, name: str, data: bytes) -> None:
        entries = self._members.setdefault(folder, {})
        if name in entries and entries[name].owner is not registry:
            raise RegistryConflict(f"{folder}/{name} is announced by another session")
        entries[name] = _AnnouncedEntry(data, registry)
        self._notify_users()

    def withdraw(self, registry: LocalRegistry, folder: str, name: str) -> None:
        entries = self._members.get(folder, {})
        if name in entries and entries[name].owner is registry:
            del entries[name]
            self._notify_users()

    def _notify_users(self) -> None:
        for registry in self._users:
            registry.on_ensemble_change()


class LocalRegistry:
    """One user of a `LocalEnsemble`; see `registry.Registry`. `LocalEnsemble.registry` makes it.

    Callbacks run in the context in which they were given.
    """

    def __init__(self, ensemble: LocalEnsemble, session_timeout_ms: int, boot_ms: Callable[[], int]) -> None:
        self._ensemble = ensemble
        self._timeout_ms = session_timeout_ms
        self._boot_ms = boot_ms
        self._connection_state = ConnectionState.LOST
        self._session_number = 0
        self._is_reachable = True
        self._is_session_alive = False
        """The session, at the service."""
        self._is_closed = False
        self._alive_until_ms = 0
        """When the session of a disconnected user ends."""
        self._expiry: asyncio.TimerHandle | None = None
        self._listeners: list[tuple[Callable[[], None], Context]] = []

    @property
    def connection_state(self) -> ConnectionState:
        return self._connection_state

    @property
    def session_number(self) -> int:
        return self._session_number

    @property
    def alive_until_ms(self) -> int:
        return (
            self._boot_ms() + self._timeout_ms
            if self._connection_state is ConnectionState.CONNECTED
            else self._alive_until_ms
        )

    def subscribe(self, on_change: Callable[[], None]) -> None:
        self._listeners.append((on_change, copy_context()))

    # ------------------------------------------------------------------- calls

    async def open(self) -> None:
        if self._is_closed or self._session_number:
            raise RegistryFailed("the registry was opened before; make another one")
        if not self._is_reachable:
            raise RegistryUnreachable("the coordination service does not answer; try again")
        self._ensemble.add_user(self)
        self._begin_session()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._listeners.clear()
        if self._session_number:
            self._ensemble.remove_user(self)
        if self._connection_state is ConnectionState.CONNECTED:
            self._alive_until_ms = self._boot_ms()
            self._end_session()
        self._connection_state = ConnectionState.LOST

    async def read(self, name: str) -> VersionedDocument | None:
        check_name(name)
        self._require_connection()
        return self._ensemble.read(name)

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        check_name(name)
        check_document_size(name, data)
        self._require_connection()
        return self._ensemble.replace(name, data, version)

    async def remove(self, name: str, version: int) -> None:
        check_name(name)
        self._require_connection()
        self._ensemble.remove(name, version)

    async def names(self, folder: str) -> Sequence[str]:
        check_name(folder)
        self._require_connection()
        return self._ensemble.names(folder)

    async def members(self, folder: str) -> Mapping[str, bytes]:
        check_name(folder)
        self._require_connection()
        return self._ensemble.members(folder)

    async def announce(self, folder: str, name: str, data: bytes) -> None:
        check_member_name(folder, name)
        check_document_size(name, data)
        self._require_connection()
        self._ensemble.announce(self, folder, name, data)

    async def withdraw(self, folder: str, name: str) -> None:
        check_member_name(folder, name)
        self._require_connection()
        self._ensemble.withdraw(self, folder, name)

    def _require_connection(self) -> None:
        if self._connection_state is not ConnectionState.CONNECTED:
            reason = (
                "the registry is not open"
                if self._is_closed or not self._session_number
                else f"the session is {self._connection_state.value}"
            )
            raise RegistryUnreachable(f"{reason}; nothing was asked")

    # ---------------------------------------------------------- of the ensemble

    def on_ensemble_change(self) -> None:
        """Notify of a change, unless this user is disconnected."""
        if self._is_reachable:
            self._notify_listeners()

    def disconnect(self) -> None:
        if not self._is_reachable:
            return
        self._is_reachable = False
        if self._connection_state is ConnectionState.CONNECTED:
            self._alive_until_ms = self.alive_until_ms
            self._connection_state = ConnectionState.SUSPENDED
            self._notify_listeners()
            delay_s = (self._timeout_ms + _EXPIRY_MARGIN_MS) / 1000
            self._expiry = asyncio.get_running_loop().call_later(delay_s, self._on_timeout)

    def reconnect(self) -> None:
        if self._is_reachable:
            return
        self._is_reachable = True
        if self._is_closed or not self._session_number:
            return
        if self._is_session_alive:
            self._cancel_expiry()
            self._connection_state = ConnectionState.CONNECTED
            self._notify_listeners()
        else:
            self._replace_session()

    def expire(self) -> None:
        if self._is_reachable and self._connection_state is ConnectionState.CONNECTED:
            self._alive_until_ms = self._boot_ms()
            self._end_session()
            self._replace_session()
        elif self._is_session_alive:
            self._end_session()

    def _on_timeout(self) -> None:
        self._expiry = None
        if self._is_session_alive:
            self._end_session()
        self._connection_state = ConnectionState.LOST
        self._notify_listeners()

    def _replace_session(self) -> None:
        """The session is known to be over, and the service is there: the next one begins."""
        self._cancel_expiry()
        self._connection_state = ConnectionState.LOST
        self._notify_listeners()
        asyncio.get_running_loop().call_soon(self._begin_session)

    def _begin_session(self) -> None:
        if self._is_closed or not self._is_reachable or self._is_session_alive:
            return
        self._is_session_alive = True
        self._session_number += 1
        self._connection_state = ConnectionState.CONNECTED
        self._notify_listeners()

    def _end_session(self) -> None:
        self._is_session_alive = False
        self._ensemble.end_session(self)

    def _cancel_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    @contextmanager
    def without_notices(self) -> Iterator[None]:
        """Let the listeners miss every change of the session inside."""
        listeners, self._listeners = self._listeners, []
        try:
            yield
        finally:
            self._listeners = listeners

    def _notify_listeners(self) -> None:
        loop = asyncio.get_running_loop()
        for changed, context in self._listeners:
            loop.call_soon(changed, context=context)
