"""One HTTP connection: guards what a peer may cost before and beside its requests.

Always true: a peer that completes no head, or does not read its replies, is
disconnected after the stall timeout. Everything else is aiohttp's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web

_REFUSAL: bytes = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
)


class HttpConnection(asyncio.Protocol):
    """A connection in front of aiohttp's handler.

    Args:
        handler: parses and answers the requests.
        is_surplus: the connection is one too many: it is answered 503 and closed.
        on_lost: called once when the connection has ended.
    """

    def __init__(
        self,
        handler: web.RequestHandler,
        stall_timeout_s: float,
        is_surplus: bool,
        on_lost: Callable[[HttpConnection], None],
    ) -> None:
        self.handler = handler
        self._stall_timeout_s = stall_timeout_s
        self._is_surplus = is_surplus
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        if self._is_surplus:
            assert self._transport is not None
            self._transport.write(_REFUSAL)
            self._transport.close()
            return
        self._start_stall_timer()
        self.handler.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_stall_timer()
        if not self._is_surplus:
            self.handler.connection_lost(exc)
        self._on_lost(self)

    def on_request(self) -> None:
        """A request's head is complete."""
        self._stop_stall_timer()

    def data_received(self, data: bytes) -> None:
        if not self._is_surplus:
            self.handler.data_received(data)

    def eof_received(self) -> bool | None:
        if not self._is_surplus:
            self.handler.eof_received()
        return None

    def pause_writing(self) -> None:
        self._start_stall_timer()
        if not self._is_surplus:
            self.handler.pause_writing()

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        if not self._is_surplus:
            self.handler.resume_writing()

    def abort(self) -> None:
        """Close now; unsent replies are lost."""
        if self._transport is not None:
            self._transport.abort()

    def _start_stall_timer(self) -> None:
        self._stop_stall_timer()
        self._stall_timer = self._loop.call_later(self._stall_timeout_s, self.abort)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
