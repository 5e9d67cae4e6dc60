"""One connection: its bytes, its calls, its silence.

Always true: what one peer does touches no other connection; the replies of one
turn of the loop leave in one write, in the order in which they were given, or in
two where somebody does not wait for the turn's end; what was given and cannot be
written any more is given back. Knows nothing of what a call does.

A transport must offer write, close, abort, is_closing, pause_reading,
resume_reading, get_write_buffer_size, set_write_buffer_limits and
get_extra_info("peername").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from thrift.Thrift import TApplicationException

from foqs.core.errors import FoqsError, InvalidArgument, LimitExceeded, Overloaded, Unavailable
from foqs.deadlines import Backstop
from foqs.wire.call import Call, frame_failure
from foqs.wire.complaints import log, name_of
from foqs.wire.frames import BadFrame, Frames
from foqs.wire.message import CALL, HEAD_BYTES_MIN, BadMessage, Head, frame_refusal, read_head
from foqs.wire.methods import Method
from foqs.wire.strict import WrongType
from foqs.wire.visitor import UNKNOWN_FRAME_BYTES_MAX, Visitor

if TYPE_CHECKING:
    from foqs.wire.server import WireServer

_NO_ROOM: Final = "the host holds as many bytes of calls as it may; retry"

ENTRY_COST_BYTES: Final = 1_000
"""What one entry of a decoded request costs in memory, besides its bytes."""

REPEATED_BYTES_MAX: Final = 1_024
"""A consumer asks for the same again and again: its last dequeue is kept decoded, when it is no longer than this."""

GATHERED_BYTES_MAX: Final = 64 * 1024
"""Replies of one turn are gathered up to this, then written at once: copying more costs more than a write."""

REFUSAL_S: Final = 1.0
"""A connection that is one too many may stay so long, to hear so; and as long again to read it."""

SILENCE_BEFORE_CLOSE_S: Final = 0.05
"""What is to be closed is closed when its peer has sent nothing for this long, for a call that crosses a close gets no answer; below the default of retry_after_ms."""

TURN_BYTES: Final = 32_768
"""A connection that had so much to read at once lets the others have their turn."""


class Connection(asyncio.Protocol):
    """The protocol of one connection, and the `Line` of its calls."""

    def __init__(self, server: WireServer) -> None:
        self._server = server
        self._limits = server.limits
        self._loop = server.loop
        self.reply_bytes_max = server.limits.reply_bytes_max
        self._frames = Frames(server.limits.frame_bytes_max, server.room)
        self._calls: dict[Call, None] = {}
        self.backstop = Backstop(server.loop, self._calls)
        self._repeated: bytes | None = None
        self._repeated_compact = False
        self._request: Any = None
        self._replies: list[bytes] = []
        self._replies_bytes = 0
        self._give_backs: list[Callable[[], None]] = []
        self._transport: asyncio.Transport | None = None
        self._address = self._peer = "unknown"
        self.visitor = None if server.gate is None else Visitor(server.gate, self, server.loop)
        self._unknown_since: float | None = None
        self._watch: asyncio.TimerHandle | None = None
        self.heard_at = 0.0
        self._heard_at_watch = 0.0
        self._owes_since: float | None = None
        self._stuck_since: float | None = None
        self._reading = False
        """What was received is being read, and may be answered at once."""
        self._closing = False
        self._surplus_until: float | None = None
        """When it is closed at the latest, as there are too many."""

    # ------------------------------------------------------ asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._address = self._peer = name_of(transport.get_extra_info("peername"))
        self.heard_at = self._owes_since = self._loop.time()
        server = self._server
        if server.stopping:
            self.abort()
            return
        if len(server.connections) >= self._limits.connections_max:
            self._turn_away()
            return
        server.connections[self] = None
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max // 4)
        self._watch = self._loop.call_later(self._limits.silence_timeout_s, self._look)
        if self.visitor is not None:
            self.visitor.arrive(transport.get_extra_info("peercert"))

    def _turn_away(self) -> None:
        """There are too many: its calls are told so for a moment, and nothing of them is kept."""
        server = self._server
        server.connections_refused += 1
        self.complain(f"refused: there are {self._limits.connections_max} connections already")
        if len(server.surplus) >= self._limits.connections_refused_max:
            self.abort()
            return
        server.surplus[self] = None
        self.visitor = None
        self._frames.whole_bytes_max = 0  # of its calls, enough is kept to answer them
        self._surplus_until = self.heard_at + REFUSAL_S
        self._look_within(SILENCE_BEFORE_CLOSE_S)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        now = self.heard_at = self._loop.time()
        self._heard_at_watch = self._server.seconds()
        self._reading = True
        try:
            for message, shed in self._frames.feed(data):
                self._owes_since = None
                self._receive(message, shed)
                if self._closing:
                    return
        except BadFrame as error:
            self._refuse(str(error))
            return
        finally:
            self._reading = False
        if not self._frames.halfway:
            self._owes_since = None
        elif self._owes_since is None:
            self._owes_since = now
        if len(data) >= TURN_BYTES and self._stuck_since is None and self._transport is not None:
            # The event loop would read on for as long as there is more, and all others would wait.
            self._transport.pause_reading()
            self._loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        """It is this connection's turn again."""
        if self._transport is not None and not self._closing and self._stuck_since is None:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self._stuck_since = self._loop.time()
        if self._transport is not None and not self._closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._stuck_since = None
        if self._transport is not None and not self._closing:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._frames.halfway and not self._closing:
            self.complain("its peer closed it in the middle of a frame")
        self._closing = True
        self._transport = None
        if self._watch is not None:
            self._watch.cancel()
        self._frames.forget()
        self.write()
        for call in list(self._calls):
            call.abandon()
        self.backstop.stop()
        self._server.connections.pop(self, None)
        self._server.surplus.pop(self, None)
        self._server.changed()

    # ---------------------------------------------------------------- messages

    def _receive(self, message: bytes, shed: bool) -> None:
        """Starts one call, or answers why not. The message's bytes are counted in the room unless it was shed."""
        server, limits = self._server, self._limits
        room = server.room
        held = 0 if shed else len(message)
        known = server.known.get(message[: 8 + message[7]]) if len(message) > HEAD_BYTES_MIN else None
        if known is not None and known[0].body <= len(message):
            head, method = known
            seqid = message[head.body - 4 : head.body]
        else:
            try:
                head, seqid = read_head(message)
            except BadMessage as error:
                room.give(held)
                self._refuse(str(error))
                return
            found = server.calls.methods.get(head.name)
            if found is None or head.kind != CALL:
                room.give(held)
                self._refuse_message(head, seqid)
                return
            method = found
        visitor = self.visitor
        try:
            if visitor is not None:
                visitor.challenge(method)
            if (
                shed
                or server.stopping
                or server.calls_in_flight >= limits.calls_in_flight_max
                or len(self._calls) >= limits.calls_in_flight_per_connection_max
            ):
                raise self._why_not(shed)
            if method.repeats and len(message) <= REPEATED_BYTES_MAX:
                request = self._read_again(message, head, method)
            else:
                request = self._decode(message, head, method)
            if visitor is not None:
                visitor.permit(method, request)
            deadline = self.heard_at + server.calls.timeout_s(request)
            cost = held
            for name in method.lists:
                cost += ENTRY_COST_BYTES * len(getattr(request, name) or ())
            if not room.take(cost - held):
                raise Overloaded(_NO_ROOM, retry_after_ms=limits.retry_after_ms)
        except FoqsError as error:
            room.give(held)
            server.observe(method.name, error.code.name, 0.0)
            self.send(frame_failure(head, seqid, method, error))
            return
        call = Call(self, head, seqid, method, cost, self._heard_at_watch)
        self._calls[call] = None
        server.calls_in_flight += 1
        call.start(request, deadline, limits.reply_grace_s)

    def _read_again(self, message: bytes, head: Head, method: Method) -> Any:
        """The request of a call that may be the same as the last one. Raises FoqsError."""
        body = message[head.body :]
        if body != self._repeated or head.compact != self._repeated_compact:
            self._request = self._decode(message, head, method)
            self._repeated = body
            self._repeated_compact = head.compact
        return self._request

    def _decode(self, message: bytes, head: Head, method: Method) -> Any:
        server = self._server
        try:
            arguments = server.decoder.decode(message, head, method.args)
            method.check.check(message, head, arguments)
        except (BadMessage, WrongType) as refused:
            error: BadMessage | WrongType = refused
            if isinstance(error, BadMessage) and not error.too_large:
                error = method.check.fault(message, head) or error
            self.complain(f"{method.name} was refused: {error}")
            kind = LimitExceeded if isinstance(error, BadMessage) and error.too_large else InvalidArgument
            raise kind(str(error), field=getattr(error, "field", None)) from None
        if arguments.request is None:
            raise InvalidArgument("this is missing; every method takes one struct", field="request")
        return arguments.request

    def _why_not(self, shed: bool) -> FoqsError:
        """Why no further call is taken now."""
        retry = self._limits.retry_after_ms
        if self._surplus_until is not None:
            return Overloaded(
                f"this host has {self._limits.connections_max} connections, and this is one too many: it is closed; "
                "use fewer, or another host",
                retry_after_ms=retry,
            )
        if self._server.stopping:
            return Unavailable("this host is stopping; use another", retry_after_ms=retry)
        if shed:
            return Overloaded(_NO_ROOM, retry_after_ms=retry)
        if len(self._calls) >= self._limits.calls_in_flight_per_connection_max:
            return Overloaded("this connection has too many calls in flight; wait for replies", retry_after_ms=retry)
        return Overloaded("the host has too many calls in flight; retry", retry_after_ms=retry)

    # ------------------------------------------------------- what a call asks for

    def ended(self, call: Call, code: str | None) -> None:
        """The call holds nothing any more; it was answered OK or with this error's code, or (None) not at all."""
        del self._calls[call]
        server = self._server
        server.calls_in_flight -= 1
        server.room.used -= call.cost_bytes
        if code is not None:
            try:
                server.observe(call.method.name, code, server.seconds() - call.begun_at)
            except Exception:
                log.exception("a call of %s cannot be counted", call.method.name)
        if server.quiet is not None:
            server.changed()

    def send(self, frame: bytes, give_back: Callable[[], None] | None = None) -> None:
        """Writes a frame together with the others of this turn; calls `give_back` when it cannot be written.

        Where no other can come, because nothing else is under way, it is written now.
        """
        replies = self._replies
        alone = not self._calls and not self._reading
        if not replies and not alone:
            self._server.gather(self)
        replies.append(frame)
        if give_back is not None:
            self._give_backs.append(give_back)
        self._replies_bytes += len(frame)
        if alone or self._replies_bytes > GATHERED_BYTES_MAX:
            self.write()

    def write(self) -> None:
        """Gives what was gathered to the transport, or back. Never raises: its callers answer other connections, too."""
        replies = self._replies
        if not replies:
            return
        give_backs = self._give_backs
        self._replies, self._replies_bytes, self._give_backs = [], 0, []
        try:
            transport = self._writable()
            if transport is not None:
                give_backs = []  # it may hold a part of them even where it fails
                transport.write(b"".join(replies))
        except Exception:
            log.exception("the replies to %s cannot be written; its connection is cut", self._peer)
            self.abort()
        for give_back in give_backs:
            try:
                give_back()
            except Exception:
                log.exception("what was not written to %s cannot be given back", self._peer)

    def _writable(self) -> asyncio.Transport | None:
        """The transport; None where it takes nothing more."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return None
        if transport.get_write_buffer_size() <= self._limits.write_buffer_bytes_max:
            return transport
        self.complain("closed: it does not read its replies")
        self.abort()
        return None

    def known_as(self, name: str | None) -> None:
        """The peer is this principal from now on, or nobody: then it has little time and room until it is somebody."""
        if name is not None:
            self._peer = f"{self._address} ({name})"
            self._unknown_since = None
            self._frames.whole_bytes_max = self._limits.frame_bytes_max
        elif self.visitor is not None and self._server.gate is not None:
            self._peer = self._address
            self._unknown_since = self._loop.time()
            self._frames.whole_bytes_max = UNKNOWN_FRAME_BYTES_MAX
            self._look_within(self._server.gate.limits.timeout_s)

    def complain(self, text: str) -> None:
        self._server.complaints.say(self._peer, text)

    def _refuse_message(self, head: Head, seqid: bytes) -> None:
        if head.kind != CALL:
            reason, text = TApplicationException.INVALID_MESSAGE_TYPE, "a host answers calls only"
        else:
            name = head.name.decode(errors="backslashreplace")
            reason, text = TApplicationException.UNKNOWN_METHOD, f"there is no method {name!r}"
        self.complain(f"a call was refused: {text}")
        self.send(frame_refusal(head, seqid, reason, text))

    def _refuse(self, text: str) -> None:
        """The stream cannot be followed: one line, and the end."""
        self.complain(f"closed: {text}")
        self.close()

    # ------------------------------------------------------------------ the end

    def end_calls(self) -> None:
        """Answers every call in flight as unfinished."""
        for call in list(self._calls):
            call.expire()

    def close(self) -> None:
        """Closes after what is gathered and written has left."""
        if not self._closing and self._transport is not None:
            self.write()
            self._closing = True
            self._frames.forget()
            self._transport.close()
            self._look_within(self._limits.silence_timeout_s if self._surplus_until is None else REFUSAL_S)

    def abort(self) -> None:
        """Closes now."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _look(self) -> None:
        """Ends a connection that has been silent too long; otherwise looks again when it could be."""
        now = self._loop.time()
        limits = self._limits
        if self._closing:
            self.abort()
            return
        if self._surplus_until is not None:
            left = self._surplus_until - now
            if self._owes_since is None:
                left = min(left, self.heard_at + SILENCE_BEFORE_CLOSE_S - now)
            if left > 0:
                self._look_within(min(left, SILENCE_BEFORE_CLOSE_S))
            else:
                self.close()
            return
        if self._unknown_since is not None and self._server.gate is not None:
            left = self._unknown_since + self._server.gate.limits.timeout_s - now
            reason = "closed: it showed no principal in time"
        elif self._stuck_since is not None:
            left = self._stuck_since + limits.silence_timeout_s - now
            reason = "closed: it does not read its replies"
        elif self._owes_since is not None:
            left = self._owes_since + limits.silence_timeout_s - now
            what = "a frame it began" if self._frames.halfway else "a first frame"
            reason = f"closed: {what} was not whole after {limits.silence_timeout_s:g} s"
        else:
            left = self.heard_at + limits.idle_timeout_s - now
            reason = ""
            if left <= 0 and self._calls:
                left = limits.silence_timeout_s
        if left > 0:
            self._look_within(min(left, limits.silence_timeout_s))
        elif reason:
            self.complain(reason)
            self.abort()
        else:
            self.close()

    def _look_within(self, delay_s: float) -> None:
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self._loop.call_later(delay_s, self._look)
