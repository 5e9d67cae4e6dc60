"""The format of a host's log: one line per event, for people or for programs.

Always true: an event is one line; fields with the name of a secret, and passwords
in URLs, are never written; of a text at most `TEXT_CHARS_MAX` characters are written,
and its cost is linear in its length. Knows nothing of the events.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from typing import Any, Final, Literal, TextIO

from foqs_contract.printable_text import printable

SECRET_FIELDS: Final = frozenset({"password", "secret", "credentials", "authorization", "token", "passphrase"})
HIDDEN_VALUE: Final = "***"
TEXT_CHARS_MAX: Final = 32_768
"""The longest message, field or traceback. A longer one is cut in the middle: the beginning and the end say what went wrong."""

# It begins with a literal and no part of it crosses a slash. So no text makes it search the same characters again and again.
_URL_PASSWORD: Final = re.compile(r"(?P<head>://[^\s:/]*):[^\s/]*@")
_SPLITTING: Final = re.compile(r'[\s"]')
_STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def setup_logging(level: str, style: Literal["auto", "text", "json"], stream: TextIO) -> None:
    """Send the log of the process to `stream`, from `level` (debug, info, warning, error) on.

    `auto` writes text if `stream` is a terminal, JSON otherwise.
    """
    is_text = style == "text" or (style == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def extra_fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the caller's `extra` fields in their order, with secrets hidden."""
    return {
        name: HIDDEN_VALUE if name.lower() in SECRET_FIELDS else _plain_value(value)
        for name, value in vars(record).items()
        if name not in _STANDARD_FIELDS
    }


class TextFormatter(logging.Formatter):
    """Writes `2025-01-31T10:00:00.000Z INFO foqs.shard message key=value`, without colours.

    A value with a space or a quotation mark is quoted, so that no part of it looks like another field.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_format_time(record)} {record.levelname} {record.name} {_plain_text(record.getMessage())}"
        for name, value in extra_fields(record).items():
            line += f" {name}={_quoted(str(value))}"
        if record.exc_info:
            line += f" exception={_plain_text(self.formatException(record.exc_info))}"
        return printable(line)  # a logged text cannot forge a line or move the cursor


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line: time, level, logger, message, then the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _plain_text(record.getMessage()),
        }
        event |= {name: value for name, value in extra_fields(record).items() if name not in event}
        if record.exc_info:
            event["exception"] = _plain_text(self.formatException(record.exc_info))
        return json.dumps(event)


def _format_time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if _SPLITTING.search(value) else value


def _plain_value(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else _plain_text(str(value))


def _plain_text(text: str) -> str:
    """Return a text without passwords, and not longer than an event may be."""
    hidden = _URL_PASSWORD.sub(rf"\g<head>:{HIDDEN_VALUE}@", text)
    if len(hidden) <= TEXT_CHARS_MAX:
        return hidden
    half = TEXT_CHARS_MAX // 2
    return f"{hidden[:half]} [{len(hidden) - 2 * half} characters are left out] {hidden[-half:]}"
