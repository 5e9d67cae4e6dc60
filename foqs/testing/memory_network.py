"""A connection in memory between protocols of two event loops in one thread.

Always true: bytes that one end writes arrive at the other complete and in order, in
a later callback of that end's loop; then the end of file, then the connection's loss.
Nothing is lost or late. Knows nothing of the meaning of the bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

ProtocolFactory: TypeAlias = Callable[[], asyncio.BaseProtocol]
CallSoon: TypeAlias = Callable[[Callable[[], object]], object]
"""The part of an event loop that is needed."""


class MemoryListener:
    """The result of `create_server`, like `asyncio.Server`, and its only socket."""

    def __init__(self, factory: ProtocolFactory, host: str, port: int, on_close: Callable[[], object]) -> None:
        self.factory = factory
        self._address = (host, port)
        self._on_close = on_close
        self._is_serving = True

    @property
    def sockets(self) -> tuple[MemoryListener, ...]:
        return (self,)

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def is_serving(self) -> bool:
        return self._is_serving

    async def start_serving(self) -> None:
        """Do nothing: it serves from its construction."""

    def close(self) -> None:
        """Stop accepting; connections stay."""
        if self._is_serving:
            self._is_serving = False
            self._on_close()

    async def wait_closed(self) -> None:
        """Return at once, as there is nothing to wait for."""


class MemoryTransport(asyncio.Transport):
    """One end of a connection, like asyncio's socket transports."""

    peer: MemoryTransport

    def __init__(self, call_soon: CallSoon) -> None:
        super().__init__({"peername": ("127.0.0.1", 0), "sockname": ("127.0.0.1", 0)})
        self._call_soon = call_soon
        self._protocol = asyncio.BaseProtocol()
        self._received: deque[bytes | None] = deque()
        """Data that the protocol has not received yet; None is the end of file."""
        self._is_reading = True
        self._is_closing = False
        self._is_lost = False

    # ------------------------------------------------- what a protocol may call

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing and data:
            self.peer.receive(bytes(data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.peer.receive(None)
            self._call_soon(self._lose_connection)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return self._is_reading

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._call_soon(self._deliver)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: both ends are in this process, so no writer is paused."""

    def get_write_buffer_size(self) -> int:
        return sum(len(data) for data in self.peer._received if data)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # ---------------------------------------------------------- what happens to it

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._protocol.connection_made(self)

    def receive(self, data: bytes | None) -> None:
        """The other end wrote data, or (None) will write no more."""
        self._received.append(data)
        self._call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._received and self._is_reading and not self._is_closing:
            data = self._received.popleft()
            assert isinstance(self._protocol, asyncio.Protocol)
            if data is not None:
                self._protocol.data_received(data)
                continue
            self._protocol.eof_received()
            self.close()

    def _lose_connection(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._received.clear()
            self._protocol.connection_lost(None)


def connect(
    call_soon: CallSoon, factory: ProtocolFactory, listener_call_soon: CallSoon, listener: MemoryListener
) -> tuple[MemoryTransport, asyncio.BaseProtocol]:
    """Connect a new protocol of the loop `call_soon` with a new one of the listener's loop, `listener_call_soon`."""
    protocol = factory()
    client, server = MemoryTransport(call_soon), MemoryTransport(listener_call_soon)
    client.peer, server.peer = server, client
    listener_call_soon(lambda: server.attach(listener.factory()))
    client.attach(protocol)
    return client, protocol
