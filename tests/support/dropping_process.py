"""A dropping proxy in its own process, for tests whose event loop must not be disturbed.

Always true: it ends with its `with` block, and with the process that started it.
Knows nothing of the data.
"""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self

from tests.support.dropping_proxy import DroppingProxy


class DroppingProcess:
    """A `DroppingProxy` in a process. `drop` and `heal` are in effect when they return."""

    def __init__(self, to: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import serve; serve({to})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        )
        self.hosts = self._read_reply()

    def drop(self) -> None:
        self._send_command("drop")

    def heal(self) -> None:
        self._send_command("heal")

    def _send_command(self, what: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        assert self._read_reply() == what

    def _read_reply(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def serve(to: int) -> None:
    """Run the commands of standard input, and confirm each. Returns when standard input is closed."""
    with DroppingProxy(to) as proxy:
        print(proxy.hosts, flush=True)
        for line in sys.stdin:
            what = line.strip()
            {"drop": proxy.drop, "heal": proxy.heal}[what]()
            print(what, flush=True)
