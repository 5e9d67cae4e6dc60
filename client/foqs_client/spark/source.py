"""What Spark sees: the data source `foqs`, and its writer.

Holds `FoqsDataSource`. Always true: what can be refused is refused on the driver,
before any task starts; the run is named once, there, so that every attempt at a
task makes the same keys. The one module that knows PySpark. Spark makes a writer
in a Python process of its own and sends copies of it to the tasks.
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

from foqs_client.spark import columns, probe
from foqs_client.spark.environment import missing, remedy
from foqs_client.spark.errors import SinkError
from foqs_client.spark.options import Options
from foqs_client.spark.partition import write

if TYPE_CHECKING:
    import pyarrow as pa


class FoqsDataSource(DataSource):
    """`df.write.format("foqs")`; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def writer(self, schema: StructType, overwrite: bool) -> FoqsWriter:
        """Raises SinkError: the frame or an option is not as it must be, or the hosts do not want it."""
        with _brief():
            return self._writer(schema, overwrite)

    def _writer(self, schema: StructType, overwrite: bool) -> FoqsWriter:
        lacking = missing()
        if lacking:
            raise SinkError(remedy(sys.executable, lacking))
        if overwrite:
            raise SinkError('a queue cannot be overwritten: write with .mode("append")')
        options = Options.of(self.options)
        columns.check([(field.name, field.dataType.typeName()) for field in schema.fields], "topic" in options.defaults)
        return FoqsWriter(options, probe.look(options, "namespace" in schema.names))


@dataclass(slots=True)
class Done(WriterCommitMessage):
    """What a task tells the driver: its items, and those of them that an earlier attempt had enqueued."""

    items: int
    repeated: int


class FoqsWriter(DataSourceArrowWriter):
    """A write.

    Args:
        lanes: see `foqs_client.spark.keys`.
    """

    def __init__(self, options: Options, lanes: int) -> None:
        self._options = options
        self._lanes = lanes

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Done:
        """Raises SinkError."""
        from foqs_client.spark.arrow import columns

        context = TaskContext.get()
        assert context is not None, "a partition is written by a task of Spark"
        rows = ((columns(batch), batch.num_rows) for batch in iterator)
        with _brief():
            written = write(rows, context.partitionId(), self._lanes, self._options)
        return Done(written.items, written.repeated)


@contextmanager
def _brief() -> Iterator[None]:
    """Spark shows its user the whole traceback: of a sentence that is meant for him, only the sentence."""
    try:
        yield
    except SinkError as error:
        raise error.with_traceback(None) from None
