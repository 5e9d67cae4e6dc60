"""A method as its caller uses it: the bytes of a call, the struct of a reply.

Holds `ThriftMethod`. Clients call hosts with it, and hosts call other hosts. Always
true: the encoder reads the fields of a request's objects by their names in the
contract, whatever their class. The decoder reads the list of a reply into the objects
that the caller gets. So an item needs no Thrift struct. A reply cannot claim more
elements than it has bytes. Knows nothing of connections.
"""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any, Final

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TApplicationException
from thrift.transport.TTransport import TMemoryBuffer

from foqs_contract.contract_version import HostTooOld, NewerPart, newer_parts
from foqs_contract.message_heads import CALL, LENGTH_BYTES, head_prefix
from foqs_contract.method_table import ARGUMENTS_HEAD, METHODS
from foqs_contract.request import Request
from foqs_contract.struct_bytes import STOP, DecodeSource, decode_binary, encode_binary


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
    """One method of the contract.

    Args:
        name: its name in the contract.
        is_write: whether its calls can change something; None: as the contract says. A
            bulk call for no item only reads.
        element_class: the class of the elements of the reply's first list, in place of the
            contract's struct. Its fields have the contract's names and defaults.
    """

    __slots__ = (
        "_bytes_besides_body",
        "_prefix",
        "_request",
        "_result",
        "_result_type",
        "_start",
        "is_write",
        "name",
        "newer_parts",
    )

    def __init__(self, name: str, *, is_write: bool | None = None, element_class: type | None = None) -> None:
        described = METHODS[name]
        result = described.result
        success, *failed = result.thrift_spec
        if element_class is not None:
            success = _spec_reading_into(success, element_class)
        self.name = name
        self.is_write = described.row.writes if is_write is None else is_write
        self.newer_parts = newer_parts(described.row, described.request_spec)
        self._prefix = head_prefix(CALL, name.encode())
        self._start = struct.Struct(f">I{len(self._prefix)}sI{len(ARGUMENTS_HEAD)}s")
        """Length of the message, prefix of its head, sequence id, head of the arguments."""
        self._bytes_besides_body = self._start.size - LENGTH_BYTES + len(STOP)
        self._request = described.request_spec
        self._result = result
        self._result_type = [result, (success, *failed)]

    def encode(self, request: Request) -> bytes:
        """Return the body of a request, for `frame`. Raises Unencodable."""
        try:
            return encode_binary(request, self._request)
        except Exception as error:  # the errors of the encoder have no common base class
            raise Unencodable(str(error)) from None

    def newest_part(self, request: Request) -> NewerPart | None:
        """Return the newest part of a request, or the method; None if every version of the contract knows all of it."""
        return None if self.newer_parts is None else self.newer_parts.newest(request)

    def unserved_entries(self, request: Request, served: int, host: str = "the host") -> dict[int, HostTooOld]:
        """Return the errors of the entries that a host of contract version `served` does not know, by their places."""
        return {} if self.newer_parts is None else self.newer_parts.unserved_entries(request, served, host)

    def frame(self, seqid: int, body: bytes) -> bytes:
        """Return the bytes of a call."""
        start = self._start.pack(self._bytes_besides_body + len(body), self._prefix, seqid, ARGUMENTS_HEAD)
        return b"".join((start, body, STOP))

    def decode(self, body: bytes) -> Any:
        """Return the result struct of a reply's body. Raises Unreadable."""
        result = self._result()
        _SOURCE.cstringio_buf = BytesIO(body)
        _SOURCE.container_length_limit = len(body)
        try:
            decode_binary(result, _SOURCE, self._result_type)
        except Exception as error:  # nor have those of the decoder
            raise Unreadable(f"the reply cannot be read: {error}") from None
        return result


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


_SOURCE: Final = DecodeSource()
