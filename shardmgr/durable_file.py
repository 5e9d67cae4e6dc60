"""Replaces a small file as a whole.

Always true: after a crash the file is the old or the new one, and it is the new one
if `replace_file` has returned; only this user may use it. Knows nothing of the content.
"""

from __future__ import annotations

import os
from pathlib import Path

from shardmgr.private_files import make_private_folder, private_opener


class NotSynced(OSError):
    """The file was replaced, but may be the old one again after a crash."""


def replace_file(path: Path, text: str) -> None:
    """Replace a file, and create its folder.

    Raises:
        NotSynced: the file was replaced, but not durably.
        OSError: the file is unchanged.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    make_private_folder(path.parent)
    fresh.unlink(missing_ok=True)  # a file that a crash left behind keeps its mode
    with open(fresh, "x", encoding="utf-8", opener=private_opener) as file:
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
