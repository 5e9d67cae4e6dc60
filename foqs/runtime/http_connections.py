"""The connections of an HTTP server, with limits on the places, time, memory and log lines of each peer.

Always true: a connection beyond the limit takes the place of one that serves no proved
request, or is answered 503 and closed; a peer that does not complete a head in time, or
does not read its replies, is disconnected, but a head that began in the segment of the
request before it has only the time of an idle connection; only open connections count, so a failed TLS
handshake leaves nothing; nothing that a peer sent is in the log or in an answer, because
an unreadable head may hold a cookie or a token; replies that are not read have a limit,
and the peer with most of them loses its oldest. Everything else is aiohttp's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast

from aiohttp import StreamReader, http_exceptions, web

from foqs.runtime.paced_transport import PIECE_BYTES, PacedTransport
from foqs.runtime.peer_budget import PeerBudget
from foqs.runtime.peer_network import peer_network

_REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)
_REQUEST_BEGINS_S: Final = 1.0
"""A request that came together with the end of its peer's bytes has begun after this time."""


class HttpConnections:
    """The connections of one server. `connection` is its protocol factory.

    Args:
        new_handler: returns aiohttp's handler of one connection, as a `web.Server` does.
        connections_max: a further connection needs the place of another one.
        stall_timeout_s: the time for a head, and for reading replies.
        unread_bytes_max: the replies that all peers together have not read.
        warn: called with the peer of a connection that is refused or closed, as asyncio has it, and a text.
    """

    def __init__(
        self,
        new_handler: Callable[[], web.RequestHandler],
        connections_max: int,
        stall_timeout_s: float,
        unread_bytes_max: int,
        warn: Callable[[object, str], None],
    ) -> None:
        self.unread = PeerBudget(unread_bytes_max)
        self.warn = warn
        self._new_handler = new_handler
        self._connections_max = connections_max
        self._stall_timeout_s = stall_timeout_s
        self._open: dict[web.RequestHandler, HttpConnection] = {}
        self._unproved = PeerBudget(connections_max)
        """The places of connections that have not proved a request."""
        self._idle = PeerBudget(connections_max)
        """The places of connections that have proved an earlier request, and none now."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[HttpConnection]:
        return iter(list(self._open.values()))

    def connection(self) -> HttpConnection:
        """Return a protocol for one new connection."""
        return HttpConnection(self, self._stall_timeout_s)

    @contextmanager
    def serving(self, request: web.BaseRequest) -> Iterator[None]:
        """Serve a request during the block. Its head is complete; the next head has no time limit before the end."""
        connection = self._open.get(request.protocol)
        if connection is None:
            yield
            return
        connection.on_request(request)
        try:
            yield
        finally:
            connection.on_served()
            if connection.has_proved and request.protocol in self._open:
                self._idle.hold(connection, 1)

    def prove(self, request: web.BaseRequest) -> None:
        """Keep the connection until the request is served, because the request was found to be allowed."""
        connection = self._open.get(request.protocol)
        if connection is not None:
            connection.has_proved = True
            self._unproved.hold(connection, 0)
            self._idle.hold(connection, 0)

    def need_peer(self, request: web.BaseRequest) -> None:
        """Abort the request's connection as soon as its peer sends no more, as it then may have left."""
        connection = self._open.get(request.protocol)
        if connection is not None:
            connection.need_peer()

    def abort(self) -> None:
        """Close all connections now; unsent replies are lost."""
        for connection in self:
            connection.abort()

    def on_made(self, connection: HttpConnection, peer: object) -> web.RequestHandler | None:
        """Return the handler of a connection that is open now; None if there are too many."""
        if len(self._open) >= self._connections_max and not (self._unproved.evict() or self._idle.evict()):
            self.warn(peer, f"refused: there are {self._connections_max} HTTP connections already")
            return None
        handler = self._new_handler()
        handler.__class__ = _RequestHandler  # no server of aiohttp lets another class be chosen
        self._open[handler] = connection
        self._unproved.hold(connection, 1)
        return handler

    def on_lost(self, handler: web.RequestHandler) -> None:
        """Forget a connection that has ended, or has lost its place."""
        connection = self._open.pop(handler, None)
        if connection is not None:
            self._unproved.hold(connection, 0)
            self._idle.hold(connection, 0)


