"""One connection of a client: its frames, its calls and its timeouts.

Always true: a peer affects no other connection, but one that has not authenticated may
lose its place to another; the replies of one turn of the
loop are sent in order and in one write, or in a few if they are large or
`UnwrittenReplies.write` is called earlier; `give_back` is called for each reply
that can no longer be written. Knows nothing of what a call does.

A transport must offer write, close, abort, is_closing, pause_reading,
resume_reading, get_write_buffer_size, set_write_buffer_limits and
get_extra_info("peername").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from functools import partial
from typing import Any, Final, cast

from thrift.Thrift import TApplicationException

from foqs.access.authenticator import AuthenticatedPrincipal
from foqs.access.call_permissions import Principal
from foqs.core.limits.waiting_calls import WaitingPlace
from foqs.rpc.auth_session import UNAUTHENTICATED_FRAME_BYTES_MAX, AuthSession
from foqs.rpc.call import ServerMethod
from foqs.rpc.frames import BadFrame, FrameReader
from foqs.rpc.messages import BadMessage, MessageHead, frame_exception, read_head
from foqs.rpc.peer_log import log, peer_name
from foqs.rpc.rpc_call import RpcCall, frame_failure
from foqs.rpc.server_state import ServerState
from foqs.rpc.type_check import UnknownField, WrongType
from foqs.runtime.deadlines import DeadlineSweeper
from foqs.runtime.paced_transport import PIECE_BYTES, PacedTransport
from foqs.runtime.peer_network import peer_network
from foqs_contract.errors import (
    FoqsError,
    InvalidArgument,
    LimitExceeded,
    NotImplementedYet,
    Overloaded,
    PermissionDenied,
    Unavailable,
    UnknownOutcome,
)
from foqs_contract.message_heads import CALL, HEAD_BYTES_MIN, SEQID_BYTES
from foqs_contract.request import Request

_NO_ROOM: Final = "the calls in flight use all the memory that they may; retry"

ENTRY_COST_BYTES: Final = 1_000
"""The memory that one entry of a decoded request costs, besides its bytes."""

READ_DIRECTLY_BYTES_MIN: Final = 512
"""The size from which `read_request` reads a request. Shorter ones have few entries, and Thrift's decoder reads them."""

CACHED_REQUEST_BYTES_MAX: Final = 1_024
"""A consumer often repeats the same dequeue: up to this size, its last one is kept decoded."""

PENDING_REPLIES_BYTES_MAX: Final = 64 * 1024
"""Replies of one turn are collected up to this, then written at once: copying more costs more than a write."""

SURPLUS_CONNECTION_S: Final = 1.0
"""A surplus connection stays open at most this long while its calls are refused, and as long again to read the replies."""

SILENCE_BEFORE_CLOSE_S: Final = 0.05
"""A connection is closed when its peer has sent nothing for this long: a call that arrives during a close gets no reply. Below the default of retry_after_ms."""

WAIT_RETRY_AFTER_MS: Final = 1_000
"""A dequeue that may not wait, because others do, is repeated after this time: sooner it would cost more than a wait."""

READ_TURN_BYTES: Final = 32_768
"""After one read of this size a connection waits until the others had their turn."""


