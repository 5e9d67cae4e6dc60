"""Checks of names and sizes that every registry makes before a request.

Always true: every implementation can store what has passed. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from shardmgr.registry.port import RegistryFailed

DOCUMENT_BYTES_MAX: Final = 1_000_000
"""ZooKeeper accepts 1 MiB in one message, with its names."""
NAME_CHARS_MAX: Final = 200

_NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


def check_name(name: str) -> None:
    """Raise `ValueError` for an invalid name. Names come from programs, so this is a defect."""
    if len(name) > NAME_CHARS_MAX:
        raise ValueError(f"the name {name[:50]!r}... has {len(name)} characters; at most {NAME_CHARS_MAX} are allowed")
    if not _NAME_PATTERN.fullmatch(name) or any(part in (".", "..") for part in name.split("/")):
        raise ValueError(f"{name!r} is not a name: use parts of letters, digits, -, _ and ., with a / between them")


def check_member_name(folder: str, name: str) -> None:
    """Check a member's folder and its name, which is one part. Raises `ValueError`."""
    check_name(f"{folder}/{name}")
    if "/" in name:
        raise ValueError(f"{name!r} is not a member's name: it has a /")


def check_document_size(name: str, data: bytes) -> None:
    """Raise `RegistryFailed` for a document that is too large."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise RegistryFailed(
            f"{name} would have {len(data)} bytes; at most {DOCUMENT_BYTES_MAX} can be stored: make it smaller"
        )
