"""One connection to a host, and its calls in flight.

Holds `HostConnection`. Always true: calls of one turn of the event loop are sent in
one write; the first call, while none is in flight, is sent at once. `NotSent` means
that no byte of a call was sent, `NoReply` that the host may have received it. A reply
whose caller has left goes to the call's `LateReply`; without one it is dropped. One timer
serves the deadlines of all calls. Knows nothing of the meaning of calls.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from foqs_contract.message_heads import (
    EXCEPTION_WORD,
    FRAME_START,
    HEAD_BYTES_MIN,
    LENGTH_BYTES,
    REPLY_WORD,
    SEQID,
    SEQID_BYTES,
)
from foqs_contract.thrift_method import ThriftMethod, decode_exception

FRAME_BYTES_MAX: Final = 128 << 20
UNSENT_BYTES_MAX: Final = 64 << 10
"""The most bytes that wait for the end of the event loop's turn. More are written at once, so that the transport can pause the sender."""
CLOSE_S_MAX: Final = 1.0
"""The longest wait for the peer at the orderly end of TLS."""
TIMER_RESOLUTION_S: Final = 0.01
"""The least time between two checks of the deadlines."""

_ANSWER_WORDS: Final = (REPLY_WORD, EXCEPTION_WORD)
_FIXED_BYTES: Final = LENGTH_BYTES + HEAD_BYTES_MIN
"""The bytes of a frame before its struct, without the method name."""
_NEVER: Final = float("inf")
_TLS_ALERT: Final = b"\x15\x03"
"""The first bytes of the reply of a port that requires TLS."""


class NotSent(Exception):
    """No byte of the call was sent: there was no connection in time, or it was lost before."""


class NoReply(Exception):
    """The call was sent and got no reply: the connection was lost, or the time ended."""


class TlsRequired(NoReply):
    """The port of the host accepts only TLS. The host did not read the call."""


class LateReply(Protocol):
    """Takes over a call whose caller stops waiting, for a reply that must not be lost."""

    def on_left(self, connection: HostConnection, seqid: int) -> None:
        """Record that the caller has left before the reply. May be called twice. `on_ended` follows."""
        ...

    def on_ended(self, connection: HostConnection, seqid: int, body: bytes | None) -> None:
        """Take the reply to a call whose caller has left. None: the host refused it, or the connection is lost."""
        ...


