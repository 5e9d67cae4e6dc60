"""The Spark readers of batches.

Holds `FoqsReader`, and `PushdownReader`, which accepts filters. Always true: a shard is
read by one task; with a rate, one task reads all shards, because tasks cannot share a
rate. A pushed filter only leaves items out earlier: Spark applies it again. Needs
PySpark 4.0, and 4.1 for pushed filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from foqs_client.spark.item_reader import check_source, read_pages
from foqs_client.spark.item_view_columns import view_values
from foqs_client.spark.job_error import without_traceback
from foqs_client.spark.pushed_filters import Comparison, narrowed
from foqs_client.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa


class ShardsPartition(InputPartition):
    """The shards that one task reads."""

    def __init__(self, shards: Sequence[int]) -> None:
        super().__init__(list(shards))


class FoqsReader(DataSourceReader):
    """Reads the items of a namespace.

    Args:
        options: the options of the read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Return a partition for each shard, or one for a read with a rate. Raises SourceError."""
        with without_traceback():
            if () in (self._options.only.topics, self._options.only.states):
                return [ShardsPartition(())]  # no item can match the query's filters
            shards = check_source(self._options)
        return [ShardsPartition(shards)] if self._options.rows_per_second else [ShardsPartition([n]) for n in shards]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the items of a partition. Raises SourceError."""
        from foqs_client.spark.arrow import arrow_schema, record_batch

        schema = arrow_schema(self._options.columns)
        with without_traceback():
            for page in read_pages(self._options, partition.value):
                yield record_batch(view_values(page.items, page.now_ms or 0, schema.names), schema)


class PushdownReader(FoqsReader):
    """A reader that leaves items out at the hosts where a filter of the query allows it."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Narrow the read. Returns all filters, because Spark must apply them again."""
        comparisons = [found for each in filters if (found := _comparison(each)) is not None]
        self._options = replace(self._options, only=narrowed(self._options.only, comparisons))
        return filters


def _comparison(given: Any) -> Comparison | None:
    """Return a filter of Spark as a comparison of one column; None for another kind of filter."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    value = getattr(given, "value", None)
    if len(path) != 1 or value is None:
        return None
    return Comparison(type(given).__name__, path[0], value)
