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
SHED_HEAD_BYTES: Final = 300
"""What is kept of a shed frame: the message's name and sequence id lie within."""

_FOREIGN_PROTOCOLS: Final = (
    (b"\x80\x01", "an unframed Thrift client; use the framed transport"),
    (b"\x82", "an unframed Thrift client (compact); use the framed transport"),
    (b"\x16\x03", "a TLS client; this listener does not speak TLS"),
    (b"SSH-", "an SSH client"),
)
_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ")


class BadFrame(Exception):
    """The stream cannot be followed any further: the connection must be closed."""


class ByteBudget:
    """Bytes held for all connections of a host, against one limit."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.reserved_bytes = 0

    def reserve(self, byte_count: int) -> bool:
        if self.reserved_bytes + byte_count > self.bytes_max:
            return False
        self.reserved_bytes += byte_count
        return True

    def release_reservation(self, byte_count: int) -> None:
        self.reserved_bytes -= byte_count


class FrameReader:
    """The frames of one connection.

    Args:
        frame_bytes_max: a frame that claims more ends the connection.
        byte_budget: where held bytes are counted. A whole frame's bytes stay counted
            until its receiver gives them back.
    """

    def __init__(self, frame_bytes_max: int, byte_budget: ByteBudget) -> None:
        self._frame_bytes_max = frame_bytes_max
        self.shed_above_bytes = frame_bytes_max
        """A longer frame is shed."""
        self._byte_budget = byte_budget
        self._length_prefix = bytearray()
        self._parts: list[bytes] = []
        self._missing_bytes = -1
        self._held_bytes = 0
        self._is_shed = False
        self.is_mid_frame = False
        """Whether a frame has begun and is not whole."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yields (message, shed) for each frame that `data` completes.

        Raises:
            BadFrame: a length is negative, zero or too large; the text says what the
                client seems to be.
        """
        position, end = 0, len(data)
        room = self._byte_budget
        while position < end:
            start = position + LENGTH_BYTES
            if start <= end and not self.is_mid_frame:
                [length] = _LENGTH.unpack_from(data, position)
                stop = start + length
                fits = room.reserved_bytes + length <= room.bytes_max
                if fits and stop <= end and 0 < length <= self.shed_above_bytes:
                    room.reserved_bytes += length
                    yield data[start:stop], False
                    position = stop
                    continue
            if self._missing_bytes < 0:
                position = self._read_length(data, position)
                if self._missing_bytes < 0:
                    return
            stop = min(end, position + self._missing_bytes)
            self._append(data[position:stop])
            self._missing_bytes -= stop - position
            position = stop
            if self._missing_bytes == 0:
                yield self._complete_frame()

    def discard(self) -> None:
        """Drops what is held; for a connection that ends."""
        self._byte_budget.release_reservation(self._held_bytes)
        self._held_bytes = 0
        self._parts.clear()
        self._length_prefix.clear()
        self._missing_bytes = -1
        self.is_mid_frame = False

    def _read_length(self, data: bytes, position: int) -> int:
        """Reads a length, or as much of it as there is; returns the position after it."""
        self.is_mid_frame = True
        stop = min(len(data), position + LENGTH_BYTES - len(self._length_prefix))
        self._length_prefix += data[position:stop]
        if len(self._length_prefix) == LENGTH_BYTES:
            length = int.from_bytes(self._length_prefix, "big", signed=True)
            if not 0 < length <= self._frame_bytes_max:
                raise BadFrame(self._bad_length_text(length))
            self._length_prefix.clear()
            self._missing_bytes = length
            self._is_shed = length > self.shed_above_bytes
        return stop

    def _append(self, part: bytes) -> None:
        if self._is_shed:
            self._append_head(part)
        elif self._byte_budget.reserve(len(part)):
            self._parts.append(part)
            self._held_bytes += len(part)
        else:
            self._is_shed = True
            head = b"".join(self._parts)
            self._parts.clear()
            self._byte_budget.release_reservation(self._held_bytes)
            self._held_bytes = 0
            self._append_head(head + part[:SHED_HEAD_BYTES])

    def _append_head(self, part: bytes) -> None:
        """A shed frame's few first bytes are not worth counting: connections are limited."""
        have = sum(map(len, self._parts))
        if have < SHED_HEAD_BYTES:
            self._parts.append(part[: SHED_HEAD_BYTES - have])

    def _complete_frame(self) -> tuple[bytes, bool]:
        message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._held_bytes = 0
        self._missing_bytes = -1
        self.is_mid_frame = False
        return message, self._is_shed

    def _bad_length_text(self, length: int) -> str:
        first = bytes(self._length_prefix)
        if first in _HTTP_METHODS:
            return "this looks like an HTTP client; speak framed Thrift to this port"
        for start, who in _FOREIGN_PROTOCOLS:
            if first.startswith(start):
                return f"this looks like {who}"
        if length <= 0:
            return f"a frame of {length} bytes is impossible"
        return f"a frame of {length} bytes is larger than the limit of {self._frame_bytes_max}"
