"""The Spark data source `foqs`, and its writer.

Holds `FoqsDataSource`. Always true: the driver checks all that it can before any task
starts. It also names the run, so that every attempt of a task makes the same keys.
This is the only module that knows PySpark. Spark makes a writer in a separate Python
process and sends copies of it to the tasks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from foqs_client.spark import item_columns, start_check
from foqs_client.spark.environment import missing_packages, remedy
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.partition_writer import write_partition

if TYPE_CHECKING:
    import pyarrow as pa


class FoqsDataSource(DataSource):
    """`df.write.format("foqs")`; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def writer(self, schema: StructType, overwrite: bool) -> FoqsWriter:
        """Return the writer. Raises SinkError if the frame or an option is wrong, or the hosts refuse the write."""
        with _without_traceback():
            return self._writer(schema, overwrite)

    def _writer(self, schema: StructType, overwrite: bool) -> FoqsWriter:
        missing = missing_packages()
        if missing:
            raise SinkError(remedy(sys.executable, missing))
        if overwrite:
            raise SinkError('a queue cannot be overwritten: write with .mode("append")')
        options = SinkOptions.parse(self.options)
        item_columns.check_schema(
            [(field.name, field.dataType.typeName()) for field in schema.fields], "topic" in options.defaults
        )
        return FoqsWriter(options, start_check.check_hosts(options, "namespace" in schema.names))


@dataclass(slots=True)
class TaskCommit(WriterCommitMessage):
    """The result of a task: the number of its items, and how many of them an earlier attempt had enqueued."""

    items: int
    repeated: int


class FoqsWriter(DataSourceArrowWriter):
    """Writes the partitions of a frame.

    Args:
        options: the options of the write.
        key_slot_count: see `foqs_client.spark.row_keys`.
    """

    def __init__(self, options: SinkOptions, key_slot_count: int) -> None:
        self._options = options
        self._key_slot_count = key_slot_count

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Enqueue the rows of a task. Raises SinkError."""
        from foqs_client.spark.arrow import batch_columns

        context = TaskContext.get()
        assert context is not None, "a partition is written by a task of Spark"
        rows = ((batch_columns(batch), batch.num_rows) for batch in iterator)
        with _without_traceback():
            written = write_partition(rows, context.partitionId(), self._key_slot_count, self._options)
        return TaskCommit(written.items, written.repeated)


@contextmanager
def _without_traceback() -> Iterator[None]:
    """Remove the traceback of a SinkError: Spark shows it to the user, who needs only the sentence."""
    try:
        yield
    except SinkError as error:
        raise error.with_traceback(None) from None
