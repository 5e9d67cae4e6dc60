"""The format of a host's log: one line per event, for people or for programs.

Always true: an event is one line; fields with the name of a secret, and passwords
in URLs, are never written. Knows nothing of the events.
"""

from __future__ import annotations

import datetime
import json
import logging
import re
from typing import Any, Final, Literal, TextIO

SECRET_FIELDS: Final = frozenset({"password", "secret", "credentials", "authorization", "token", "passphrase"})
HIDDEN_VALUE: Final = "***"

_URL_PASSWORD: Final = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/]*@", re.IGNORECASE)
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
    """Writes `2025-01-31T10:00:00.000Z INFO foqs.shard message key=value`, without colours."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_format_time(record)} {record.levelname} {record.name} {_hide_passwords(record.getMessage())}"
        for name, value in extra_fields(record).items():
            line += f" {name}={value}"
        if record.exc_info:
            line += f" exception={_hide_passwords(self.formatException(record.exc_info))}"
        return _escape_control_characters(line)


class JsonFormatter(logging.Formatter):
    """Writes one JSON object per line: time, level, logger, message, then the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _format_time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _hide_passwords(record.getMessage()),
        }
        event |= {name: value for name, value in extra_fields(record).items() if name not in event}
        if record.exc_info:
            event["exception"] = _hide_passwords(self.formatException(record.exc_info))
        return json.dumps(event)


def _format_time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _plain_value(value: object) -> object:
    return value if isinstance(value, bool | int | float) or value is None else _hide_passwords(str(value))


def _hide_passwords(text: str) -> str:
    return _URL_PASSWORD.sub(rf"\g<head>:{HIDDEN_VALUE}@", text)


def _escape_control_characters(text: str) -> str:
    """Escape control characters, so that a logged text cannot forge a line or move the cursor."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
