"""Frames: bytes in, messages out.

Holds the bytes of incomplete frames. Always true: memory grows with the bytes
received, not with the length that a frame announces; every byte held, here or
by a call in flight, is counted in one `ByteBudget` for the whole host. When the
budget is used up, a frame is *shed*: only its first bytes are kept, enough to
answer the call, and the rest is dropped on arrival. Of Thrift it knows only the
first bytes of unframed clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from foqs_contract.message_heads import LENGTH, LENGTH_BYTES

_unpack_length: Final = LENGTH.unpack_from
SHED_HEAD_BYTES: Final = 300
"""The number of bytes that are kept of a shed frame: they contain the method name and the sequence id."""

_FOREIGN_PROTOCOLS: Final = (
    (b"\x80\x01", "an unframed Thrift client; use the framed transport"),
    (b"\x82", "an unframed Thrift client (compact); use the framed transport"),
    (b"\x16\x03", "a TLS client; this server does not speak TLS"),
    (b"SSH-", "an SSH client"),
)
_HTTP_METHODS: Final = (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"TRAC", b"PRI ")


class BadFrame(Exception):
    """The stream cannot be read any further: the connection must be closed."""


class ByteBudget:
    """The limit of the bytes that all connections of a host hold together."""

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
        frame_bytes_max: a longer frame ends the connection.
        byte_budget: counts the held bytes. The receiver of a complete frame releases
            the frame's bytes.
    """

    def __init__(self, frame_bytes_max: int, byte_budget: ByteBudget) -> None:
        self._frame_bytes_max = frame_bytes_max
        self.shed_above_bytes = frame_bytes_max
        """The size above which frames are shed."""
        self._byte_budget = byte_budget
        self._length_prefix = bytearray()
        self._parts: list[bytes] = []
        self._missing_bytes = -1
        self._held_bytes = 0
        self._is_shed = False
        self.is_mid_frame = False
        """Whether the last bytes belong to an incomplete frame."""

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bool]]:
        """Yield (message, is_shed) for each frame that `data` completes.

        Raises:
            BadFrame: a length is negative, zero or too large; the text guesses the kind
                of client.
        """
        position, end = 0, len(data)
        budget = self._byte_budget
        while position < end:
            start = position + LENGTH_BYTES
            if start <= end and not self.is_mid_frame:
                [length] = _unpack_length(data, position)
                stop = start + length
                fits = budget.reserved_bytes + length <= budget.bytes_max
                if fits and stop <= end and 0 < length <= self.shed_above_bytes:
                    budget.reserved_bytes += length
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
        """Drop the held bytes, because the connection ends."""
        self._byte_budget.release_reservation(self._held_bytes)
        self._held_bytes = 0
        self._parts.clear()
        self._length_prefix.clear()
        self._missing_bytes = -1
        self.is_mid_frame = False

    def _read_length(self, data: bytes, position: int) -> int:
        """Read the available bytes of a length; return the position after them. Raises BadFrame."""
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
        """Keep the first bytes of a shed frame. They are too few to count: connections are limited."""
        kept_bytes = sum(map(len, self._parts))
        if kept_bytes < SHED_HEAD_BYTES:
            self._parts.append(part[: SHED_HEAD_BYTES - kept_bytes])

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
            return "this looks like an HTTP client; speak framed Thrift to this server"
        for prefix, client in _FOREIGN_PROTOCOLS:
            if first.startswith(prefix):
                return f"this looks like {client}"
        if length <= 0:
            return f"a frame cannot have {length} bytes"
        return f"a frame of {length} bytes is larger than the limit of {self._frame_bytes_max}"
