"""The staging location of a stream: the rows of its batches, in files that never change.

Holds `Staging`, `StagingOwner` and `StagedFile`. Always true: a file is complete when its writer has
ended, and on a local disk it is synced then; nothing names a file that is not complete;
on a local disk only this user may use folder and files that are new.
Memory is bounded by a row group. Knows pyarrow, nothing of Spark or hosts.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from foqs_client.spark.arrow import arrow_schema, record_batch
from foqs_client.spark.job_error import SourceError

GROUP_ROWS: Final = 2_000
GROUP_BYTES: Final = 8 << 20
"""A row group is written when it has this many rows or bytes of payload."""

_LEASE_COLUMN: Final = "_lease"
_DELETED: Final = (
    "start the query with its former staging_location, or with a new checkpoint; the items of the batch come back when "
    "their leases end"
)
_NOT_SHARED: Final = (
    "the driver had them there; give driver and executors a folder that they share, and each query one of its own"
)
_STREAM_FILE: Final = "stream.json"
_BATCH_FILE: Final = re.compile(r"batch-(\d+)-[0-9a-f]{32}\.parquet")

Lease = tuple[str, int]
"""The id of an item, and the token of its lease."""


@dataclass(slots=True, frozen=True)
class StagingOwner:
    """A stream, and the process of its driver. Both have random names."""

    stream: str
    driver: str


@dataclass(slots=True, frozen=True)
class StagedFile:
    """A file of a batch."""

    batch: int
    name: str


class Staging:
    """A staging location. Each method also raises SourceError if the location cannot be used.

    Args:
        location: an absolute path, or an address that pyarrow knows.
        columns: the columns of the rows: name and type.
    """

    def __init__(self, location: str, columns: Mapping[str, str]) -> None:
        self.location = location
        self._schema = arrow_schema(columns)
        try:
            self._files, self._root = fs.FileSystem.from_uri(location)
            self._is_local = isinstance(self._files, fs.LocalFileSystem)
            if self._is_local:
                Path(self._root).mkdir(0o700, parents=True, exist_ok=True)
            else:
                self._files.create_dir(self._root)
        except (OSError, pa.ArrowException) as error:
            raise self._unusable(error) from None

    # ------------------------------------------------------------------ the stream

    def read_owner(self) -> StagingOwner | None:
        """Return the stream that has this location, and its driver; None if there is none."""
        try:
            with self._files.open_input_stream(self._path(_STREAM_FILE)) as file:
                found = json.loads(file.read())
            return StagingOwner(found["stream"], found["driver"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        except OSError as error:
            raise self._unusable(error) from None

    def write_owner(self, owner: StagingOwner) -> None:
        """Make a driver of a stream the only one that has this location."""
        new = self._path(f"{_STREAM_FILE}.{uuid4().hex}")
        try:
            self._make_private(new)
            with self._files.open_output_stream(new) as file:
                file.write(json.dumps(asdict(owner)).encode())
            self._sync(new)
            self._files.move(new, self._path(_STREAM_FILE))
            self._sync(self._root)
        except OSError as error:
            raise self._unusable(error) from None

    # ------------------------------------------------------------------- the files

    def staged_files(self) -> list[StagedFile]:
        """Return the files of all batches, complete or not, by batch."""
        try:
            names = [found.base_name for found in self._files.get_file_info(fs.FileSelector(self._root))]
        except OSError as error:
            raise self._unusable(error) from None
        matches = [match for name in names if (match := _BATCH_FILE.fullmatch(name))]
        return sorted((StagedFile(int(match[1]), match[0]) for match in matches), key=lambda file: file.batch)

    def writer(self, batch: int) -> StagedWriter:
        """Return a writer of a new file."""
        name = f"batch-{batch}-{uuid4().hex}.parquet"
        schema = self._schema.append(pa.field(_LEASE_COLUMN, pa.int64()))
        try:
            self._make_private(self._path(name))
            return StagedWriter(name, pq.ParquetWriter(self._path(name), schema, filesystem=self._files))
        except OSError as error:
            raise self._unusable(error) from None

    def complete(self, writer: StagedWriter) -> None:
        """Make a file durable. Raises SourceError."""
        try:
            writer.close()
            self._sync(self._path(writer.name))
            self._sync(self._root)
        except OSError as error:
            raise self._unusable(error) from None

    def group_count(self, name: str) -> int:
        """Return the number of row groups of a file. Raises SourceError if there is no such file."""
        with self._open(name) as file:
            return int(file.num_row_groups)

    def leases(self, name: str) -> list[Lease]:
        """Return the leases of a file's items. Raises SourceError if it is not complete or does not exist."""
        with self._open(name) as file:
            return _leases(file)

    def leases_if_complete(self, name: str) -> list[Lease]:
        """Return the leases of a file's items; none if it is not complete or does not exist."""
        try:
            with self._parquet_file(name) as file:
                return _leases(file)
        except (FileNotFoundError, pa.ArrowInvalid):
            return []
        except OSError as error:
            raise self._unusable(error) from None

    def read(self, name: str, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups, in a task. Raises SourceError."""
        with self._open(name, _NOT_SHARED) as file:
            for group in groups:
                table = file.read_row_group(group, columns=self._schema.names).cast(self._schema)
                yield from table.to_batches()

    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""
        try:
            self._files.delete_file(self._path(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._unusable(error) from None

    def _open(self, name: str, remedy: str = _DELETED) -> pq.ParquetFile:
        try:
            return self._parquet_file(name)
        except FileNotFoundError:
            raise SourceError(f"the staged rows {name} are not in {self.location}: {remedy}") from None
        except (OSError, pa.ArrowInvalid) as error:
            raise self._unusable(error) from None

    def _parquet_file(self, name: str) -> pq.ParquetFile:
        return pq.ParquetFile(self._files.open_input_file(self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _make_private(self, path: str) -> None:
        """Create a file of a local disk for this user only; also for the group, if the folder has the setgid bit."""
        if self._is_local:
            mode = 0o640 if Path(self._root).stat().st_mode & stat.S_ISGID else 0o600
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
            try:
                os.fchmod(descriptor, mode)  # the umask may have taken the group's right
            finally:
                os.close(descriptor)

    def _sync(self, path: str) -> None:
        """Sync a file or a folder of a local disk."""
        if self._is_local:
            descriptor = os.open(Path(path), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _unusable(self, error: Exception) -> SourceError:
        reason = " ".join(str(error).split())
        return SourceError(
            f"the staging_location {self.location} cannot be used: {reason}; correct it, or its permissions"
        )


def _leases(file: pq.ParquetFile) -> list[Lease]:
    table = file.read(columns=["id", _LEASE_COLUMN])
    return list(zip(table["id"].to_pylist(), table[_LEASE_COLUMN].to_pylist(), strict=True))


class StagedWriter:
    """Writes the rows of one batch. Not thread-safe.

    Args:
        name: the name of the file.
        file: its Parquet writer, whose last column is the token.

    Attributes:
        rows: the number of rows.
    """

    def __init__(self, name: str, file: pq.ParquetWriter) -> None:
        self.name = name
        self.rows = 0
        self._file = file
        self._batches: list[pa.RecordBatch] = []
        self._group_rows = 0
        self._group_bytes = 0

    def write(self, values: Sequence[Sequence[Any]], tokens: Sequence[int]) -> None:
        """Add rows: the values of each column, and the tokens."""
        batch = record_batch([*values, tokens], self._file.schema)
        self._batches.append(batch)
        self.rows += batch.num_rows
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """Write what is left and end the file."""
        self._write_group()
        self._file.close()

    def _write_group(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._file.write_table(table, row_group_size=len(table))
        self._batches, self._group_rows, self._group_bytes = [], 0, 0
