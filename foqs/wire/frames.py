"""Frames: bytes in, messages out.

Holds the bytes of a frame that is not whole yet. Always true: memory follows
the bytes that were received, never the length that was claimed; every byte
held, here or by a call in flight, is counted in one `Room` for the whole host.
When the room is full a frame is *shed*: only its first bytes are kept, enough
to answer the call, and the rest is dropped as it comes. Knows nothing of
Thrift beyond how an unframed or foreign client's first bytes look.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

LENGTH_BYTES: Final = 4
_LENGTH: Final = struct.Struct(">i")
HEAD_BYTES: Final = 300
"""What is kept of a shed frame: the message's name and sequence id lie within."""

_FOREIGN: Final = (
    (b"\x80\x01", "an unframed Thrift client; use the framed transport"),
    (b"\x82", "an unframed Thrift client (compact); use the framed transport"),
    (b"\x16\x03", "a TLS client; this listener does not speak TLS"),
    (b"SSH-", "an SSH client"),
)
_HTTP: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ")


class BadFrame(Exception):
    """The stream cannot be followed any further: the connection must be closed."""


class Room:
    """Bytes held for all connections of a host, against one limit."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0

    def take(self, count: int) -> bool:
        if self.used + count > self.bytes_max:
            return False
        self.used += count
        return True

    def give(self, count: int) -> None:
        self.used -= count


class Frames:
    """The frames of one connection.

    Args:
        frame_bytes_max: a frame that claims more ends the connection.
        room: where held bytes are counted. A whole frame's bytes stay counted
            until its receiver gives them back.
    """

    def __init__(self, frame_bytes_max: int, room: Room) -> None:
        self._frame_bytes_max = frame_bytes_max
        self.whole_bytes_max = frame_bytes_max
        """A longer frame is shed."""
        self._room = room
        self._length = bytearray()
        self._parts: list[bytes] = []
        self._missing = -1
        self._held = 0
        self._shed = False
        self.halfway = False
        """Whether a frame has begun and is not whole."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yields (message, shed) for each frame that `data` completes.

        Raises:
            BadFrame: a length is negative, zero or too large; the text says what the
                client seems to be.
        """
        position, end = 0, len(data)
        room = self._room
        while position < end:
            start = position + LENGTH_BYTES
            if start <= end and not self.halfway:
                [length] = _LENGTH.unpack_from(data, position)
                stop = start + length
                fits = room.used + length <= room.bytes_max
                if fits and stop <= end and 0 < length <= self.whole_bytes_max:
                    room.used += length
                    yield data[start:stop], False
                    position = stop
                    continue
            if self._missing < 0:
                position = self._begin(data, position)
                if self._missing < 0:
                    return
            stop = min(end, position + self._missing)
            self._keep(data[position:stop])
            self._missing -= stop - position
            position = stop
            if self._missing == 0:
                yield self._finish()

    def forget(self) -> None:
        """Drops what is held; for a connection that ends."""
        self._room.give(self._held)
        self._held = 0
        self._parts.clear()
        self._length.clear()
        self._missing = -1
        self.halfway = False

    def _begin(self, data: bytes, position: int) -> int:
        """Reads a length, or as much of it as there is; returns the position after it."""
        self.halfway = True
        stop = min(len(data), position + LENGTH_BYTES - len(self._length))
        self._length += data[position:stop]
        if len(self._length) == LENGTH_BYTES:
            length = int.from_bytes(self._length, "big", signed=True)
            if not 0 < length <= self._frame_bytes_max:
                raise BadFrame(self._explain(length))
            self._length.clear()
            self._missing = length
            self._shed = length > self.whole_bytes_max
        return stop

    def _keep(self, part: bytes) -> None:
        if self._shed:
            self._keep_head(part)
        elif self._room.take(len(part)):
            self._parts.append(part)
            self._held += len(part)
        else:
            self._shed = True
            head = b"".join(self._parts)
            self._parts.clear()
            self._room.give(self._held)
            self._held = 0
            self._keep_head(head + part[:HEAD_BYTES])

    def _keep_head(self, part: bytes) -> None:
        """A shed frame's few first bytes are not worth counting: connections are limited."""
        have = sum(map(len, self._parts))
        if have < HEAD_BYTES:
            self._parts.append(part[: HEAD_BYTES - have])

    def _finish(self) -> tuple[bytes, bool]:
        message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        self._missing = -1
        self.halfway = False
        return message, self._shed

    def _explain(self, length: int) -> str:
        first = bytes(self._length)
        if first in _HTTP:
            return "this looks like an HTTP client; speak framed Thrift to this port"
        for start, who in _FOREIGN:
            if first.startswith(start):
                return f"this looks like {who}"
        if length <= 0:
            return f"a frame of {length} bytes is impossible"
        return f"a frame of {length} bytes is larger than the limit of {self._frame_bytes_max}"
