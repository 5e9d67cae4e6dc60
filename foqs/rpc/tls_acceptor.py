"""Where connections arrive that must speak TLS first.

Holds the handshakes under way. Always true: there is a limited number of them,
and none lasts longer than its timeout; one that fails costs one line of the log
at most. The certificate may be
replaced at any time; connections that are open keep theirs. Knows nothing of
what is said behind the door.

Handshakes are made on accepted sockets rather than by the listener, because
that one tells nobody of those that fail, and counts none.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

from foqs.rpc.peer_log import peer_name
from foqs.rpc.server import RpcServer

_NOT_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST"))
_ALERT: Final = bytes((21, 3, 1, 0, 2, 2, 70))
"""Fatal: protocol version. It tells a client of ours that began without TLS what is spoken here."""


class TlsAcceptor:
    """The arrivals of one listener. `connection` is its protocol factory.

    Args:
        server: gets the connections whose handshake is done.
        on_handshake_failed: told of every handshake that came to nothing.

    Attributes:
        context: of the handshakes to come.
    """

    def __init__(self, server: RpcServer, context: ssl.SSLContext, on_handshake_failed: Callable[[], None]) -> None:
        self.context = context
        self._server = server
        self._handshake_timeout_s = server.limits.handshake_timeout_ms / 1000
        self._on_handshake_failed = on_handshake_failed
        self._handshakes: set[asyncio.Task[None]] = set()

    def connection(self) -> asyncio.BaseProtocol:
        """A protocol for one connection that was accepted."""
        return _AcceptedConnection(self)

    def close(self) -> None:
        """Breaks off the handshakes under way."""
        for handshake in self._handshakes:
            handshake.cancel()

    def on_accepted(self, transport: asyncio.BaseTransport) -> None:
        """A connection has come; nothing of it was read."""
        accepted: asyncio.Transport = transport  # type: ignore[assignment]
        peer = peer_name(accepted.get_extra_info("peername"))
        if len(self._handshakes) >= self._server.limits.handshakes_max:
            self._on_handshake_failed()
            self._server.peer_log.warn(peer, f"closed: there are {len(self._handshakes)} TLS handshakes already")
        elif not self._server.is_stopping:
            # The transport has read nothing yet, and gives the socket up before it does.
            shaking = self._handshake(accepted.get_extra_info("socket").dup(), peer)
            handshake = self._server.loop.create_task(shaking)
            self._handshakes.add(handshake)
            handshake.add_done_callback(self._handshakes.discard)
        accepted.abort()

    async def _handshake(self, accepted: socket.socket, peer: str) -> None:
        with accepted.dup() as answer:
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
                self._server.peer_log.warn(peer, f"closed: {_failure_text(error, self._handshake_timeout_s)}")
                if getattr(error, "reason", None) in _NOT_TLS:
                    _try_send(answer, _ALERT)


class _AcceptedConnection(asyncio.Protocol):
    """One connection until its handshake begins."""

    def __init__(self, acceptor: TlsAcceptor) -> None:
        self._acceptor = acceptor

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._acceptor.on_accepted(transport)


def _try_send(answer: socket.socket, data: bytes) -> None:
    try:
        answer.setblocking(False)
        answer.send(data)
    except OSError:
        return  # it is gone, or does not read


def _failure_text(error: OSError, timeout_s: float) -> str:
    """Why a handshake came to nothing, for the log."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    reason = getattr(error, "reason", None) or ""
    if reason in _NOT_TLS:
        return "it does not speak TLS, and this port does; its address must begin with foqss://"
    words = reason.replace("_", " ").lower()
    if isinstance(error, ssl.SSLError) and "ALERT" not in reason:
        return f"the TLS handshake failed ({words or error})"
    if isinstance(error, ConnectionAbortedError):
        return f"the TLS handshake was not done after {timeout_s:g} s"
    return f"it left during the TLS handshake{words and f' ({words})'}; it may not trust this host's certificate"
