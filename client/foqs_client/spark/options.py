"""The options of a write: `.option(name, value)`, checked once, on the driver.

Holds `SinkOptions`. Always true: unknown options and values out of range are refused.
The token is in no text of it. An option with the name of a column is the value of
every row that has none. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import uuid4

from foqs_client.spark.item_columns import COLUMNS, SinkError
from foqs_client.spark.option_values import CLIENT_OPTIONS, NumberOption, OptionValues, is_whole

OptionValue = str | bytes | int | None


class OnError(StrEnum):
    """The treatment of a row that cannot be an item."""

    FAIL = "fail"
    """The task of the row fails."""
    SKIP = "skip"
    """The row is counted and logged, and not enqueued."""
    DEADLETTER = "deadletter"
    """The row is enqueued into the topic of the option `dead_letter_topic`."""


_TEXT_OPTIONS: Final = (*CLIENT_OPTIONS, "run", "on_error", "dead_letter_topic")
NUMBER_OPTIONS: Final[dict[str, NumberOption]] = {
    "batch_items": NumberOption(500, 1, 100_000),
    "batch_bytes": NumberOption(1 << 20, 1, 64 << 20),
    "calls_in_flight": NumberOption(8, 1, 256),
    "timeout_ms": NumberOption(100_000, 1_000, 3_600_000),
    "partition_rows_max": NumberOption(2_000_000, 1, 1_000_000_000),
    "replay_window_ms": NumberOption(86_400_000, 120_000, 366 * 86_400_000),
}
"""The options that are whole numbers; see `SinkOptions`."""
OPTION_NAMES: Final = (*_TEXT_OPTIONS, *NUMBER_OPTIONS, *COLUMNS)
_STREAM_OPTIONS: Final = ("replay_window_ms",)
"""The options that only a stream has."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SPARKS_STREAM_OPTIONS: Final = ("checkpointlocation", "queryname")
"""Options of a stream that Spark itself reads and passes on."""


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
        batch_items: the maximum number of items of a call.
        batch_bytes: the maximum size of payload, metadata and trace context of a call together. A larger item is sent alone.
        calls_in_flight: the maximum number of parallel calls of a task.
        timeout_ms: a task fails if an item cannot be enqueued within this time.
        partition_rows_max: the maximum number of rows of a partition for which keys are made.
        replay_window_ms: a stream starts only if keys are remembered for at least this time.
        on_error: the treatment of a row that cannot be an item.
        dead_letter_topic: the topic of such rows, with `OnError.DEADLETTER`.
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
    replay_window_ms: int = NUMBER_OPTIONS["replay_window_ms"].default
    on_error: OnError = OnError.FAIL
    dead_letter_topic: str = ""
    defaults: Mapping[str, OptionValue] = field(default_factory=dict)

    def identity(self) -> tuple[object, ...]:
        """Return a value that is equal for equal options, also if the name of the write differs."""
        items = ((each.name, getattr(self, each.name)) for each in fields(self) if each.name not in ("run", "defaults"))
        return (*items, *sorted(self.defaults.items()))

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool = False) -> SinkOptions:
        """Return Spark's options after a check. Their names are in lower case, and their values are text.

        Raises:
            SinkError: an option is unknown, missing or malformed.
        """
        if "path" in given:
            raise SinkError(f"a queue has no path: end the write with .{'start' if is_stream else 'save'}() alone")
        if is_stream:
            given = {name: value for name, value in given.items() if name not in _SPARKS_STREAM_OPTIONS}
        values = OptionValues(given, OPTION_NAMES, SinkError)
        values.check_names()
        _check_kind(given, is_stream)
        values.check_client()
        if given.get("run") == "":
            raise SinkError("the option run is empty; leave it out, or name the write")
        on_error = _parse_on_error(given)
        texts = values.texts([name for name in _TEXT_OPTIONS if name != "on_error"])
        numbers = values.numbers(NUMBER_OPTIONS)
        defaults = {name: _parse_value(values, name, given[name]) for name in COLUMNS if name in given}
        return cls(**texts, **numbers, on_error=on_error, defaults=defaults)  # type: ignore[arg-type]


def _check_kind(given: Mapping[str, str], is_stream: bool) -> None:
    if is_stream and "run" in given:
        raise SinkError("the option run is not for streams, where query and batch name the run; leave it out")
    stream_only = [name for name in _STREAM_OPTIONS if name in given]
    if stream_only and not is_stream:
        raise SinkError(f"the option {stream_only[0]} is only for df.writeStream; leave it out")


def _parse_on_error(given: Mapping[str, str]) -> OnError:
    text = given.get("on_error", OnError.FAIL).lower()
    if text not in list(OnError):
        raise SinkError(f"the option on_error is {given['on_error']!r}; it must be fail, skip or deadletter")
    if text == OnError.DEADLETTER and not given.get("dead_letter_topic"):
        raise SinkError('dead letters need a topic: .option("dead_letter_topic", "...")')
    if text != OnError.DEADLETTER and "dead_letter_topic" in given:
        raise SinkError('the option dead_letter_topic needs .option("on_error", "deadletter")')
    return OnError(text)


def _parse_value(values: OptionValues, name: str, text: str) -> OptionValue:
    column = COLUMNS[name]
    if column.is_bytes:
        return text.encode()
    if not column.is_number:
        return text
    if "timestamp" in column.types and not is_whole(text):
        return _parse_timestamp_ms(name, text)
    return values.number(name, text, column.value_min, column.value_max)


def _parse_timestamp_ms(name: str, text: str) -> int:
    """Return the time that an option gives, in milliseconds since 1970-01-01 UTC. Raises SinkError."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise SinkError(
            f"the option {name} is {text!r}; it must be milliseconds since 1970-01-01 UTC, or a time with its zone "
            "as in 2030-01-31T08:00:00+00:00"
        )
    return (moment - _EPOCH) // timedelta(milliseconds=1)
