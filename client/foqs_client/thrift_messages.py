"""Messages of the contract: the bytes of a call, the struct of a reply.

Holds `Method`, what is known of one call beforehand. Always true: fields are
read from a request's objects by their names in the contract, whatever their
class; a reply's list is read straight into the objects that the caller gets. So
an item costs no struct of its own on its way. A reply names no more elements
than it has bytes. Knows nothing of connections.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any, Final, NoReturn

from thrift.protocol import fastbinary
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException, TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from foqs_client.idl import Foqs

THRIFT_VERSION: Final = 0x80010000

_HEAD_BYTES: Final = 12
"""Of every message: version and type, length of the name, sequence id."""
_ARGUMENTS_HEADER: Final = b"\x0c\x00\x01"
"""The arguments of every call are one struct, in field 1; a zero ends them."""


class Unencodable(Exception):
    """The arguments do not fit the contract: nothing was sent."""


class Unreadable(Exception):
    """A reply came, and does not fit the contract."""


class Refused(Exception):
    """The host could not read the call; `reason` is a TApplicationException's type."""

    def __init__(self, reason: int, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class ThriftMethod:
    """One call of the contract.

    Args:
        name: as the contract spells it.
        is_write: it may change something.
        element_class: what the elements of the reply's first list are read into, in place
            of the contract's structs: a class whose fields have the contract's
            names and all have defaults.
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
        """A request's body, for `frame`. Raises Unencodable."""
        try:
            body: bytes = fastbinary.encode_binary(request, self._request)
        except Exception as error:  # the encoder's errors have no common ancestor
            raise Unencodable(str(error)) from None
        return body

    def frame(self, seqid: int, body: bytes) -> bytes:
        """All that is sent of a call."""
        name = self._name
        total = self._body_bytes + len(body)
        head = self._header.pack(total, THRIFT_VERSION | TMessageType.CALL, len(name), name, seqid, _ARGUMENTS_HEADER)
        return b"".join((head, body, b"\0"))

    def decode(self, body: bytes) -> Any:
        """The result struct, from what follows a reply's head. Raises Unreadable."""
        result = self._result()
        _DECODER_INPUT.cstringio_buf = BytesIO(body)
        _DECODER_INPUT.container_length_limit = len(body)
        try:
            fastbinary.decode_binary(result, _DECODER_INPUT, self._result_type)
        except Exception as error:  # nor have the decoder's
            raise Unreadable(f"the reply cannot be read: {error}") from None
        return result


def all_done_count(body: bytes) -> int | None:
    """The number of outcomes in a reply that says of each only that it was done, as nearly every one does.

    Such a reply is told by its bytes: it need not be decoded. None: it says something else.
    """
    count = len(body) - len(_EMPTY_OUTCOMES)
    if count >= 0 and body == b"".join((_EMPTY_OUTCOMES[:-6], count.to_bytes(4, "big"), bytes(count + 2))):
        return count
    return None


def decode_exception(body: bytes) -> Exception:
    """What the host says in place of a reply: `Refused`, or `Unreadable`."""
    said = TApplicationException()
    try:
        said.read(TBinaryProtocolAccelerated(TMemoryBuffer(body), container_length_limit=len(body), fallback=False))
    except Exception as error:
        return Unreadable(f"the reply cannot be read: {error}")
    return Refused(said.type, str(said))


def _spec_reading_into(spec: Any, element_class: type) -> Any:
    """The spec of a result's field, its reply's first list read into objects of a class."""
    tag, kind, name, (reply, (none, listed, *others)), default = spec
    list_tag, list_kind, list_name, (element, (_, fields), frozen), list_default = listed
    listed = (list_tag, list_kind, list_name, (element, [element_class, fields], frozen), list_default)
    return (tag, kind, name, [reply, (none, listed, *others)], default)


class _DecoderInput:
    """What the decoder takes for a protocol and its transport. One does for all: decoding awaits nothing."""

    string_length_limit = (1 << 31) - 1
    container_length_limit = 0
    cstringio_buf: BytesIO

    @property
    def trans(self) -> _DecoderInput:
        return self

    @staticmethod
    def cstringio_refill(read: bytes, wanted: int) -> NoReturn:
        raise EOFError("it ends too early")


_DECODER_INPUT: Final = _DecoderInput()
_EMPTY_OUTCOMES: Final = b"\x0c\x00\x00\x0f\x00\x01\x0c\x00\x00\x00\x00\x00\x00"
"""A result with an `OutcomesReply` of none. Its list's length comes before the two zeros that end the structs."""
