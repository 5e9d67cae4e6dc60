"""What the first bytes of a SQLite file tell of it, without opening it as a database.

Opening would leave a log and its index behind, as the user who looked. Always
true: the file is only read. What a log beside the file holds and the file does
not yet is not seen: a version can be older here than it is.

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
    """`schema_version`: of the schema (`PRAGMA user_version`); `application_id`: whose file it is (`PRAGMA application_id`)."""

    schema_version: int
    application_id: int


def read_header(path: Path) -> SqliteHeader | None:
    """The header; None for a file that is no SQLite database. An empty file is one without anything.

    Raises:
        OSError: it cannot be read.
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
