"""The envelope: a message as the payload of an item.

    magic       4 bytes   0x00 'S' 'Q' version
    sender      2 bytes length, UTF-8    the principal that sent it; in a FIFO queue NUL and MessageDeduplicationId follow
    group       1 byte length, UTF-8     MessageGroupId; empty: none
    trace       2 bytes length, bytes    AWSTraceHeader; empty: none
    attributes  1 byte count; for each: kind (1 text, 2 binary), 2 bytes length and name,
                2 bytes length and type, 4 bytes length and value
    body        the rest, UTF-8

Always true: `decode(encode(m)) == m`; equal messages have equal bytes, so that a
repeated send is the same item; a payload that is not an envelope is an item of another
producer, and gets a message too. Pure.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from foqs.core.items.reserved_starts import MESSAGE_START
from foqs.sqs.message_attributes import ATTRIBUTES_MAX, MessageAttribute, has_forbidden_char

OVERHEAD_BYTES_MAX: Final = 4_096
"""The most bytes by which an envelope is longer than its body and attributes."""
ENCODING_ATTRIBUTE: Final = "foqs.encoding"
"""The message attribute of an item that was not sent over SQS and is not text: its body is Base64."""


@dataclass(slots=True, frozen=True)
class Message:
    """A message as its sender gave it. `attributes` are sorted by name."""

    body: str
    attributes: Sequence[MessageAttribute] = ()
    sender: str = ""
    group: str = ""
    trace: bytes = field(default=b"")
    deduplication_id: str = ""


def encode(message: Message) -> bytes:
    """Return the envelope of a message whose parts were checked."""
    sender = f"{message.sender}\0{message.deduplication_id}" if message.deduplication_id else message.sender
    parts = [
        MESSAGE_START,
        _sized(sender.encode(), 2),
        _sized(message.group.encode(), 1),
        _sized(message.trace, 2),
    ]
    parts.append(len(message.attributes).to_bytes(1))
    for attribute in message.attributes:
        parts.append(b"\x02" if attribute.is_binary else b"\x01")
        parts.append(_sized(attribute.name.encode(), 2))
        parts.append(_sized(attribute.data_type.encode(), 2))
        parts.append(_sized(attribute.value, 4))
    parts.append(message.body.encode())
    return b"".join(parts)


def decode(payload: bytes) -> Message:
    """Return the message of a payload. A payload that is not an envelope becomes the body."""
    if payload.startswith(MESSAGE_START):
        try:
            return _decode_envelope(payload)
        except (ValueError, struct.error):
            pass  # another producer's payload that happens to begin so
    return _message_of_other_payload(payload)


def _decode_envelope(payload: bytes) -> Message:
    reader = _Reader(payload, len(MESSAGE_START))
    sender, _, deduplication_id = reader.sized(2).decode().partition("\0")
    group = reader.sized(1).decode()
    trace = reader.sized(2)
    count = reader.number(1)
    if count > ATTRIBUTES_MAX:
        raise ValueError("too many attributes")
    attributes = []
    for _ in range(count):
        kind = reader.number(1)
        if kind not in (1, 2):
            raise ValueError("an unknown kind of attribute")
        name, data_type = reader.sized(2).decode(), reader.sized(2).decode()
        value = reader.sized(4)
        if kind == 1:
            value.decode()
        attributes.append(MessageAttribute(name, data_type, value, kind == 2))
    return Message(reader.rest().decode(), attributes, sender, group, trace, deduplication_id)


def _message_of_other_payload(payload: bytes) -> Message:
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not has_forbidden_char(text):
        return Message(text)
    encoding = MessageAttribute(ENCODING_ATTRIBUTE, "String", b"base64", is_binary=False)
    return Message(base64.b64encode(payload).decode(), [encoding])


def _sized(data: bytes, length_bytes: int) -> bytes:
    return len(data).to_bytes(length_bytes) + data


class _Reader:
    """Reads an envelope from its start; raises ValueError where it is too short."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data = data
        self._place = start

    def number(self, length: int) -> int:
        return int.from_bytes(self._bytes(length))

    def sized(self, length_bytes: int) -> bytes:
        return self._bytes(self.number(length_bytes))

    def rest(self) -> bytes:
        return self._data[self._place :]

    def _bytes(self, length: int) -> bytes:
        end = self._place + length
        if end > len(self._data):
            raise ValueError("the envelope is too short")
        data, self._place = self._data[self._place : end], end
        return data
