"""The columns of a frame, and the fields of an item that they become.

Holds `COLUMNS`, the check of a frame's schema, and `SinkError`. Always true: a frame
that passes the check has no column with values that is ignored. Names of columns are
read without their case, as Spark does. Pure; types have the names that Spark's
`typeName()` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from foqs_client.spark.job_error import JobError, comma_separated

_TEXT: Final = ("string",)
_BYTES: Final = ("string", "binary")
_WHOLE: Final = ("byte", "short", "integer", "long")
_NULL: Final = "void"
"""The type of a column that is null in every row, such as `null AS metadata`."""


class SinkError(JobError):
    """A write to the sink `foqs` failed."""


class UncheckedText(list[Any]):
    """The values of a text column of which some may not be UTF-8. Such a value is its bytes."""


@dataclass(slots=True, frozen=True)
class Column:
    """A column of the sink.

    Attributes:
        types: the allowed types.
        value_min: the least value of a number.
        value_max: the largest value of a number.
    """

    types: Sequence[str]
    value_min: int = 0
    value_max: int = 0

    @property
    def is_number(self) -> bool:
        return "long" in self.types

    @property
    def is_bytes(self) -> bool:
        return "binary" in self.types


_INT64_MAX: Final = 2**63 - 1
VALUE_BYTES_MAX: Final = 1 << 20
"""The largest value of a column: no namespace allows a larger payload."""

COLUMNS: Final[dict[str, Column]] = {
    "topic": Column(_TEXT),
    "payload": Column(_BYTES),
    "priority": Column(_WHOLE, -(2**31), 2**31 - 1),
    "metadata": Column(_BYTES),
    "deliver_after": Column((*_WHOLE, "timestamp"), -_INT64_MAX, _INT64_MAX),
    "ttl": Column(_WHOLE, 1, _INT64_MAX),
    "lease": Column(_WHOLE, 1, _INT64_MAX),
    "idempotency_key": Column(_TEXT),
    "namespace": Column(_TEXT),
    "trace_context": Column(_BYTES),
    "item_group": Column(_TEXT),
}
"""The columns by name. An option of the same name is the value of every row that has none."""


def column_name(name: str) -> str:
    """Return the sink's name of a frame's column."""
    return name.lower()


def checked_columns(schema: Sequence[tuple[str, str]], has_topic: bool) -> list[tuple[str, str]]:
    """Check that a frame can be written. Return name and type of its columns that have values.

    Args:
        schema: (name, type name) of each column.
        has_topic: an option gives the topic.

    Raises:
        SinkError: a column is unknown, duplicate, or of a wrong type; or there is no topic.
    """
    names = [column_name(name) for name, _ in schema]
    unknown = [given for (given, _), name in zip(schema, names, strict=True) if name not in COLUMNS]
    if unknown:
        raise SinkError(
            f"the frame has columns that the sink does not know: {comma_separated(unknown)}; "
            f"select or rename to some of {comma_separated(COLUMNS)}"
        )
    columns = [(name, kind) for name, (_, kind) in zip(names, schema, strict=True) if kind != _NULL]
    for name in names:
        if names.count(name) > 1:
            raise SinkError(f"the frame has the column {name} {names.count(name)} times; keep one of them")
    for name, kind in columns:
        types = COLUMNS[name].types
        if kind not in types:
            raise SinkError(f"the column {name} is of type {kind}; cast it to {' or '.join(types)}")
    if not has_topic and "topic" not in dict(columns):
        raise SinkError('the items need a topic: add a column topic, or .option("topic", "...")')
    return columns
