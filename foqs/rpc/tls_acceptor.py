"""Accepts connections that must start with a TLS handshake.

Holds the handshakes in progress. Always true: their number is limited, and none
lasts longer than its timeout; a failed handshake writes at most one line of the
log. The certificate may be replaced at any time; open connections keep the old
one. Knows nothing of the calls.

The handshakes run on accepted sockets and not in asyncio's listener, because the
listener neither limits handshakes nor reports their failures.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from foqs.rpc.peer_log import PeerLog, peer_name
from foqs.rpc.rpc_limits import RpcLimits

_NOT_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"))
_ALERT: Final = bytes((21, 3, 1, 0, 2, 2, 70))
"""A fatal alert, protocol version: our client that began without TLS then reports that the server speaks TLS."""


class AcceptingServer(Protocol):
    """A server that serves the connections whose handshake is done."""

    loop: asyncio.AbstractEventLoop
    limits: RpcLimits
    peer_log: PeerLog
    is_stopping: bool

    def connection(self) -> asyncio.BaseProtocol:
        """Return a protocol for one new connection."""
        ...


class TlsAcceptor:
    """The TLS handshakes of one server. `connection` is its protocol factory.

    Args:
        on_handshake_failed: called once per failed handshake.
        scheme: the scheme of the server's URL, for the log.

    Attributes:
        context: the TLS context of future handshakes.
    """

    def __init__(
        self,
        server: AcceptingServer,
        context: ssl.SSLContext,
        on_handshake_failed: Callable[[], None],
        scheme: str = "foqss://",
    ) -> None:
        self.context = context
        self._scheme = scheme
        self._server = server
        self._handshake_timeout_s = server.limits.handshake_timeout_ms / 1000
        self._on_handshake_failed = on_handshake_failed
        self._handshakes: set[asyncio.Task[None]] = set()

    def connection(self) -> asyncio.BaseProtocol:
        """Return a protocol for one accepted connection."""
        return _AcceptedConnection(self)

    def close(self) -> None:
        """Cancel the handshakes in progress."""
        for handshake in self._handshakes:
            handshake.cancel()

    def on_accepted(self, transport: asyncio.BaseTransport) -> None:
        """Start the handshake of a connection from which nothing was read."""
        accepted: asyncio.Transport = transport  # type: ignore[assignment]
        peer = peer_name(accepted.get_extra_info("peername"))
        if len(self._handshakes) >= self._server.limits.handshakes_max:
            self._on_handshake_failed()
            self._server.peer_log.warn(peer, f"closed: there are {len(self._handshakes)} TLS handshakes already")
        elif not self._server.is_stopping:
            # The transport has read nothing yet; it is aborted below, and the handshake uses a copy of the socket.
            copy = accepted.get_extra_info("socket").dup()
            handshake = self._server.loop.create_task(self._handshake(copy, peer))
            self._handshakes.add(handshake)
            handshake.add_done_callback(lambda ended: self._on_handshake_ended(ended, copy))
        accepted.abort()

    def _on_handshake_ended(self, handshake: asyncio.Task[None], accepted: socket.socket) -> None:
        self._handshakes.discard(handshake)
        if handshake.cancelled():  # perhaps before it began, so no transport closes the socket
            accepted.close()

    async def _handshake(self, accepted: socket.socket, peer: str) -> None:
        with accepted.dup() as alert_socket:
            try:
                await self._server.loop.connect_accepted_socket(
                    self._server.connection,
                    accepted,
                    ssl=self.context,
                    ssl_handshake_timeout=self._handshake_timeout_s,
                    ssl_shutdown_timeout=self._handshake_timeout_s,
                )
            except OSError as error:
                self._on_handshake_failed()
                self._server.peer_log.warn(
                    peer, f"closed: {_failure_text(error, self._handshake_timeout_s, self._scheme)}"
                )
                if getattr(error, "reason", None) in _NOT_TLS:
                    _try_send(alert_socket, _ALERT)


class _AcceptedConnection(asyncio.Protocol):
    """One connection until its handshake begins."""

    def __init__(self, acceptor: TlsAcceptor) -> None:
        self._acceptor = acceptor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._acceptor.on_accepted(transport)


def _try_send(sock: socket.socket, data: bytes) -> None:
    try:
        sock.setblocking(False)
        sock.send(data)
    except OSError:
        return  # the peer is gone, or does not read


def _failure_text(error: OSError, timeout_s: float, scheme: str) -> str:
    """Return why a handshake failed, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    reason = getattr(error, "reason", None) or ""
    if reason in _NOT_TLS:
        return f"it does not speak TLS, but this server does; its URL must begin with {scheme}"
    words = reason.replace("_", " ").lower()
    if isinstance(error, ssl.SSLError) and "ALERT" not in reason:
        return f"the TLS handshake failed ({words or error})"
    if isinstance(error, ConnectionAbortedError):
        return f"the TLS handshake was not done after {timeout_s:g} s"
    return (
        f"it disconnected during the TLS handshake{words and f' ({words})'}; it may not trust this host's certificate"
    )
