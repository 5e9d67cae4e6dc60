"""The Spark writer of streams.

Holds `FoqsStreamWriter`. Always true: the keys of a batch depend only on the query, the
batch, the partition and the rows, so a batch that is run again enqueues no row twice.
Spark makes a writer for each batch, in a process of the driver, and another to commit
it. Needs PySpark 4.1. See docs/design/spark.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from foqs_client.spark import start_check
from foqs_client.spark.batch_markers import BatchRun, StreamChecks, stream_markers
from foqs_client.spark.commits import TaskCommit, log_row_errors
from foqs_client.spark.environment import is_from_session
from foqs_client.spark.item_columns import SinkError
from foqs_client.spark.job_error import without_traceback
from foqs_client.spark.options import SinkOptions
from foqs_client.spark.partition_writer import write_partition

if TYPE_CHECKING:
    import pyarrow as pa

_COMMIT_MODULE: Final = "pyspark.sql.worker.python_streaming_sink_runner"
"""Spark's program that commits a batch. It has a process of its own."""


def make_stream_writer(options: SinkOptions, columns: Sequence[tuple[str, str]]) -> FoqsStreamWriter:
    """Return the writer of a batch; or the one that commits it, for which nothing is checked. Raises SinkError.

    Args:
        options: the options of the stream.
        columns: (name, type name) of each column.
    """
    if is_from_session(os.environ, sys.path):
        raise SinkError(
            "Spark runs the tasks of a streaming sink without the packages that a session of Spark Connect added: install foqs[spark] "
            "in the Python of the server and of its executors"
        )
    has_namespaces = "namespace" in dict(columns)
    group_count = 1 if _COMMIT_MODULE in sys.modules else start_check.check_stream(options, has_namespaces)
    return FoqsStreamWriter(options, columns, group_count, start_check.checked_namespace(options, has_namespaces))


class FoqsStreamWriter(DataSourceStreamArrowWriter):
    """Writes the partitions of a batch.

    Args:
        options: the options of the stream.
        columns: (name, type name) of each column.
        group_count: see `foqs_client.spark.row_items`.
        checked_namespace: the namespace whose key window was checked.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: Sequence[tuple[str, str]],
        group_count: int,
        checked_namespace: str | None,
    ) -> None:
        self._options = options
        self._columns = columns
        self._group_count = group_count
        self._checked_namespace = checked_namespace

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommit:
        """Enqueue the rows of a task. Raises SinkError."""
        from foqs_client.spark.arrow import batch_columns

        context = TaskContext.get()
        assert context is not None, "a partition is written by a task of Spark"
        rows = ((batch_columns(batch), batch.num_rows) for batch in iterator)
        with without_traceback():
            batch = BatchRun.of_task(context.getLocalProperty)
            checks = StreamChecks(stream_markers(batch, self._columns, self._options.defaults), self._checked_namespace)
            options = replace(self._options, run=batch.name)
            return TaskCommit(write_partition(rows, context.partitionId(), self._group_count, options, checks))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Log the rows that were skipped or became dead letters. Every row is durable already."""
        log_row_errors(f"batch {batchId} of a stream", messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing: the batch is run again, and its keys find what is enqueued."""
