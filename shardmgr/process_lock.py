"""Reserves files for one process of this machine.

Always true: a lock file is held by at most one process, as long as that process lives, and
names it. The lock file is left behind, because a process that removes it could remove the
lock of the next one. Knows nothing of what is reserved.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from shardmgr.private_files import make_private_folder, private_opener

_TEXT_BYTES_MAX: Final = 32


class NotReserved(Exception):
    """The files cannot be reserved. The text names the process that has them, or the problem, and what to do."""


@contextlib.contextmanager
def reserved(lock_file: Path, what: Path) -> Iterator[None]:
    """Hold a lock file, which is created, while the block runs.

    Args:
        what: the path that it reserves, for the error.

    Raises:
        NotReserved: another process holds it, or it cannot be created or locked.
    """
    try:
        make_private_folder(lock_file.parent)
        file = open(lock_file, "a+b", opener=private_opener)  # noqa: SIM115 - it is used below
    except OSError as error:
        raise NotReserved(
            f"{lock_file} cannot be written ({error.strerror}); give this user the right to write in that folder"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotReserved(
                f"{what} is in use by {_holder(file)}, and only one process may use it; stop that one, or name another place"
            ) from None
        except OSError as error:
            raise NotReserved(
                f"{lock_file} cannot be locked ({error.strerror}); put {what} on a local disk, or on a file system with locks"
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            file.truncate(0)
            file.write(f"{os.getpid()}\n".encode())
            file.flush()
        yield


def _holder(file: IO[bytes]) -> str:
    file.seek(0)
    text = file.read(_TEXT_BYTES_MAX).decode("ascii", "replace").strip()
    return f"the process {text}" if text.isdecimal() else "another process"
