"""Folders in memory for the servers that tests start.

A database or ZooKeeper syncs its files at each commit and at each change of a table, which takes tests more time than
their work does. What a process has written stays when it is killed, in memory as on a disk.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM_BYTES_MIN: Final = 6 * 1024**3
"""The servers of three parallel test processes, with a database for each test, take up to about half of it."""


def temporary_folder(name: str, memory: Path = MEMORY) -> Path:
    """Create a folder as `foqs.dev.server_process` does, in memory if there is enough room."""
    has_room = memory.is_dir() and shutil.disk_usage(memory).free >= ROOM_BYTES_MIN
    return Path(tempfile.mkdtemp(prefix=f"foqs-{name}-", dir=memory if has_room else None))
