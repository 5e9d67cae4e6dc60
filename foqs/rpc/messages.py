"""Thrift messages: their heads, and structs to and from bytes.

Holds the two protocols, binary and compact; a reply uses the protocol of its
call. Always true: strings are decoded as bytes, because only the code that
knows a field can check its text; nothing beyond the limits is decoded; a
message is read to its last byte or refused. Knows nothing of what a call does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Final

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

CALL: Final[int] = TMessageType.CALL
REPLY: Final[int] = TMessageType.REPLY
EXCEPTION: Final[int] = TMessageType.EXCEPTION

NAME_BYTES_MAX: Final = 64
HEAD_BYTES_MIN: Final = 12
"""The shortest head in the binary protocol."""
_BINARY_VERSION: Final = 0x8001
_COMPACT_ID: Final = 0x82
_COMPACT_VERSION: Final = 1
_WORDS: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
_SEQID_BYTES: Final = 4
_VARINT_BYTES_MAX: Final = 5


class BadMessage(Exception):
    """The message cannot be read; the text says why.

    `too_large`: its size exceeds a limit.
    """

    def __init__(self, text: str, *, too_large: bool = False) -> None:
        super().__init__(text)
        self.too_large = too_large


@dataclass(slots=True, frozen=True)
class MessageHead:
    """The head of a message, without its sequence id; the struct begins at `body_start`."""

    is_compact: bool
    message_type: int
    name: bytes
    body_start: int
    reply_prefix: bytes
    """The first bytes of a reply's head; in the binary protocol all but the sequence id."""


def call_prefix(name: bytes) -> bytes:
    """Return the bytes of a call before its sequence id, in the binary protocol."""
    return _WORDS.pack(_BINARY_VERSION << 16 | CALL, len(name)) + name


def call_head(name: bytes) -> MessageHead:
    """Return the head of a message that begins with `call_prefix(name)`."""
    return _binary_head(CALL, name)


def _binary_head(kind: int, name: bytes) -> MessageHead:
    reply = _WORDS.pack(_BINARY_VERSION << 16 | REPLY, len(name)) + name
    return MessageHead(False, kind, name, 8 + len(name) + _SEQID_BYTES, reply)


@dataclass(slots=True, frozen=True)
class DecodeLimits:
    """The limits of one message."""

    string_bytes_max: int
    container_items_max: int


def read_head(message: bytes) -> tuple[MessageHead, bytes]:
    """Return the head of a message, and its sequence id as bytes.

    Raises:
        BadMessage: there is no valid head, so the call cannot be answered.
    """
    if message[0] == _COMPACT_ID:
        return _read_compact_head(message)
    if len(message) < HEAD_BYTES_MIN:
        raise BadMessage(f"a message of {len(message)} bytes is too short for its head")
    word, length = _WORDS.unpack_from(message)
    if word >> 16 != _BINARY_VERSION:
        raise BadMessage("this is not a Thrift message; use the binary or the compact protocol")
    end = 8 + length
    if not 0 < length <= NAME_BYTES_MAX or end + 4 > len(message):
        raise BadMessage(f"a method name of {length} bytes is impossible")
    return _binary_head(word & 0xFF, message[8:end]), message[end : end + _SEQID_BYTES]


def _read_compact_head(message: bytes) -> tuple[MessageHead, bytes]:
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
    reply = bytes((_COMPACT_ID, _COMPACT_VERSION | REPLY << 5))
    return MessageHead(True, message[1] >> 5, message[name_start:end], end, reply), message[2:seqid_end]


def _varint_end(message: bytes, start: int) -> int:
    for position in range(start, min(start + _VARINT_BYTES_MAX, len(message))):
        if message[position] < 0x80:
            return position + 1
    raise BadMessage("a number in the message's head has no end")


def bytes_spec(kind: Any) -> list[Any]:
    """Return the [class, spec] that decodes `kind` and keeps every string as bytes."""
    fields = [
        field and (field[0], field[1], field[2], _bytes_args(field[1], field[3]), None) for field in kind.thrift_spec
    ]
    return [kind, tuple(fields)]


def _bytes_args(ttype: int, args: Any) -> Any:
    if ttype == TType.STRING:
        return "BINARY"
    if ttype == TType.STRUCT:
        return bytes_spec(args[0])
    if ttype == TType.LIST:
        return (args[0], _bytes_args(args[0], args[1]), args[2])
    return args


class _UniqueFieldNumber:
    """The number of a field that a message may hold only once.

    The decoder reads the number whenever the field begins. The second read raises,
    before the value is decoded.
    """

    __slots__ = ("_name", "_number")

    def __init__(self, number: int, name: str) -> None:
        self._number = number
        self._name = name

    def __index__(self) -> int:
        if self in _decoded_fields:
            raise ValueError(f"{self._name} came twice")
        _decoded_fields.add(self)
        return self._number


