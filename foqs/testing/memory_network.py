"""A network in memory: connections between protocols, also of two event loops in one thread.

Holds `MemoryNetwork`, its `Listener`s and its `MemoryConnection`s. Always true: in each
direction bytes arrive once and in order, then the end of file, each in a later callback
of the reader's loop. Nothing is lost or late; a subclass of `Pipe` may delay, split and
lose. The methods of a protocol run in the loop and the context of its `listen` or
`connect`. Knows nothing of the meaning of the bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Final, TypeAlias

ProtocolFactory: TypeAlias = Callable[[], asyncio.BaseProtocol]
Address: TypeAlias = tuple[str, int]

HIGH_WATER_BYTES: Final = 64 * 1024
"""A writer is paused above this number of bytes that have not been read, as in asyncio."""


class MemoryNetwork:
    """All listeners and connections. Hosts are names."""

    def __init__(self) -> None:
        self.carried = 0
        """The number of arrivals so far, of bytes and of ends."""
        self._listeners: dict[Address, Listener] = {}
        self._connections: dict[MemoryConnection, None] = {}
        self._ports = 40_000

    async def listen(self, host: str, port: int, protocol_factory: ProtocolFactory) -> Listener:
        """Accept connections to (host, port); port 0 picks a free one. Raises OSError if the port is taken."""
        if port == 0:
            port = self._next_port()
        if (host, port) in self._listeners:
            raise OSError(f"{host}:{port} is taken")
        self._listeners[host, port] = Listener(self, host, port, protocol_factory)
        return self._listeners[host, port]

    async def connect(
        self, protocol_factory: ProtocolFactory, host: str, port: int, *, source: str = "client"
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As `loop.create_connection`, from the host `source`. Raises ConnectionRefusedError if nothing listens there."""
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"nothing listens on {host}:{port}")
        here, there = (source, self._next_port()), (host, port)
        client = MemoryTransport(here, there, asyncio.get_running_loop(), copy_context())
        server = MemoryTransport(there, here, listener.loop, listener.context.copy())
        self._connections[MemoryConnection(self, client, server)] = None
        protocol = protocol_factory()
        server.call_soon(server.accept, listener.factory)
        client.start(protocol)
        return client, protocol

    def connections(self, host: str | None = None) -> list[MemoryConnection]:
        """Return the open connections of one host or of all, oldest first."""
        return [each for each in self._connections if host is None or host in each.hosts]

    def make_pipe(self, source: MemoryTransport, target: MemoryTransport) -> Pipe:
        """Return one direction of a new connection. A subclass returns a pipe with faults."""
        return Pipe(self, source, target)

    def listeners(self, host: str) -> list[Listener]:
        """Return the open listeners of a host."""
        return [each for each in self._listeners.values() if each.host == host]

    def listener(self, host: str, port: int) -> Listener | None:
        return self._listeners.get((host, port))

    def unlisten(self, listener: Listener) -> None:
        if listener.is_serving():
            del self._listeners[listener.host, listener.port]

    def forget(self, connection: MemoryConnection) -> None:
        """Remove a connection that has ended at both ends."""
        self._connections.pop(connection, None)

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports


class Listener:
    """The result of `MemoryNetwork.listen`, like an `asyncio.Server`, and its only socket."""

    def __init__(self, network: MemoryNetwork, host: str, port: int, factory: ProtocolFactory) -> None:
        self.host = host
        self.port = port
        self.factory = factory
        self.loop = asyncio.get_running_loop()
        self.context = copy_context()
        self._network = network

    @property
    def sockets(self) -> tuple[Listener, ...]:
        return (self,)

    def getsockname(self) -> Address:
        return self.host, self.port

    def is_serving(self) -> bool:
        return self._network.listener(self.host, self.port) is self

    async def start_serving(self) -> None:
        """Do nothing: it serves from its construction."""

    def close(self) -> None:
        """Stop accepting. Open connections stay."""
        self._network.unlisten(self)

    async def wait_closed(self) -> None:
        """Return at once, as there is nothing to wait for."""


class MemoryConnection:
    """Two ends with a pipe in each direction."""

    def __init__(self, network: MemoryNetwork, client: MemoryTransport, server: MemoryTransport) -> None:
        self.client = client
        self.server = server
        self.hosts = (client.host, server.host)
        self._network = network
        for end, peer in ((client, server), (server, client)):
            end.connection, end.peer = self, peer
            end.outgoing = peer.incoming = network.make_pipe(end, peer)

    def on_end_lost(self) -> None:
        if self.client.is_lost and self.server.is_lost:
            self._network.forget(self)


