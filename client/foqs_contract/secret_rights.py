"""The rights that the file of a secret may have, for hosts and clients alike."""

from __future__ import annotations

import os
import stat
from typing import Final

_ROOT: Final = 0


class UnsafeRights(Exception):
    """Others than the owner may use a file. `problem` says how, `remedy` what to do."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def check_rights(file: object, status: os.stat_result) -> None:
    """Raise `UnsafeRights` if others than the owner may use a file of a secret.

    A file of root may be readable by its group: root chose who is in it. Examples are secrets of
    Kubernetes, whose group is that of the container, and keys below /etc/ssl/private.
    """
    readable = stat.S_IRGRP if status.st_uid == _ROOT else 0
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 & ~readable:
        fitting = "600" if status.st_uid == os.geteuid() else "440"
        raise UnsafeRights(f"others than its owner may use it (mode {mode:o})", f"run: chmod {fitting} {file}")
