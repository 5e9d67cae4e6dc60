"""The files of a run, their topics and manifest entries, and the planted files that must fail.

Always true: an entry's checksum and size come from one read of the file by the
producer, before its item is enqueued. Knows nothing of queues.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SKIPPED_FOLDERS: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})
TOPICS_MAX: Final = 12
PRIORITY_MAX: Final = 2**31 - 1
PIECE_BYTES: Final = 1 << 20
_TYPE_LENGTH_MAX: Final = 12


@dataclass(slots=True, frozen=True)
class FileEntry:
    """A file as the producer read it, and as its item describes it."""

    path: str
    topic: str
    size: int
    sha256: str
    is_planted: bool = False

    @property
    def payload(self) -> bytes:
        return json.dumps({"path": self.path, "size": self.size, "sha256": self.sha256}).encode()

    @property
    def priority(self) -> int:
        """The size in bytes, so that small files come first."""
        return min(self.size, PRIORITY_MAX)


def standard_library() -> Path:
    """Return the folder of Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def find_files(folder: Path, limit: int | None, avoid: Path | None = None) -> list[str]:
    """Return the regular files below `folder`, sorted by path; no links, and nothing in SKIPPED_FOLDERS or `avoid`."""
    return list(itertools.islice(_walk(folder.absolute(), avoid and avoid.absolute()), limit))


def _walk(folder: Path, avoid: Path | None) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS and Path(parent, name) != avoid)
        for path in (Path(parent, name) for name in sorted(names)):
            if path.is_file() and not path.is_symlink():
                yield os.fspath(path)


def topics_by_path(paths: Sequence[str], run: str) -> dict[str, str]:
    """Return the topic of each path by the type of its file; rare types share one topic."""
    types = {path: _file_type(path) for path in paths}
    common = {name for name, _ in Counter(types.values()).most_common(TOPICS_MAX - 1)}
    return {path: f"{run}/{name if name in common else 'other'}" for path, name in types.items()}


def _file_type(path: str) -> str:
    name = Path(path).suffix[1:].lower()
    return name if 0 < len(name) <= _TYPE_LENGTH_MAX and name.isascii() and name.isalnum() else "other"


def read_file(path: str, topic: str, planted: bool = False) -> FileEntry:
    """Read a file for the manifest. Raises OSError."""
    digest = hashlib.sha256()
    size = 0
    with Path(path).open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
            size += len(piece)
    return FileEntry(path, topic, size, digest.hexdigest(), planted)


# ------------------------------------------------------------ the planted files

ALTERED: Final = "altered.txt"
TRUNCATED: Final = "truncated.txt"
VANISHED: Final = "vanished.txt"
NOW_A_FOLDER: Final = "now-a-folder.txt"
LINKED_TO_ITSELF: Final = "linked-to-itself.txt"


class PlantedFiles:
    """Valid files in their own folder, which are spoiled after the producer has read them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        names = (ALTERED, TRUNCATED, VANISHED, NOW_A_FOLDER, LINKED_TO_ITSELF)
        for name in names:
            (folder / name).write_text(f"This is {name}, as its producer saw it.\n")
        self.paths = [os.fspath(folder / name) for name in names]

    def spoil(self) -> None:
        """Spoil each file as its name says, so that no worker can process it."""
        folder = self._folder
        (folder / ALTERED).write_text((folder / ALTERED).read_text().upper())
        (folder / TRUNCATED).write_text("This is")
        for name in (VANISHED, NOW_A_FOLDER, LINKED_TO_ITSELF):
            (folder / name).unlink()
        (folder / NOW_A_FOLDER).mkdir()
        (folder / LINKED_TO_ITSELF).symlink_to(LINKED_TO_ITSELF)
