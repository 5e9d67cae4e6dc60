"""The server of the console: its connections, and their TLS handshakes.

Always true: the limits of `[rpc]` on connections, handshakes and stalled peers hold
here too, counted apart; handshakes use the newest certificate. Knows
nothing of pages.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from aiohttp import web

from foqs.rpc.peer_log import PeerLog, peer_name
from foqs.rpc.rpc_limits import RpcLimits
from foqs.rpc.tls_acceptor import TlsAcceptor
from foqs.runtime.http_connections import HttpConnection, HttpConnections


class ConsoleServer:
    """Accepts connections from `listen` to `close`. It is the server of a `TlsAcceptor`, if it uses TLS.

    Args:
        new_handler: returns aiohttp's handler of one connection.
        tls: the TLS context for https; None: http.
        on_handshake_failed: called once per failed handshake.
    """

    def __init__(
        self,
        new_handler: Callable[[], web.RequestHandler],
        limits: RpcLimits,
        tls: ssl.SSLContext | None,
        on_handshake_failed: Callable[[], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.peer_log = PeerLog(self.loop.time)
        self.is_stopping = False
        stall_timeout_s = limits.stall_timeout_ms / 1_000
        self.connections = HttpConnections(
            new_handler, limits.connections_max, stall_timeout_s, limits.in_flight_bytes_max, self.warn
        )
        self._tls_acceptor = None if tls is None else TlsAcceptor(self, tls, on_handshake_failed, "https://")
        self._listening: asyncio.Server | None = None

    def connection(self) -> HttpConnection:
        """Return a protocol for one new connection."""
        return self.connections.connection()

    async def listen(self, host: str, port: int) -> int:
        """Listen, and return the port. Raises OSError if the address cannot be bound."""
        make_connection = self.connection if self._tls_acceptor is None else self._tls_acceptor.connection
        self._listening = await self.loop.create_server(make_connection, host, port)
        return int(self._listening.sockets[0].getsockname()[1])

    def warn(self, peer: object, text: str) -> None:
        """Write a line about a peer to the log."""
        self.peer_log.warn(peer_name(peer), text)

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """Use another certificate for future handshakes, if the console uses TLS."""
        if self._tls_acceptor is not None:
            self._tls_acceptor.context = tls

    def close(self) -> None:
        """Accept no more connections, and end the handshakes. Open connections stay open."""
        self.is_stopping = True
        if self._listening is not None:
            self._listening.close()
        if self._tls_acceptor is not None:
            self._tls_acceptor.close()