_decoded_fields: Final[set[_UniqueFieldNumber]] = set()
"""The unique fields seen so far in the message that is being decoded."""


def unique_field_spec(spec: list[Any]) -> list[Any]:
    """Return a decoding spec that refuses repeated fields; `spec` is from `bytes_spec`.

    A list, or a struct outside of lists, may occur once in a message. This bounds
    the objects that a message can create.
    """
    return [spec[0], tuple(field and _unique_field(*field) for field in spec[1])]


def _unique_field(number: int, ttype: int, name: str, args: Any, default: Any) -> tuple[Any, ...]:
    if ttype == TType.STRUCT:
        return (_UniqueFieldNumber(number, name), ttype, name, unique_field_spec(args), default)
    return (_UniqueFieldNumber(number, name) if ttype == TType.LIST else number, ttype, name, args, default)


class Decoder:
    """Decodes the structs of messages within limits; strings stay bytes."""

    def __init__(self, limits: DecodeLimits) -> None:
        self._source = _DecodeSource(limits)

    def decode(self, message: bytes, head: MessageHead, spec: list[Any]) -> Any:
        """Return the struct after the head; `spec` is from `bytes_spec` or `unique_field_spec`.

        Raises:
            BadMessage: it is truncated, nested too deeply, beyond the limits, has an
                element of a wrong type, repeats a unique field, or is followed by more bytes.
        """
        buffer = BytesIO(message)
        buffer.seek(head.body_start)
        source = self._source
        source.cstringio_buf = buffer
        decoded = spec[0]()
        _decoded_fields.clear()
        try:
            (_decode_compact if head.is_compact else _decode_binary)(decoded, source, spec)
        except EOFError:
            raise BadMessage("the message is truncated") from None
        except OverflowError as error:
            raise BadMessage(f"the message cannot be read: {error}", too_large="exceeded" in str(error)) from None
        except Exception as error:  # the decoder's errors have no common ancestor
            raise BadMessage(f"the message cannot be read: {error}") from None
        trailing = len(message) - buffer.tell()
        if trailing:
            raise BadMessage(f"{trailing} bytes follow the message in its frame")
        return decoded


class _DecodeSource:
    """Serves Thrift's C decoder as protocol and as transport; reused for all messages."""

    __slots__ = ("container_length_limit", "cstringio_buf", "string_length_limit", "trans")

    def __init__(self, limits: DecodeLimits) -> None:
        self.string_length_limit = limits.string_bytes_max
        self.container_length_limit = limits.container_items_max
        self.cstringio_buf = BytesIO()
        self.trans = self

    def cstringio_refill(self, partial: bytes, wanted: int) -> BytesIO:
        """Raise EOFError: there are no bytes after the message."""
        raise EOFError


_binary: Final[Any] = TBinaryProtocolAccelerated(TMemoryBuffer(), fallback=False)
_compact: Final[Any] = TCompactProtocolAccelerated(TMemoryBuffer(), fallback=False)
_decode_binary: Final = _binary._fast_decode
_decode_compact: Final = _compact._fast_decode
_encode_binary: Final = _binary._fast_encode
_encode_compact: Final = _compact._fast_encode


def encode_struct(is_compact: bool, value: Any, spec: list[Any]) -> bytes:
    """Return a struct's bytes in the given protocol."""
    return (_encode_compact if is_compact else _encode_binary)(value, spec)  # type: ignore[no-any-return]


def frame_reply(head: MessageHead, seqid: bytes, body: bytes) -> bytes:
    """Return a frame that answers a call."""
    start = head.reply_prefix
    if head.is_compact:
        name = head.name
        start = b"".join((start, seqid, bytes((len(name),)), name))
        seqid = b""
    return b"".join((_LENGTH.pack(len(start) + len(seqid) + len(body)), start, seqid, body))


def frame_exception(head: MessageHead, seqid: bytes, reason: int, text: str) -> bytes:
    """Return a frame that answers a call with a TApplicationException."""
    buffer = TMemoryBuffer()
    kind = TCompactProtocolAccelerated if head.is_compact else TBinaryProtocolAccelerated
    TApplicationException(reason, text).write(kind(buffer, fallback=False))
    if head.is_compact:
        reply = bytes((_COMPACT_ID, _COMPACT_VERSION | EXCEPTION << 5))
    else:
        reply = _WORDS.pack(_BINARY_VERSION << 16 | EXCEPTION, len(head.name)) + head.name
    return frame_reply(replace(head, reply_prefix=reply), seqid, buffer.getvalue())
