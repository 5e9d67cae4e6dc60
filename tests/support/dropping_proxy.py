"""A TCP proxy that drops data on request, as a network that loses packets does.

Always true: while it drops, connections stay open and new ones are accepted, and
data of a dropped connection is lost in either direction, not delayed. A connection
that hangs stays so until it is reset. It uses its own threads, so a test may block
its loop. Knows nothing of the data.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from tests.support.ports import free_port

_CHUNK_BYTES: Final = 65_536
_FULL_S: Final = 0.5
"""A connection on this machine that takes longer is not taken."""


class DroppingProxy:
    """Listens on a port of its own in front of `127.0.0.1:to`; a context manager that closes everything."""

    def __init__(self, to: int) -> None:
        self.port = free_port()
        self._to = to
        self._connections = 0
        """The number of connections so far."""
        self._dropped_up_to = 0.0
        """The data of connections with at most this number is lost."""
        self._hanging = 0
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def drop(self, *, new_connections: bool = True) -> None:
        """From now on nothing gets through. Without `new_connections`, this holds only for the connections that are open."""
        with self._lock:
            self._dropped_up_to = math.inf if new_connections else self._connections

    def heal(self) -> None:
        """Lets things through again. Connections that have lost something are reset: their bytes make no sense any more."""
        self._dropped_up_to = 0.0
        self._reset()

    def point_to(self, port: int) -> None:
        """From now on connections lead to `127.0.0.1:port`; those to the former place are reset."""
        self._to = port
        self._reset()

    def leave_hanging(self, connections: int) -> None:
        """Reset all connections. This many further connections stay open, but pass no data."""
        with self._lock:
            self._hanging = connections
            self._reset_all()

    @property
    def hanging(self) -> int:
        """The number of further connections that get no reply."""
        return self._hanging

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._hanging and not self._closed:
                    self._hanging -= 1
                    self._sockets.add(near)
                    continue
            try:
                far = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                near.close()
                continue
            for end in (near, far):  # otherwise data in two parts takes 40 ms longer than without a proxy
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                if self._closed:
                    near.close()
                    far.close()
                    return
                self._sockets |= {near, far}
                self._connections += 1
                number = self._connections
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(source, sink, number), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                if number > self._dropped_up_to:
                    sink.sendall(data)
        if number > self._dropped_up_to:
            with contextlib.suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)

    def _reset(self) -> None:
        with self._lock:
            self._reset_all()

    def _reset_all(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._reset()


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port to which connecting neither succeeds nor fails, as to a machine that is gone."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        while True:
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            if not select.select([], [one], [], _FULL_S)[1]:
                break
        yield listener.getsockname()[1]
