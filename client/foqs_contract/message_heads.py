"""The bytes before a struct: the length of a frame, and the head of a message in the binary protocol.

A frame is the length of one message and the message. Numbers are big-endian.

    length of the message 4 | version and type 4 | length of the name 4 | name | sequence id 4 | one struct

Always true: a reply has the name and the sequence id of its call. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

from thrift.Thrift import TMessageType

CALL: Final[int] = TMessageType.CALL
REPLY: Final[int] = TMessageType.REPLY
EXCEPTION: Final[int] = TMessageType.EXCEPTION

LENGTH_BYTES: Final = 4
"""The size of the length that stands before each message."""
SEQID_BYTES: Final = 4
HEAD_BYTES_MIN: Final = 12
"""The size of a head without the name. No name is empty, so a correct head is longer."""
BINARY_VERSION: Final = 0x8001
"""The upper half of the first word of a message. The lower half is the type."""

LENGTH: Final = struct.Struct(">I")
SEQID: Final = struct.Struct(">I")
WORDS: Final = struct.Struct(">II")
"""The start of a message: version and type, length of the name."""
FRAME_START: Final = struct.Struct(">III")
"""The start of a frame: length of the message, then `WORDS`."""

_pack_length: Final = LENGTH.pack
_join: Final = b"".join

REPLY_WORD: Final = BINARY_VERSION << 16 | REPLY
EXCEPTION_WORD: Final = BINARY_VERSION << 16 | EXCEPTION


def head_prefix(message_type: int, name: bytes) -> bytes:
    """Return the bytes of a head before its sequence id."""
    return WORDS.pack(BINARY_VERSION << 16 | message_type, len(name)) + name


def frame_message(prefix: bytes, seqid: bytes, body: bytes) -> bytes:
    """Return the frame of a message: `prefix` is from `head_prefix`, `body` is the struct."""
    return _join((_pack_length(len(prefix) + len(seqid) + len(body)), prefix, seqid, body))
