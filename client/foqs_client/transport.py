"""The framed, pipelined transport of the client.

Holds one connection, the calls that wait on it, and who to connect to next.
Always true: a call is sent on one connection once; `NotSent` means that not a
byte of it left, `NoReply` that it may have been received. A reply that nobody
waits for any more is dropped. Knows nothing of what a call means.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, cast

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TMemoryBuffer

Factory: TypeAlias = Callable[[], asyncio.BaseProtocol]
Connect: TypeAlias = Callable[[Factory, str, int], Awaitable[tuple[asyncio.BaseTransport, asyncio.BaseProtocol]]]
"""As `loop.create_connection`: (protocol factory, host, port)."""

FRAME_BYTES_MAX: Final = 128 << 20
CONNECT_TIMEOUT_S: Final = 3.0
RETRY_PAUSE_S_MIN: Final = 0.05
RETRY_PAUSE_S_MAX: Final = 1.0

_VERSION: Final = 0x80010000
_WORDS: Final = struct.Struct(">II")
_ENCODER: Final = TBinaryProtocolAccelerated(TMemoryBuffer(), fallback=False)


class NotSent(Exception):
    """No connection could be had in time: nothing of the call left."""


class NoReply(Exception):
    """The call was sent, and no reply came: the connection broke, or time ran out."""


class Refused(Exception):
    """The host could not read the call; `reason` is a TApplicationException's type."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Unencodable(Exception):
    """The arguments do not fit the contract: nothing was sent."""


