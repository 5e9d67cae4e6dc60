"""A real ZooKeeper server for tests: started, stopped, frozen, started again on the same data.

Always true: it runs in a temporary folder, on a port of its own that stays over
restarts; when `start` returns it grants sessions; it is ended by its process id.
How it is had is the business of `foqs.dev`. Knows nothing of registries.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

from kazoo.client import KazooClient

from foqs.dev import zookeeper
from tests.support.frozen import freeze, thaw
from tests.support.ports import free_port

_START_TIMEOUT_S: Final = 60.0
TICK_MS: Final = 100
"""Sessions end within one tick of their timeout."""
SESSION_TIMEOUT_MS_MIN: Final = 500
SESSION_TIMEOUT_MS_MAX: Final = 20_000


class ZooKeeper(zookeeper.ZooKeeper):
    """One server, alone; a context manager that starts it, ends it and deletes its folder."""

    def __init__(self) -> None:
        super().__init__(None, free_port(), TICK_MS, (SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX))

    @property
    def hosts(self) -> str:
        return self.address

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Ends the server, as a crash would unless told otherwise; its data stays."""
        super().stop(number)

    def freeze(self) -> None:
        """The server keeps its connections and answers nobody, until `thaw`."""
        freeze(self.pid)

    def thaw(self) -> None:
        thaw(self.pid)

    @contextlib.contextmanager
    def client(self) -> Iterator[KazooClient]:
        """A plain client, to look and to meddle."""
        client = KazooClient(self.hosts, timeout=10.0)
        client.start(timeout=_START_TIMEOUT_S)
        try:
            yield client
        finally:
            client.stop()
            client.close()
