"""The Spark data source `foqs`, and its writer of frames.

Holds `FoqsDataSource`. Always true: the driver checks all that it can before any task
starts. It also names the run, so that every attempt of a task makes the same keys.
This module and `stream_writer` alone know PySpark. Spark makes a writer in a separate
Python process and sends copies of it to the tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from foqs_client.spark import item_columns, start_check
from foqs_client.spark.commits import TaskCommit, log_row_errors
from foqs_client.spark.environment import missing_packages, remedy
from foqs_client.spark.item_columns import SinkError, without_traceback
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.partition_writer import write_partition

if TYPE_CHECKING:
    import pyarrow as pa

    from foqs_client.spark.stream_writer import FoqsStreamWriter


class FoqsDataSource(DataSource):
    """`df.write.format("foqs")` and `df.writeStream.format("foqs")`; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def writer(self, schema: StructType, overwrite: bool) -> FoqsWriter:
        """Return the writer. Raises SinkError if the frame or an option is wrong, or the hosts refuse the write."""
        with without_traceback():
            if overwrite:
                raise SinkError('a queue cannot be overwritten: write with .mode("append")')
            options, _ = self._checked_options(schema, is_stream=False)
            return FoqsWriter(options, start_check.check_hosts(options, "namespace" in schema.names))

    def streamWriter(self, schema: StructType, overwrite: bool) -> FoqsStreamWriter:  # noqa: N802
        """Return the writer of a batch, or the one that commits it. Raises SinkError as `writer` does."""
        with without_traceback():
            if not hasattr(datasource, "DataSourceStreamArrowWriter"):
                raise SinkError("df.writeStream needs PySpark 4.1 or later; with an older one write in foreachBatch")
            if overwrite:
                raise SinkError('a queue cannot be overwritten: write with .outputMode("append")')
            from foqs_client.spark.stream_writer import make_stream_writer

            return make_stream_writer(*self._checked_options(schema, is_stream=True))

    def _checked_options(self, schema: StructType, *, is_stream: bool) -> tuple[SinkOptions, list[tuple[str, str]]]:
        """Return the options, and the name and the type of each column. Raises SinkError."""
        missing = missing_packages()
        if missing:
            raise SinkError(remedy(sys.executable, missing))
        options = SinkOptions.parse(self.options, is_stream=is_stream)
        columns = [(field.name, field.dataType.typeName()) for field in schema.fields]
        item_columns.check_schema(columns, "topic" in options.defaults)
        return options, columns


class FoqsWriter(DataSourceArrowWriter):
    """Writes the partitions of a frame.

    Args:
        options: the options of the write.
        group_count: see `foqs_client.spark.row_items`.
    """

    def __init__(self, options: SinkOptions, group_count: int) -> None:
        self._options = options
        self._group_count = group_count

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Enqueue the rows of a task. Raises SinkError."""
        from foqs_client.spark.arrow import batch_columns

        context = TaskContext.get()
        assert context is not None, "a partition is written by a task of Spark"
        rows = ((batch_columns(batch), batch.num_rows) for batch in iterator)
        with without_traceback():
            written = write_partition(rows, context.partitionId(), self._group_count, self._options)
        return TaskCommit(written)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log the rows that were skipped or became dead letters."""
        log_row_errors("a write", messages)
