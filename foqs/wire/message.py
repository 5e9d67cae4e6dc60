"""A Thrift message: its head, and structs to and from bytes.

Holds the two protocols, binary and compact; a reply leaves in the protocol of
its call. Always true: strings arrive as bytes, so that text is decoded
strictly by whoever knows the field; nothing is decoded beyond the limits given;
a message is read to its last byte or refused. Knows nothing of what a call does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

CALL: Final[int] = TMessageType.CALL
REPLY: Final[int] = TMessageType.REPLY
EXCEPTION: Final[int] = TMessageType.EXCEPTION

NAME_BYTES_MAX: Final = 64
_BINARY_VERSION: Final = 0x8001
_COMPACT_ID: Final = 0x82
_COMPACT_VERSION: Final = 1
_WORDS: Final = struct.Struct(">II")
_VARINT_BYTES_MAX: Final = 5


class BadMessage(Exception):
    """The message cannot be read; the text says why.

    `too_large`: it claims more than the limits allow.
    """

    def __init__(self, text: str, *, too_large: bool = False) -> None:
        super().__init__(text)
        self.too_large = too_large


@dataclass(slots=True, frozen=True)
class Head:
    """The first part of a message. `seqid` is kept as the bytes that came; `body` is where the struct begins."""

    compact: bool
    kind: int
    name: bytes
    seqid: bytes
    body: int


@dataclass(slots=True, frozen=True)
class Bounds:
    """What one message may hold."""

    string_bytes_max: int
    container_items_max: int


def read_head(message: bytes) -> Head:
    """The head of a message.

    Raises:
        BadMessage: it is not a head, so that the call cannot be answered.
    """
    if message[0] == _COMPACT_ID:
        return _read_compact_head(message)
    if len(message) < 12:
        raise BadMessage(f"a message of {len(message)} bytes has no room for its head")
    word, length = _WORDS.unpack_from(message)
    if word >> 16 != _BINARY_VERSION:
        raise BadMessage("this is not a Thrift message; use the binary or the compact protocol")
    end = 8 + length
    if not 0 < length <= NAME_BYTES_MAX or end + 4 > len(message):
        raise BadMessage(f"a method name of {length} bytes is impossible")
    return Head(False, word & 0xFF, message[8:end], message[end : end + 4], end + 4)


def _read_compact_head(message: bytes) -> Head:
    if len(message) < 4 or message[1] & 0x1F != _COMPACT_VERSION:
        raise BadMessage("this is not version 1 of the compact protocol")
    seqid_end = _varint_end(message, 2)
    name_start = _varint_end(message, seqid_end)
    length = 0
    for shift, byte in enumerate(message[seqid_end:name_start]):
        length |= (byte & 0x7F) << 7 * shift
    end = name_start + length
    if not 0 < length <= NAME_BYTES_MAX or end > len(message):
        raise BadMessage(f"a method name of {length} bytes is impossible")
    return Head(True, message[1] >> 5, message[name_start:end], message[2:seqid_end], end)


def _varint_end(message: bytes, start: int) -> int:
    for position in range(start, min(start + _VARINT_BYTES_MAX, len(message))):
        if message[position] < 0x80:
            return position + 1
    raise BadMessage("a number in the message's head has no end")


def raw_spec(kind: Any) -> list[Any]:
    """[class, spec] to decode `kind` with, where every string stays bytes."""
    fields = [
        field and (field[0], field[1], field[2], _raw_args(field[1], field[3]), None) for field in kind.thrift_spec
    ]
    return [kind, tuple(fields)]


def _raw_args(ttype: int, args: Any) -> Any:
    if ttype == TType.STRING:
        return "BINARY"
    if ttype == TType.STRUCT:
        return raw_spec(args[0])
    if ttype == TType.LIST:
        return (args[0], _raw_args(args[0], args[1]), args[2])
    return args


class Decoder:
    """Reads the structs of messages, within bounds; strings come as bytes."""

    def __init__(self, bounds: Bounds) -> None:
        binary, compact = (
            kind(
                TMemoryBuffer(),
                fallback=False,
                string_length_limit=bounds.string_bytes_max,
                container_length_limit=bounds.container_items_max,
            )
            for kind in (TBinaryProtocolAccelerated, TCompactProtocolAccelerated)
        )
        self._binary = binary
        self._compact = compact

    def decode(self, message: bytes, head: Head, spec: list[Any]) -> Any:
        """The struct after the head; `spec` is of `raw_spec`.

        Raises:
            BadMessage: it is truncated, nested too deeply, beyond the bounds, wrong in
                an element's type, or followed by more bytes.
        """
        buffer = TMemoryBuffer(message, head.body)
        protocol = self._compact if head.compact else self._binary
        protocol.trans = buffer
        decoded = spec[0]()
        try:
            protocol._fast_decode(decoded, protocol, spec)
        except EOFError:
            raise BadMessage("the message is truncated") from None
        except OverflowError as error:
            raise BadMessage(f"the message cannot be read: {error}", too_large="exceeded" in str(error)) from None
        except Exception as error:  # the decoder's errors have no common ancestor
            raise BadMessage(f"the message cannot be read: {error}") from None
        trailing = len(message) - buffer.cstringio_buf.tell()
        if trailing:
            raise BadMessage(f"{trailing} bytes follow the message in its frame")
        return decoded


_BINARY: Final = TBinaryProtocolAccelerated(TMemoryBuffer(), fallback=False)
_COMPACT: Final = TCompactProtocolAccelerated(TMemoryBuffer(), fallback=False)


def encode_struct(compact: bool, value: Any, spec: list[Any]) -> bytes:
    """A struct's bytes in the given protocol."""
    protocol = _COMPACT if compact else _BINARY
    encoded: bytes = protocol._fast_encode(value, spec)
    return encoded


def frame_reply(head: Head, kind: int, body: bytes) -> bytes:
    """A whole frame that answers the call of `head`."""
    name, seqid = head.name, head.seqid
    if head.compact:
        start = bytes((_COMPACT_ID, _COMPACT_VERSION | kind << 5)) + seqid + bytes((len(name),)) + name
    else:
        start = _WORDS.pack(_BINARY_VERSION << 16 | kind, len(name)) + name + seqid
    return b"".join(((len(start) + len(body)).to_bytes(4, "big"), start, body))


def frame_refusal(head: Head, reason: int, text: str) -> bytes:
    """A whole frame that answers the call of `head` with a TApplicationException."""
    buffer = TMemoryBuffer()
    kind = TCompactProtocolAccelerated if head.compact else TBinaryProtocolAccelerated
    TApplicationException(reason, text).write(kind(buffer, fallback=False))
    return frame_reply(head, EXCEPTION, buffer.getvalue())
