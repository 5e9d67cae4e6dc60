"""Formats values for the console's templates. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from foqs.runtime.durations import format_duration
from foqs_contract.plurals import counted
from foqs_contract.printable_text import printable

_HEX_LINE: Final = 16
_SHOWN_BYTES_MAX: Final = 65_536
_EXCERPT_CHARS_MAX: Final = 200
_EXCERPT_BYTES_MAX: Final = 16
"""The maximum length of an excerpt of a payload that is not text."""


def number(value: int | None) -> str:
    """Return a number with separators; a dash for None."""
    return "-" if value is None else f"{value:,}"


def payload(data: bytes | None) -> str:
    """Return a payload as text if it is readable, else as lines of hexadecimal. A long one is cut."""
    if not data:
        return ""
    shown = data[:_SHOWN_BYTES_MAX]
    more = f"\n... and {len(data) - len(shown):,} bytes more" if len(data) > len(shown) else ""
    try:
        text = shown.decode()
    except UnicodeDecodeError as error:
        # A cut in the middle of a character does not make the text unreadable.
        if not more or error.start < len(shown) - 4:
            return hexadecimal(shown) + more
        text = shown[: error.start].decode()
    readable = all(char.isprintable() or char in "\n\t\r" for char in text)
    return (text if readable else hexadecimal(shown)) + more


def excerpt(data: bytes | None) -> str:
    """Return the beginning of a text on one line; of other bytes, the first few in hexadecimal."""
    if not data:
        return ""
    try:
        text = " ".join(data.decode().split())
    except UnicodeDecodeError:
        text = ""
    if not text or not text.isprintable():
        return data[:_EXCERPT_BYTES_MAX].hex(" ") + (" ..." if len(data) > _EXCERPT_BYTES_MAX else "")
    return text if len(text) <= _EXCERPT_CHARS_MAX else f"{text[:_EXCERPT_CHARS_MAX]} ..."


def hexadecimal(data: bytes) -> str:
    """Return lines of an offset, sixteen bytes, and their characters."""
    lines = []
    for start in range(0, len(data), _HEX_LINE):
        part = data[start : start + _HEX_LINE]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  {text}")
    return "\n".join(lines)


def visible(text: str | None) -> str:
    """Return a text with control characters escaped; a dash for None."""
    return "-" if text is None else printable(text)


def moment(time_ms: int | None) -> str:
    """Return a time since 1970-01-01 UTC as a date and a time; a dash for None."""
    return "-" if time_ms is None else f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%d %H:%M:%S} UTC"


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "counted": counted,
    "duration": format_duration,
    "excerpt": excerpt,
    "moment": moment,
    "number": number,
    "payload": payload,
    "visible": visible,
}
