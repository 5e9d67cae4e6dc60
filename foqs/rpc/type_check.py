"""Detects fields of the wrong type, which Thrift's decoder skips silently or refuses without their name.

Always true: a message whose known fields have the right types and occur once
costs one comparison of lengths. Any other message, and one that is not encoded in
the shortest way, is walked field by field, up to a limit. A field that the contract
does not know is refused: it could change what the call means. Knows nothing of what
fields mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from foqs.rpc.messages import MessageHead, encode_struct
from foqs_contract.contract_version import CONTRACT_VERSION

VALUES_MAX: Final = 20_000
"""A message with more values is refused; the check of each value costs a few microseconds."""

_LONG_MESSAGE_BYTES: Final = 1_024
_SHORT_FIELD_DELTA_MAX: Final = 16
"""In the compact protocol, a field has a head of one byte if its number exceeds the previous one by less than this."""

_TYPE_NAMES: Final[dict[int, str]] = {
    TType.BOOL: "a bool",
    TType.BYTE: "a byte",
    TType.DOUBLE: "a double",
    TType.I16: "an i16",
    TType.I32: "an i32",
    TType.I64: "an i64",
    TType.STRING: "a string",
    TType.STRUCT: "a struct",
    TType.MAP: "a map",
    TType.SET: "a set",
    TType.LIST: "a list",
}


class WrongType(Exception):
    """A known field has a wrong type, or came twice. `field` is its path."""

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field.removeprefix("request.")


class UnknownField(WrongType):
    """A field is not in this version of the contract. `field` is the path of its struct."""


class TypeCheck:
    """Refuses messages of one method in which a field is unknown, has a wrong type or comes twice.

    A field that Thrift skipped is missing when the struct is encoded again, so the
    lengths differ. For a long message, the payloads are not encoded and their lengths
    are added: the encoder copies byte by byte.

    Args:
        spec: the `bytes_spec` of the method's arguments: one field, the request.
    """

    def __init__(self, spec: list[Any]) -> None:
        self._spec = spec
        kind, fields = spec[1][1][3]
        lean = []
        self._payload_lists: tuple[str, ...] = ()
        for field in fields:
            if field and field[1] == TType.LIST and field[3][0] == TType.STRUCT:
                element, inner = field[3][1]
                rest = tuple(None if entry and entry[2] == "payload" else entry for entry in inner)
                if rest != inner:
                    # Field 1 is required there; a message without it may be walked.
                    assert len(inner) - 1 - 1 < _SHORT_FIELD_DELTA_MAX, (
                        "otherwise the next field's head is longer in the compact protocol"
                    )
                    self._payload_lists += (field[2],)
                    field = (*field[:3], (TType.STRUCT, [element, rest], field[3][2]), field[4])
            lean.append(field)
        self._spec_without_payloads = [spec[0], (None, (*spec[1][1][:3], [kind, tuple(lean)], None))]

    def check(self, message: bytes, head: MessageHead, decoded: Any) -> None:
        """Check a message against its decoded struct.

        Raises:
            UnknownField: names the struct and the field's number.
            WrongType: names the field and its type in the contract.
        """
        if len(message) < _LONG_MESSAGE_BYTES or decoded.request is None:
            length = len(encode_struct(head.is_compact, decoded, self._spec))
        else:
            length = len(encode_struct(head.is_compact, decoded, self._spec_without_payloads))
            for name in self._payload_lists:
                length += _payload_bytes(head.is_compact, getattr(decoded.request, name) or ())
        if length != len(message) - head.body_start:
            try:
                TypeWalker(message, head).walk_struct(self._spec[1], "")
            except WrongType:
                raise
            except Exception as error:  # the decoder's errors have no common ancestor
                raise WrongType(f"the message cannot be read: {error}", "request") from None

    def find_fault(self, message: bytes, head: MessageHead) -> WrongType | None:
        """Return the error of a message that the decoder refused; None if no known field is wrong."""
        try:
            TypeWalker(message, head).walk_struct(self._spec[1], "")
        except UnknownField:
            return None
        except WrongType as wrong:
            return wrong
        except Exception:  # the decoder's errors have no common ancestor
            return None
        return None


def _payload_bytes(is_compact: bool, entries: Sequence[Any]) -> int:
    """Return the bytes of the payloads in a message, with the heads of their fields."""
    sizes = [len(entry.payload) for entry in entries if entry.payload is not None]
    if is_compact:  # a byte for the field's type, and a varint of seven bits a byte
        return sum([size + 1 + max(1, (size.bit_length() + 6) // 7) for size in sizes])
    return sum(sizes) + 7 * len(sizes)


class TypeWalker:
    def __init__(self, message: bytes, head: MessageHead) -> None:
        buffer = TMemoryBuffer(message, head.body_start)
        self._protocol = TCompactProtocol(buffer) if head.is_compact else TBinaryProtocol(buffer)
        self._values_left = VALUES_MAX

    def walk_struct(self, spec: Any, path: str) -> None:
        protocol = self._protocol
        seen: set[int] = set()
        protocol.readStructBegin()
        while True:
            _, ttype, number = protocol.readFieldBegin()
            if ttype == TType.STOP:
                break
            field = spec[number] if 0 < number < len(spec) else None
            if field is None:
                raise UnknownField(
                    f"field {number} is not in version {CONTRACT_VERSION} of the contract, which this host serves; "
                    "leave it out, or upgrade the host",
                    path or "request",
                )
            name = f"{path}.{field[2]}" if path else field[2]
            if ttype != field[1]:
                raise WrongType(
                    f"this is {_TYPE_NAMES.get(ttype, 'of an unknown type')}, not {_TYPE_NAMES[field[1]]}", name
                )
            if number in seen:
                raise WrongType("this field came twice; send it once", name)
            seen.add(number)
            self.walk_value(ttype, field[3], name)
            protocol.readFieldEnd()
        protocol.readStructEnd()

    def walk_value(self, ttype: int, args: Any, path: str) -> None:
        """Check a value and all that it holds; the contract has no maps and no sets. Raises WrongType."""
        self._values_left -= 1
        if self._values_left < 0:
            raise WrongType("the message holds too many values that are not encoded in the shortest way", path)
        protocol = self._protocol
        if ttype == TType.STRING:
            protocol.readBinary()
        elif ttype == TType.STRUCT:
            self.walk_struct(args[1], path)
        elif ttype == TType.LIST:
            kind, size = protocol.readListBegin()
            if kind != args[0]:
                raise WrongType(
                    f"this holds {_TYPE_NAMES.get(kind, 'an unknown type')}, not {_TYPE_NAMES[args[0]]}", path
                )
            for place in range(size):
                self.walk_value(kind, args[1], f"{path}[{place}]")
            protocol.readListEnd()
        else:
            protocol.skip(ttype)
