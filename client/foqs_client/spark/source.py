"""The Spark data source `foqs`, and its writer of frames.

Holds `FoqsDataSource`. Always true: the driver checks all that it can before any task
starts. It also names the run, so that every attempt of a task makes the same keys.
This module and the readers and writers beside it alone know PySpark. Spark makes a
reader or a writer in a separate Python process and sends copies of it to the tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from foqs_client.spark import item_columns, start_check
from foqs_client.spark.commits import TaskCommit, log_row_errors
from foqs_client.spark.environment import missing_packages, remedy
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.item_view_columns import STREAM_COLUMNS, ddl
from foqs_client.spark.job_error import JobError, SourceError, without_traceback
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.partition_writer import write_partition
from foqs_client.spark.source_options import SourceOptions, StreamSourceOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from foqs_client.spark.batch_reader import FoqsReader
    from foqs_client.spark.stream_reader import FoqsStreamReader
    from foqs_client.spark.stream_writer import FoqsStreamWriter


class FoqsDataSource(DataSource):
    """`format("foqs")` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def schema(self) -> str:
        """Return the columns of a read, as DDL. Only a stream has a staging location. Raises SourceError."""
        with without_traceback():
            if "staging_location" in self.options:
                StreamSourceOptions.parse(self.options)
                return ddl(STREAM_COLUMNS)
            return ddl(SourceOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> FoqsReader:
        """Return the reader of a batch. Raises SourceError if an option is wrong."""
        from foqs_client.spark.batch_reader import FoqsReader

        with without_traceback():
            return FoqsReader(self._checked_source(schema))

    def streamReader(self, schema: StructType) -> FoqsStreamReader:  # noqa: N802
        """Return the reader of a stream. Raises SourceError if an option is wrong."""
        with without_traceback():
            check_packages(SourceError)
            if find_spec("pyspark.sql.streaming.datasource") is None:
                raise SourceError(
                    "spark.readStream needs PySpark 4.2 or later; with an older one use a worker or spark.read"
                )
            options = StreamSourceOptions.parse(self.options)
            _check_columns(schema, STREAM_COLUMNS)
            from foqs_client.spark.stream_reader import FoqsStreamReader

            return FoqsStreamReader(options)

    def _checked_source(self, schema: StructType) -> SourceOptions:
        """Return the options of a read. Raises SourceError."""
        check_packages(SourceError)
        options = SourceOptions.parse(self.options)
        _check_columns(schema, options.columns)
        return options

    def writer(self, schema: StructType, overwrite: bool) -> FoqsWriter:
        """Return the writer. Raises SinkError if the frame or an option is wrong, or the hosts refuse the write."""
        with without_traceback():
            if overwrite:
                raise SinkError('a queue cannot be overwritten: write with .mode("append")')
            options, columns = self._checked_options(schema, is_stream=False)
            return FoqsWriter(options, start_check.check_hosts(options, "namespace" in dict(columns)))

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
        """Return the options, and the name and the type of each column with values. Raises SinkError."""
        check_packages(SinkError)
        options = SinkOptions.parse(self.options, is_stream=is_stream)
        schema_columns = [(field.name, field.dataType.typeName()) for field in schema.fields]
        return options, item_columns.checked_columns(schema_columns, "topic" in options.defaults)


def check_packages(error: type[JobError]) -> None:
    """Raise the error if this Python lacks a package."""
    missing = missing_packages()
    if missing:
        raise error(remedy(sys.executable, missing))


def _check_columns(schema: StructType, columns: Mapping[str, str]) -> None:
    """Raise SourceError if a read was given other columns than it has."""
    if {field.name: field.dataType.simpleString() for field in schema.fields} != columns:
        raise SourceError(f"the columns of this read are {ddl(columns)}; leave .schema(...) out")


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
