"""The pipeline `report`: the backlog of namespaces as tables and one HTML page.

Holds `write_report` and `read_tables`. Always true: payloads are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from foqs_client.spark.pipelines.connection import Connection
from foqs_client.spark.pipelines.item_frame import read_items
from foqs_client.spark.pipelines.report_files import write_report_files
from foqs_client.spark.pipelines.report_page import page
from foqs_client.spark.pipelines.terminal import progress, say
from foqs_contract.plurals import counted

AGES: Final = (
    (60_000, "under 1 min"),
    (600_000, "1 to 10 min"),
    (3_600_000, "10 to 60 min"),
    (86_400_000, "1 to 24 h"),
    (7 * 86_400_000, "1 to 7 days"),
)
OLDEST: Final = "over 7 days"
LARGEST: Final = 20
HOURS: Final = 48
"""The number of hours for which the page shows what comes due; the table has all."""


def write_report(
    spark: SparkSession, connections: Sequence[Connection], folder: str, *, dry_run: bool
) -> dict[str, list[dict[str, Any]]]:
    """Write the tables as Parquet and `report.html` into a new folder. Return the tables.

    Raises:
        PipelineError: the items cannot be read, or the folder exists.
    """
    frames = [
        read_items(spark, each).withColumn("namespace", f.lit(each.namespace)).drop("metadata") for each in connections
    ]
    items = reduce(DataFrame.unionByName, frames).persist(StorageLevel.DISK_ONLY)
    try:
        with progress(spark.sparkContext, "report"):
            tables = {name: frame.cache() for name, frame in read_tables(items).items()}
            rows = {name: [row.asDict() for row in frame.collect()] for name, frame in tables.items()}
            say(f"{counted(sum(row['items'] for row in rows['backlog']), 'item')}.")
            if not dry_run:
                title = f"Backlog of {', '.join(each.namespace for each in connections)}"
                html = page(title, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", rows)
                write_report_files(spark, folder, "report", tables, html)
    finally:
        items.unpersist()
    return rows


def read_tables(items: DataFrame) -> dict[str, DataFrame]:
    """Return the tables of a report, of items with their namespace."""
    age = reduce(
        lambda case, bound: case.when(f.col("age") < bound[0], bound[1]),
        AGES[1:],
        f.when(f.col("age") < AGES[0][0], AGES[0][1]),
    ).otherwise(OLDEST)
    groups = ("namespace", "topic", "state", "priority")
    return {
        "backlog": items.groupBy(*groups, age.alias("age"))
        .agg(
            f.count("*").alias("items"), f.sum("payload_bytes").alias("payload_bytes"), f.max("age").alias("oldest_ms")
        )
        .orderBy(*groups, "age"),
        "due_by_hour": items.where("due_at IS NOT NULL")
        .groupBy("namespace", "topic", f.date_trunc("hour", "due_at").alias("hour"))
        .agg(f.count("*").alias("items"))
        .orderBy("hour", "namespace", "topic"),
        "dead_by_reason": items.where("state = 'dead'")
        .groupBy("namespace", "topic", "dead_reason")
        .agg(f.count("*").alias("items"), f.max("age").alias("oldest_ms"))
        .orderBy(f.desc("items"), "namespace", "topic", "dead_reason"),
        "largest_payloads": items.select("namespace", "topic", "id", "state", "payload_bytes", "age")
        .orderBy(f.desc("payload_bytes"), "id")
        .limit(LARGEST),
    }
