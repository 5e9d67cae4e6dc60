"""The Spark data source `foqs` with pushed filters.

Holds `PushdownDataSource`, which `foqs_client.spark.register` registers. Spark refuses
its reader unless pushing is switched on, so it is not the one that Spark finds by itself.
"""

from __future__ import annotations

from pyspark.sql.types import StructType

from foqs_client.spark.batch_reader import FoqsReader, PushdownReader
from foqs_client.spark.job_error import without_traceback
from foqs_client.spark.source import FoqsDataSource


class PushdownDataSource(FoqsDataSource):
    """The data source `foqs`, whose reads leave items out at the hosts where a filter of the query allows it."""

    def reader(self, schema: StructType) -> FoqsReader:
        """Return the reader of a batch. Raises SourceError if an option is wrong."""
        with without_traceback():
            return PushdownReader(self._checked_source(schema))
