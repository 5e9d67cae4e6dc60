"""The three standard streams of a process, for one that was started without some of them.

Always true after `open_closed_streams`: the file descriptors 0, 1 and 2 are open, so
no socket and no file gets one of their numbers. A library that takes the number of a
closed stream for a socket fails (libuv ends the process), and what a program prints
would be written into it.
"""

from __future__ import annotations

import os
import sys

_STANDARD_FILES = (0, 1, 2)


def open_closed_streams() -> None:
    """Open standard streams that are closed on the null device. Call it before anything else opens a file.

    `sys.stdin` and `sys.stdout` of a closed stream stay None: there is nothing to read, and results would be lost.
    Messages to a closed standard error are dropped, as its user wants.
    """
    for number in _STANDARD_FILES:
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is assigned: this one.
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, True)  # the processes that this one starts need them, too
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
