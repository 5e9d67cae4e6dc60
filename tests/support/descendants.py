"""The processes that a process has started, and their descendants.

Reads /proc, so it needs Linux.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """Process ids with their command lines, in no order."""
    found: dict[int, str] = {}
    for child in _children(pid):
        with suppress(OSError):  # it has ended meanwhile
            found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ").strip()
        found |= descendants(child)
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for children in list(Path(f"/proc/{pid}/task").glob("*/children")):
            with suppress(OSError):
                found += map(int, children.read_text().split())
    return found


def is_running(pid: int) -> bool:
    """Return whether the process runs. One that has ended and was not waited for does not run."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
