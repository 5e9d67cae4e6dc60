"""The frames and the callers of the minimal queue, with one item per call; `least_server` is its server.

A frame is a length, a kind, and items, ids or a number. Always true: calls of one
turn of the loop are sent as one frame of each kind, and are answered in order. An
item for a caller that has left goes to the next caller. Knows nothing of databases.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from perf.lib.caller import NOTHING, Batch, Caller, Put, Taken, all_durable

PUT, TAKE, DONE = b"P", b"T", b"D"
COUNT: Final = struct.Struct("<I")
ID: Final = struct.Struct("<q")
ITEM: Final = struct.Struct("<qI")
"""An item's id, 0 where it has none yet, and the bytes of its payload, which follows."""
_SWEEP_S: Final = 0.02

Wait = tuple[float, "asyncio.Future[Taken]"]


class Frames(asyncio.Protocol):
    """Splits the bytes of a connection into frames: a length, a kind and its content."""

    def __init__(
        self,
        take: Callable[[asyncio.WriteTransport, bytes, bytes], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        self._take = take
        self._lost = lost
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        data = self._data + data if self._data else data
        start, end = 0, len(data)
        while end - start >= COUNT.size:
            begin = start + COUNT.size
            stop = begin + COUNT.unpack_from(data, start)[0]
            if stop > end:
                break
            self._take(self._transport, data[begin : begin + 1], data[begin + 1 : stop])
            start = stop
        self._data = data[start:]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._lost is not None:
            self._lost()


def frame(kind: bytes, body: bytes) -> bytes:
    return COUNT.pack(1 + len(body)) + kind + body


def items_in(body: bytes) -> list[tuple[int, bytes]]:
    found, start = [], 0
    while start < len(body):
        number, size = ITEM.unpack_from(body, start)
        start += ITEM.size + size
        found.append((number, body[start - size : start]))
    return found


def packed(items: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join([ITEM.pack(number, len(payload)) + payload for number, payload in items])


class LeastSession:
    """One connection, shared by callers with calls of one item."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._transport: asyncio.WriteTransport | None = None
        self._outgoing: dict[bytes, list[bytes]] = {}
        self._putting: deque[asyncio.Future[None]] = deque()
        self._finishing: deque[asyncio.Future[None]] = deque()
        self._taking: deque[Wait] = deque()
        self._owed = 0
        """The number of items requested by callers that have given up since."""
        self._stash: deque[tuple[int, bytes]] = deque()
        self._sweeper: asyncio.Task[None] | None = None

    async def caller(self) -> Caller:
        if self._transport is None:
            self._loop = asyncio.get_running_loop()
            host, _, port = self._place.rpartition(":")
            made = await self._loop.create_connection(lambda: Frames(self._answered, self._lost), host, int(port))
            self._transport = cast(asyncio.WriteTransport, made[0])
            self._sweeper = self._loop.create_task(self._sweep())
        return _LeastCaller(self)

    async def close(self) -> None:
        if self._transport is not None and self._sweeper is not None:
            self._sweeper.cancel()
            self._transport.close()

    async def put(self, items: Batch) -> Put:
        (payload,) = items.payloads
        await self._sent(PUT, ITEM.pack(0, len(payload)) + payload, self._putting)
        return all_durable(items)

    async def take(self, wants: Mapping[str, int], wait_ms: int) -> Taken:
        if self._stash:
            number, payload = self._stash.popleft()
            return (number,), (payload,)
        future: asyncio.Future[Taken] = self._loop.create_future()
        self._taking.append((time.monotonic() + wait_ms / 1000, future))
        if self._owed:
            self._owed -= 1
        else:
            self._send(TAKE, b"")
        return await future

    async def done(self, handles: Sequence[Any]) -> None:
        await self._sent(DONE, ID.pack(handles[0]), self._finishing)

    async def _sent(self, kind: bytes, body: bytes, answers: deque[asyncio.Future[None]]) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        answers.append(future)
        self._send(kind, body)
        await future

    def _send(self, kind: bytes, body: bytes) -> None:
        """Send it together with the others of this turn."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.setdefault(kind, []).append(body)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        assert self._transport is not None
        for kind, bodies in outgoing.items():
            self._transport.write(frame(kind, COUNT.pack(len(bodies)) if kind == TAKE else b"".join(bodies)))

    def _answered(self, transport: asyncio.WriteTransport, kind: bytes, body: bytes) -> None:
        if kind == TAKE:
            for number, payload in items_in(body):
                if self._taking:
                    self._taking.popleft()[1].set_result(((number,), (payload,)))
                else:
                    self._owed -= 1
                    self._stash.append((number, payload))
            return
        answers = self._putting if kind == PUT else self._finishing
        for _ in range(COUNT.unpack(body)[0]):
            answers.popleft().set_result(None)

    def _lost(self) -> None:
        """End all waits, as the server is gone."""
        error = ConnectionResetError("the minimal queue's server closed the connection")
        waiting: list[asyncio.Future[Any]] = [*self._putting, *self._finishing, *(future for _, future in self._taking)]
        for future in waiting:
            if not future.done():
                future.set_exception(error)

    async def _sweep(self) -> None:
        """End the waits that are over. The items requested for them go to the next callers."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            now = time.monotonic()
            while self._taking and self._taking[0][0] <= now:
                self._taking.popleft()[1].set_result(NOTHING)
                self._owed += 1


class _LeastCaller:
    def __init__(self, session: LeastSession) -> None:
        self.put = session.put
        self.take = session.take
        self.done = session.done

    async def close(self) -> None:
        pass
