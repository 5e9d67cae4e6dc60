"""An in-memory network with latency, and with faults on request.

Holds `FaultyNetwork`. Always true: in each direction bytes arrive once, in order,
after a random latency and in chunks of random size. Loss shows as a lost
connection, never as a gap. Knows nothing of the meaning of the bytes. Randomness
comes from the generator that is passed in.

Hosts are names. The methods of a protocol run in the context of its `listen` or
`connect`, so killing that process (`virtual_time.Process`) silences them. Call
`crash` as well: it ends the host's connections for the other hosts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from foqs.testing.memory_network import MemoryConnection, MemoryNetwork, MemoryTransport, Pipe, ProtocolFactory

Connect = Callable[[ProtocolFactory, str, int], Awaitable[tuple[asyncio.Transport, asyncio.BaseProtocol]]]

SPLIT_CHANCE: Final = 0.2
"""The share of chunks that arrive in two parts."""
COALESCE_CHANCE: Final = 0.2
"""The share of chunks that arrive together with all bytes written after them."""


class FaultyNetwork(MemoryNetwork):
    """All hosts and their connections, in one event loop.

    Args:
        latency_ms: the least and the greatest latency of one arrival.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, rng: random.Random, *, latency_ms: tuple[float, float] = (0.1, 3.0)
    ) -> None:
        super().__init__()
        self.loop = loop
        self.rng = rng
        self._latency_s = (latency_ms[0] / 1000, latency_ms[1] / 1000)
        self._isolated: dict[str, None] = {}
        self._healed = asyncio.Event()

    async def connect(
        self, protocol_factory: ProtocolFactory, host: str, port: int, *, source: str = "client"
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """As `loop.create_connection`, from the host `source`. Across a partition it waits until `heal`."""
        await asyncio.sleep(self.latency_s())
        while self.is_parted(source, host):
            await self._healed.wait()
        return await super().connect(protocol_factory, host, port, source=source)

    def connector(self, source: str) -> Connect:
        """Return a `connect` from one host, with the arguments of `loop.create_connection`."""

        async def connect(
            protocol_factory: ProtocolFactory, host: str, port: int
        ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
            return await self.connect(protocol_factory, host, port, source=source)

        return connect

    def cut(self, connection: MemoryConnection) -> None:
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
        for listener in self.listeners(host):
            listener.close()
        for connection in self.connections(host):
            for end in (connection.client, connection.server):
                if end.host != host:
                    continue
                end.detach()
                if self.rng.random() < 0.5:
                    end.outgoing.finish()
                else:
                    end.outgoing.reset(ConnectionResetError("the other host crashed"))

    def make_pipe(self, source: MemoryTransport, target: MemoryTransport) -> Pipe:
        return _FaultyPipe(self, source, target)

    def is_parted(self, one: str, other: str) -> bool:
        return one != other and (one in self._isolated or other in self._isolated)

    def latency_s(self) -> float:
        return self.rng.uniform(*self._latency_s)


class _FaultyPipe(Pipe):
    """One direction of a connection, with the latency, chunks and partitions of its network."""

    def __init__(self, network: FaultyNetwork, source: MemoryTransport, target: MemoryTransport) -> None:
        super().__init__(network, source, target)
        self._faults = network
        self._last_s = 0.0

    def schedule(self, call: Callable[..., None], *args: object, in_order: bool = True) -> None:
        target = self.target
        if target.is_lost:
            return
        when_s = self._faults.loop.time() + self._faults.latency_s()
        if in_order:
            # Never before earlier bytes. Arrivals at one moment stay in order because they are offsets.
            self._last_s = when_s = max(self._last_s, when_s)
        target.loop.call_at(when_s, call, *args, context=target.context)

    def arrive(self, upto: int) -> None:
        super().arrive(self.written if self._faults.rng.random() < COALESCE_CHANCE else upto)

    def chunk_size(self, size: int) -> int:
        if size > 1 and self._faults.rng.random() < SPLIT_CHANCE:
            return self._faults.rng.randint(1, size - 1)
        return size

    def deliver(self) -> None:
        if not self._faults.is_parted(self.source.host, self.target.host):
            super().deliver()

    def abort(self) -> None:
        """Lose the bytes in flight, and reset the other end."""
        self.held.clear()
        self.reset(ConnectionResetError("the other end aborted"))
