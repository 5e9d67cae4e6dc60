"""A connection in memory between protocols of two event loops in one thread.

Always true: what one end writes arrives at the other, whole and in order, in a
later callback of that end's loop; then the end of file, then the loss. Nothing
is lost or late. Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Factory: TypeAlias = Callable[[], asyncio.BaseProtocol]
CallSoon: TypeAlias = Callable[[Callable[[], object]], object]
"""An event loop, as far as one is needed."""


class Listener:
    """What `create_server` returns, in the manner of `asyncio.Server`, and its own only socket."""

    def __init__(self, factory: Factory, host: str, port: int, closed: Callable[[], object]) -> None:
        self.factory = factory
        self._address = (host, port)
        self._closed = closed
        self._serving = True

    @property
    def sockets(self) -> tuple[Listener, ...]:
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def is_serving(self) -> bool:
        return self._serving

    async def start_serving(self) -> None:
        """It does from the first moment."""

    def close(self) -> None:
        """Stops accepting; connections stay."""
        if self._serving:
            self._serving = False
            self._closed()

    async def wait_closed(self) -> None:
        """There is nothing to wait for."""


class End(asyncio.Transport):
    """One end of a connection: a transport in the manner of asyncio's socket transports."""

    peer: End

    def __init__(self, call_soon: CallSoon) -> None:
        super().__init__({"peername": ("127.0.0.1", 0), "sockname": ("127.0.0.1", 0)})
        self._call_soon = call_soon
        self._protocol = asyncio.BaseProtocol()
        self._arrived: deque[bytes | None] = deque()
        """What the protocol has not been given yet; None is the end of file."""
        self._reading = True
        self._closing = False
        self._lost = False

    # ------------------------------------------------- what a protocol may call

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing and data:
            self.peer.arrive(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.peer.arrive(None)
            self._call_soon(self._lose)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._call_soon(self._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nobody is told to pause: both ends are in this process."""

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for data in self.peer._arrived if data)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # ---------------------------------------------------------- what happens to it

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._protocol.connection_made(self)

    def arrive(self, data: bytes | None) -> None:
        """The other end wrote this, or (None) will write no more."""
        self._arrived.append(data)
        self._call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._arrived and self._reading and not self._closing:
            data = self._arrived.popleft()
            assert isinstance(self._protocol, asyncio.Protocol)
            if data is not None:
                self._protocol.data_received(data)
                continue
            self._protocol.eof_received()
            self.close()

    def _lose(self) -> None:
        if not self._lost:
            self._lost = True
            self._arrived.clear()
            self._protocol.connection_lost(None)


def connect(here: CallSoon, factory: Factory, there: CallSoon, listener: Listener) -> tuple[End, asyncio.BaseProtocol]:
    """Connects a new protocol of the loop `here` with a new one of the listener's loop, `there`."""
    protocol = factory()
    client, server = End(here), End(there)
    client.peer, server.peer = server, client
    there(lambda: server.begin(listener.factory()))
    client.begin(protocol)
    return client, protocol