class ClientConnection(asyncio.Protocol):
    """The protocol of one connection, and the `CallConnection` of its calls.

    Args:
        authenticated: the principal, if it is known from the beginning.
        part: the name of the peer, if it is a part of this host.
    """

    def __init__(
        self,
        server: ServerState[ClientConnection],
        authenticated: AuthenticatedPrincipal | None = None,
        part: str | None = None,
    ) -> None:
        self._server = server
        self._authenticated = authenticated
        self._part = part
        self._limits = server.limits
        self._loop = server.loop
        self.reply_bytes_max = server.limits.reply_bytes_max
        self._frame_reader = FrameReader(server.limits.frame_bytes_max, server.byte_budget)
        self.calls: dict[RpcCall, None] = {}
        """The calls in flight, oldest first."""
        self._waiting_count = 0
        """How many of them wait for items."""
        self.backstop = DeadlineSweeper(server.loop, self.calls)
        self._cached_body: bytes | None = None
        self._cached_is_compact = False
        self._cached_request: Request | None = None
        self._pending_replies: list[bytes] = []
        self._pending_replies_bytes = 0
        self._give_backs: list[Callable[[], None]] = []
        self._transport: PacedTransport | None = None
        self.peer = ""
        """The network of the peer; see `PeerBudget`, in which a connection without a principal holds its place."""
        self.peer_address = self._peer_name = part or "unknown"
        self.session = None if server.authenticator is None else AuthSession(server.authenticator, self, server.loop)
        self._unauthenticated_since_s: float | None = None
        self._timeout_timer: asyncio.TimerHandle | None = None
        self.last_received_at_s = 0.0
        self._last_received_stopwatch_s = 0.0
        self._frame_awaited_since_s: float | None = None
        self._write_blocked_since_s: float | None = None
        self._is_reading = False
        """Whether received bytes are being processed; their calls may be answered at once."""
        self._is_closing = False
        self._surplus_until_s: float | None = None
        """The latest moment of the close; None unless this is a surplus connection."""

    @property
    def is_mid_frame(self) -> bool:
        """Whether a part of a frame has arrived, and the rest has not."""
        return self._frame_reader.is_mid_frame

    # ------------------------------------------------------ asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        inner, peer = cast(asyncio.Transport, transport), transport.get_extra_info("peername")
        high_bytes = self._server.write_buffer_bytes_max // 4
        inner.set_write_buffer_limits(high=min(PIECE_BYTES, high_bytes))
        self.peer = peer_network(peer)
        self._transport = PacedTransport(
            inner,
            self._server.unread_replies,
            self.peer,
            high_bytes,
            self._on_blocked,
            self._on_unblocked,
            self._abort_unread,
        )
        self.peer_address = self._peer_name = self._part or peer_name(peer)
        self.last_received_at_s = self._frame_awaited_since_s = self._loop.time()
        server = self._server
        if server.is_stopping:
            self.abort()
            return
        if len(server.connections) >= self._limits.connections_max and not server.unauthenticated.evict():
            self._refuse_surplus()
            return
        server.connections[self] = None
        self._timeout_timer = self._loop.call_later(self._server.stall_timeout_s, self._check_timeouts)
        if self.session is not None:
            self.session.on_connected(transport.get_extra_info("peercert"), self._authenticated)

    def _refuse_surplus(self) -> None:
        """Refuse the calls of this connection for a moment, because there are too many connections."""
        server = self._server
        server.refused_connection_count += 1
        self.log_warning(f"refused: there are {self._limits.connections_max} connections already")
        if len(server.surplus_connections) >= self._limits.refusals_in_flight_max:
            self.abort()
            return
        server.surplus_connections[self] = None
        self.session = None
        self._frame_reader.shed_above_bytes = 0  # keeps enough of each call to answer it
        self._surplus_until_s = self.last_received_at_s + SURPLUS_CONNECTION_S
        self._check_timeouts_within(SILENCE_BEFORE_CLOSE_S)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        now = self.last_received_at_s = self._loop.time()
        self._last_received_stopwatch_s = self._server.stopwatch_s()
        self._is_reading = True
        try:
            for message, shed in self._frame_reader.feed(data):
                self._frame_awaited_since_s = None
                self._on_message(message, shed)
                if self._is_closing:
                    return
        except BadFrame as error:
            self._close_with_warning(str(error))
            return
        finally:
            self._is_reading = False
        if not self._frame_reader.is_mid_frame:
            self._frame_awaited_since_s = None
        elif self._frame_awaited_since_s is None:
            self._frame_awaited_since_s = now
        if len(data) >= READ_TURN_BYTES and self._write_blocked_since_s is None and self._transport is not None:
            # Otherwise the event loop reads on while there is more, and all other connections wait.
            self._transport.pause_reading()
            self._loop.call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._is_closing and self._write_blocked_since_s is None:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._transport.on_pause()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._transport.on_resume()

    def _on_blocked(self) -> None:
        self._write_blocked_since_s = self._loop.time()
        if self._transport is not None and not self._is_closing:
            self._transport.pause_reading()

    def _on_unblocked(self) -> None:
        self._write_blocked_since_s = None
        if self._transport is not None and not self._is_closing:
            self._transport.resume_reading()

    def on_evicted(self) -> None:
        """Give the place to another connection."""
        self._server.connections.pop(self, None)
        self.log_warning("closed: it has not authenticated yet, and another connection needs its place")
        self.abort()

    def _abort_unread(self) -> None:
        self.log_warning("closed: replies that peers do not read take too much memory")
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._frame_reader.is_mid_frame and not self._is_closing:
            self.log_warning("the peer closed the connection in the middle of a frame")
        self._is_closing = True
        if self._transport is not None:
            self._transport.on_lost()
        self._transport = None
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        self._frame_reader.discard()
        self.write_replies()
        for call in list(self.calls):
            call.abandon()
        self.backstop.stop()
        self._server.unauthenticated.hold(self, 0)
        self._server.connections.pop(self, None)
        self._server.surplus_connections.pop(self, None)
        self._server.on_call_or_connection_ended()

    # ---------------------------------------------------------------- messages

    def _on_message(self, message: bytes, is_shed: bool) -> None:
        """Start one call, or refuse it. The message's bytes are reserved already unless it was shed."""
        server = self._server
        budget = server.byte_budget
        held_bytes = 0 if is_shed else len(message)
        known = server.methods_by_prefix.get(message[: 8 + message[7]]) if len(message) > HEAD_BYTES_MIN else None
        if known is not None and known[0].body_start <= len(message):
            head, method = known
            seqid = message[head.body_start - SEQID_BYTES : head.body_start]
        else:
            try:
                head, seqid = read_head(message)
            except BadMessage as error:
                budget.release_reservation(held_bytes)
                self._close_with_warning(str(error))
                return
            found = server.service.methods.get(head.name)
            if found is None or head.message_type != CALL:
                budget.release_reservation(held_bytes)
                self._reply_exception(head, seqid)
                return
            method = found
        session = self.session
        principal: Principal | None = None
        request = None
        try:
            if session is not None:
                session.require_principal(method)
                principal = session.principal
            if is_shed or server.is_stopping or not self._has_room(method):
                # The connection is read on: if it were paused, acks would wait behind its own long polls.
                raise self._rejection(is_shed)
            if method.row.waits and len(message) <= CACHED_REQUEST_BYTES_MAX:
                request = self._decode_cached(message, head, method)
            else:
                request = self._decode(message, head, method)
            if session is not None:
                session.authorize(method, request)
            deadline = self.last_received_at_s + server.service.timeout_s(request)
            cost_bytes = held_bytes
            for name in method.list_fields:
                cost_bytes += ENTRY_COST_BYTES * len(getattr(request, name) or ())
            if not budget.reserve(cost_bytes - held_bytes):
                raise Overloaded(_NO_ROOM, retry_after_ms=self._limits.retry_after_ms)
            held_bytes = cost_bytes
            waiting_place = (
                self._reserve_wait(method, request, principal, cost_bytes)
                if method.row.waits and request.wait_ms
                else None
            )
        except FoqsError as error:
            budget.release_reservation(held_bytes)
            server.on_call_replied(method.row.name, error.code, 0.0)
            if method.is_audited and request is not None and isinstance(error, PermissionDenied):
                self._note(method, request, principal, error.code)
            self.send(frame_failure(head, seqid, method, error))
            return
        call = RpcCall(
            self,
            head,
            seqid,
            method,
            request,
            deadline,
            principal,
            cost_bytes,
            self._last_received_stopwatch_s,
            waiting_place,
        )
        self.calls[call] = None
        server.calls_in_flight += 1
        call.start(server.reply_grace_s)

    def _has_room(self, method: ServerMethod) -> bool:
        """Return whether there is room for another busy call."""
        server = self._server
        busy, own_busy = server.calls_in_flight - server.waiting_calls.call_count, len(self.calls) - self._waiting_count
        if method.row.settles:
            return busy < server.calls_in_flight_max and own_busy < server.calls_in_flight_per_connection_max
        return (
            busy < server.calls_in_flight_max - server.settling_calls_reserve
            and own_busy < server.calls_in_flight_per_connection_max - server.settling_calls_per_connection_reserve
        )

    def _reserve_wait(
        self, method: ServerMethod, request: Request, principal: Principal | None, cost_bytes: int
    ) -> WaitingPlace:
        """Reserve a place for a dequeue that waits, and return it. Raises Overloaded."""
        # A principal is text and a namespace is bytes, so they are different holders.
        holders: list[Hashable] = [method.namespace_of(request)]
        if principal is not None:
            holders.append(principal.name)
        server = self._server
        if self._waiting_count < server.calls_in_flight_per_connection_max:
            place = server.waiting_calls.reserve(holders, cost_bytes)
            if place is not None:
                self._waiting_count += 1
                return place
        raise Overloaded(
            "too many dequeues of this connection, principal or namespace wait already; use fewer, or wait_ms=0",
            retry_after_ms=WAIT_RETRY_AFTER_MS,
        )

    def _decode_cached(self, message: bytes, head: MessageHead, method: ServerMethod) -> Any:
        """Decode a request, or return the last one if it is the same. Raises FoqsError."""
        body = message[head.body_start :]
        if body != self._cached_body or head.is_compact != self._cached_is_compact:
            self._cached_request = self._decode(message, head, method)
            self._cached_body = body
            self._cached_is_compact = head.is_compact
        return self._cached_request

    def _decode(self, message: bytes, head: MessageHead, method: ServerMethod) -> Any:
        server = self._server
        if method.read_request is not None and len(message) >= READ_DIRECTLY_BYTES_MIN and not head.is_compact:
            limits = server.decoder.limits
            request = method.read_request(message, head.body_start, limits.string_bytes_max, limits.container_items_max)
            if request is not None:
                return request
        try:
            arguments = server.decoder.decode(message, head, method.args_spec)
            method.type_check.check(message, head, arguments)
        except (BadMessage, WrongType) as refused:
            error: BadMessage | WrongType = refused
            if isinstance(error, BadMessage) and not error.too_large:
                error = method.type_check.find_fault(message, head) or error
            self.log_warning(f"{method.row.name} was refused: {error}")
            kind: type[FoqsError] = InvalidArgument
            if isinstance(error, UnknownField):
                kind = NotImplementedYet
            elif isinstance(error, BadMessage) and error.too_large:
                kind = LimitExceeded
            raise kind(str(error), field=getattr(error, "field", None)) from None
        if arguments.request is None:
            raise InvalidArgument("this is missing; every method takes one struct", field="request")
        return arguments.request

    def _rejection(self, is_shed: bool) -> FoqsError:
        """Return the reason why no further call is accepted now."""
        retry_after_ms = self._limits.retry_after_ms
        if self._surplus_until_s is not None:
            return Overloaded(
                f"this host has {self._limits.connections_max} connections already, so this one is closed; "
                "use fewer, or another host",
                retry_after_ms=retry_after_ms,
            )
        if self._server.is_stopping:
            return Unavailable("this host is stopping; use another", retry_after_ms=retry_after_ms)
        if is_shed:
            return Overloaded(_NO_ROOM, retry_after_ms=retry_after_ms)
        if len(self.calls) - self._waiting_count >= (
            self._server.calls_in_flight_per_connection_max - self._server.settling_calls_per_connection_reserve
        ):
            return Overloaded(
                "this connection has too many calls in flight; wait for replies", retry_after_ms=retry_after_ms
            )
        return Overloaded(
            "the host has too many calls in flight; try again, or use another host", retry_after_ms=retry_after_ms
        )

    # ---------------------------------------------------------- for `RpcCall`

    def on_call_ended(self, call: RpcCall, code: str | None) -> None:
        del self.calls[call]
        server = self._server
        server.calls_in_flight -= 1
        server.byte_budget.reserved_bytes -= call.cost_bytes
        if call.waiting_place is not None:
            self._waiting_count -= 1
            server.waiting_calls.release_reservation(call.waiting_place)
        if call.method.is_audited:
            # A change whose caller left may be done or not.
            self._note(call.method, call.request, call.principal, code or UnknownOutcome.code)
        if code is not None:
            try:
                server.on_call_replied(call.method.row.name, code, server.stopwatch_s() - call.started_at_s)
            except Exception:
                log.exception("a call of %s is missing from the metrics", call.method.row.name)
        if server.idle_waiter is not None:
            server.on_call_or_connection_ended()

    def _note(self, method: ServerMethod, request: Request, principal: Principal | None, outcome: str) -> None:
        """Note the end of a change of an administrator, or that it was denied."""
        audit = self._server.audit
        if audit is not None:
            try:
                audit.note_call(method, request, principal, self.peer_address, outcome)
            except Exception:
                log.exception("a call of %s is missing from the audit trail", method.row.name)

    def abandon_dequeues(self, sequence_ids: Collection[int]) -> None:
        for call in list(self.calls):
            if call.method.row.name == "dequeue" and call.sequence_id in sequence_ids:
                call.abandon_dequeue()

    def send(self, frame: bytes, give_back: Callable[[], None] | None = None) -> None:
        """Write a frame together with the others of this turn; call `give_back` if it cannot be written.

        If no other reply can follow, because no call is in flight, the frame is written now.
        """
        replies = self._pending_replies
        is_alone = not self.calls and not self._is_reading
        if not replies and not is_alone:
            self._server.replies.add(self)
        replies.append(frame)
        if give_back is not None:
            self._give_backs.append(give_back)
        self._pending_replies_bytes += len(frame)
        if is_alone or self._pending_replies_bytes > PENDING_REPLIES_BYTES_MAX:
            self.write_replies()

    def write_replies(self) -> None:
        """Write the pending replies, or call their `give_back`. Never raises: its callers serve other connections, too."""
        replies = self._pending_replies
        if not replies:
            return
        callbacks = self._give_backs
        self._pending_replies, self._pending_replies_bytes, self._give_backs = [], 0, []
        try:
            transport = self._writable_transport()
            if transport is not None:
                passed_on, callbacks = callbacks, []  # if `write` fails, it may have sent some of them
                transport.write(b"".join(replies), partial(self._give_back, passed_on) if passed_on else None)
        except Exception:
            log.exception("replies to %s cannot be written; its connection is aborted", self._peer_name)
            self.abort()
        self._give_back(callbacks)

    def _give_back(self, callbacks: list[Callable[[], None]]) -> None:
        """Call the `give_back` of replies that were not written. Never raises."""
        for give_back in callbacks:
            try:
                give_back()
            except Exception:
                log.exception("the items of a reply to %s that was not written cannot be given back", self._peer_name)

    def _writable_transport(self) -> PacedTransport | None:
        """Return the transport, or None if nothing more can be written to it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return None
        if transport.unread_bytes <= self._server.write_buffer_bytes_max:
            return transport
        self.log_warning("closed: it does not read its replies")
        self.abort()
        return None

    def set_principal(self, name: str | None) -> None:
        """Set the peer's principal. Without one, the peer has little time to authenticate and may send only small frames."""
        if name is not None:
            self._peer_name = f"{self.peer_address} ({name})"
            self._unauthenticated_since_s = None
            self._server.unauthenticated.hold(self, 0)
            self._frame_reader.shed_above_bytes = self._limits.frame_bytes_max
        elif self.session is not None and self._server.authenticator is not None:
            self._peer_name = self.peer_address
            self._unauthenticated_since_s = self._loop.time()
            self._server.unauthenticated.hold(self, 1)
            self._frame_reader.shed_above_bytes = UNAUTHENTICATED_FRAME_BYTES_MAX
            self._check_timeouts_within(self._server.authenticator.limits.timeout_s)

    def log_warning(self, text: str) -> None:
        self._server.peer_log.warn(self._peer_name, text)

    def _reply_exception(self, head: MessageHead, seqid: bytes) -> None:
        name = head.name.decode(errors="backslashreplace")
        if head.message_type != CALL:
            reason, text = (
                TApplicationException.INVALID_MESSAGE_TYPE,
                f"{name!r} is not sent as a call; send calls only",
            )
        else:
            reason, text = TApplicationException.UNKNOWN_METHOD, f"there is no method {name!r}"
        self.log_warning(f"a message was refused: {text}")
        self.send(frame_exception(head, seqid, reason, text))

    def _close_with_warning(self, text: str) -> None:
        """Log a warning and close, because the stream cannot be read any further."""
        self.log_warning(f"closed: {text}")
        self.close()

    # ------------------------------------------------------------------ the end

    def refuse_waits(self, namespaces: Collection[bytes]) -> None:
        """Fail the dequeues that wait for items of one of these namespaces, if the peer has no grant on it any more."""
        session = self.session
        if session is None or not self._waiting_count:
            return
        waiting = [call for call in self.calls if call.waiting_place is not None]
        for call in [call for call in waiting if call.method.namespace_of(call.request) in namespaces]:
            try:
                session.authorize(call.method, call.request)
            except FoqsError as error:
                call.refuse(error)

    def end_calls(self) -> None:
        """Fail every call in flight as unfinished."""
        for call in list(self.calls):
            call.expire()

    def close(self) -> None:
        """Close after all replies have been sent."""
        if not self._is_closing and self._transport is not None:
            self.write_replies()
            self._is_closing = True
            self._frame_reader.discard()
            self._transport.close()
            self._check_timeouts_within(
                self._server.stall_timeout_s if self._surplus_until_s is None else SURPLUS_CONNECTION_S
            )

    def abort(self) -> None:
        """Close now; unsent replies are lost."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def _check_timeouts(self) -> None:
        """Close the connection if a timeout has passed; otherwise check again when one could."""
        now = self._loop.time()
        server = self._server
        if self._is_closing:
            self.abort()
            return
        if self._surplus_until_s is not None:
            left_s = self._surplus_until_s - now
            if self._frame_awaited_since_s is None:
                left_s = min(left_s, self.last_received_at_s + SILENCE_BEFORE_CLOSE_S - now)
            if left_s > 0:
                self._check_timeouts_within(min(left_s, SILENCE_BEFORE_CLOSE_S))
            else:
                self.close()
            return
        if self._unauthenticated_since_s is not None and server.authenticator is not None:
            left_s = self._unauthenticated_since_s + server.authenticator.limits.timeout_s - now
            reason = "closed: it did not authenticate in time"
        elif self._write_blocked_since_s is not None:
            left_s = self._write_blocked_since_s + server.stall_timeout_s - now
            reason = "closed: it does not read its replies"
        elif self._frame_awaited_since_s is not None:
            left_s = self._frame_awaited_since_s + server.stall_timeout_s - now
            frame = "a frame" if self._frame_reader.is_mid_frame else "its first frame"
            reason = f"closed: {frame} was not complete after {server.stall_timeout_s:g} s"
        else:
            left_s = self.last_received_at_s + server.idle_timeout_s - now
            reason = ""
            if left_s <= 0 and self.calls:
                left_s = server.stall_timeout_s
        if left_s > 0:
            self._check_timeouts_within(min(left_s, server.stall_timeout_s))
        elif reason:
            self.log_warning(reason)
            self.abort()
        else:
            self.close()

    def _check_timeouts_within(self, delay_s: float) -> None:
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
        self._timeout_timer = self._loop.call_later(delay_s, self._check_timeouts)
