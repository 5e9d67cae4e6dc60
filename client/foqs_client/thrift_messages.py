"""Messages of the contract: the bytes of a call, the struct of a reply.

Holds `ThriftMethod`. Always true: the encoder reads the fields of a request's objects
by their names in the contract, whatever their class. The decoder reads the list of a
reply into the objects that the caller gets. So an item needs no Thrift struct. A reply
cannot claim more elements than it has bytes. Knows nothing of connections.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any, Final, NoReturn

from thrift.protocol import fastbinary
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from foqs_contract.idl import Foqs

THRIFT_VERSION: Final = 0x80010000

_HEAD_BYTES: Final = 12
"""The header of every message: version and type, length of the name, sequence id."""
_ARGUMENTS_HEADER: Final = b"\x0c\x00\x01"
"""The arguments of every call are one struct, in field 1. A zero byte ends them."""


class Unencodable(Exception):
    """The arguments do not match the contract. Nothing was sent."""


class Unreadable(Exception):
    """The reply does not match the contract."""


class Refused(Exception):
    """The host could not read the call. `reason` is the type of a TApplicationException."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ThriftMethod:
    """One call of the contract.

    Args:
        name: its name in the contract.
        is_write: it can change something.
        element_class: the class of the elements of the reply's first list, in place of the
            contract's struct. Its fields have the contract's names and defaults.
    """

    __slots__ = ("_body_bytes", "_header", "_name", "_request", "_result", "_result_type", "is_write")

    def __init__(self, name: str, *, is_write: bool = False, element_class: type | None = None) -> None:
        result = getattr(Foqs, f"{name}_result")
        success, *failed = result.thrift_spec
        if element_class is not None:
            success = _spec_reading_into(success, element_class)
        self.is_write = is_write
        self._name = name.encode()
        self._header = struct.Struct(f">III{len(self._name)}sI{len(_ARGUMENTS_HEADER)}s")
        self._body_bytes = self._header.size - 4 + 1
        self._request = getattr(Foqs, f"{name}_args").thrift_spec[1][3]
        self._result = result
        self._result_type = [result, (success, *failed)]

    def encode(self, request: Any) -> bytes:
        """Return the body of a request, for `frame`. Raises Unencodable."""
        try:
            body: bytes = fastbinary.encode_binary(request, self._request)
        except Exception as error:  # the errors of the encoder have no common base class
            raise Unencodable(str(error)) from None
        return body

    def frame(self, seqid: int, body: bytes) -> bytes:
        """Return the bytes of a call."""
        name = self._name
        total = self._body_bytes + len(body)
        head = self._header.pack(total, THRIFT_VERSION | TMessageType.CALL, len(name), name, seqid, _ARGUMENTS_HEADER)
        return b"".join((head, body, b"\0"))

    def decode(self, body: bytes) -> Any:
        """Return the result struct of a reply's body. Raises Unreadable."""
        result = self._result()
        _DECODER_INPUT.cstringio_buf = BytesIO(body)
        _DECODER_INPUT.container_length_limit = len(body)
        try:
            fastbinary.decode_binary(result, _DECODER_INPUT, self._result_type)
        except Exception as error:  # nor have those of the decoder
            raise Unreadable(f"the reply cannot be read: {error}") from None
        return result


def all_done_count(body: bytes) -> int | None:
    """Return the number of outcomes if all are plain successes, as in nearly every reply; else None.

    The bytes are compared, because decoding them costs more.
    """
    count = len(body) - len(_EMPTY_OUTCOMES)
    if count >= 0 and body == b"".join((_EMPTY_OUTCOMES[:-6], count.to_bytes(4, "big"), bytes(count + 2))):
        return count
    return None


def decode_exception(body: bytes) -> Exception:
    """Return the error of an exception message: `Refused`, or `Unreadable`."""
    exception = TApplicationException()
    try:
        exception.read(
            TBinaryProtocolAccelerated(TMemoryBuffer(body), container_length_limit=len(body), fallback=False)
        )
    except Exception as error:
        return Unreadable(f"the reply cannot be read: {error}")
    return Refused(exception.type, str(exception))


def _spec_reading_into(spec: Any, element_class: type) -> Any:
    """Return the spec of a result's field that reads the reply's first list into objects of a class."""
    tag, kind, name, (reply, (none, listed, *others)), default = spec
    list_tag, list_kind, list_name, (element, (_, fields), frozen), list_default = listed
    listed = (list_tag, list_kind, list_name, (element, [element_class, fields], frozen), list_default)
    return (tag, kind, name, [reply, (none, listed, *others)], default)


class _DecoderInput:
    """Stands for the decoder's protocol and transport. One object is enough, because decoding never awaits."""

    string_length_limit = (1 << 31) - 1
    container_length_limit = 0
    cstringio_buf: BytesIO

    @property
    def trans(self) -> _DecoderInput:
        return self

    @staticmethod
    def cstringio_refill(read: bytes, wanted: int) -> NoReturn:
        raise EOFError("it is too short")


_DECODER_INPUT: Final = _DecoderInput()
_EMPTY_OUTCOMES: Final = b"\x0c\x00\x00\x0f\x00\x01\x0c\x00\x00\x00\x00\x00\x00"
"""A result with an empty `OutcomesReply`. The length of the list is before the two zeros that end the structs."""