class HostConnection(asyncio.Protocol):
    """One connection to a host, with its calls in flight.

    Attributes:
        is_ready: calls can be sent now.
        is_open: it can still become ready.
        contract_version: the version of the contract that the host serves; None if it was not asked yet.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_ready = False
        self.is_open = True
        self.contract_version: int | None = None
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._needed = 0
        self._seqid = 0
        self._waiting: dict[int, tuple[asyncio.Future[bytes], float, LateReply | None]] = {}
        """The calls without a reply, also those that a `LateReply` has taken over."""
        self._unsent: dict[int, bytes] = {}
        self._unsent_bytes = 0
        self._is_write_scheduled = False
        self._writable: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = _NEVER
        self._close_reason: str | None = None
        self._is_tls_required = False
        self._disconnected: asyncio.Future[None] | None = None

    # -------------------------------------------------------------------- calls

    async def call(
        self, method: ThriftMethod, body: bytes, deadline: float, late_reply: LateReply | None = None
    ) -> bytes:
        """Send a call in this turn of the event loop, and return the reply's body. The connection must be ready.

        Args:
            late_reply: takes the call over if the caller is cancelled, or if there is no reply by the deadline.

        Raises:
            Refused: the host could not read the call.
            NotSent: no byte of it was sent.
            NoReply: it was sent and not answered.
        """
        seqid, reply = self.send(method, body, deadline, late_reply)
        try:
            return await reply
        except BaseException:
            self.forget(seqid)
            if late_reply is not None and not reply.cancelled() and reply.exception() is None:
                late_reply.on_ended(self, seqid, reply.result())  # the caller was cancelled in the turn of its reply
            raise

    def send(
        self, method: ThriftMethod, body: bytes, deadline: float, late_reply: LateReply | None = None
    ) -> tuple[int, asyncio.Future[bytes]]:
        """Send a call as `call` does. Return its number, and a future of the reply's body.

        A caller that stops waiting calls `forget`.
        """
        seqid = (self._seqid + 1) & 0x7FFFFFFF
        while seqid in self._waiting:
            seqid = (seqid + 1) & 0x7FFFFFFF
        self._seqid = seqid
        frame = method.frame(seqid, body)
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[seqid] = (reply, deadline, late_reply)
        if deadline < self._timer_at_s:
            self._set_timer(deadline)
        self._unsent[seqid] = frame
        self._unsent_bytes += len(frame)
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            self._write_unsent()
        elif not self._is_write_scheduled:
            if len(self._waiting) == 1:
                self._write_unsent()  # the only call in flight: do not wait for others of this turn
            else:
                self._schedule_write()
        return seqid, reply

    def forget(self, seqid: int) -> None:
        """Stop waiting for a call. Its `LateReply` takes it over; without one, the reply is dropped when it arrives."""
        waiting = self._waiting.get(seqid)
        if waiting is None:
            return
        late_reply = waiting[2]
        if (frame := self._unsent.pop(seqid, None)) is not None:
            self._unsent_bytes -= len(frame)  # the host never gets it
        elif late_reply is not None:
            late_reply.on_left(self, seqid)
            return
        del self._waiting[seqid]

    def hand_over_calls(self) -> None:
        """End the calls that have a `LateReply` as if the connection was lost, and let it take them over."""
        for seqid, (reply, _, late_reply) in list(self._waiting.items()):
            if late_reply is not None:
                if not reply.done():
                    reply.set_exception(NoReply("the client was closed"))
                self.forget(seqid)

    @property
    def in_flight_count(self) -> int:
        """The number of calls that the host has not answered."""
        return len(self._waiting)

    async def wait_writable(self) -> None:
        """Wait until the transport accepts more bytes."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def close(self) -> None:
        self.is_ready = self.is_open = False
        if self._transport is not None:
            self._transport.close()

    async def close_and_wait(self) -> None:
        """Close, and wait at most a second for the orderly end of TLS."""
        self.close()
        transport = self._transport
        if transport is not None and transport.get_extra_info("sslcontext") is not None:
            self._disconnected = self._loop.create_future()
            await asyncio.wait((self._disconnected,), timeout=CLOSE_S_MAX)
            transport.abort()

    def abort(self) -> None:
        """Close without waiting."""
        self.is_ready = self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _schedule_write(self) -> None:
        self._is_write_scheduled = True
        self._loop.call_soon(self._write_scheduled)

    def _write_scheduled(self) -> None:
        self._is_write_scheduled = False
        if self._unsent:
            self._write_unsent()

    def _write_unsent(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # `connection_lost` follows, and ends these calls as `NotSent`
        frames = b"".join(self._unsent.values())
        self._unsent.clear()
        self._unsent_bytes = 0
        self._transport.write(frames)

    # ---------------------------------------------------------------- deadlines

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self._loop.call_at(at_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at_s = None, _NEVER
        now, earliest = self._loop.time(), _NEVER
        for reply, deadline, _ in self._waiting.values():
            if deadline > now:
                earliest = min(earliest, deadline)
            elif not reply.done():
                reply.set_exception(NoReply("no reply came in time"))
        if earliest < _NEVER:
            self._set_timer(max(earliest, now + TIMER_RESOLUTION_S))

    # ------------------------------------------------------- what the peer sends

    def data_received(self, data: bytes) -> None:
        if self._received:
            self._received += data
            if len(self._received) < self._needed:
                return
            data = bytes(self._received)
            self._received.clear()
        position, size = 0, len(data)
        self._needed = FRAME_START.size
        while size - position >= FRAME_START.size:
            length, word, named = FRAME_START.unpack_from(data, position)
            begin = position + _FIXED_BYTES + named
            end = position + LENGTH_BYTES + length
            if word not in _ANSWER_WORDS or length > FRAME_BYTES_MAX or begin > end:
                self._abort_with("it sent bytes that are not a Thrift reply; this is not a FOQS host")
                return
            if end > size:
                self._needed = end - position
                break
            seqid = SEQID.unpack_from(data, begin - SEQID_BYTES)[0]
            waiting = self._waiting.pop(seqid, None)
            if waiting is not None:
                reply, _, late_reply = waiting
                if not reply.done():
                    if word == REPLY_WORD:
                        reply.set_result(data[begin:end])
                    else:
                        reply.set_exception(decode_exception(data[begin:end]))
                elif late_reply is not None:
                    late_reply.on_ended(self, seqid, data[begin:end] if word == REPLY_WORD else None)
            position = end
        if position < size:
            self._buffer_partial_frame(data[position:])
        if not self._is_write_scheduled:
            # After the callers that were just woken: their next calls are sent in one write.
            self._schedule_write()

    def _buffer_partial_frame(self, data: bytes) -> None:
        """Keep the beginning of a frame until the rest arrives."""
        length = int.from_bytes(data[:LENGTH_BYTES], "big")
        if data.startswith(_TLS_ALERT):
            self._is_tls_required = True
            self._abort_with("it speaks TLS; begin its address with foqss://")
        elif len(data) >= LENGTH_BYTES and not HEAD_BYTES_MIN <= length <= FRAME_BYTES_MAX:
            self._abort_with(f"it sent a frame of {length} bytes; this is not a FOQS host")
        else:
            self._received += data

    def _abort_with(self, reason: str) -> None:
        self._close_reason = reason
        self.abort()

    # ----------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_ready = self.is_open

    def pause_writing(self) -> None:
        self.is_ready = False
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        self.is_ready = self.is_open
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def eof_received(self) -> None:
        self.is_ready = self.is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._close_reason or str(exc or "") or "the host closed the connection"
        self.is_open = False
        self._transport = None
        if self._disconnected is not None and not self._disconnected.done():
            self._disconnected.set_result(None)
        self.resume_writing()
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        unsent, self._unsent = self._unsent, {}
        error_class = TlsRequired if self._is_tls_required else NoReply
        for seqid, (reply, _, late_reply) in waiting.items():
            if not reply.done():
                reply.set_exception((NotSent if seqid in unsent else error_class)(why))
            elif late_reply is not None:
                late_reply.on_ended(self, seqid, None)
