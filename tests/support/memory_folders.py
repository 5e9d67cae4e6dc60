"""Folders in memory for the servers that tests start.

A database or ZooKeeper syncs its files at each commit and at each change of a table, which takes tests more time than
their work does. What a process has written stays when it is killed, in memory as on a disk.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
ROOM_BYTES_MIN: Final = 6 * 1024**3
"""The servers of three parallel test processes, with a database for each test, take up to about half of it."""


def temporary_folder(name: str, memory: Path = MEMORY) -> Path:
    """Create a folder as `foqs.dev.server_process` does, in memory if there is enough room."""
    has_room = memory.is_dir() and min(shutil.disk_usage(memory).free, available_bytes()) >= ROOM_BYTES_MIN
    return Path(tempfile.mkdtemp(prefix=f"foqs-{name}-", dir=memory if has_room else None))


def available_bytes() -> int:
    """Return how much memory the machine can give to programs; the files in memory have no other limit on some machines."""
    found = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
