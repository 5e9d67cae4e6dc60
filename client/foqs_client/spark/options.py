"""The options of a write: `.option(name, value)`, checked once, on the driver.

Holds `SinkOptions`. Always true: unknown options and values out of range are refused.
The token is in no text of it. An option with the name of a column is the value of
every row that has none. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import uuid4

from foqs_client.addresses import parse_addresses
from foqs_client.errors import InvalidArgument
from foqs_client.spark.item_columns import COLUMNS, SinkError, comma_separated

OptionValue = str | bytes | int | None


@dataclass(slots=True, frozen=True)
class NumberOption:
    """The default and the range of a numeric option."""

    default: int
    value_min: int
    value_max: int


_TEXT_OPTIONS: Final = ("url", "token", "token_file", "ca_file", "cert_file", "key_file", "run")
NUMBER_OPTIONS: Final[dict[str, NumberOption]] = {
    "batch_items": NumberOption(500, 1, 100_000),
    "batch_bytes": NumberOption(1 << 20, 1, 64 << 20),
    "calls_in_flight": NumberOption(8, 1, 256),
    "timeout_ms": NumberOption(100_000, 1_000, 3_600_000),
    "partition_rows_max": NumberOption(2_000_000, 1, 1_000_000_000),
}
"""The options that are whole numbers; see `SinkOptions`."""
OPTION_NAMES: Final = (*_TEXT_OPTIONS, *NUMBER_OPTIONS, *COLUMNS)


@dataclass(slots=True, frozen=True)
class SinkOptions:
    """The options of a write.

    Attributes:
        url: the addresses of the hosts, `foqs://one:7411,two`, or `foqss://` for TLS.
        token: the secret of the job's principal.
        token_file: a file with the token. All files are on the machine that connects.
        ca_file: as in `foqs_client.Tls`.
        cert_file: as in `foqs_client.Tls`.
        key_file: as in `foqs_client.Tls`.
        run: the name of the write. A second write with the same name enqueues no item twice.
        batch_items: the most items of a call.
        batch_bytes: the most payload and metadata of a call. A larger item is sent alone.
        calls_in_flight: the most parallel calls of a task.
        timeout_ms: a task fails if an item cannot be enqueued within this time.
        partition_rows_max: the most rows of a partition for which keys are made.
        defaults: by column, the value of rows that have none.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    run: str = field(default_factory=lambda: uuid4().hex)
    batch_items: int = NUMBER_OPTIONS["batch_items"].default
    batch_bytes: int = NUMBER_OPTIONS["batch_bytes"].default
    calls_in_flight: int = NUMBER_OPTIONS["calls_in_flight"].default
    timeout_ms: int = NUMBER_OPTIONS["timeout_ms"].default
    partition_rows_max: int = NUMBER_OPTIONS["partition_rows_max"].default
    defaults: Mapping[str, OptionValue] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        """Check Spark's options, whose names are in lower case and whose values are text.

        Raises:
            SinkError: an option is unknown, missing or malformed.
        """
        if "path" in given:
            raise SinkError("a queue has no path: end the write with .save() alone")
        unknown = sorted(name for name in given if name not in OPTION_NAMES)
        if unknown:
            raise SinkError(f"unknown options: {comma_separated(unknown)}; known are {comma_separated(OPTION_NAMES)}")
        if not given.get("url"):
            raise SinkError('name the hosts: .option("url", "foqs://127.0.0.1:7411")')
        try:
            parse_addresses(given["url"])
        except InvalidArgument as error:
            raise SinkError(f"the option url is not an address: {error.message}") from None
        if "token" in given and "token_file" in given:
            raise SinkError("give the option token or token_file, not both")
        if given.get("run") == "":
            raise SinkError("the option run is empty; leave it out, or name the write")
        texts = {name: given[name] for name in _TEXT_OPTIONS if name in given}
        numbers = {
            name: _parse_number(name, given[name], allowed.value_min, allowed.value_max)
            for name, allowed in NUMBER_OPTIONS.items()
            if name in given
        }
        defaults = {name: _parse_value(name, given[name]) for name in COLUMNS if name in given}
        return cls(**texts, **numbers, defaults=defaults)  # type: ignore[arg-type]


def _parse_value(name: str, text: str) -> OptionValue:
    column = COLUMNS[name]
    if column.is_bytes:
        return text.encode()
    if not column.is_number:
        return text
    if "timestamp" in column.types and not _is_whole(text):
        return _parse_timestamp_ms(name, text)
    return _parse_number(name, text, column.value_min, column.value_max)


def _parse_number(name: str, text: str, value_min: int, value_max: int) -> int:
    if not _is_whole(text) or not value_min <= int(text) <= value_max:
        raise SinkError(f"the option {name} is {text!r}; it must be a whole number from {value_min} to {value_max}")
    return int(text)


def _is_whole(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 20


def _parse_timestamp_ms(name: str, text: str) -> int:
    """Return milliseconds since 1970-01-01 UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise SinkError(
            f"the option {name} is {text!r}; it must be milliseconds since 1970-01-01 UTC, or a time with its zone "
            "as in 2030-01-31T08:00:00+00:00"
        )
    return int(moment.timestamp() * 1_000)
