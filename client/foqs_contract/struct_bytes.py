"""Structs to and from bytes, by Thrift's C code.

A spec is [class, fields], as Thrift generates it: the class's fields by number. The
encoder reads the fields of any object by their names, so an item needs no Thrift
struct. Always true: nothing beyond the limits of a `DecodeSource` is decoded. Knows
nothing of messages.

The encoder copies strings byte by byte. So calls and replies that are full of payloads
are joined from the payloads and the bytes between them, and read in runs of entries of
equal sizes. A field is `field_head`, its value, and for a string its length before it.
`STOP` ends a struct.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, NoReturn

from thrift.protocol import fastbinary
from thrift.Thrift import TType

STRING_BYTES_MAX: Final = (1 << 31) - 1
"""The longest string of the protocol."""

encode_binary: Final[Callable[[Any, Any], bytes]] = fastbinary.encode_binary
encode_compact: Final[Callable[[Any, Any], bytes]] = fastbinary.encode_compact
decode_binary: Final = fastbinary.decode_binary
decode_compact: Final = fastbinary.decode_compact

STOP: Final = b"\0"
I32: Final = struct.Struct(">i")
"""A number of 32 bits, the length of a string or the count of a list."""
I64: Final = struct.Struct(">q")
STRING_HEAD: Final = struct.Struct(">3si")
"""The head of a field, and the length of its string."""

I32_BYTES: Final = 4
FIELD_HEAD_BYTES: Final = 3
"""The type and the number of a field."""
STRING_HEAD_BYTES: Final = 7
I32_FIELD_BYTES: Final = 7
I64_FIELD_BYTES: Final = 11
"""The size of a field with a number of 64 bits: its head and the number."""

ENTRIES_MIN: Final = 16
"""The least number of entries of a list that is read in runs. With fewer, Thrift's decoder is as fast."""
RUN_MIN: Final = 8
"""The least number of entries in a row with equal sizes that are worth a run. With fewer, Thrift's decoder is as fast."""


def field_head(kind: Any, name: str) -> bytes:
    """Return the bytes of the binary protocol before the value of a field: its type and its number."""
    [head] = [struct.pack(">bh", field[1], field[0]) for field in kind.thrift_spec if field and field[2] == name]
    return head


def list_head(kind: Any, name: str) -> bytes:
    """Return the bytes before the count of a field that is a list of structs."""
    return field_head(kind, name) + bytes((TType.STRUCT,))


class DecodeSource:
    """The input of the decoder, in place of Thrift's protocol and transport.

    One object can serve all messages, because decoding never awaits.

    Attributes:
        cstringio_buf: the bytes, read from their current position.
        string_length_limit: a longer string is refused, in bytes.
        container_length_limit: a list with more elements is refused.
    """

    __slots__ = ("container_length_limit", "cstringio_buf", "string_length_limit", "trans")

    def __init__(self, string_bytes_max: int = STRING_BYTES_MAX, container_items_max: int = 0) -> None:
        self.string_length_limit = string_bytes_max
        self.container_length_limit = container_items_max
        self.cstringio_buf = BytesIO()
        self.trans = self

    def cstringio_refill(self, partial: bytes, wanted: int) -> NoReturn:
        """Raise EOFError: there are no bytes after the message."""
        raise EOFError("it is too short")
