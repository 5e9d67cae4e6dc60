"""Converts Spark's Arrow record batches to plain columns, and columns to record batches.

Holds `batch_columns` and `record_batch`. Always true: text in a payload or metadata becomes its UTF-8
bytes, and so does a text elsewhere that is not UTF-8. A timestamp becomes milliseconds
since 1970-01-01 UTC, rounded down. Knows nothing of items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from foqs_client.spark.item_columns import COLUMNS, UncheckedText, column_name


def batch_columns(batch: pa.RecordBatch) -> dict[str, Sequence[Any]]:
    """Return the columns that have values, by the sink's names, with a value for each row; None for null."""
    return {
        name: _column(name, column)
        for name, column in zip(map(column_name, batch.schema.names), batch.columns, strict=True)
        if not pa.types.is_null(column.type)
    }


_TYPES: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
}
"""The Arrow types of types in Spark's DDL. A timestamp is given in microseconds."""


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of columns, given by name and type."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in columns.items()])


def record_batch(values: Sequence[Sequence[Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch of the values of each column."""
    arrays = [pa.array(column, kind) for column, kind in zip(values, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(name: str, column: pa.Array) -> Sequence[Any]:
    kind = column.type
    if COLUMNS[name].is_bytes:
        if pa.types.is_string(kind):
            column = column.cast(pa.binary())
        elif pa.types.is_large_string(kind):
            column = column.cast(pa.large_binary())
    elif pa.types.is_timestamp(kind):
        microseconds = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
        return [None if value is None else value // 1_000 for value in microseconds]
    try:
        return column.to_pylist()  # type: ignore[no-any-return]
    except UnicodeDecodeError:
        binary = pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()
        return UncheckedText(_text(value) for value in column.cast(binary).to_pylist())


def _text(value: bytes | None) -> str | bytes | None:
    """Return the text, or its bytes if it is not UTF-8."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
