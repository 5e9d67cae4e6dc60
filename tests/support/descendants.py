"""The processes that a process has started, and those that they have.

Of a Linux machine: it is read from /proc.
"""

from __future__ import annotations

from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """Process ids with the names of their programs, in no order."""
    found: dict[int, str] = {}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, children.read_text().split()):
                found[child] = Path(f"/proc/{child}/comm").read_text().strip()
                found |= descendants(child)
        except OSError:
            continue  # it has ended meanwhile
    return found


def lives(pid: int) -> bool:
    """It has not ended; one that nobody has waited for yet has."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
