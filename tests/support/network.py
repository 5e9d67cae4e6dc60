"""An in-memory network: asyncio transports with latency, and faults on request.

Holds `Network`, its `Listener`s and its `Connection`s. Always true: in each
direction bytes arrive once, in order, after a random latency and in chunks of
random size. Loss shows as a lost connection, never as a gap. Knows nothing of
the meaning of the bytes. Randomness comes from the generator that is passed in.

Hosts are names. The methods of a protocol run in the context of its `listen` or
`connect`, so killing that process (`virtual_time.Process`) silences them. Call
`crash` as well: it ends the host's connections for the other hosts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context, copy_context
from typing import Any, Protocol

Factory = Callable[[], asyncio.BaseProtocol]
Connect = Callable[[Factory, str, int], Awaitable[tuple[asyncio.Transport, asyncio.BaseProtocol]]]

HIGH_WATER_BYTES = 64 * 1024
SPLIT_CHANCE = 0.2
"""The share of chunks that arrive in two parts."""
COALESCE_CHANCE = 0.2
"""The share of chunks that arrive together with all bytes written after them."""


class _Buffered(Protocol):
    def get_buffer(self, sizehint: int) -> memoryview: ...
    def buffer_updated(self, nbytes: int) -> None: ...


class Listener:
    """The result of `Network.listen`, like an `asyncio.Server`."""

    def __init__(self, network: Network, host: str, port: int, factory: Factory) -> None:
        self.host = host
        self.port = port
        self.factory = factory
        self.context = copy_context()
        self._network = network

    def close(self) -> None:
        """Stop accepting. Open connections stay."""
        self._network.unlisten(self)

    def is_serving(self) -> bool:
        return self._network.listener(self.host, self.port) is self

    async def wait_closed(self) -> None:
        """Return at once."""


class Network:
    """All hosts and their connections.

    Args:
        latency_ms: the least and the greatest latency of one arrival.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, *, latency_ms: tuple[float, float] = (0.1, 3.0)
    ) -> None:
        self.loop = loop
        self.rng = rng
        self._latency_s = (latency_ms[0] / 1000, latency_ms[1] / 1000)
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._connections: dict[int, Connection] = {}
        self._made = 0
        self._ports = 40_000
        self._isolated: dict[str, None] = {}
        self._healed = asyncio.Event()

    async def listen(self, host: str, port: int, protocol_factory: Factory) -> Listener:
        """Accept connections to (host, port); port 0 picks a free one. Raises OSError if the port is taken."""
        if port == 0:
            port = self._next_port()
        if (host, port) in self._listeners:
            raise OSError(f"{host}:{port} is taken")
        self._listeners[host, port] = Listener(self, host, port, protocol_factory)
        return self._listeners[host, port]

    async def connect(
        self, protocol_factory: Factory, host: str, port: int, *, source: str = "client"
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As `loop.create_connection`, from the host `source`.

        Raises:
            ConnectionRefusedError: nobody listens there. Across a partition the
                call waits until the partition is healed.
        """
        await asyncio.sleep(self.latency_s())
        while self.is_parted(source, host):
            await self._healed.wait()
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        self._made += 1
        here, there = (source, self._next_port()), (host, port)
        connection = Connection(self, self._made, here, there)
        self._connections[self._made] = connection
        protocol = protocol_factory()
        accepted = listener.context.copy().run(listener.factory)
        connection.client.attach(protocol, copy_context())
        connection.server.attach(accepted, listener.context.copy())
        connection.server.call_soon(connection.server.on_connection_made)
        connection.client.on_connection_made()
        return connection.client, protocol

    def connector(self, source: str) -> Connect:
        """Return a `connect` from one host, with the arguments of `loop.create_connection`."""

        async def connect(
            protocol_factory: Factory, host: str, port: int
        ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
            return await self.connect(protocol_factory, host, port, source=source)

        return connect

    def connections(self, host: str | None = None) -> list[Connection]:
        """Return the open connections of one host or of all, oldest first."""
        return [each for each in self._connections.values() if host is None or host in each.hosts]

    def cut(self, connection: Connection) -> None:
        """Break a connection. Each end notices it after a latency; bytes that would arrive later are lost."""
        for end in (connection.client, connection.server):
            end.incoming.reset(ConnectionResetError("the connection was broken"))

    def partition(self, host: str) -> None:
        """Separate a host from all others: nothing arrives until `heal`, and nothing is lost."""
        self._isolated[host] = None

    def heal(self, host: str | None = None) -> None:
        """End the partition of one host, or of all."""
        for each in [host] if host is not None else list(self._isolated):
            self._isolated.pop(each, None)
        self._healed.set()
        self._healed.clear()
        for connection in self.connections():
            connection.client.incoming.resume()
            connection.server.incoming.resume()

    def crash(self, host: str) -> None:
        """End a host: its listeners and connections are removed, and its protocols are not called any more.

        The other ends see an end of file, as after the kill of a process, or a
        reset, as after the restart of a machine. Bytes in flight may arrive; bytes
        that the host writes from now on do not. To restart the host, let it listen
        and connect again.
        """
        for key in [key for key in self._listeners if key[0] == host]:
            del self._listeners[key]
        for connection in self.connections(host):
            for end in (connection.client, connection.server):
                if end.host != host:
                    continue
                end.detach()
                if self.rng.random() < 0.5:
                    end.outgoing.finish()
                else:
                    end.outgoing.reset(ConnectionResetError("the other host crashed"))

    def unlisten(self, listener: Listener) -> None:
        if listener.is_serving():
            del self._listeners[listener.host, listener.port]

    def listener(self, host: str, port: int) -> Listener | None:
        return self._listeners.get((host, port))

    def is_parted(self, one: str, other: str) -> bool:
        return one != other and (one in self._isolated or other in self._isolated)

    def latency_s(self) -> float:
        return self.rng.uniform(*self._latency_s)

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has ended at both ends."""
        self._connections.pop(connection.number, None)

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports


class Connection:
    """Two ends with a pipe in each direction."""

    def __init__(self, network: Network, number: int, here: tuple[str, int], there: tuple[str, int]) -> None:
        self.network = network
        self.number = number
        self.hosts = (here[0], there[0])
        self.client = NetworkTransport(self, here, there)
        self.server = NetworkTransport(self, there, here)
        self.client.peer, self.server.peer = self.server, self.client
        self.client.outgoing = self.server.incoming = _Pipe(self.client, self.server)
        self.server.outgoing = self.client.incoming = _Pipe(self.server, self.client)

    def ended(self) -> None:
        if self.client.lost and self.server.lost:
            self.network.forget(self)


class _Pipe:
    """One direction of a connection. Offsets count bytes from the beginning: delivered <= arrived <= written."""

    def __init__(self, source: NetworkTransport, target: NetworkTransport) -> None:
        self.held = bytearray()
        self.written = 0
        self.arrived = 0
        self.finished = False
        self._source = source
        self._target = target
        self._network = source.network
        self._last_s = 0.0
        self._finish_arrived = False
        self._reset: ConnectionError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.held += data
        self.written += len(data)
        self._later(self._arrive, self.written)

    def finish(self) -> None:
        """End the writing: the other end sees an end of file after all bytes."""
        if not self.finished:
            self.finished = True
            self._later(self._arrive_finish)

    def reset(self, error: ConnectionError) -> None:
        """Make the other end lose the connection, perhaps before bytes in flight arrive."""
        self.finished = True
        if not self._target.lost:
            when_s = self._network.loop.time() + self._network.latency_s()
            self._target.call_at(when_s, self._arrive_reset, error)

    def drop(self) -> None:
        """Drop the bytes in flight."""
        self.held.clear()

    def resume(self) -> None:
        """Continue after the reader resumed or the partition was healed."""
        self._later(self._deliver)

    def _later(self, call: Callable[..., None], *args: object) -> None:
        if self._target.lost:
            return
        # Never before earlier bytes. Arrivals at one moment stay in order because they are offsets.
        self._last_s = max(self._last_s, self._network.loop.time() + self._network.latency_s())
        self._target.call_at(self._last_s, call, *args)

    def _arrive(self, upto: int) -> None:
        if self._network.rng.random() < COALESCE_CHANCE:
            upto = self.written
        self.arrived = max(self.arrived, upto)
        self._deliver()

    def _arrive_finish(self) -> None:
        self._finish_arrived = True
        self._deliver()

    def _arrive_reset(self, error: ConnectionError) -> None:
        self._reset = error
        self._deliver()

    def _deliver(self) -> None:
        """Pass at most one arrived chunk to the reader. The rest follows later."""
        target = self._target
        if target.lost or self._network.is_parted(self._source.host, target.host):
            return
        if self._reset is not None:
            target.lose(self._reset)
            return
        if target.reading_paused and not target.is_closing():
            return
        size = self.arrived - self.written + len(self.held)
        if size > 0:
            if size > 1 and self._network.rng.random() < SPLIT_CHANCE:
                size = self._network.rng.randint(1, size - 1)
            data = bytes(self.held[:size])
            del self.held[:size]
            if self._source.is_waiting_for_drain:
                self._source.call_soon(self._source.on_drained)
            if self.arrived > self.written - len(self.held) or self._finish_arrived:
                self._later(self._deliver)
            target.on_data(data)
        elif self._finish_arrived and not self.held:
            self._finish_arrived = False
            target.on_eof()


class NetworkTransport(asyncio.Transport):
    """One end of a connection: a transport like asyncio's socket transports."""

    peer: NetworkTransport
    incoming: _Pipe
    outgoing: _Pipe

    def __init__(self, connection: Connection, address: tuple[str, int], peer_address: tuple[str, int]) -> None:
        super().__init__({"sockname": address, "peername": peer_address})
        self.connection = connection
        self.network = connection.network
        self.host = address[0]
        self.lost = False
        self.reading_paused = False
        self._protocol: asyncio.BaseProtocol = asyncio.BaseProtocol()
        self._context = Context()
        self._closing = False
        self._writing_paused = False
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4

    # ------------------------------------------------- what a protocol may call

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or self.outgoing.finished or not data:
            return
        if self.peer.lost:
            self.peer.outgoing.reset(ConnectionResetError("the other end is closed"))
            return
        self.outgoing.write(data)
        self._update_write_pressure()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.outgoing.finish()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self.outgoing.finish()
        if not self.outgoing.held:
            self.call_soon(self.lose, None)

    def abort(self) -> None:
        if self.lost:
            return
        self._closing = True
        self.outgoing.drop()
        self.outgoing.reset(ConnectionResetError("the other end aborted"))
        self.call_soon(self.lose, None)

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self.reading_paused and not self._closing

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        if self.reading_paused:
            self.reading_paused = False
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

    def attach(self, protocol: asyncio.BaseProtocol, context: Context) -> None:
        self._protocol = protocol
        self._context = context

    def call_soon(self, call: Callable[..., None], *args: object) -> None:
        self.network.loop.call_soon(call, *args, context=self._context)

    def call_at(self, when_s: float, call: Callable[..., None], *args: object) -> None:
        self.network.loop.call_at(when_s, call, *args, context=self._context)

    def on_connection_made(self) -> None:
        if not self.lost:
            self._protocol.connection_made(self)

    def on_data(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                _fill(self._protocol, data)
            elif isinstance(self._protocol, asyncio.Protocol):
                self._protocol.data_received(data)
        except Exception as error:
            self._fail(error)

    def on_eof(self) -> None:
        """Handle the end of file of the other end."""
        if self._closing:
            return
        keep_open = False
        if isinstance(self._protocol, asyncio.Protocol | asyncio.BufferedProtocol):
            keep_open = bool(self._protocol.eof_received())
        if not keep_open:
            self.close()

    @property
    def is_waiting_for_drain(self) -> bool:
        """Whether it waits for written bytes to arrive."""
        return self._writing_paused or self._closing

    def on_drained(self) -> None:
        """Continue after written bytes have arrived."""
        self._update_write_pressure()
        if self._closing and not self.outgoing.held:
            self.lose(None)

    def detach(self) -> None:
        """End this end without a callback, as its host has crashed."""
        self.lost = True
        self._closing = True
        self._reset_if_unread()
        self.connection.ended()

    def lose(self, error: Exception | None) -> None:
        """End the connection at this end."""
        if self.lost:
            return
        self.lost = True
        self._closing = True
        self._reset_if_unread()
        self.outgoing.finish()
        self.connection.ended()
        self._protocol.connection_lost(error)

    def _reset_if_unread(self) -> None:
        if self.incoming.held:
            self.outgoing.reset(ConnectionResetError("the other end closed without reading everything"))

    def _fail(self, error: Exception) -> None:
        self.network.loop.call_exception_handler(
            {"message": "a protocol failed on received data", "exception": error, "transport": self}
        )
        self.outgoing.reset(ConnectionResetError("the other end failed"))
        self._closing = True
        self.call_soon(self.lose, error)

    def _update_write_pressure(self) -> None:
        size = self.get_write_buffer_size()
        if not self._writing_paused and size > self._high:
            self._writing_paused = True
            self._protocol.pause_writing()
        elif self._writing_paused and size <= self._low and not self.lost:
            self._writing_paused = False
            self._protocol.resume_writing()


def _fill(protocol: Any, data: bytes) -> None:
    """Pass bytes to a protocol that has its own buffer."""
    buffered: _Buffered = protocol
    while data:
        room = memoryview(buffered.get_buffer(len(data)))
        size = min(len(room), len(data))
        room[:size] = data[:size]
        buffered.buffer_updated(size)
        data = data[size:]
