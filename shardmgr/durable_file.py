"""A small file that is replaced as a whole.

Always true: after a crash the file is the old one or the new one, and the new
one once `replace_file` has returned. Knows nothing of what it holds.
"""

from __future__ import annotations

import os
from pathlib import Path


class NotSynced(OSError):
    """The file is replaced, and may be the old one again after a crash."""


def replace_file(path: Path, text: str) -> None:
    """Replaces a file, and creates its folder.

    Raises:
        NotSynced: see there.
        OSError: the file is what it was.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    try:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise NotSynced(error.errno, error.strerror) from error
