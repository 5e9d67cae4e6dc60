"""The options of a read: `.option(name, value)`, checked once, on the driver.

Holds `SourceOptions` and `StreamSourceOptions`. Always true: unknown options and values out of range are refused.
The token is in no text of it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from foqs_client.spark.item_view_columns import batch_columns
from foqs_client.spark.job_error import SourceError, comma_separated
from foqs_client.spark.option_values import CLIENT_OPTIONS, NumberOption, OptionValues
from foqs_client.types import ItemFilter

STATES: Final = ("deferred", "ready", "leased", "dead")
TOPICS_MAX: Final = 1_000

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_AGE_MS_MAX: Final = 253_402_300_799_999

SOURCE_NUMBERS: Final[dict[str, NumberOption]] = {
    "timeout_ms": NumberOption(100_000, 1_000, 3_600_000),
    "page_rows": NumberOption(500, 1, 1_000),
}
"""The options that are whole numbers and have a default; see `SourceOptions`."""
_FILTER_NUMBERS: Final[dict[str, NumberOption]] = {
    "priority_min": NumberOption(_INT32_MIN, _INT32_MIN, _INT32_MAX),
    "priority_max": NumberOption(_INT32_MAX, _INT32_MIN, _INT32_MAX),
    "age_min_ms": NumberOption(0, 0, _AGE_MS_MAX),
    "age_max_ms": NumberOption(_AGE_MS_MAX, 0, _AGE_MS_MAX),
}
_RATE: Final = {"rows_per_second": NumberOption(0, 1, 10_000_000)}
SOURCE_OPTION_NAMES: Final = (
    *CLIENT_OPTIONS,
    "namespace",
    "topics",
    "states",
    *_FILTER_NUMBERS,
    "payload",
    "details",
    *_RATE,
    *SOURCE_NUMBERS,
)


@dataclass(slots=True, frozen=True)
class SourceOptions:
    """The options of a read.

    Attributes:
        url: the addresses of the hosts, `foqs://one:7411,two`, or `foqss://` for TLS.
        token: the secret of the job's principal.
        token_file: a file with the token. All files are on the machine that connects.
        ca_file: as in `foqs_client.Tls`.
        cert_file: as in `foqs_client.Tls`.
        key_file: as in `foqs_client.Tls`.
        namespace: the namespace of the items.
        only: the filter of the items that are read. Their ages are measured when the read of their shard starts.
        payload: whether rows have their payloads.
        details: whether rows have the columns that a copy of the item needs.
        rows_per_second: the rate of the whole read; None: as fast as it can.
        timeout_ms: a task fails if a page cannot be read within this time.
        page_rows: the maximum number of rows of a call.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    namespace: str = "default"
    only: ItemFilter = field(default_factory=ItemFilter)
    payload: bool = False
    details: bool = False
    rows_per_second: int | None = None
    timeout_ms: int = SOURCE_NUMBERS["timeout_ms"].default
    page_rows: int = SOURCE_NUMBERS["page_rows"].default

    @property
    def columns(self) -> dict[str, str]:
        """The columns of the rows: name and type."""
        return batch_columns(payload=self.payload, details=self.details)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SourceOptions:
        """Return Spark's options after a check. Their names are in lower case, and their values are text.

        Raises:
            SourceError: an option is unknown, missing or malformed.
        """
        if "path" in given:
            raise SourceError("a queue has no path: end the read with .load() alone")
        for name in ("staging_location", "max_items_per_trigger", "lease_ms"):
            if name in given:
                raise SourceError(
                    f"the option {name} is only for spark.readStream, with staging_location; leave it out"
                )
        values = OptionValues(given, SOURCE_OPTION_NAMES, SourceError)
        values.check_names()
        values.check_client()
        return cls(
            **values.texts((*CLIENT_OPTIONS, "namespace")),  # type: ignore[arg-type]
            **values.numbers({**SOURCE_NUMBERS, **_RATE}),  # type: ignore[arg-type]
            only=_parse_filter(values),
            payload=values.flag("payload"),
            details=values.flag("details"),
        )


