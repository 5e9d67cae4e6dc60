"""The pipeline `measures`: the order, losses and times of a run, from the records of its clients.

Holds `write_measures` and `read_tables`. Always true: no host is called. The measures are those of
the BDQS paper; docs/spark-pipelines.md defines them. `delivery_order` gets one topic at a time,
so the places of its items must fit into the memory of a task: some 40 bytes for each item.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Any, Final

from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from foqs_client.spark.pipelines.connection import PipelineError
from foqs_client.spark.pipelines.delivery_order import measure_order
from foqs_client.spark.pipelines.error_sentence import error_sentence
from foqs_client.spark.pipelines.measures_page import page
from foqs_client.spark.pipelines.report_files import write_report_files
from foqs_client.spark.pipelines.terminal import progress, say
from foqs_contract.plurals import counted

FORMATS: Final = ("json", "parquet")
EVENTS: Final = ("enqueue", "delivery", "corrupt", "ack")
COLUMNS: Final = {
    "event": "string",
    "topic": "string",
    "item": "string",
    "at_ms": "double",
    "took_ms": "double",
    "priority": "int",
    "sequence": "bigint",
}
"""The columns of a record and their types. docs/spark-pipelines.md says what they mean."""
_REQUIRED: Final = ("event", "topic", "item", "at_ms")
_NUMBERED: Final = ("enqueue", "delivery")
"""The events that need a sequence."""
_QUANTILES: Final = (0.5, 0.9, 0.99)


def write_measures(
    spark: SparkSession, paths: Sequence[str], kind: str, folder: str, *, dry_run: bool
) -> dict[str, list[dict[str, Any]]]:
    """Write the tables as Parquet and `measures.html` into a new folder. Return the tables.

    Args:
        paths: files and folders of records.
        kind: the format of the records, one of FORMATS.

    Raises:
        PipelineError: the records cannot be read or are malformed, or the folder exists.
    """
    records = _read_records(spark, paths, kind).persist(StorageLevel.DISK_ONLY)
    try:
        with progress(spark.sparkContext, "measures"):
            _check(records)
            tables = {name: frame.cache() for name, frame in read_tables(records).items()}
            rows = {name: [row.asDict() for row in frame.collect()] for name, frame in tables.items()}
            say(f"{counted(sum(row['enqueued'] for row in rows['topics']), 'item')}.")
            if not dry_run:
                html = page(f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", rows)
                write_report_files(spark, folder, "measures", tables, html)
    finally:
        records.unpersist()
    return rows


def read_tables(records: DataFrame) -> dict[str, DataFrame]:
    """Return the table `topics` of counts and measures, and the table `latency` of percentiles."""
    items = _items(records)
    return {"topics": _topics(items), "latency": _latency(records, items)}


def _read_records(spark: SparkSession, paths: Sequence[str], kind: str) -> DataFrame:
    reader = spark.read.format(kind)
    if kind == "json":
        reader = reader.schema(", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items()))
    try:
        found = reader.load(list(paths))
    except AnalysisException as error:
        raise PipelineError(f"the records cannot be read: {error_sentence(error)}") from None
    missing = [name for name in _REQUIRED if name not in found.columns]
    if missing:
        raise PipelineError(f"the records have no column {missing[0]}; they have {', '.join(found.columns)}")
    columns = [
        f.expr(f"try_cast({name if name in found.columns else 'NULL'} AS {type_}) AS {name}")
        for name, type_ in COLUMNS.items()
    ]
    return found.select(columns).withColumn("priority", f.expr("coalesce(priority, 0)"))


def _check(records: DataFrame) -> None:
    event = f.col("event")
    present = [f.col(name).isNotNull() for name in _REQUIRED]
    right = reduce(Column.__and__, present, event.isin(*EVENTS))
    right &= f.col("sequence").isNotNull() | ~event.isin(*_NUMBERED)
    wrong = records.where(~f.coalesce(right, f.lit(False)))
    examples = wrong.take(1)
    if examples:
        raise PipelineError(
            f"{wrong.count():,} of the records are malformed, such as {examples[0].asDict()}; each needs {', '.join(_REQUIRED)}; "
            f"its event is one of {', '.join(EVENTS)}; {' and '.join(_NUMBERED)} need a sequence"
        )


def _items(records: DataFrame) -> DataFrame:
    """Return a row for each item: its enqueue, its first delivery, the number of its deliveries, and its first ack."""

    def first(event: str, *columns: str) -> Any:
        return f.min(f.when(f.col("event") == event, f.struct(*columns)))

    return records.groupBy("topic", "item").agg(
        first("enqueue", "priority", "sequence", "at_ms").alias("enqueued"),
        first("delivery", "at_ms", "sequence").alias("received"),
        f.expr("count_if(event = 'delivery') AS deliveries"),
        first("ack", "at_ms").alias("acked"),
    )


def _topics(items: DataFrame) -> DataFrame:
    counts = items.groupBy("topic").agg(
        f.expr("count_if(enqueued IS NOT NULL) AS enqueued"),
        f.expr("count_if(enqueued IS NOT NULL AND received IS NOT NULL) AS received"),
        f.expr("count_if(enqueued IS NOT NULL AND acked IS NOT NULL) AS acked"),
        f.expr("sum(IF(enqueued IS NULL, 0, greatest(deliveries - 1, 0))) AS duplicates"),
        f.expr("count_if(enqueued IS NOT NULL AND received IS NULL) AS lost"),
        f.expr("count_if(enqueued IS NULL) AS unknown"),
    )
    correct = Window.partitionBy("topic").orderBy("enqueued", "item")
    sequences = (
        items.where("enqueued IS NOT NULL AND received IS NOT NULL")
        .withColumn("place", f.row_number().over(correct))
        .groupBy("topic")
        .agg(f.expr("transform(array_sort(collect_list(struct(received, place))), each -> each.place) AS places"))
    )
    measure = f.udf(measure_order, "struct<out_of_order: bigint, displacement: bigint>", useArrow=False)
    orders = sequences.select("topic", measure("places").alias("order")).select("topic", "order.*")
    return (
        counts.join(orders, "topic", "left")
        .na.fill(0, ["out_of_order", "displacement"])
        .withColumns(
            {
                "duplication_rate": f.expr("duplicates / nullif(enqueued, 0)"),
                "loss_rate": f.expr("lost / nullif(enqueued, 0)"),
                "out_of_order_rate": f.expr("out_of_order / nullif(received, 0)"),
                "average_displacement": f.expr("displacement / nullif(received, 0)"),
            }
        )
        .orderBy("topic")
    )


def _latency(records: DataFrame, items: DataFrame) -> DataFrame:
    known = items.where("enqueued IS NOT NULL")
    steps = [
        records.where("took_ms IS NOT NULL").selectExpr("topic", "concat(event, ' call') AS step", "took_ms AS ms"),
        known.where("received IS NOT NULL").selectExpr(
            "topic", "'wait' AS step", "greatest(received.at_ms - enqueued.at_ms, 0D) AS ms"
        ),
        known.where("received IS NOT NULL AND acked IS NOT NULL").selectExpr(
            "topic", "'work' AS step", "greatest(acked.at_ms - received.at_ms, 0D) AS ms"
        ),
    ]
    return (
        reduce(DataFrame.unionByName, steps)
        .groupBy("topic", "step")
        .agg(
            f.count("*").alias("count"),
            *[f.percentile("ms", f.lit(each)).alias(f"p{each * 100:.0f}_ms") for each in _QUANTILES],
            f.max("ms").alias("max_ms"),
        )
        .orderBy("topic", "step")
    )
