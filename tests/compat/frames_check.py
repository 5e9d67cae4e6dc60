"""The frames of every method with every field filled, as earlier versions of the contract wrote them.

`frames/N.json` has the frames of version N in hexadecimal. Always true: a field's value
follows from its name and type alone, so every version fills the fields that it knows with
the same values. Knows nothing of what fields mean.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any, Final

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TMessageType, TType
from thrift.transport.TTransport import TMemoryBuffer

from foqs_contract.idl import Foqs

FOLDER: Final = Path(__file__).with_name("frames")
METHODS: Final = sorted(name for name in vars(Foqs.Iface) if not name.startswith("_"))
PROTOCOLS: Final = {"binary": TBinaryProtocolAccelerated, "compact": TCompactProtocolAccelerated}


def filled(spec: Any, known: Any = None) -> Any:
    """Return a struct with every field set; with `known`, only the fields that this value has."""
    kind, fields = spec
    value = kind()
    for number, ttype, name, args, _ in filter(None, fields):
        if known is None or getattr(known, name, None) is not None:
            setattr(value, name, _value(ttype, args, f"{kind.__name__}.{number}", getattr(known, name, None)))
    return value


def _value(ttype: int, args: Any, name: str, known: Any) -> Any:
    number = zlib.crc32(name.encode())
    if ttype == TType.STRUCT:
        return filled(args, known)
    if ttype == TType.LIST:
        entry = known[0] if known else None
        return [_value(args[0], args[1], name, entry), _value(args[0], args[1], name, entry)]
    if ttype == TType.STRING:
        return name if args == "UTF8" else name.encode()
    if ttype == TType.BOOL:
        return True
    if ttype == TType.DOUBLE:
        return number / 8
    return number % 2 + 1 if ttype == TType.I32 else -number


def message(protocol: str, method: str, kind: int, body: Any) -> bytes:
    """Return the message of a call or a reply, as the generated code writes it."""
    buffer = TMemoryBuffer()
    writer = PROTOCOLS[protocol](buffer, fallback=False)
    writer.writeMessageBegin(method, kind, 7)
    body.write(writer)
    writer.writeMessageEnd()
    return buffer.getvalue()  # type: ignore[no-any-return]


def call_spec(method: str) -> Any:
    kind = getattr(Foqs, f"{method}_args")
    return [kind, kind.thrift_spec]


def reply_spec(method: str) -> Any:
    """Return the spec of a successful result."""
    kind = getattr(Foqs, f"{method}_result")
    return [kind, kind.thrift_spec[:1]]


def written() -> dict[str, dict[str, str]]:
    """Return the frames of every method by name, in hexadecimal."""
    return {
        method: {
            f"{protocol} {part}": message(protocol, method, kind, filled(spec(method))).hex()
            for protocol in PROTOCOLS
            for part, kind, spec in (
                ("call", TMessageType.CALL, call_spec),
                ("reply", TMessageType.REPLY, reply_spec),
            )
        }
        for method in METHODS
    }


def recorded() -> dict[int, dict[str, dict[str, str]]]:
    """Return the frames that each version of the contract wrote."""
    return {int(file.stem): json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Writes the frames of this version of the contract.")
    parser.add_argument("file", type=Path, help="tests/compat/frames/N.json")
    parser.parse_args().file.write_text(json.dumps(written(), indent=1) + "\n")
