"""A catalog in a file of one machine.

Always true: the new file is synced, then replaces the old one by a rename; a
crash leaves one of the two. The lock file beside it is held from reading the
version until the rename, so two hosts on one file do not overwrite each other's
changes. A file that is not a readable catalog is never overwritten. File access
runs in threads, so a slow disk delays no call.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from foqs.catalog.document import EMPTY_DOCUMENT, Document, MalformedDocument, NewerDocument, parse, render_stored
from foqs.catalog.port import CatalogFailed, CatalogFull, CatalogUnknownOutcome, check_replaceable
from shardmgr.private_files import make_private_folder, private_opener

LOCK_WAIT_S: Final = 2.0
"""The longest wait for another process that changes the file."""
_LOCK_POLL_S: Final = 0.01

_Fingerprint: TypeAlias = tuple[int, int, int] | None


POLL_S: Final = 0.5
"""How often the file is looked at for changes by other processes: an administrator does not notice the wait."""


class FileCatalog:
    """A catalog in one file, for a host alone; see `port.Catalog`.

    Args:
        bytes_max: limit of the file.
        poll_s: interval of the checks for changes by other processes.
    """

    def __init__(self, path: Path, bytes_max: int, poll_s: float = POLL_S) -> None:
        self._path = path
        self.bytes_max = bytes_max
        self._poll_s = poll_s
        self._last_loaded: tuple[_Fingerprint, int] | None = None
        """The fingerprint of the file at the last load, and the document's version."""
        self._last_parsed: tuple[bytes, Document] | None = None
        """The content that was read or written last, and its document: to parse a large one takes long."""

    async def load(self) -> Document:
        return await asyncio.to_thread(self._load_sync)

    async def replace(self, document: Document, expected: Document | None = None) -> None:
        await asyncio.to_thread(self._replace_sync, document, expected)

    async def wait_for_change(self, known_version: int) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            if self._last_loaded != (await asyncio.to_thread(self._fingerprint), known_version):
                return

    # ------------------------------------------------------------- in a thread

    def _load_sync(self) -> Document:
        fingerprint = self._fingerprint()  # before the read, so that a later write is seen as a change
        document = self._read()
        self._last_loaded = fingerprint, document.version
        return document

    def _fingerprint(self) -> _Fingerprint:
        """Return a value that differs between the file and its replacement."""
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _read(self) -> Document:
        try:
            with self._path.open("rb") as file:
                data = file.read(self.bytes_max + 1)
        except FileNotFoundError:
            return EMPTY_DOCUMENT
        except OSError as error:
            raise CatalogFailed(
                f"{self._path} cannot be read: {error.strerror}; give this user the right to read and write it"
            ) from error
        if len(data) > self.bytes_max:
            raise CatalogFailed(f"{self._path} has more than {self.bytes_max} bytes; raise catalog.bytes_max")
        last = self._last_parsed
        if last is not None and last[0] == data:
            return last[1]
        try:
            document = parse(data)
        except NewerDocument as error:
            raise CatalogFailed(
                f"{self._path} was written by a newer version: {error}; start that version, and keep the document"
            ) from None
        except MalformedDocument as error:
            raise CatalogFailed(
                f"{self._path} is damaged: {error}; correct that place, or move the file away and import an export"
            ) from None
        self._last_parsed = data, document
        return document

    def _replace_sync(self, document: Document, expected: Document | None) -> None:
        data = render_stored(document)
        if len(data) > self.bytes_max:
            raise CatalogFull(
                f"the catalog would have {len(data)} bytes, over catalog.bytes_max, which is {self.bytes_max}; "
                "raise it or delete what is not needed"
            )
        with self._locked():
            check_replaceable(self._read(), document, expected)
            self._write(data)
            self._last_parsed = data, document

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock for replacing the file. Raises `CatalogFailed`."""
        lock_path = self._path.with_name(f"{self._path.name}.lock")
        try:
            make_private_folder(self._path.parent)
            lock = open(lock_path, "ab", opener=private_opener)  # noqa: SIM115 - it is used below
        except OSError as error:
            raise CatalogFailed(
                f"{lock_path} cannot be written: {error.strerror}; give this user the right to write it"
            ) from error
        with lock:
            deadline = time.monotonic() + LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise CatalogFailed(
                            f"another process has held {lock_path} for more than {LOCK_WAIT_S:g} s and may hang; end it"
                        ) from None
                    time.sleep(_LOCK_POLL_S)
            yield

    def _write(self, data: bytes) -> None:
        new_path = self._path.with_name(f"{self._path.name}.new")
        try:
            new_path.unlink(missing_ok=True)  # a file that a crash left behind keeps its mode
            with open(new_path, "xb", opener=private_opener) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new_path.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new_path.unlink()
            raise CatalogFailed(
                f"{self._path} cannot be written: {error.strerror}; check the disk, and that this user may write there"
            ) from error
        try:
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise CatalogUnknownOutcome(
                f"{self._path.parent} cannot be synced: {error.strerror}; check the disk"
            ) from error
