"""Messages that the generated code would never write: fields of another type, duplicate fields, endless nesting.

Always true: except for the one fault a message is as the generated code writes it,
in either protocol. Knows nothing of replies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.Thrift import TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from foqs_contract.idl import Foqs
from tests.support.requests import Field
from tests.support.rpc_server import frame

WriteField = Callable[[Any, int, Any], None]
"""Writes something in place of a field: (protocol, the field's id, its value)."""

UNKNOWN: Final = 99
"""A field's id that no struct has."""


def _list(protocol: Any, begin: Callable[[int, int], None]) -> None:
    begin(TType.I16, 1)
    protocol.writeI16(1)
    protocol.writeListEnd()


def _empty_struct(protocol: Any) -> None:
    protocol.writeStructBegin("")
    protocol.writeFieldStop()
    protocol.writeStructEnd()


def _map(protocol: Any) -> None:
    protocol.writeMapBegin(TType.I16, TType.I16, 1)
    protocol.writeI16(1)
    protocol.writeI16(1)
    protocol.writeMapEnd()


VALUES: Final[Mapping[int, Callable[[Any], None]]] = {
    TType.BOOL: lambda p: p.writeBool(True),
    TType.BYTE: lambda p: p.writeByte(1),
    TType.I16: lambda p: p.writeI16(1),
    TType.I32: lambda p: p.writeI32(1),
    TType.I64: lambda p: p.writeI64(1),
    TType.DOUBLE: lambda p: p.writeDouble(1.5),
    TType.STRING: lambda p: p.writeBinary(b"1"),
    TType.STRUCT: _empty_struct,
    TType.LIST: lambda p: _list(p, p.writeListBegin),
    TType.SET: lambda p: _list(p, p.writeSetBegin),
    TType.MAP: _map,
}
"""The encoding of a value of each type. Lists and sets have an element type that the contract does not use."""


def field_of_type(ttype: int) -> WriteField:
    """The field as one of this type."""

    def put(protocol: Any, number: int, value: Any) -> None:
        protocol.writeFieldBegin("", ttype, number)
        VALUES[ttype](protocol)
        protocol.writeFieldEnd()

    return put


def nested_field(ttype: int, depth: int) -> WriteField:
    """An unknown field with structs or lists of this depth."""

    def put(protocol: Any, number: int, value: Any) -> None:
        protocol.writeFieldBegin("", ttype, UNKNOWN)
        if ttype == TType.STRUCT:
            for _ in range(depth):
                protocol.writeStructBegin("")
                protocol.writeFieldBegin("", TType.STRUCT, 1)
            _empty_struct(protocol)
            for _ in range(depth):
                protocol.writeFieldEnd()
                protocol.writeFieldStop()
                protocol.writeStructEnd()
        else:
            for _ in range(depth):
                protocol.writeListBegin(TType.LIST, 1)
            protocol.writeListBegin(TType.I16, 0)
            for _ in range(depth + 1):
                protocol.writeListEnd()
        protocol.writeFieldEnd()

    return put


def malformed_frame(
    method: str, request: Any, field: Field, put: WriteField, seqid: int, *, compact: bool = False, twice: bool = False
) -> bytes:
    """A frame of a call in which `put` wrote the field, or (`twice`) something after it."""
    buffer = TMemoryBuffer()
    protocol: Any = TCompactProtocol(buffer) if compact else TBinaryProtocol(buffer)
    protocol.writeMessageBegin(method, TMessageType.CALL, seqid)
    protocol.writeStructBegin("")
    protocol.writeFieldBegin("request", TType.STRUCT, 1)
    _struct(protocol, request, field.steps, put, twice)
    protocol.writeFieldEnd()
    protocol.writeFieldStop()
    protocol.writeStructEnd()
    protocol.writeMessageEnd()
    assert hasattr(Foqs.Iface, method)
    return frame(buffer.getvalue())


def _struct(protocol: Any, struct: Any, steps: tuple[str | int, ...], put: WriteField | None, twice: bool) -> None:
    protocol.writeStructBegin("")
    for number, ttype, name, args, _ in filter(None, struct.thrift_spec):
        value = getattr(struct, name)
        here = put is not None and steps[0] == name
        last = here and len(steps) == 1
        if value is not None and not (last and not twice):
            protocol.writeFieldBegin(name, ttype, number)
            _value(protocol, ttype, args, value, steps[1:], put if here and not last else None, twice)
            protocol.writeFieldEnd()
        if last and put is not None:
            put(protocol, number, value)
    protocol.writeFieldStop()
    protocol.writeStructEnd()


def _value(
    protocol: Any, ttype: int, args: Any, value: Any, steps: tuple[str | int, ...], put: WriteField | None, twice: bool
) -> None:
    if ttype == TType.STRUCT:
        _struct(protocol, value, steps, put, twice)
    elif ttype == TType.LIST:
        protocol.writeListBegin(args[0], len(value))
        for place, entry in enumerate(value):
            at = put is not None and steps[0] == place
            _value(protocol, args[0], args[1], entry, steps[1:], put if at else None, twice)
        protocol.writeListEnd()
    elif ttype == TType.STRING:
        protocol.writeBinary(value.encode() if isinstance(value, str) else value)
    else:
        write = {TType.BOOL: protocol.writeBool, TType.I32: protocol.writeI32, TType.I64: protocol.writeI64}[ttype]
        write(value)


def mutate(rng: Random, good: bytes) -> bytes:
    """Return a good message with some bytes changed, dropped, doubled or truncated."""
    message = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(message))
        kind = rng.randrange(5)
        if kind == 0:
            message[place] = rng.randrange(256)
        elif kind == 1:
            message[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, TType.STRUCT, TType.LIST, TType.MAP))
        elif kind == 2:
            del message[place : place + rng.randint(1, 8)]
            message = message or bytearray(b"\0")
        elif kind == 3:
            message[place:place] = message[place : place + rng.randint(1, 20)]
        else:
            message[place : place + 4] = rng.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"))
    return bytes(message)
