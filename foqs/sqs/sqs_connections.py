"""The HTTP server of SQS: connections, bodies within their limits, and replies.

Always true: the limits of `[rpc]` on connections, calls and bytes hold here too,
counted apart; a request whose client disconnects is cancelled; bodies are
counted before they are kept, and never decompressed; until a body is complete and its
signature proved, the body and its connection may be taken from the peer that holds most
of them. Knows nothing of SQS' actions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from aiohttp import HttpVersion11, web

from foqs.rpc.frames import ByteBudget
from foqs.rpc.peer_log import PeerLog, peer_name
from foqs.rpc.rpc_limits import RpcLimits
from foqs.runtime.http_connections import HttpConnection, HttpConnections, parser_log, write_head
from foqs.runtime.peer_budget import PeerBudget
from foqs.runtime.peer_network import peer_network
from foqs.sqs.errors import AUTHENTICATION_ERRORS, SqsError
from foqs.sqs.http_messages import HttpHead, HttpReply
from foqs.sqs.service import Proof, SqsService, wire_protocol

log = logging.getLogger(__name__)

HEADER_BYTES_MAX: Final = 8_190
HEADERS_MAX: Final = 64
REQUEST_BYTES_MAX: Final = 4 << 20
"""A longer request is refused before it is read. A batch of SQS has at most 1 MiB, and up to three times as much as JSON."""
SMALL_BODY_BYTES: Final = 8_192
"""The size up to which a body is not counted until it is proved: connections are limited. Most bodies are shorter."""
UNPROVED_PART: Final = 4
"""Bodies that are not proved may take one part in this many of `in_flight_bytes_max`."""
MESSAGE_COPIES: Final = 2
"""The number of copies of a message that count for a reply that is not made yet: its payload and its text."""
_LINGERING_S: Final = 1.0
"""How long the rest of a body that was refused is read, so that the peer sees the reply."""


class SqsConnections:
    """The connections of the SQS server. It is the server of a `TlsAcceptor`, if it uses TLS.

    Args:
        on_replied: called for each request with (sqs.ACTION, OK or the error's shape, seconds).
        stopwatch_s: measures the requests.
    """

    def __init__(
        self,
        service: SqsService,
        limits: RpcLimits,
        on_replied: Callable[[str, str, float], None],
        stopwatch_s: Callable[[], float],
        request_bytes_max: int = REQUEST_BYTES_MAX,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.limits = limits
        self.peer_log = PeerLog(self.loop.time)
        self.is_stopping = False
        self._closes_after_replies = False
        self.calls_in_flight = 0
        self._service = service
        self._request_bytes_max = request_bytes_max
        self._on_replied = on_replied
        self._stopwatch_s = stopwatch_s
        self._stall_timeout_s = limits.stall_timeout_ms / 1_000
        self.budget = ByteBudget(limits.in_flight_bytes_max)
        self.unproved = PeerBudget(max(limits.in_flight_bytes_max // UNPROVED_PART, request_bytes_max))
        self._server = web.Server(
            self._handle,
            handler_cancellation=True,
            access_log=None,
            logger=parser_log(log, self._warn),
            keepalive_timeout=limits.idle_timeout_ms / 1_000,
            max_line_size=HEADER_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
            lingering_time=_LINGERING_S,
            auto_decompress=False,
        )
        self.connections = HttpConnections(
            self._server, limits.connections_max, self._stall_timeout_s, limits.in_flight_bytes_max, self._warn
        )

    def connection(self) -> HttpConnection:
        """Return a protocol for one new connection."""
        return self.connections.connection()

    def close_after_replies(self) -> None:
        """Close each connection after its next reply, so that its client goes to another host.

        Otherwise a client would repeat its long polls here, where none waits any more.
        """
        self._closes_after_replies = True

    async def stop(self, deadline: float) -> None:
        """End all connections; requests in flight have until `deadline`, on the loop's clock.

        The caller stopped listening. The deadline may have passed already.
        """
        self.is_stopping = True
        self._server.pre_shutdown()  # else the shutdown would wait for idle connections, too
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._server.shutdown(None)
        self.connections.abort()

    def _warn(self, peer: object, text: str) -> None:
        self.peer_log.warn(peer_name(peer), text)

    # ------------------------------------------------------------------- requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        with self.connections.serving(request):
            return await self._response(request)

    async def _response(self, request: web.BaseRequest) -> web.StreamResponse:
        held = _HeldBytes(peer_network(_peer(request)), self.unproved, self.budget)
        try:
            reply = await self._counted_reply(request, held)
            response = web.Response(status=reply.status, body=reply.body, headers=dict(reply.headers))
            if reply.error is not None and (reply.status == 413 or reply.error in AUTHENTICATION_ERRORS):
                self._warn(_peer(request), f"an SQS request was refused: {reply.error}")
                response.force_close()
            elif self._closes_after_replies or (reply.error is not None and "Expect" in request.headers):
                # A client that was refused before the interim reply may leave its body out.
                response.force_close()
            if reply.give_back is not None:
                await _write_or_give_back(request, response, reply.give_back, reply.before_write)
        finally:
            held.release()
        return response

    async def _counted_reply(self, request: web.BaseRequest, held: _HeldBytes) -> HttpReply:
        started_at_s = self._stopwatch_s()
        self.calls_in_flight += 1
        try:
            reply = await self._reply(request, held)
        finally:
            self.calls_in_flight -= 1
        self._on_replied(f"sqs.{reply.action}", reply.error or "OK", self._stopwatch_s() - started_at_s)
        return reply

    async def _reply(self, request: web.BaseRequest, held: _HeldBytes) -> HttpReply:
        headers = [(_text(name), _text(value)) for name, value in request.raw_headers]
        head = HttpHead(request.method, request.scheme, request.raw_path, headers, peer_name(_peer(request)))
        try:
            body, proof = await self._read_and_prove(request, head, held)
        except SqsError as error:
            refused = error.with_traceback(None)  # its frames hold the body
        else:
            need_peer = partial(self.connections.need_peer, request)
            return await self._service.serve(head, body, proof, need_peer, held.reserve_reply)
        held.release()
        await self._service.delay_refusal(refused)
        return wire_protocol(head).error("unknown", refused)

    async def _read_and_prove(self, request: web.BaseRequest, head: HttpHead, held: _HeldBytes) -> tuple[bytes, Proof]:
        """Return the body, and the principal that signed the request. Raises `SqsError`."""
        if self.is_stopping or self.calls_in_flight > self.limits.calls_in_flight_max:
            raise _overloaded()
        self._service.check_head(head)
        if (request.content_length or 0) > self._request_bytes_max:
            raise self._too_long()
        body = await self._read_body(request, held)
        proof = self._service.prove(head, body)
        if not held.prove():
            raise _overloaded()
        self.connections.prove(request)
        return body, proof

    async def _read_body(self, request: web.BaseRequest, held: _HeldBytes) -> bytes:
        """Return the body. Raises `SqsError` if it is too long, not complete in time, or there is no room for it."""
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._stall_timeout_s) as held.timeout:
                await _ask_for_the_body(request)
                while part := await request.content.readany():
                    if held.byte_count + len(part) > self._request_bytes_max:
                        raise self._too_long()
                    held.grow(len(part))
                    parts.append(part)
                    if request.content.at_eof():
                        break
        except TimeoutError:
            if not held.is_evicted:
                raise SqsError(
                    "SerializationException",
                    f"The request body was not complete within {self._stall_timeout_s:g} s; send it again.",
                ) from None
        if held.is_evicted:
            self._warn(_peer(request), "an SQS request was refused: it was slow while others needed its room")
            raise _overloaded()
        return b"".join(parts)

    def _too_long(self) -> SqsError:
        return SqsError(
            "RequestEntityTooLargeException",
            f"The request is longer than {self._request_bytes_max} bytes; send fewer or shorter messages.",
        )


class _HeldBytes:
    """The bytes of one request and of the messages that it receives.

    The body is a holding of its peer until it is proved, then a part of the server's budget.

    Attributes:
        timeout: the timeout of the reading; it ends early if the body is evicted.
    """

    def __init__(self, peer: str, unproved: PeerBudget, budget: ByteBudget) -> None:
        self.peer = peer
        self.byte_count = 0
        self.is_evicted = False
        self.timeout: asyncio.Timeout | None = None
        self._unproved = unproved
        self._budget = budget
        self._reserved_bytes = 0

    def grow(self, byte_count: int) -> None:
        """Count bytes that were read. This or another body may be evicted."""
        self.byte_count += byte_count
        if self.byte_count > SMALL_BODY_BYTES and not self.is_evicted:
            self._unproved.hold(self, self.byte_count)

    def on_evicted(self) -> None:
        self.is_evicted = True
        if self.timeout is not None:
            self.timeout.reschedule(asyncio.get_running_loop().time())

    def prove(self) -> bool:
        """Count the bytes as those of a proved request. Return False if there is no room."""
        self._unproved.hold(self, 0)
        return self._reserve(self.byte_count)

    def reserve_reply(self, payload_bytes: int) -> None:
        """Count the messages of a reply until it is written; then it counts as unread. Raises `SqsError` if there is no room."""
        # More than half of the budget counts as half, so that the largest receive has room on a quiet port.
        if not self._reserve(min(MESSAGE_COPIES * payload_bytes, self._budget.bytes_max // 2)):
            raise _overloaded()

    def _reserve(self, byte_count: int) -> bool:
        is_reserved = self._budget.reserve(byte_count)
        if is_reserved:
            self._reserved_bytes += byte_count
        return is_reserved

    def release(self) -> None:
        """Give all bytes back."""
        self._unproved.hold(self, 0)
        self._budget.release_reservation(self._reserved_bytes)
        self._reserved_bytes = 0


async def _write_or_give_back(
    request: web.BaseRequest,
    response: web.StreamResponse,
    give_back: Callable[[], None],
    before_write: Callable[[], None],
) -> None:
    """Write a response now, after `before_write`. If the client has disconnected, call `give_back` instead."""
    transport = request.transport
    if transport is None or transport.is_closing():
        give_back()
        return
    before_write()
    with suppress(ConnectionError):  # aiohttp ends the connection
        await response.prepare(request)  # nothing is awaited up to the write
        await write_head(request, response)
        await response.write_eof()


async def _ask_for_the_body(request: web.BaseRequest) -> None:
    """Send the interim reply for which a client waits before it sends its body."""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # nothing of the reply itself is written


def _overloaded() -> SqsError:
    return SqsError("ServiceUnavailableException", "The host is stopping, or has too many requests in flight; retry.")


def _peer(request: web.BaseRequest) -> Any:
    transport = request.transport
    return None if transport is None else transport.get_extra_info("peername")


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
