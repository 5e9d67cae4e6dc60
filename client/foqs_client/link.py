"""One connection to a host, and the calls that wait on it.

Holds `Link`. Always true: calls made in one turn of the loop leave in one write,
but for the first while none is under way, which leaves at once;
`NotSent` means that not a byte of a call left, `NoReply` that it may have been
received. A reply that nobody waits for any more is dropped. One timer serves
the deadlines of all calls. Knows nothing of what a call means.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final, cast

from thrift.Thrift import TMessageType

from foqs_client.message import VERSION, Method, refusal

FRAME_BYTES_MAX: Final = 128 << 20
UNSENT_BYTES_MAX: Final = 64 << 10
"""More is written at once, so that the transport can say when it is too much."""
LEAVE_S: Final = 1.0
"""The orderly end of TLS needs the peer; it is not waited for longer."""
TICK_S: Final = 0.01
"""Deadlines are looked at no more often than this."""

_REPLY: Final = VERSION | TMessageType.REPLY
_EXCEPTION: Final = VERSION | TMessageType.EXCEPTION
_KINDS: Final = (_REPLY, _EXCEPTION)
_HEAD: Final = struct.Struct(">III")
"""Of a frame: length of the message, its version and type, length of its name."""
_SEQID: Final = struct.Struct(">I")
_MESSAGE_BYTES_MIN: Final = 12
_NEVER: Final = float("inf")
_TLS_ALERT: Final = b"\x15\x03"
"""How the answer of a port begins that speaks TLS only."""


class NotSent(Exception):
    """Nothing of the call left: no connection could be had in time, or it was lost before."""


class NoReply(Exception):
    """The call was sent, and no reply came: the connection broke, or time ran out."""


class NotServed(NoReply):
    """The call was sent to a port that serves no calls without TLS: it was not read."""


class Link(asyncio.Protocol):
    """One connection.

    Attributes:
        ready: calls may be sent now.
        open: it can still become ready.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.ready = False
        self.open = True
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._needed = 0
        self._seqid = 0
        self._waiting: dict[int, tuple[asyncio.Future[bytes], float]] = {}
        self._unsent: dict[int, bytes] = {}
        self._unsent_bytes = 0
        self._will_flush = False
        self._writable: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = _NEVER
        self._why: str | None = None
        self._not_served = False
        self._gone: asyncio.Future[None] | None = None

    # -------------------------------------------------------------------- calls

    def send(self, method: Method, body: bytes, deadline: float) -> tuple[int, asyncio.Future[bytes]]:
        """Sends a call in this turn of the loop. The link is ready.

        Returns:
            Its number, and what comes: the reply after its head, `Refused`,
            `NotSent` or `NoReply`. Who stops waiting calls `forget`.
        """
        seqid = (self._seqid + 1) & 0x7FFFFFFF
        while seqid in self._waiting:
            seqid = (seqid + 1) & 0x7FFFFFFF
        self._seqid = seqid
        frame = method.frame(seqid, body)
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[seqid] = (reply, deadline)
        if deadline < self._alarm_at:
            self._set_alarm(deadline)
        self._unsent[seqid] = frame
        self._unsent_bytes += len(frame)
        if self._unsent_bytes > UNSENT_BYTES_MAX:
            self._flush()
        elif not self._will_flush:
            if len(self._waiting) == 1:
                self._flush()  # the only one under way: others may follow in this turn, and need not be waited for
            else:
                self._flush_soon()
        return seqid, reply

    def forget(self, seqid: int) -> None:
        """Nobody waits for this reply any more."""
        self._waiting.pop(seqid, None)

    @property
    def in_flight(self) -> int:
        """Calls that wait for their replies."""
        return len(self._waiting)

    async def writable(self) -> None:
        """Returns when the peer reads again what was written."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def close(self) -> None:
        self.ready = self.open = False
        if self._transport is not None:
            self._transport.close()

    async def closed(self) -> None:
        """Closes, and returns when the connection is gone: TLS takes leave of its peer first, for a second at most."""
        self.close()
        transport = self._transport
        if transport is not None and transport.get_extra_info("sslcontext") is not None:
            self._gone = self._loop.create_future()
            await asyncio.wait((self._gone,), timeout=LEAVE_S)
            transport.abort()

    def abort(self) -> None:
        """Closes without waiting for anything."""
        self.ready = self.open = False
        if self._transport is not None:
            self._transport.abort()

    def _flush_soon(self) -> None:
        self._will_flush = True
        self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._will_flush = False
        if self._unsent:
            self._flush()

    def _flush(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # `connection_lost` follows, and tells who was not sent
        frames = b"".join(self._unsent.values())
        self._unsent.clear()
        self._unsent_bytes = 0
        self._transport.write(frames)

    # ---------------------------------------------------------------- deadlines

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = self._loop.call_at(at, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, _NEVER
        now, earliest = self._loop.time(), _NEVER
        for reply, deadline in self._waiting.values():
            if deadline > now:
                earliest = min(earliest, deadline)
            elif not reply.done():
                reply.set_exception(NoReply("no reply came in time"))
        if earliest < _NEVER:
            self._set_alarm(max(earliest, now + TICK_S))

    # ------------------------------------------------------- what the peer sends

    def data_received(self, data: bytes) -> None:
        if self._received:
            self._received += data
            if len(self._received) < self._needed:
                return
            data = bytes(self._received)
            self._received.clear()
        position, size = 0, len(data)
        self._needed = _HEAD.size
        while size - position >= _HEAD.size:
            length, word, named = _HEAD.unpack_from(data, position)
            begin = position + 4 + _MESSAGE_BYTES_MIN + named
            end = position + 4 + length
            if word not in _KINDS or length > FRAME_BYTES_MAX or begin > end:
                self._break("it sent what is not a reply of Thrift; this is no FOQS host")
                return
            if end > size:
                self._needed = end - position
                break
            waiting = self._waiting.pop(_SEQID.unpack_from(data, begin - 4)[0], None)
            if waiting is not None and not waiting[0].done():
                if word == _REPLY:
                    waiting[0].set_result(data[begin:end])
                else:
                    waiting[0].set_exception(refusal(data[begin:end]))
            position = end
        if position < size:
            self._keep(data[position:])
        if not self._will_flush:
            # After those who were just woken, in the same turn: what they send next leaves together.
            self._flush_soon()

    def _keep(self, tail: bytes) -> None:
        """The beginning of a frame waits for the rest."""
        length = int.from_bytes(tail[:4], "big")
        if tail.startswith(_TLS_ALERT):
            self._not_served = True
            self._break("it speaks TLS; begin its address with foqss://")
        elif len(tail) >= 4 and not _MESSAGE_BYTES_MIN <= length <= FRAME_BYTES_MAX:
            self._break(f"it sent a frame of {length} bytes; this is no FOQS host")
        else:
            self._received += tail

    def _break(self, why: str) -> None:
        self._why = why
        self.abort()

    # ----------------------------------------------------------- the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.ready = self.open

    def pause_writing(self) -> None:
        self.ready = False
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        self.ready = self.open
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def eof_received(self) -> None:
        self.ready = self.open = False

    def connection_lost(self, exc: Exception | None) -> None:
        why = self._why or str(exc or "") or "the host closed the connection"
        self.open = False
        self._transport = None
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)
        self.resume_writing()
        if self._alarm is not None:
            self._alarm.cancel()
        waiting, self._waiting = self._waiting, {}
        unsent, self._unsent = self._unsent, {}
        ended = NotServed if self._not_served else NoReply
        for seqid, (reply, _) in waiting.items():
            if not reply.done():
                reply.set_exception((NotSent if seqid in unsent else ended)(why))
