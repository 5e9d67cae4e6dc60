"""Messages as a host reads and answers them: strictly, and in the binary and the compact protocol.

A reply uses the protocol of its call. Always true: strings are decoded as bytes, because only the code that
knows a field can check its text; nothing beyond the limits is decoded; a
message is read to its last byte or refused. Knows nothing of what a call does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Final

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TApplicationException, TType
from thrift.transport.TTransport import TMemoryBuffer

from foqs_contract.message_heads import (
    BINARY_VERSION,
    CALL,
    EXCEPTION,
    HEAD_BYTES_MIN,
    REPLY,
    SEQID_BYTES,
    WORDS,
    frame_message,
    head_prefix,
)
from foqs_contract.struct_bytes import DecodeSource, decode_binary, decode_compact, encode_binary, encode_compact

NAME_BYTES_MAX: Final = 64
_COMPACT_ID: Final = 0x82
_COMPACT_VERSION: Final = 1
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


def call_head(name: bytes) -> MessageHead:
    """Return the head of a message that begins with `head_prefix(CALL, name)`."""
    return _binary_head(CALL, name)


def _binary_head(kind: int, name: bytes) -> MessageHead:
    return MessageHead(False, kind, name, HEAD_BYTES_MIN + len(name), head_prefix(REPLY, name))


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
        raise BadMessage(
            f"a message of {len(message)} bytes is too short for its head; send one whole message in each frame"
        )
    word, length = WORDS.unpack_from(message)
    if word >> 16 != BINARY_VERSION:
        raise BadMessage("this is not a Thrift message; use the binary or the compact protocol")
    end = WORDS.size + length
    if not 0 < length <= NAME_BYTES_MAX or end + SEQID_BYTES > len(message):
        raise BadMessage(
            f"the name of the method would have {length} bytes; give 1 to {NAME_BYTES_MAX}, all in the message"
        )
    return _binary_head(word & 0xFF, message[WORDS.size : end]), message[end : end + SEQID_BYTES]


def _read_compact_head(message: bytes) -> tuple[MessageHead, bytes]:
    if len(message) < 4 or message[1] & 0x1F != _COMPACT_VERSION:
        raise BadMessage(
            "this is not a message of the compact protocol, version 1; use that version, or the binary protocol"
        )
    seqid_end = _varint_end(message, 2)
    name_start = _varint_end(message, seqid_end)
    length = 0
    for shift, byte in enumerate(message[seqid_end:name_start]):
        length |= (byte & 0x7F) << 7 * shift
    end = name_start + length
    if not 0 < length <= NAME_BYTES_MAX or end > len(message):
        raise BadMessage(
            f"the name of the method would have {length} bytes; give 1 to {NAME_BYTES_MAX}, all in the message"
        )
    reply = bytes((_COMPACT_ID, _COMPACT_VERSION | REPLY << 5))
    return MessageHead(True, message[1] >> 5, message[name_start:end], end, reply), message[2:seqid_end]


def sequence_id(head: MessageHead, seqid: bytes) -> int:
    """Return the sequence id of a message from its bytes."""
    number = 0
    if head.is_compact:
        for shift, byte in enumerate(seqid):
            number |= (byte & 0x7F) << 7 * shift
    else:
        number = int.from_bytes(seqid, "big")
    return number - (1 << 32) if number >> 31 else number


def _varint_end(message: bytes, start: int) -> int:
    for position in range(start, min(start + _VARINT_BYTES_MAX, len(message))):
        if message[position] < 0x80:
            return position + 1
    raise BadMessage(
        f"a number in the head of the message has no last byte; encode it in at most {_VARINT_BYTES_MAX} bytes"
    )


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
        self.limits = limits
        self._source = DecodeSource(limits.string_bytes_max, limits.container_items_max)

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
            (decode_compact if head.is_compact else decode_binary)(decoded, source, spec)
        except EOFError:
            raise BadMessage("the message ends too early; send one whole message in each frame") from None
        except OverflowError as error:
            raise BadMessage(f"the message cannot be read: {error}", too_large="exceeded" in str(error)) from None
        except Exception as error:  # the decoder's errors have no common ancestor
            raise BadMessage(f"the message cannot be read: {error}") from None
        trailing = len(message) - buffer.tell()
        if trailing:
            raise BadMessage(f"{trailing} bytes follow the message in its frame; send one whole message in each frame")
        return decoded


def encode_struct(is_compact: bool, value: Any, spec: list[Any]) -> bytes:
    """Return a struct's bytes in the given protocol."""
    return (encode_compact if is_compact else encode_binary)(value, spec)


def frame_reply(head: MessageHead, seqid: bytes, body: bytes) -> bytes:
    """Return a frame that answers a call."""
    start = head.reply_prefix
    if head.is_compact:
        name = head.name
        start = b"".join((start, seqid, bytes((len(name),)), name))
        seqid = b""
    return frame_message(start, seqid, body)


def frame_exception(head: MessageHead, seqid: bytes, reason: int, text: str) -> bytes:
    """Return a frame that answers a call with a TApplicationException."""
    buffer = TMemoryBuffer()
    kind = TCompactProtocolAccelerated if head.is_compact else TBinaryProtocolAccelerated
    TApplicationException(reason, text).write(kind(buffer, fallback=False))
    if head.is_compact:
        reply = bytes((_COMPACT_ID, _COMPACT_VERSION | EXCEPTION << 5))
    else:
        reply = head_prefix(EXCEPTION, head.name)
    return frame_reply(replace(head, reply_prefix=reply), seqid, buffer.getvalue())
