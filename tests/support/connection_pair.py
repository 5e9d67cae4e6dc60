"""Two connected protocols that record their events, for tests of networks in memory.

Holds `RecordingProtocol`, `Pair` and `connected`. Knows nothing of the network's faults.
"""

from __future__ import annotations

import asyncio

from foqs.testing.memory_network import MemoryNetwork, MemoryTransport


class RecordingProtocol(asyncio.Protocol):
    """Records its events."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.data = bytearray()
        self.chunks = 0
        self.events: list[str] = []
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.made = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.made.set()

    def data_received(self, data: bytes) -> None:
        assert data
        self.data += data
        self.chunks += 1

    def eof_received(self) -> bool | None:
        self.events.append("eof")
        return None

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class Pair:
    """Two ends that know each other."""

    def __init__(self, network: MemoryNetwork, client: RecordingProtocol, server: RecordingProtocol) -> None:
        self.network = network
        self.client = client
        self.server = server

    @property
    def client_end(self) -> MemoryTransport:
        assert isinstance(self.client.transport, MemoryTransport)
        return self.client.transport

    @property
    def server_end(self) -> MemoryTransport:
        assert isinstance(self.server.transport, MemoryTransport)
        return self.server.transport


async def connected(network: MemoryNetwork) -> Pair:
    """Return two ends of a new connection to port 7411 of `host`."""
    accepted: asyncio.Future[RecordingProtocol] = asyncio.get_running_loop().create_future()

    def factory() -> RecordingProtocol:
        protocol = RecordingProtocol()
        if not accepted.done():
            accepted.set_result(protocol)
        return protocol

    await network.listen("host", 7411, factory)
    client = (await network.connect(RecordingProtocol, "host", 7411))[1]
    assert isinstance(client, RecordingProtocol)
    server = await accepted
    await server.made.wait()
    return Pair(network, client, server)


async def settle() -> None:
    """Let a minute pass under virtual time."""
    await asyncio.sleep(60)
