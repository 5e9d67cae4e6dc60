"""Fields of the wrong type, which Thrift's decoder skips in silence.

Always true: a message whose known fields all had their type and came once
costs one comparison of lengths; only another one is walked, field by field and
up to a bound. Unknown fields are left alone: a newer client may send them.
Knows nothing of what fields mean.
"""

from __future__ import annotations

from typing import Any, Final

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from foqs.wire.message import Head, encode_struct

VALUES_MAX: Final = 20_000
"""How many values are walked before the message is refused; each costs a few microseconds."""

_NAMES: Final[dict[int, str]] = {
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
    """A known field has another type than the contract says, or came twice. `field` is its path."""

    def __init__(self, text: str, field: str) -> None:
        super().__init__(text)
        self.field = field.removeprefix("request.")


def check_types(message: bytes, head: Head, spec: list[Any], decoded: Any) -> None:
    """Refuses a message in which a known field was skipped for its type, or came twice.

    Raises:
        WrongType: it says which field, and what it should be.
    """
    if len(encode_struct(head.compact, decoded, spec)) != len(message) - head.body:
        try:
            _Walk(message, head).struct(spec[1], "")
        except WrongType:
            raise
        except Exception as error:  # the decoder's errors have no common ancestor
            raise WrongType(f"the message cannot be read: {error}", "request") from None


class _Walk:
    def __init__(self, message: bytes, head: Head) -> None:
        buffer = TMemoryBuffer(message, head.body)
        self._protocol = TCompactProtocol(buffer) if head.compact else TBinaryProtocol(buffer)
        self._left = VALUES_MAX

    def struct(self, spec: Any, path: str) -> None:
        protocol = self._protocol
        seen: set[int] = set()
        protocol.readStructBegin()
        while True:
            _, ttype, number = protocol.readFieldBegin()
            if ttype == TType.STOP:
                break
            field = spec[number] if spec and 0 < number < len(spec) else None
            if field is None:
                self.value(ttype, None, path)
            else:
                name = f"{path}.{field[2]}" if path else field[2]
                if ttype != field[1]:
                    raise WrongType(f"this is {_NAMES.get(ttype, 'of no type')}, not {_NAMES[field[1]]}", name)
                if number in seen:
                    raise WrongType("this field came twice", name)
                seen.add(number)
                self.value(ttype, field[3], name)
            protocol.readFieldEnd()
        protocol.readStructEnd()

    def value(self, ttype: int, args: Any, path: str) -> None:
        self._left -= 1
        if self._left < 0:
            raise WrongType("this holds too many fields that the contract does not know", path)
        protocol = self._protocol
        if ttype == TType.STRING:
            protocol.readBinary()
        elif ttype == TType.STRUCT:
            self.struct(args[1] if args else None, path)
        elif ttype == TType.LIST:
            kind, size = protocol.readListBegin()
            for place in range(size):
                self.value(kind, args[1] if args else None, f"{path}[{place}]" if args else path)
            protocol.readListEnd()
        elif ttype == TType.SET:
            kind, size = protocol.readSetBegin()
            for _ in range(size):
                self.value(kind, None, path)
            protocol.readSetEnd()
        elif ttype == TType.MAP:
            key, kind, size = protocol.readMapBegin()
            for _ in range(size):
                self.value(key, None, path)
                self.value(kind, None, path)
            protocol.readMapEnd()
        else:
            protocol.skip(ttype)
