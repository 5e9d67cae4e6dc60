"""Real ZooKeeper servers for tests: started, stopped, frozen, and started again on the same data.

Always true: a server runs in a temporary folder, on a port that it keeps over
restarts. When `start` returns it grants sessions. It is ended by its process id.
`foqs.dev` finds the program. Knows nothing of registries.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Final, Self

from kazoo.client import KazooClient

from foqs.dev import zookeeper_server
from tests.support.freezing import freeze, thaw
from tests.support.ports import free_port

_START_TIMEOUT_S: Final = 60.0
TICK_MS: Final = 100
"""Sessions end within one tick of their timeout."""
SESSION_TIMEOUT_MS_MIN: Final = 500
SESSION_TIMEOUT_MS_MAX: Final = 20_000


class ZooKeeper(zookeeper_server.ZooKeeper):
    """One server, alone unless `quorum` says otherwise; a context manager that starts it, ends it and deletes its folder."""

    def __init__(
        self,
        tick_ms: int = TICK_MS,
        quorum: Mapping[int, tuple[int, int]] = MappingProxyType({}),
        number: int = 1,
    ) -> None:
        bounds = (SESSION_TIMEOUT_MS_MIN, SESSION_TIMEOUT_MS_MAX)
        super().__init__(None, free_port(), tick_ms, bounds, quorum, number)

    @property
    def hosts(self) -> str:
        return self.address

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server, by default like a crash. Its data stays."""
        super().stop(number)

    def freeze(self) -> None:
        """Stop the server from answering until `thaw`. It keeps its connections."""
        freeze(self.pid)

    def thaw(self) -> None:
        thaw(self.pid)

    def start_alone(self) -> None:
        """Start a server of an ensemble with its data, and without the others, as if they were lost for good."""
        self._quorum = {}
        self.start()

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


class Ensemble:
    """Three servers; a context manager that starts and ends them.

    Attributes:
        servers: the leader first.
    """

    def __init__(self) -> None:
        self.servers: list[ZooKeeper] = []
        self.tick_ms = TICK_MS
        self._started = ensemble(self.tick_ms)

    @property
    def hosts(self) -> str:
        return ",".join(server.hosts for server in self.servers)

    def __enter__(self) -> Self:
        self.servers = self._started.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._started.__exit__(kind, error, trace)


@contextlib.contextmanager
def ensemble(tick_ms: int = TICK_MS) -> Iterator[list[ZooKeeper]]:
    """Three servers that serve sessions, the leader first."""
    quorum = {number: (free_port(), free_port()) for number in (1, 2, 3)}
    with contextlib.ExitStack() as stack:
        servers = [ZooKeeper(tick_ms, quorum, number) for number in quorum]
        for server in servers:
            stack.callback(server.close)
            server.start_process()
        for server in servers:
            server.wait_until_ready(server.is_ready)
        yield sorted(servers, key=lambda server: not server.is_leader())
