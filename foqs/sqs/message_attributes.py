"""The attributes of a message: checked, hashed, and as JSON has them.

Always true: a `MessageAttribute` has a valid name, type and value; the value of a
String or Number is text that SQS allows. Pure.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foqs.core.items.item import TRACE_CONTEXT_BYTES_MAX
from foqs.sqs.errors import SqsError, invalid_value

ATTRIBUTES_MAX: Final = 10
NAME_CHARS_MAX: Final = 256
TYPE_CHARS_MAX: Final = 256
TRACE_HEADER: Final = "AWSTraceHeader"
TRACE_HEADER_BYTES_MAX: Final = 1_024
FOQS_PREFIX: Final = "foqs."
VALID_CHARS: Final = (
    "Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF."
)

_NAME: Final = re.compile(r"[\w.-]+")
"""The form of a name. SQS' documentation names ASCII only, but SQS takes letters of other alphabets."""
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NUMBER_CHARS_MAX: Final = 128
_FORBIDDEN_CHAR: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_RESERVED: Final = ("aws.", "amazon.")
_KINDS: Final = ("String", "Number", "Binary")
_ALL: Final = frozenset(("All", ".*", "*"))
_X_RAY_TRACE: Final = re.compile(rb"(?:[ -~]*;)? *Root=[ -~]+")


@dataclass(slots=True, frozen=True)
class MessageAttribute:
    """One attribute; `value` is UTF-8 unless it `is_binary`."""

    name: str
    data_type: str
    value: bytes
    is_binary: bool

    @property
    def size_bytes(self) -> int:
        return len(self.name.encode()) + len(self.data_type.encode()) + len(self.value)

    def to_json(self) -> dict[str, str]:
        if self.is_binary:
            return {"BinaryValue": base64.b64encode(self.value).decode(), "DataType": self.data_type}
        return {"StringValue": self.value.decode(), "DataType": self.data_type}


def has_forbidden_char(text: str) -> bool:
    """Return whether a text has a character that SQS does not allow."""
    return _FORBIDDEN_CHAR.search(text) is not None


def x_ray_trace(data: bytes) -> bytes:
    """Return a trace header of X-Ray, such as `Root=...;Sampled=1`; nothing if it is none, or too long for an item."""
    return data if len(data) <= TRACE_CONTEXT_BYTES_MAX and _X_RAY_TRACE.fullmatch(data) else b""


# ------------------------------------------------------------------ from JSON


