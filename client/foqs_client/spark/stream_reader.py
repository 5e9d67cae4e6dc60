"""The Spark reader of streams.

Holds `FoqsStreamReader`. Always true: only the process on the driver that plans batches
has a client; a task reads staged files alone. Needs PySpark 4.2, because older ones do
not pass the start of a batch. See docs/design/spark-source.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from foqs_client.spark.item_view_columns import STREAM_COLUMNS
from foqs_client.spark.job_client import make_client
from foqs_client.spark.job_error import SourceError, without_traceback
from foqs_client.spark.source_options import StreamSourceOptions
from foqs_client.sync_client import SyncClient

if TYPE_CHECKING:
    import pyarrow as pa

    from foqs_client.spark.queue_stream import QueueStream


class StagedPartition(InputPartition):
    """The row groups of a staged file that one task reads."""

    def __init__(self, file: str, groups: list[int]) -> None:
        super().__init__((file, groups))


class FoqsStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes items out of topics.

    Args:
        options: the options of the stream.
    """

    def __init__(self, options: StreamSourceOptions) -> None:
        self._options = options
        self._opened = ExitStack()
        self._stream: QueueStream | None = None
        self._available: int | None = None
        """How many items `availableNow` may still take; None for another trigger."""

    def __getstate__(self) -> StreamSourceOptions:
        """Return the options, which are all that a task needs."""
        return self._options

    def __setstate__(self, options: StreamSourceOptions) -> None:
        self.__init__(options)  # type: ignore[misc]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first batch, which is always the same."""
        from foqs_client.spark.queue_stream import Offset

        return Offset().as_dict()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of items of a batch."""
        return ReadMaxRows(self._options.max_items_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take no more items than are READY now."""
        with without_traceback():
            self._available = self._open().count_ready()

    def latestOffset(self, start: Mapping[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Ack the batch that ended at `start`, and stage the next one. Raises SourceError."""
        from foqs_client.spark.queue_stream import Offset

        with without_traceback():
            begin = Offset.parse(start)
            stream = self._open()
            items_max = stream.count_ready() if isinstance(limit, ReadAllAvailable) else _rows_of(limit)
            if self._available is not None:
                items_max = min(items_max, self._available)
            end = stream.lease_batch(begin, items_max, until_none_is_ready=self._available is not None)
            if self._available is not None and end.batch > begin.batch:
                self._available -= end.rows
        return end.as_dict()

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[InputPartition]:
        """Return the partitions of a batch. Raises SourceError."""
        from foqs_client.spark.queue_stream import Offset

        if start == end:
            return []
        with without_traceback():
            offset = Offset.parse(end)
            return [StagedPartition(offset.file, groups) for groups in self._open().partitions(offset)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises SourceError."""
        from foqs_client.spark.staging import Staging

        with without_traceback():
            file, groups = partition.value
            yield from Staging(self._options.staging_location, STREAM_COLUMNS).read(file, groups)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Ack the items of the batch that ended here. Raises SourceError."""
        from foqs_client.spark.queue_stream import Offset

        with without_traceback():
            self._open().settle(Offset.parse(end))

    def stop(self) -> None:
        """Close the client. What is leased comes back when its lease ends, unless the query is started again."""
        self._opened.close()

    def _open(self) -> QueueStream:
        """Return the driver's side of the stream, which is made once."""
        if self._stream is None:
            from foqs_client.spark.lease_renewal import StreamLeaseRenewal
            from foqs_client.spark.queue_stream import QueueStream
            from foqs_client.spark.staging import Staging

            options = self._options
            staging = Staging(options.staging_location, STREAM_COLUMNS)
            client = self._opened.enter_context(make_client(SyncClient, options, options.namespace, SourceError))
            renewal = StreamLeaseRenewal(client, options.lease_ms)
            self._opened.callback(renewal.stop)
            stream = QueueStream(options, client, staging, renewal)
            stream.check()
            self._stream = stream
        return self._stream


def _rows_of(limit: ReadLimit) -> int:
    """Return the maximum number of rows of a limit. Raises SourceError if it is of another kind."""
    if not isinstance(limit, ReadMaxRows):
        raise SourceError(f"the source cannot keep the limit {type(limit).__name__}; use max_items_per_trigger")
    return limit.max_rows