class Link(asyncio.Protocol):
    """One connection and the calls that wait on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._needed = 4
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._seqid = 0
        self._writable: asyncio.Future[None] | None = None
        self.lost: str | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def writable(self) -> None:
        """Returns when the peer reads again what was written."""
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def send(self, name: bytes, body: bytes) -> tuple[int, asyncio.Future[bytes]]:
        """Writes a call; its message comes with the future, or `NoReply`. The link is usable."""
        assert self._transport is not None
        self._seqid = (self._seqid + 1) & 0x7FFFFFFF
        while self._seqid in self._waiting:
            self._seqid = (self._seqid + 1) & 0x7FFFFFFF
        seqid = self._seqid
        head = _WORDS.pack(_VERSION | TMessageType.CALL, len(name)) + name + seqid.to_bytes(4, "big")
        reply: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[seqid] = reply
        self._transport.write(b"".join(((len(head) + len(body)).to_bytes(4, "big"), head, body)))
        return seqid, reply

    def forget(self, seqid: int) -> None:
        """Nobody waits for this reply any more."""
        self._waiting.pop(seqid, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        position = 0
        self._needed = 4
        while len(data) - position >= 4:
            length = int.from_bytes(data[position : position + 4], "big")
            if not 12 <= length <= FRAME_BYTES_MAX:
                self._break(f"it sent a frame of {length} bytes; this is no FOQS host")
                return
            end = position + 4 + length
            if len(data) < end:
                self._needed = end - position
                break
            if not self._receive(data[position + 4 : end]):
                return
            position = end
        self._buffer += data[position:]

    def _receive(self, message: bytes) -> bool:
        word, length = _WORDS.unpack_from(message)
        if word >> 16 != _VERSION >> 16 or length > len(message) - 12:
            self._break("it sent what is not a Thrift message; this is no FOQS host")
            return False
        waiting = self._waiting.pop(int.from_bytes(message[8 + length : 12 + length], "big"), None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
        return True

    def _break(self, why: str) -> None:
        self.lost = why
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        writable, self._writable = self._writable, None
        if writable is not None and not writable.done():
            writable.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        why = self.lost = self.lost or str(exc or "") or "the host closed the connection"
        self._transport = None
        self.resume_writing()
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(NoReply(why))


class Transport:
    """Calls to the first of some hosts that can be reached.

    Args:
        addresses: tried in turn, beginning with the one that worked last.
        connect: opens a connection; the running loop's `create_connection` unless given.
    """

    def __init__(self, addresses: Sequence[tuple[str, int]], connect: Connect | None = None) -> None:
        self._addresses = list(addresses)
        self._connect = connect
        self._current = 0
        self._link: Link | None = None
        self._opening: asyncio.Task[Link] | None = None
        self._closed = False

    async def call(
        self, name: str, arguments: Any, result_class: Any, send_deadline: float, reply_deadline: float
    ) -> Any:
        """The decoded result struct of one call; deadlines are moments of the loop's clock.

        `arguments.request.timeout_ms` is set to what is left when it is sent.

        Raises:
            Unencodable, NotSent: nothing left.
            NoReply: it left, and no reply came by its deadline.
            Refused: the host could not read it.
        """
        body = encode(arguments)
        begun_at = asyncio.get_running_loop().time()
        link = await self._usable_link(send_deadline)
        waited_ms = int((asyncio.get_running_loop().time() - begun_at) * 1_000)
        if waited_ms:
            arguments.request.timeout_ms = max(1, arguments.request.timeout_ms - waited_ms)
            body = encode(arguments)
        seqid, reply = link.send(name.encode(), body)
        try:
            async with asyncio.timeout_at(reply_deadline):
                message = await reply
        except TimeoutError:
            raise NoReply("no reply came in time") from None
        finally:
            link.forget(seqid)
        return decode(message, result_class)

    async def close(self) -> None:
        """Closes the connection; calls that wait end as `NoReply`."""
        self._closed = True
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
        if self._link is not None:
            self._link.close()
            self._link = None

    async def _usable_link(self, deadline: float) -> Link:
        """A link that may be written to now; no await lies between the check and the return."""
        loop = asyncio.get_running_loop()
        pause_s = RETRY_PAUSE_S_MIN
        why = "there was no time"
        while loop.time() < deadline:
            link = self._link
            try:
                async with asyncio.timeout_at(deadline):
                    if link is None or not link.usable:
                        link = await self._open()
                    await link.writable()
            except TimeoutError:
                break
            except OSError as error:
                why = _reason(error)
                await asyncio.sleep(max(0.0, min(pause_s, deadline - loop.time())))
                pause_s = min(2 * pause_s, RETRY_PAUSE_S_MAX)
                continue
            if link.usable:
                return link
        hosts = ", ".join(f"{host}:{port}" for host, port in self._addresses)
        raise NotSent(f"no connection to {hosts}: {why}; is the host running there?")

    async def _open(self) -> Link:
        """One attempt at every address, shared by all calls that wait for it."""
        if self._closed:
            raise NotSent("the client is closed")
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open_any())
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and not (task is not None and task.cancelling()):
                raise NotSent("the client is closed") from None
            raise

    def _opened(self, task: asyncio.Task[Link]) -> None:
        self._opening = None
        if not task.cancelled() and task.exception() is None:
            self._link = task.result()

    async def _open_any(self) -> Link:
        loop = asyncio.get_running_loop()
        connect = self._connect or loop.create_connection
        failures: list[str] = []
        for _ in self._addresses:
            host, port = self._addresses[self._current]
            link = Link(loop)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await connect(lambda link=link: link, host, port)  # type: ignore[misc]
            except (OSError, TimeoutError) as error:
                failures.append(_reason(error))
                self._current = (self._current + 1) % len(self._addresses)
            else:
                return link
        raise OSError("; ".join(dict.fromkeys(failures)))


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or type(error).__name__


def encode(arguments: Any) -> bytes:
    """Raises Unencodable."""
    try:
        encoded: bytes = _ENCODER._fast_encode(arguments, [type(arguments), arguments.thrift_spec])
    except Exception as error:  # the encoder's errors have no common ancestor
        raise Unencodable(str(error)) from None
    return encoded


def decode(message: bytes, result_class: Any) -> Any:
    """The result struct of a reply. Raises Refused, or NoReply where it cannot be read."""
    word, length = _WORDS.unpack_from(message)
    refused = word & 0xFF == TMessageType.EXCEPTION
    result = TApplicationException() if refused else result_class()
    try:
        result.read(TBinaryProtocolAccelerated(TMemoryBuffer(message, 12 + length), fallback=False))
    except Exception as error:  # the decoder's errors have no common ancestor
        raise NoReply(f"the reply cannot be read: {error}") from None
    if refused:
        raise Refused(result.type, str(result))
    return result
