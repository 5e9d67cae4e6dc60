"""Finds out whether this Spark pushes filters correctly.

Holds `mixes_filters`. Spark 4.3 keeps the reader of the last pushed filters with the
frame: another query of the same frame that pushes nothing then reads with the filters of
the first, and misses rows. The probe does that with two rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = "foqs_pushdown_probe"


class ProbeReader(DataSourceReader):
    """Reads two rows, or one if any filter was pushed."""

    def __init__(self) -> None:
        self._rows = 2

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802
        """Accept filters. Spark applies them again."""
        self._rows = 1
        return filters

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Yield the rows."""
        return iter([(number,) for number in range(self._rows)])


class ProbeSource(DataSource):
    """The data source of the probe."""

    @classmethod
    def name(cls) -> str:
        return _NAME

    def schema(self) -> str:
        """Return the only column."""
        return "number int"

    def reader(self, schema: StructType) -> ProbeReader:
        """Return the reader, which counts the filters that Spark pushes to it."""
        return ProbeReader()


def mixes_filters(spark: SparkSession) -> bool:
    """Return whether a query of a frame reads with the filters that another query pushed. Pushing must be switched on."""
    spark.dataSource.register(ProbeSource)
    frame = spark.read.format(_NAME).load()
    frame.where("number = 0").collect()
    return len(frame.collect()) != 2
