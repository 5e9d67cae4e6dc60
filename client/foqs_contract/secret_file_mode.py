"""Checks the mode of a file that holds a secret, for hosts and clients alike."""

from __future__ import annotations

import os
import stat
from typing import Final

_ROOT: Final = 0


class UnsafeFileMode(Exception):
    """The mode of a file of a secret lets others than its owner use it. `problem` names the mode, `remedy` the command."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem
        self.remedy = remedy


def check_secret_file_mode(file: object, status: os.stat_result) -> None:
    """Raise `UnsafeFileMode` if the mode in `status` lets others than the owner use `file`, which holds a secret.

    A file of root may be readable by its group: root chose who is in it. Examples are secrets of
    Kubernetes, whose group is that of the container, and keys below /etc/ssl/private.
    """
    readable = stat.S_IRGRP if status.st_uid == _ROOT else 0
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077 & ~readable:
        fitting = "600" if status.st_uid == os.geteuid() else "440"
        raise UnsafeFileMode(f"others than its owner may use it (mode {mode:o})", f"run: chmod {fitting} {file}")
