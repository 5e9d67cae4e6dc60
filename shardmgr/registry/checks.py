"""What every registry refuses before it asks anybody: names and sizes.

Always true of what passed: it can be kept by any implementation. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from shardmgr.registry.port import RegistryFailed

DOCUMENT_BYTES_MAX: Final = 1_000_000
"""ZooKeeper takes 1 MiB in one message, its names included."""
NAME_CHARS_MAX: Final = 200

_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


def check_name(name: str) -> None:
    """Raises `ValueError` for what is not a name: those come from programs, so this is a defect of one."""
    if len(name) > NAME_CHARS_MAX:
        raise ValueError(f"the name {name[:50]!r}... has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed")
    if not _NAME_PATTERN.fullmatch(name) or any(part in (".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a name: use parts of letters, digits, -, _ and ., with a / between them")


def check_member_name(folder: str, name: str) -> None:
    """The same for a member's folder and its name in it, which is one part."""
    check_name(f"{folder}/{name}")
    if "/" in name:
        raise ValueError(f"{name!r} is not a member's name: it has a /")


def check_document_size(name: str, data: bytes) -> None:
    """Raises `RegistryFailed` for a document that is too large."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise RegistryFailed(
            f"{name} would have {len(data)} bytes; at most {DOCUMENT_BYTES_MAX} can be kept: make it smaller"
        )