STREAM_SOURCE_NUMBERS: Final[dict[str, NumberOption]] = {
    "max_items_per_trigger": NumberOption(10_000, 1, 10_000_000),
    "lease_ms": NumberOption(120_000, 1_000, 86_400_000),
    "timeout_ms": SOURCE_NUMBERS["timeout_ms"],
}
"""The options of a stream that are whole numbers; see `StreamSourceOptions`."""
STREAM_SOURCE_OPTION_NAMES: Final = (
    *CLIENT_OPTIONS,
    "namespace",
    "topics",
    "staging_location",
    *STREAM_SOURCE_NUMBERS,
)


@dataclass(slots=True, frozen=True)
class StreamSourceOptions:
    """The options of a stream that takes items out of topics.

    Attributes:
        url: see `SourceOptions` for this and the next six.
        topics: the topics, the first ones first.
        staging_location: the folder that keeps the rows of batches until they are acked; of this query alone.
        max_items_per_trigger: the maximum number of items of a batch.
        lease_ms: the lease of the items; extended while their batch runs.
        timeout_ms: how long calls are retried before the query fails.
    """

    url: str
    topics: tuple[str, ...]
    staging_location: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    namespace: str = "default"
    max_items_per_trigger: int = STREAM_SOURCE_NUMBERS["max_items_per_trigger"].default
    lease_ms: int = STREAM_SOURCE_NUMBERS["lease_ms"].default
    timeout_ms: int = STREAM_SOURCE_NUMBERS["timeout_ms"].default

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> StreamSourceOptions:
        """Return Spark's options after a check. Their names are in lower case, and their values are text.

        Raises:
            SourceError: an option is unknown, missing or malformed.
        """
        if "path" in given:
            raise SourceError("a queue has no path: end the read with .load() alone")
        values = OptionValues(given, STREAM_SOURCE_OPTION_NAMES, SourceError)
        values.check_names()
        values.check_client()
        topics = checked_topics(values)
        if topics is None:
            raise SourceError('name the topics to take items from: .option("topics", "mail,sms")')
        location = given.get("staging_location", "")
        if not location.startswith("/") and "://" not in location:
            raise SourceError(
                'a stream needs a folder of its own that keeps its batches: .option("staging_location", "/data/staged"), '
                "an absolute path or an address such as s3://bucket/folder"
            )
        return cls(
            **values.texts((*CLIENT_OPTIONS, "namespace")),  # type: ignore[arg-type]
            **values.numbers(STREAM_SOURCE_NUMBERS),  # type: ignore[arg-type]
            topics=topics,
            staging_location=location,
        )


def checked_topics(values: OptionValues) -> tuple[str, ...] | None:
    """Return the option topics. Raises SourceError if it has too many."""
    topics = values.names("topics")
    if topics is not None and len(topics) > TOPICS_MAX:
        raise SourceError(f"the option topics has {len(topics)} topics; give at most {TOPICS_MAX}, or leave it out")
    return topics


def _parse_filter(values: OptionValues) -> ItemFilter:
    states = values.names("states")
    if states is not None and not set(states) <= set(STATES):
        raise SourceError(f"the option states is {','.join(states)!r}; it must be some of {comma_separated(STATES)}")
    bounds = values.numbers(_FILTER_NUMBERS)
    for name in ("priority", "age"):
        unit = "_ms" if name == "age" else ""
        low, high = f"{name}_min{unit}", f"{name}_max{unit}"
        if low in bounds and high in bounds and bounds[low] > bounds[high]:
            raise SourceError(f"the option {low} is greater than {high}; exchange them")
    return ItemFilter(topics=checked_topics(values), states=states, **bounds)  # type: ignore[arg-type]
