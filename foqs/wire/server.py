"""The framed server: connections, their limits, and the host's stop.

Holds the connections that are open and the calls in flight. Always true: the
limits of `WireLimits` hold at any moment; what one peer does touches no other
connection; time is the loop's, order is that of arrival, so that a simulation
that drives `connection` by hand sees the same run for the same input. Knows
nothing of what a call does.

A transport must offer write, close, abort, is_closing, pause_reading,
resume_reading, get_write_buffer_size, set_write_buffer_limits and
get_extra_info("peername").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from thrift.Thrift import TApplicationException

from foqs.core.errors import FoqsError, InvalidArgument, LimitExceeded, Overloaded, Unavailable
from foqs.wire.call import Call, Observe, frame_failure
from foqs.wire.complaints import Complaints
from foqs.wire.frames import BadFrame, Frames, Room
from foqs.wire.limits import WireLimits
from foqs.wire.message import CALL, BadMessage, Bounds, Decoder, Head, frame_refusal, read_head
from foqs.wire.methods import Calls, Method
from foqs.wire.strict import WrongType, check_types

ENTRY_COST_BYTES: Final = 1_000
"""What one entry of a decoded request costs in memory, besides its bytes."""

SILENCE_BEFORE_CLOSE_S: Final = 0.05
"""A stopping host closes when no peer has sent anything for this long; below the default of retry_after_ms."""


class WireServer:
    """All connections of one host.

    `connection` is the protocol factory for `loop.create_server`, or for a
    simulation's transports.

    Args:
        observe: told (method, OK or the error's code, seconds) of every call answered.
        seconds: the stop watch for that; the loop's clock if None.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        calls: Calls,
        limits: WireLimits,
        observe: Observe = lambda method, code, seconds: None,
        seconds: Callable[[], float] | None = None,
    ) -> None:
        self.loop = loop
        self.observe = observe
        self.seconds = seconds or loop.time
        self.calls = calls
        self.limits = limits
        self.decoder = Decoder(Bounds(limits.string_bytes_max, limits.container_items_max))
        self.room = Room(limits.in_flight_bytes_max)
        self.complaints = Complaints(loop.time)
        self.connections: dict[Connection, None] = {}
        self.calls_in_flight = 0
        self.stopping = False
        self._quiet: asyncio.Future[None] | None = None

    def connection(self) -> Connection:
        """A protocol for one new connection."""
        return Connection(self)

    async def stop(self, deadline: float) -> None:
        """Ends all connections; calls in flight have until `deadline`, on the loop's clock.

        The caller has stopped listening. Calls that arrive meanwhile are answered
        UNAVAILABLE. What is unfinished at the deadline is answered UNKNOWN_OUTCOME
        (reads: DEADLINE_EXCEEDED), and replies that a peer does not read within the
        grace after it are dropped.
        """
        self.stopping = True
        await self._until_quiet(deadline)
        for connection in list(self.connections):
            connection.end_calls()
        await self._until_quiet(self.loop.time() + self.limits.reply_grace_s)
        await self._until_silent(self.loop.time() + self.limits.reply_grace_s)
        for connection in list(self.connections):
            connection.close()
        await self._until_quiet(self.loop.time() + self.limits.reply_grace_s, connections_too=True)
        for connection in list(self.connections):
            connection.abort()

    async def _until_quiet(self, deadline: float, *, connections_too: bool = False) -> None:
        while self.calls_in_flight or (connections_too and self.connections):
            left = deadline - self.loop.time()
            if left <= 0:
                return
            quiet = self._quiet = self.loop.create_future()
            timer = self.loop.call_later(left, _settle, quiet)
            try:
                await quiet
            finally:
                timer.cancel()

    async def _until_silent(self, deadline: float) -> None:
        """Answers on until the peers, told to go away, send no more: a call that crosses a close gets no answer."""
        begun = self.loop.time()
        while self.connections:
            heard = max(connection.heard_at for connection in self.connections)
            silent_at = min(max(begun, heard) + SILENCE_BEFORE_CLOSE_S, deadline)
            if silent_at <= self.loop.time():
                return
            await asyncio.sleep(silent_at - self.loop.time())

    def changed(self) -> None:
        """A call or a connection ended."""
        if self._quiet is not None:
            _settle(self._quiet)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Connection(asyncio.Protocol):
    """One connection: its bytes, its calls, its silence."""

    def __init__(self, server: WireServer) -> None:
        self._server = server
        self._limits = server.limits
        self._loop = server.loop
        self._frames = Frames(server.limits.frame_bytes_max, server.room)
        self._calls: dict[Call, None] = {}
        self._transport: asyncio.Transport | None = None
        self._peer = "unknown"
        self._watch: asyncio.TimerHandle | None = None
        self.heard_at = 0.0
        self._owes_since: float | None = None
        self._stuck_since: float | None = None
        self._closing = False

    # ------------------------------------------------------ asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "unknown")
        self.heard_at = self._owes_since = self._loop.time()
        server = self._server
        if server.stopping or len(server.connections) >= self._limits.connections_max:
            if not server.stopping:
                self.complain(f"closed: there are {self._limits.connections_max} connections already")
            self._closing = True
            self._transport.abort()
            return
        server.connections[self] = None
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max // 4)
        self._watch = self._loop.call_later(self._limits.silence_timeout_s, self._look)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        now = self.heard_at = self._loop.time()
        try:
            for message, shed in self._frames.feed(data):
                self._owes_since = None
                self._receive(message, shed)
                if self._closing:
                    return
        except BadFrame as error:
            self._refuse(str(error))
            return
        if not self._frames.halfway:
            self._owes_since = None
        elif self._owes_since is None:
            self._owes_since = now

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
        for call in list(self._calls):
            call.abandon()
        self._server.connections.pop(self, None)
        self._server.changed()

    # ---------------------------------------------------------------- messages

    def _receive(self, message: bytes, shed: bool) -> None:
        """Answers or starts one call. The message's bytes are counted in the room unless it was shed."""
        held = 0 if shed else len(message)
        started = False
        try:
            head = read_head(message)
            method = self._server.calls.methods.get(head.name)
            if head.kind != CALL:
                self._refuse_message(head, TApplicationException.INVALID_MESSAGE_TYPE, "a host answers calls only")
            elif method is None:
                name = head.name.decode(errors="backslashreplace")
                self._refuse_message(head, TApplicationException.UNKNOWN_METHOD, f"there is no method {name!r}")
            else:
                error = self._why_not(shed)
                if error is None:
                    started = self._start(message, head, method, held)
                else:
                    self._fail(head, method, error)
        except BadMessage as error:
            self._refuse(str(error))
        finally:
            if not started:
                self._server.room.give(held)

    def _why_not(self, shed: bool) -> FoqsError | None:
        """Why no further call is taken now."""
        server, limits = self._server, self._limits
        retry = limits.retry_after_ms
        if server.stopping:
            return Unavailable("this host is stopping; use another", retry_after_ms=retry)
        if shed:
            return Overloaded("the host holds as many bytes of calls as it may; retry", retry_after_ms=retry)
        if len(self._calls) >= limits.calls_in_flight_per_connection_max:
            return Overloaded("this connection has too many calls in flight; wait for replies", retry_after_ms=retry)
        if server.calls_in_flight >= limits.calls_in_flight_max:
            return Overloaded("the host has too many calls in flight; retry", retry_after_ms=retry)
        return None

    def _start(self, message: bytes, head: Head, method: Method, held: int) -> bool:
        """Starts the call; False when it was answered already, and then it holds nothing."""
        now = self._loop.time()
        server = self._server
        try:
            arguments = server.decoder.decode(message, head, method.args)
            check_types(message, head, method.args, arguments)
            request = arguments.request
            if request is None:
                raise InvalidArgument("this is missing; every method takes one struct", field="request")
            timeout_s = server.calls.timeout_s(request)
            cost = ENTRY_COST_BYTES * entries(request)
            if not server.room.take(cost):
                raise Overloaded(
                    "the host holds as many bytes of calls as it may; retry", retry_after_ms=self._limits.retry_after_ms
                )
        except (BadMessage, WrongType) as error:
            self.complain(f"{method.name} was refused: {error}")
            kind = LimitExceeded if isinstance(error, BadMessage) and error.too_large else InvalidArgument
            self._fail(head, method, kind(str(error), field=getattr(error, "field", None)))
            return False
        except FoqsError as error:
            self._fail(head, method, error)
            return False
        call = Call(
            self._loop,
            self,
            head,
            method,
            held + cost,
            self._limits.reply_bytes_max,
            self._ended,
            server.observe,
            server.seconds,
        )
        self._calls[call] = None
        server.calls_in_flight += 1
        call.start(request, now + timeout_s, self._limits.reply_grace_s)
        return True

    def _ended(self, call: Call) -> None:
        del self._calls[call]
        self._server.calls_in_flight -= 1
        self._server.room.give(call.cost_bytes)
        self._server.changed()

    def send(self, frame: bytes) -> bool:
        """Gives a frame to the transport; False when the connection is gone, and then nothing was given."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if transport.get_write_buffer_size() > self._limits.write_buffer_bytes_max:
            self.complain("closed: it does not read its replies")
            self.abort()
            return False
        transport.write(frame)
        return True

    def complain(self, text: str) -> None:
        self._server.complaints.say(self._peer, text)

    def _fail(self, head: Head, method: Method, error: FoqsError) -> None:
        self._server.observe(method.name, error.code.name, 0.0)
        self.send(frame_failure(head, method, error))

    def _refuse_message(self, head: Head, reason: int, text: str) -> None:
        self.complain(f"a call was refused: {text}")
        self.send(frame_refusal(head, reason, text))

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
        """Closes after what is written has left."""
        if not self._closing and self._transport is not None:
            self._closing = True
            self._frames.forget()
            self._transport.close()
            self._look_within(self._limits.silence_timeout_s)

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
        if self._stuck_since is not None:
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


def entries(request: Any) -> int:
    """How many list entries a request holds."""
    return sum(len(value) for field in request.__slots__ if type(value := getattr(request, field)) is list)
