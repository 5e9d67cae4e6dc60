"""Files and folders that only this user may use, with any umask.

Always true: a folder or a file that exists keeps its mode, because a person may have
chosen it. Knows nothing of the content.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

FOLDER_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def make_private_folder(folder: Path) -> None:
    """Create a folder, and its parents with the usual mode. Raises OSError."""
    folder.mkdir(FOLDER_MODE, parents=True, exist_ok=True)


def private_opener(path: str, flags: int) -> int:
    """Open a file, and create it for this user only: an `opener` of `open`."""
    return os.open(path, flags, FILE_MODE)