class Pipe:
    """One direction of a connection. Offsets count bytes from the beginning: delivered <= arrived <= written.

    A subclass overrides `schedule`, `arrive`, `deliver`, `chunk_size` and `abort` to add faults.
    """

    def __init__(self, network: MemoryNetwork, source: MemoryTransport, target: MemoryTransport) -> None:
        self.source = source
        self.target = target
        self.held = bytearray()
        """The bytes that were written and not delivered."""
        self.written = 0
        self.is_finished = False
        """Whether the writing has ended."""
        self._network = network
        self._arrived = 0
        self._has_finish_arrived = False
        self._reset: ConnectionError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.held += data
        self.written += len(data)
        self.schedule(self.arrive, self.written)

    def finish(self) -> None:
        """End the writing: the reader sees an end of file after all bytes."""
        if not self.is_finished:
            self.is_finished = True
            self.schedule(self._arrive_finish)

    def abort(self) -> None:
        """End the writing, as the writer has aborted the connection. Here the bytes arrive, as from a kernel's buffer."""
        self.finish()

    def reset(self, error: ConnectionError) -> None:
        """Make the reader lose the connection."""
        self.is_finished = True
        self.schedule(self._arrive_reset, error, in_order=False)

    def resume(self) -> None:
        """Continue after the reader has resumed reading."""
        self.schedule(self.deliver)

    def schedule(self, call: Callable[..., None], *args: object, in_order: bool = True) -> None:
        """Call later at the reader, unless it has lost the connection; `in_order`: after all calls scheduled before."""
        if not self.target.is_lost:
            self._network.carried += 1
            self.target.call_soon(call, *args)

    def arrive(self, upto: int) -> None:
        """Let bytes arrive up to this offset."""
        self._arrived = max(self._arrived, upto)
        self.deliver()

    def chunk_size(self, size: int) -> int:
        """Return how many bytes to deliver at once, of `size` bytes that have arrived."""
        return size

    def deliver(self) -> None:
        """Pass at most one chunk to the reader. The rest follows later."""
        target = self.target
        if target.is_lost:
            return
        if self._reset is not None:
            target.lose(self._reset)
            return
        if target.is_reading_paused and not target.is_closing():
            return
        size = self._arrived - self.written + len(self.held)
        if size > 0:
            size = self.chunk_size(size)
            data = bytes(self.held[:size])
            del self.held[:size]
            if self.source.is_waiting_for_room:
                self.source.call_soon(self.source.on_room)
            if self._arrived > self.written - len(self.held) or self._has_finish_arrived:
                self.schedule(self.deliver)
            target.on_data(data)
        elif self._has_finish_arrived and not self.held:
            self._has_finish_arrived = False
            target.on_eof()

    def _arrive_finish(self) -> None:
        self._has_finish_arrived = True
        self.deliver()

    def _arrive_reset(self, error: ConnectionError) -> None:
        self._reset = error
        self.deliver()


class MemoryTransport(asyncio.Transport):
    """One end of a connection: a transport like asyncio's socket transports."""

    connection: MemoryConnection
    peer: MemoryTransport
    incoming: Pipe
    outgoing: Pipe

    def __init__(self, here: Address, there: Address, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        super().__init__({"sockname": here, "peername": there})
        self.host = here[0]
        self.loop = loop
        self.context = context
        """The context of the protocol's methods."""
        self.is_lost = False
        self.is_reading_paused = False
        self._protocol: asyncio.BaseProtocol = asyncio.BaseProtocol()
        self._is_closing = False
        self._is_writing_paused = False
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4

    # ------------------------------------------------- what a protocol may call

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self.outgoing.is_finished or not data:
            return
        if self.peer.is_lost:
            self.incoming.reset(ConnectionResetError("the other end is closed"))
            return
        self.outgoing.write(data)
        self._update_write_pressure()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.outgoing.finish()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self.outgoing.finish()
        if not self.outgoing.held:
            self.call_soon(self.lose, None)

    def abort(self) -> None:
        if self.is_lost:
            return
        self._is_closing = True
        self.outgoing.abort()
        self.call_soon(self.lose, None)

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self.is_reading_paused and not self._is_closing

    def pause_reading(self) -> None:
        self.is_reading_paused = True

    def resume_reading(self) -> None:
        if self.is_reading_paused:
            self.is_reading_paused = False
            self.incoming.resume()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else (HIGH_WATER_BYTES if low is None else 4 * low)
        self._low = low if low is not None else self._high // 4
        if not self._high >= self._low >= 0:
            raise ValueError(f"high ({self._high}) must be at least low ({self._low}), and low at least 0")
        self._update_write_pressure()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self.outgoing.held)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # ------------------------------------------------------ what the network does

    def call_soon(self, call: Callable[..., None], *args: object) -> None:
        self.loop.call_soon(call, *args, context=self.context)

    def accept(self, factory: ProtocolFactory) -> None:
        """Make the listener's protocol and connect it."""
        if not self.is_lost:
            self.start(factory())

    def start(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def on_data(self, data: bytes) -> None:
        if self._is_closing:
            return
        assert isinstance(self._protocol, asyncio.Protocol)
        try:
            self._protocol.data_received(data)
        except Exception as error:
            self._fail(error)

    def on_eof(self) -> None:
        """Handle the end of file of the other end."""
        if self._is_closing:
            return
        assert isinstance(self._protocol, asyncio.Protocol)
        if not self._protocol.eof_received():
            self.close()

    @property
    def is_waiting_for_room(self) -> bool:
        """Whether it waits for written bytes to be read."""
        return self._is_writing_paused or self._is_closing

    def on_room(self) -> None:
        """Continue after written bytes have been read."""
        self._update_write_pressure()
        if self._is_closing and not self.outgoing.held:
            self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """End the connection at this end."""
        if not self.is_lost:
            self.detach()
            self.outgoing.finish()
            self._protocol.connection_lost(error)

    def detach(self) -> None:
        """End the connection at this end without a notice to its protocol and to the other end."""
        self.is_lost = self._is_closing = True
        if self.incoming.held:
            self.outgoing.reset(ConnectionResetError("the other end closed without reading everything"))
        self.connection.on_end_lost()

    def _fail(self, error: Exception) -> None:
        self.loop.call_exception_handler(
            {"message": "a protocol failed on received data", "exception": error, "transport": self}
        )
        self.outgoing.reset(ConnectionResetError("the other end failed"))
        self._is_closing = True
        self.call_soon(self.lose, error)

    def _update_write_pressure(self) -> None:
        size = self.get_write_buffer_size()
        if not self._is_writing_paused and size > self._high:
            self._is_writing_paused = True
            self._protocol.pause_writing()
        elif self._is_writing_paused and size <= self._low and not self.is_lost:
            self._is_writing_paused = False
            self._protocol.resume_writing()