class HttpConnection(asyncio.Protocol):
    """A connection in front of aiohttp's handler. A connection beyond the limit has no handler."""

    def __init__(self, connections: HttpConnections, stall_timeout_s: float) -> None:
        self._connections = connections
        self._stall_timeout_s = stall_timeout_s
        self._loop = asyncio.get_running_loop()
        self._handler: web.RequestHandler | None = None
        self._transport: PacedTransport | None = None
        self.peer = ""
        self._body: StreamReader | None = None
        """The body of the newest request; None before the first one."""
        self._is_serving = False
        self.has_proved = False
        """Whether it has proved a request, this one or an earlier one."""
        self._is_peer_needed = False
        self.is_half_closed = False
        """Whether the peer sends no more, and waits for a reply."""
        self._owes_head = True
        """Whether a head has begun, or the first one is awaited."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        inner = cast(asyncio.Transport, transport)
        peer = inner.get_extra_info("peername")
        self.peer = peer_network(peer)
        self._transport = PacedTransport(
            inner, self._connections.unread, self.peer, 0, self._on_blocked, self._on_unblocked, self._abort_unread
        )
        self._handler = self._connections.on_made(self, peer)
        if self._handler is None:
            inner.write(_REFUSAL)
            inner.close()
            return
        # Each reply that the peer does not take at once starts a timer, also one after which the connection closes.
        inner.set_write_buffer_limits(high=1, low=0)
        self._time_head()
        self._handler.connection_made(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_write_timer()
        if self._transport is not None:
            self._transport.on_lost()
        if self._handler is not None:
            self._handler.connection_lost(exc)
            self._connections.on_lost(self._handler)

    def on_request(self, request: web.BaseRequest) -> None:
        """A request's head is complete."""
        self._body = request.content
        self._is_serving = True
        self._is_peer_needed = False
        self._owes_head = False
        self._stop_head_timer()
        if self.is_half_closed and self._handler is not None and not self._close_after_reply(self._handler):
            self.abort()

    def on_served(self) -> None:
        """The newest request has its reply."""
        self._is_serving = False
        if self._owes_head:
            self._time_head()

    def data_received(self, data: bytes) -> None:
        if self._handler is None:
            return
        # Bytes that follow a complete body begin a head. It is not late as long as its peer waits for a reply.
        if not self._owes_head and (self._body is None or self._body.is_eof()):
            self._owes_head = True
            if not self._is_serving:
                self._time_head()
        self._handler.data_received(data)

    def eof_received(self) -> bool:
        """Return whether the connection stays open: for the reply to a complete request, unless its peer is needed."""
        # TLS ends in both directions at once.
        if self._handler is None or self._transport is None or self._transport.get_extra_info("sslcontext") is not None:
            return False
        if self._is_serving:
            return self._close_after_reply(self._handler)
        if not self._owes_head:
            return False
        self.is_half_closed = True
        self._loop.call_later(_REQUEST_BEGINS_S, self._abort_without_request)
        return True

    def _close_after_reply(self, handler: web.RequestHandler) -> bool:
        """Close after the newest request has its reply. Return False if it is not complete, or needs its peer."""
        if self._is_peer_needed or self._body is None or not self._body.is_eof():
            return False
        self.is_half_closed = True
        handler.close()
        return True

    def _abort_without_request(self) -> None:
        if self._owes_head:
            self.abort()

    def need_peer(self) -> None:
        """Abort the connection when its peer sends no more, until the newest request has its reply."""
        self._is_peer_needed = True
        if self.is_half_closed:
            self.abort()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.on_pause()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.on_resume()

    def _on_blocked(self) -> None:
        self._write_timer = self._loop.call_later(self._stall_timeout_s, self.abort)
        if self._handler is not None:
            self._handler.pause_writing()

    def _on_unblocked(self) -> None:
        self._stop_write_timer()
        if self._handler is not None:
            self._handler.resume_writing()

    def on_evicted(self) -> None:
        """Give its place to another connection."""
        if self._handler is not None and self._transport is not None:
            if self._is_serving:
                peer = self._transport.get_extra_info("peername")
                self._connections.warn(peer, "closed: its request was not proved yet, and another needs its place")
            self._connections.on_lost(self._handler)
            self.abort()

    def _abort_unread(self) -> None:
        if self._transport is not None:
            peer = self._transport.get_extra_info("peername")
            self._connections.warn(peer, "closed: replies that peers do not read take too much memory")
            self.abort()

    def abort(self) -> None:
        """Close now; unsent replies are lost."""
        if self._transport is not None:
            self._transport.abort()

    def _time_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(self._stall_timeout_s, self.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


class _RequestHandler(web.RequestHandler):
    """aiohttp's handler of one connection, with answers that do not repeat what the peer sent, and that are in memory once.

    An answer that repeats a head could show a cookie to a page's script, from which browsers hide it.
    """

    __slots__ = ()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        await write_head(request, resp)
        found = await super().finish_response(request, resp, start_time)
        if isinstance(found[0], web.Response):
            found[0].body = None  # aiohttp keeps the response until the next request
        return found

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        return super().handle_error(request, status, exc, message and f"The request cannot be read: {_fault(exc)}.\n")


async def write_head(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Write the head of a large response before its body, which aiohttp would copy to join them."""
    if isinstance(response, web.Response) and isinstance(response.body, bytes) and len(response.body) > PIECE_BYTES:
        await response.prepare(request)
        request.writer.send_headers()


def parser_log(parent: logging.Logger, warn: Callable[[object, str], None]) -> logging.Logger:
    """Return a logger for aiohttp's handlers. What peers can cause at will goes to `warn` instead, without a traceback.

    Args:
        warn: called with the peer's address, and a text.
    """

    def is_of_the_host(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, http_exceptions.HttpProcessingError | web.RequestPayloadError | ConnectionError):
            return True
        peer = str(record.args[0]) if isinstance(record.args, tuple) and record.args else "unknown"
        warn(peer, f"an HTTP request cannot be read: {_fault(error)}")
        return False

    logger = logging.Logger(f"{parent.name}.aiohttp")  # of its own: the filter of one port is not another's
    logger.parent = parent
    logger.addFilter(is_of_the_host)
    return logger


def _fault(error: BaseException | None) -> str:
    """Return what is wrong with a request. The texts of aiohttp's errors hold parts of it."""
    match error:
        case http_exceptions.LineTooLong():
            return "a line of its head is too long"
        case http_exceptions.BadStatusLine():
            is_tls = "HTTPS traffic" in error.message  # a fixed text of aiohttp
            return "this server does not speak TLS" if is_tls else "its first line is not of HTTP"
        case http_exceptions.InvalidURLError():
            return "its address is malformed"
        case web.RequestPayloadError() | http_exceptions.PayloadEncodingError():
            return "its body is malformed or incomplete"
        case ConnectionError():
            return "its peer has left"
    return "its head is malformed"
