"""The store of the jobs: one document, replaced as a whole.

Always true: a replacement has seen the document that it replaces, so no change
overwrites another; a document that is not readable is never overwritten. Hosts of a
cluster keep it in the registry, a host alone in a file. Knows nothing of what a job
does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, TypeVar

from foqs.access.secret_files import UnusableFile, read_secret
from foqs.queue.bulk_jobs.bulk_job import BulkJobRecords
from foqs.queue.bulk_jobs.bulk_job_document import DOCUMENT_NAME, parse_jobs, render_jobs
from shardmgr.durable_file import NotSynced, replace_file
from shardmgr.model import MalformedDocument
from shardmgr.registry.port import (
    RegistryConflict,
    RegistryFailed,
    RegistryOutcomeUnknown,
    VersionedDocument,
    check_document_size,
)

_T = TypeVar("_T")

SECRET_FILE_BYTES_MAX: Final = 4_096
ATTEMPTS_MAX: Final = 10
"""How often a change is tried: other hosts may change the document too, each about once a second for each job."""


class Documents(Protocol):
    """The part of a registry that the jobs need; see `shardmgr.registry.port.Registry`."""

    async def read(self, name: str) -> VersionedDocument | None: ...

    async def replace(self, name: str, data: bytes, version: int | None) -> int: ...

    def subscribe(self, on_change: Callable[[], None]) -> None: ...


class BulkJobStore:
    """The recorded jobs.

    Both calls may raise:
        RegistryFailed: the jobs cannot be read or written now. Nothing was written.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents
        self._last_parsed: tuple[bytes, BulkJobRecords] | None = None
        self._changed = asyncio.Event()
        documents.subscribe(self.wake)

    async def load(self) -> BulkJobRecords:
        """Return the jobs, no older than the call."""
        return (await self._read())[0]

    async def update(self, change: Callable[[BulkJobRecords], tuple[BulkJobRecords, _T]]) -> _T:
        """Apply a pure change to the recorded jobs, and return what it returns beside them.

        The change may be called several times. What it raises is raised, and nothing is written then.

        Raises:
            RegistryOutcomeUnknown: the jobs may have been written.
        """
        for _ in range(ATTEMPTS_MAX):
            jobs, version = await self._read()
            changed, result = change(jobs)
            if changed is jobs:
                return result
            data = render_jobs(changed)
            check_document_size(DOCUMENT_NAME, data)
            with contextlib.suppress(RegistryConflict):
                await self._documents.replace(DOCUMENT_NAME, data, version)
                self._last_parsed = data, changed
                return result
        raise RegistryFailed("other hosts changed the bulk jobs at the same time; try again")

    def wake(self) -> None:
        """End the present or the next `wait_for_change`."""
        self._changed.set()

    async def wait_for_change(self, timeout_s: float | None) -> None:
        """Wait until the jobs may have changed since the last call, or until the time is over; None: without limit."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.clear()

    async def _read(self) -> tuple[BulkJobRecords, int | None]:
        document = await self._documents.read(DOCUMENT_NAME)
        if document is None:
            return BulkJobRecords(), None
        if self._last_parsed is None or self._last_parsed[0] != document.data:
            try:
                self._last_parsed = document.data, parse_jobs(document.data)
            except MalformedDocument as error:
                raise RegistryFailed(
                    f"the document {DOCUMENT_NAME!r} is damaged: {error}; delete it, restart the host if it is a host "
                    "alone, and start the bulk jobs again"
                ) from None
        return self._last_parsed[1], document.version


class LocalDocuments:
    """The documents of a host alone, which only this process writes. See `Documents`.

    Args:
        folder: the folder of their files; None keeps them in memory.
        is_secret: files that others may read are refused. They are read each time, because a person may delete one.
    """

    def __init__(self, folder: Path | None, *, is_secret: bool = False) -> None:
        self._folder = folder
        self._is_secret = is_secret
        self._found: dict[str, VersionedDocument | None] = {}
        self._lock = asyncio.Lock()
        self._on_change: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """See `Registry.subscribe`."""
        self._on_change.append(on_change)

    async def read(self, name: str) -> VersionedDocument | None:
        """See `Registry.read`."""
        async with self._lock:
            return await self._read(name)

    async def replace(self, name: str, data: bytes, version: int | None) -> int:
        """See `Registry.replace`. Is completed even if its caller is cancelled."""
        return await asyncio.shield(asyncio.ensure_future(self._replace(name, data, version)))

    async def _replace(self, name: str, data: bytes, version: int | None) -> int:
        async with self._lock:
            stored = await self._read(name)
            stored_version = None if stored is None else stored.version
            if stored_version != version:
                raise RegistryConflict(f"version {stored_version} of {name} is stored, not {version}")
            if self._folder is not None:
                await self._write(self._path(name, self._folder), data.decode())
            self._found[name] = VersionedDocument(data, (version or 0) + 1)
        for on_change in self._on_change:
            on_change()
        return (version or 0) + 1

    async def _read(self, name: str) -> VersionedDocument | None:
        if name not in self._found or (self._is_secret and self._folder is not None):
            data = (
                None
                if self._folder is None
                else await asyncio.to_thread(self._read_file, self._path(name, self._folder))
            )
            self._found[name] = None if data is None else VersionedDocument(data, 1)
        return self._found[name]

    def _read_file(self, path: Path) -> bytes | None:
        if not path.exists():
            return None
        try:
            return read_secret(str(path), SECRET_FILE_BYTES_MAX) if self._is_secret else path.read_bytes()
        except UnusableFile as error:
            raise RegistryFailed(str(error)) from None
        except OSError as error:
            raise RegistryFailed(
                f"{path} cannot be read: {error.strerror}; give this user the right to read and write it"
            ) from error

    async def _write(self, path: Path, text: str) -> None:
        try:
            await asyncio.to_thread(replace_file, path, text)
        except NotSynced as error:
            # The caller repeats its change, which writes the file again.
            raise RegistryOutcomeUnknown(
                f"{path.parent} cannot be synced: {error.strerror}; check the disk, then repeat the call"
            ) from error
        except OSError as error:
            raise RegistryFailed(
                f"{path} cannot be written: {error.strerror}; check the disk, then repeat the call"
            ) from error

    @staticmethod
    def _path(name: str, folder: Path) -> Path:
        return folder / f"{name}.json"
