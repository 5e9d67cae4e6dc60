"""Reads the header of a SQLite file without opening it as a database.

Opening it would leave a log and its index behind, owned by the user of this
process. Always true: the file is only read. Changes that are still in the log
are not seen, so the version can be older here than it is.

Source: https://www.sqlite.org/fileformat.html, "The Database Header".
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MAGIC: Final = b"SQLite format 3\0"
_BYTES: Final = 100


@dataclass(slots=True, frozen=True)
class SqliteHeader:
    """The fields of a file's header that this program reads.

    `schema_version` is `PRAGMA user_version`; `application_id` names the program that made the file.
    """

    schema_version: int
    application_id: int


def read_header(path: Path) -> SqliteHeader | None:
    """Return the header; None if the file is no SQLite database. An empty file is an empty database.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_BYTES)
    if not head:
        return SqliteHeader(0, 0)
    if len(head) < _BYTES or not head.startswith(_MAGIC):
        return None
    (version,) = struct.unpack_from(">i", head, 60)
    (application,) = struct.unpack_from(">i", head, 68)
    return SqliteHeader(version, application)
