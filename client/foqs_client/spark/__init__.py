"""The Spark source and sinks: `spark.read.format("foqs")`, `df.write.format("foqs")` and their streams.

`job_error`, `option_values`, `options`, `source_options`, `item_columns`, `row_items`,
`row_keys`, `item_view_columns` and `pushed_filters` are pure. `sender`, `start_check` and
`item_reader` call hosts. `partition_writer` writes the rows of one task. Only `source`
and the readers and writers know PySpark. `environment` checks the Python of Spark's
tasks. Spark finds the source by the package `pyspark_foqs`. Always true: importing this
package imports neither PySpark nor pyarrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foqs_client.spark.job_error import SourceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PUSHDOWN_SETTING: Final = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession, *, pushdown: bool = False) -> None:
    """Register the data source `foqs` in a session, which is needed only for `pushdown` and in Spark Connect.

    Args:
        spark: the session.
        pushdown: filters of queries by topic, state and priority are applied by the hosts. Needs PySpark 4.1.

    Raises:
        SourceError: this PySpark cannot push filters, or mixes up those of several queries.
    """
    from pyspark.sql import datasource

    from foqs_client.spark.source import FoqsDataSource

    if not pushdown:
        spark.dataSource.register(FoqsDataSource)
        return
    if not hasattr(datasource, "EqualTo"):
        raise SourceError("pushed filters need PySpark 4.1 or later; use the options topics, states and priority_min")
    from foqs_client.spark.pushdown_probe import mixes_filters
    from foqs_client.spark.pushdown_source import PushdownDataSource

    spark.conf.set(_PUSHDOWN_SETTING, "true")
    if mixes_filters(spark):
        spark.conf.unset(_PUSHDOWN_SETTING)
        raise SourceError(
            f"Spark {spark.version} reads a frame with the filters of an earlier query of that frame, and would miss items; "
            "use the options topics, states, priority_min and priority_max instead of pushed filters"
        )
    spark.dataSource.register(PushdownDataSource)
