"""An RPC server on a loopback port or an in-memory transport, and a client that writes single bytes."""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from foqs.queue.port import Queue
from foqs.routing.port import HostIdentity, StandaloneCluster
from foqs.rpc.call import Handler
from foqs.rpc.client_connection import ClientConnection
from foqs.rpc.host_service import host_service
from foqs.rpc.messages import read_head
from foqs.rpc.methods import RpcService
from foqs.rpc.rpc_limits import RpcLimits
from foqs.rpc.server import RpcServer
from foqs.rpc.tls_acceptor import TlsAcceptor
from foqs_contract.idl import Foqs, ttypes
from tests.support.builders import rpc_limits
from tests.support.poll import soon


def service_of(queue: Queue, calls: Mapping[str, Handler] = MappingProxyType({}), *, seed: int = 1) -> RpcService:
    """Return the service of a host that is alone, with one shard."""
    identity = HostIdentity("127.0.0.1", 7411, 42, region="here")
    return host_service(queue, StandaloneCluster(identity, queue.shard_statuses), random.Random(seed), calls)


class ServedQueue:
    """A server that listens."""

    def __init__(self, server: RpcServer, listener: asyncio.Server, acceptor: TlsAcceptor | None = None) -> None:
        self.server = server
        self.acceptor = acceptor
        self.listener = listener
        self.host, self.port = listener.sockets[0].getsockname()[:2]
        self.url = f"{'foqss' if acceptor else 'foqs'}://{self.host}:{self.port}"

    async def raw(self) -> RawConnection:
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=64 << 20)
        return RawConnection(reader, writer)


@asynccontextmanager
async def serve_queue(
    queue: Queue,
    limits: RpcLimits | None = None,
    port: int = 0,
    calls: Mapping[str, Handler] = MappingProxyType({}),
    context: ssl.SSLContext | None = None,
    failed: Callable[[], None] = lambda: None,
    **more: Any,
) -> AsyncIterator[ServedQueue]:
    """Serves `queue` and other `calls` over RPC on `port`, or on a free one. Closes everything at the end.

    Args:
        context: serve TLS with this context; `failed` is called for each handshake that failed.
    """
    loop = asyncio.get_running_loop()
    server = RpcServer(loop, service_of(queue, calls), limits or rpc_limits(reply_grace_ms=200), **more)
    acceptor = TlsAcceptor(server, context, failed) if context is not None else None
    listener = await loop.create_server(acceptor.connection if acceptor else server.connection, "127.0.0.1", port)
    try:
        yield ServedQueue(server, listener, acceptor)
    finally:
        listener.close()
        if acceptor is not None:
            acceptor.close()
        await server.stop(loop.time())
        await soon(lambda: not server.connections)
        assert server.byte_budget.reserved_bytes == 0
        assert server.calls_in_flight == 0


class RecordingTransport(asyncio.Transport):
    """A transport in memory, for a loop without sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = ""
        self.unread_bytes = 0
        self.reading = True

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing to set."""

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"


def server_in_memory(queue: Queue, limits: RpcLimits) -> RpcServer:
    """Return a server of the running loop, for transports in memory."""
    return RpcServer(asyncio.get_running_loop(), service_of(queue), limits)


def connect_to(server: RpcServer) -> tuple[ClientConnection, RecordingTransport]:
    """Return a connection over a transport in memory."""
    connection, transport = server.connection(), RecordingTransport()
    connection.connection_made(transport)
    return connection, transport


class RawConnection:
    """A connection that sends any bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def message(self) -> bytes:
        """The next frame's message."""
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(length)

    async def reply(self, name: str, compact: bool = False) -> tuple[int, Any]:
        """(sequence id, result struct or TApplicationException) of the next frame."""
        return parse_reply(await self.message(), name, compact)

    async def read_to_end(self) -> bytes:
        """Return the bytes up to the other side's close."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return


def parse_reply(message: bytes, name: str, compact: bool = False) -> tuple[int, Any]:
    protocol = _protocol(TMemoryBuffer(message), compact)
    _, kind, seqid = protocol.readMessageBegin()
    result = TApplicationException() if kind == TMessageType.EXCEPTION else getattr(Foqs, f"{name}_result")()
    result.read(protocol)
    return seqid, result


def parse_any(message: bytes) -> Any:
    """Return the result struct, or TApplicationException, of a reply to any call."""
    head, _ = read_head(message)  # the name of an unknown call may be any bytes
    unknown = head.message_type == TMessageType.EXCEPTION
    result = TApplicationException() if unknown else getattr(Foqs, f"{head.name.decode()}_result")()
    result.read(_protocol(TMemoryBuffer(message, head.body_start), head.is_compact))
    return result


def _protocol(buffer: Any, compact: bool) -> Any:
    return (TCompactProtocolAccelerated if compact else TBinaryProtocolAccelerated)(buffer, fallback=False)


def parse_replies(data: bytes, name: str) -> list[tuple[int, Any]]:
    """`parse_reply` of each frame in `data`."""
    replies = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        replies.append(parse_reply(data[4:end], name))
        data = data[end:]
    return replies


def frame(message: bytes) -> bytes:
    return struct.pack(">i", len(message)) + message


def call(name: str, request: Any, seqid: int = 1, *, compact: bool = False, kind: int = TMessageType.CALL) -> bytes:
    """Return the frame of a call, as the generated code writes it."""
    buffer = TMemoryBuffer()
    protocol = _protocol(buffer, compact)
    protocol.writeMessageBegin(name, kind, seqid)
    getattr(Foqs, f"{name}_args")(request).write(protocol)
    protocol.writeMessageEnd()
    return frame(buffer.getvalue())


def head(name: str, seqid: int = 1) -> bytes:
    """Return the head of a binary call; the test appends the rest."""
    return struct.pack(">II", 0x80010001, len(name)) + name.encode() + struct.pack(">i", seqid)


def enqueue(*topics: str, **more: Any) -> Any:
    return ttypes.EnqueueRequest("default", [ttypes.NewItem(topic=topic, **more) for topic in topics])
