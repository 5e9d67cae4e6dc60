"""The coordinator of a single host, which owns every shard that it is given.

Always true: the last epoch issued for each shard is in a file before it is returned,
so no epoch serves twice, even if a database comes back without its last one. An epoch
that was issued and has not served is issued again, to the same process only. One
process at a time uses the file.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Protocol

from shardmgr.durable_file import replace_file
from shardmgr.ownership import OwnershipState
from shardmgr.port import CoordinatorFailed


class EpochBook(Protocol):
    """The store of issued epochs."""

    def load(self) -> dict[int, int]:
        """Return the last epoch issued for each shard."""
        ...

    def save(self, epochs: dict[int, int]) -> None:
        """Store the epochs durably: they survive a crash after this returns."""
        ...


class FileEpochBook:
    """Stores epochs in a small JSON file.

    Raises:
        CoordinatorFailed: it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unknown: dict[str, Any] = {}
        """The fields of the file that a newer version has written; they are kept."""

    def load(self) -> dict[int, int]:
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CoordinatorFailed(
                f"{self._path} cannot be read: {error.strerror}; give this user the right to read and write it"
            ) from error
        try:
            fields = json.loads(content)
            epochs = {int(shard): int(epoch) for shard, epoch in fields.pop("epochs").items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            raise CoordinatorFailed(
                f"{self._path} is not a coordinator file; move it away, and the epochs are read from the shards"
            ) from None
        self._unknown = fields
        return epochs

    def save(self, epochs: dict[int, int]) -> None:
        fields = {"epochs": {str(shard): epoch for shard, epoch in sorted(epochs.items())}, **self._unknown}
        text = json.dumps(fields)
        try:
            replace_file(self._path, text + "\n")
        except OSError as error:
            raise CoordinatorFailed(
                f"{self._path} cannot be written: {error.strerror}; check the disk, and that this user may write there"
            ) from error


class LocalCoordinator:
    """Issues epochs from a book; see `port.Coordinator`."""

    def __init__(self, book: EpochBook) -> None:
        self._book = book
        self._epochs: dict[int, int] | None = None
        self._unused: dict[int, int] = {}
        """By shard, the epoch that was issued and with which the shard has not been served."""
        self._lock = asyncio.Lock()

    async def issue_epoch(self, shard: int, above: int) -> int:
        async with self._lock:
            if self._epochs is None:
                self._epochs = self._book.load()
            if (unused := self._unused.get(shard, 0)) > above:
                return unused
            epoch = max(self._epochs.get(shard, 0), above) + 1
            fresh = {**self._epochs, shard: epoch}
            self._book.save(fresh)
            self._epochs = fresh
            self._unused[shard] = epoch
            return epoch

    def report_state(self, shard: int, epoch: int, state: str) -> None:
        """Note which epochs have served."""
        if state == OwnershipState.OWNED.value:
            self._unused.pop(shard, None)
