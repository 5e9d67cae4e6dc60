"""Ports that no other process of this machine uses, neither now nor later in the test run.

Always true: a port given here lies below the range from which the kernel takes
the ports of outgoing connections, so that a client that knocks on a dead host's
port never connects to itself; and it is reserved for this process until that
ends, among all test processes. Knows nothing of what listens.
"""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import Final

_RANGE: Final = range(20_000, 32_000)
_taken: set[int] = set()
_book: list[int] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 without a listener."""
    start = os.getpid() * 97 % len(_RANGE)
    for step in range(len(_RANGE)):
        port = _RANGE[(start + step) % len(_RANGE)]
        if port not in _taken and _reserve(port) and _is_free(port):
            return port
    raise RuntimeError(f"no free port in {_RANGE}")


def _reserve(port: int) -> bool:
    """Locks the port's byte in a file; the lock ends with this process."""
    if not _book:
        path = Path(tempfile.gettempdir()) / f"foqs-test-ports-{os.getuid()}"
        _book.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        fcntl.lockf(_book[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _taken.add(port)
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