def parse_attributes(raw: Any) -> Sequence[MessageAttribute]:
    """Return the attributes of a `MessageAttributes` map, by name. Raises `SqsError`."""
    entries = _entries(raw, "MessageAttributes")
    if len(entries) > ATTRIBUTES_MAX:
        raise invalid_value(
            f"Number of message attributes [{len(entries)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )
    return [_parse_attribute(name, entry) for name, entry in sorted(entries.items())]


def parse_system_attributes(raw: Any) -> Sequence[MessageAttribute]:
    """Return the attributes of a `MessageSystemAttributes` map; only the trace header is allowed. Raises `SqsError`."""
    entries = _entries(raw, "MessageSystemAttributes")
    attributes = [_parse_attribute(name, entry) for name, entry in entries.items()]
    for attribute in attributes:
        if attribute.name != TRACE_HEADER:
            raise invalid_value(f"Message system attribute name '{attribute.name}' is invalid.")
        if attribute.data_type != "String" or len(attribute.value) > TRACE_HEADER_BYTES_MAX:
            raise invalid_value(
                f"The message system attribute '{TRACE_HEADER}' must be a String of at most "
                f"{TRACE_HEADER_BYTES_MAX} bytes."
            )
    return attributes


def _entries(raw: Any, name: str) -> Mapping[str, Any]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise SqsError("SerializationException", f"{name} must be an object.")
    return raw


def _parse_attribute(name: str, raw: Any) -> MessageAttribute:
    _check_name(name)
    if not isinstance(raw, dict) or not all(value is None or isinstance(value, str | list) for value in raw.values()):
        raise SqsError("SerializationException", f"The message attribute '{name}' must be an object of texts.")
    data_type = raw.get("DataType")
    if not data_type or not isinstance(data_type, str):
        raise invalid_value(f"The message attribute '{name}' must contain non-empty message attribute type.")
    kind = data_type.partition(".")[0]
    if kind not in _KINDS:
        raise invalid_value(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type "
            "prefixes is Binary, Number, and String."
        )
    if len(data_type) > TYPE_CHARS_MAX:
        raise invalid_value(f"The message attribute '{name}' has a type longer than {TYPE_CHARS_MAX} characters.")
    if has_forbidden_char(data_type):
        raise invalid_value(f"Invalid characters found in the type of the message attribute '{name}'. {VALID_CHARS}")
    is_binary = kind == "Binary"
    value = raw.get("BinaryValue" if is_binary else "StringValue")
    if not value or not isinstance(value, str) or raw.get("StringValue" if is_binary else "BinaryValue"):
        raise invalid_value(f"Message (user) attribute '{name}' must contain a non-empty value of type '{data_type}'.")
    return MessageAttribute(name, data_type, _parse_value(name, kind, value), is_binary)


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise invalid_value(
            f"The message attribute name '{name}' is invalid. Attribute name can contain letters, digits, "
            "underscore (_), hyphen (-), and period (.) characters."
        )
    lowered = name.lower()
    is_dotted_badly = name.startswith(".") or name.endswith(".") or ".." in name
    if len(name) > NAME_CHARS_MAX or is_dotted_badly or lowered.startswith(_RESERVED):
        raise invalid_value(
            f"The message attribute name '{name}' is invalid. Attribute name must be at most {NAME_CHARS_MAX} "
            "characters, must not start with AWS. or Amazon., must not start or end with a period, and must not have "
            "periods in succession."
        )


def _parse_value(name: str, kind: str, text: str) -> bytes:
    if kind == "Binary":
        try:
            return base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raise SqsError("SerializationException", f"The message attribute '{name}' is not Base64.") from None
    if has_forbidden_char(text):
        raise invalid_value(f"Invalid characters found in the message attribute '{name}'. {VALID_CHARS}")
    if kind == "Number" and (len(text) > _NUMBER_CHARS_MAX or not _NUMBER.fullmatch(text)):
        raise invalid_value(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    return text.encode()


# --------------------------------------------------------------------- hashing


def md5_of(data: bytes) -> str:
    """Return the MD5 of data as SQS' clients compare it. It protects nothing."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Iterable[MessageAttribute]) -> str | None:
    """Return the MD5 of attributes as SQS defines it: sorted by name, each part with its length; None without attributes."""
    ordered = sorted(attributes, key=lambda attribute: attribute.name)
    if not ordered:
        return None
    digest = hashlib.md5(usedforsecurity=False)
    for attribute in ordered:
        for part in (attribute.name.encode(), attribute.data_type.encode()):
            digest.update(len(part).to_bytes(4) + part)
        digest.update(b"\x02" if attribute.is_binary else b"\x01")
        digest.update(len(attribute.value).to_bytes(4) + attribute.value)
    return digest.hexdigest()


def select_attributes(attributes: Iterable[MessageAttribute], wanted: Sequence[str]) -> list[MessageAttribute]:
    """Return the attributes that `MessageAttributeNames` asks for: names, `prefix.*`, or all by `All`, `.*` or `*`."""
    if not _ALL.isdisjoint(wanted):
        return list(attributes)
    prefixes = tuple(name[:-2] for name in wanted if name.endswith(".*"))
    return [
        attribute
        for attribute in attributes
        if attribute.name in wanted or (prefixes and attribute.name.startswith(prefixes))
    ]
