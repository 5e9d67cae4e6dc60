"""The pipeline `load`: rows of files become items.

Holds `load_files`. Always true: the same command makes the same keys, so a load that
was interrupted is continued by running it again within the namespace's key window.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from foqs_client.errors import FoqsError
from foqs_client.spark.item_columns import COLUMNS, SinkError, checked_columns
from foqs_client.spark.pipelines.connection import Connection, PipelineError
from foqs_client.spark.pipelines.error_sentence import error_sentence
from foqs_client.spark.pipelines.terminal import progress, say
from foqs_contract.plurals import counted

FORMATS: Final = ("parquet", "json", "csv")
EXAMPLES: Final = 5
_PARTITIONS: Final = 32
"""The least number of partitions. Without it Spark cuts files by the number of cores, and keys need the same cuts each time."""


@dataclass(slots=True, frozen=True)
class Load:
    """The files to load, and how their rows become items.

    Attributes:
        paths: files and folders.
        columns: by column of the sink, an SQL expression over the columns of the files. Empty: the files' own.
        options: further options of the sink, such as topic.
        run: the name of the load; None: made of all of the above.
        schema: the schema of JSON and CSV files, as DDL; None: it is read from the files.
    """

    paths: Sequence[str]
    format: str
    columns: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    run: str | None = None
    schema: str | None = None


def load_files(spark: SparkSession, connection: Connection, load: Load, *, dry_run: bool) -> int:
    """Enqueue the rows and return their number.

    Raises:
        PipelineError: files, columns or options are wrong, or rows cannot be enqueued.
    """
    spark.conf.set("spark.sql.files.minPartitionNum", str(_PARTITIONS))
    frame = _items(_files(spark, load), load)
    try:
        checked_columns(
            [(each.name, each.dataType.typeName()) for each in frame.schema.fields], "topic" in load.options
        )
    except SinkError as error:
        raise PipelineError(f"{error}; map columns with --map NAME=EXPRESSION") from None
    run = load.run or _run_name(frame, load)
    with progress(spark.sparkContext, "count"):
        rows = frame.count()
    say(f"{counted(rows, 'row')}; the run is {run}.")
    if dry_run:
        for row in frame.limit(EXAMPLES).collect():
            say(f"  {row.asDict()}")
        return rows
    _warn_of_short_window(connection)
    options = {**connection.spark_options(), **load.options, "run": run}
    try:
        with progress(spark.sparkContext, "load"):
            frame.write.format("foqs").options(**options).mode("append").save()
    except Exception as error:
        raise PipelineError(
            f"not all rows are in the queue: {error_sentence(error)}; repeat the command to enqueue the rest"
        ) from None
    return rows


def _files(spark: SparkSession, load: Load) -> DataFrame:
    reader = spark.read.format(load.format)
    if load.format == "csv":
        reader = reader.option("header", "true")
    if load.schema is not None:
        reader = reader.schema(load.schema)
    try:
        return reader.load(list(load.paths))
    except (AnalysisException, ParseException) as error:
        raise PipelineError(f"the files cannot be read: {error_sentence(error)}") from None


def _items(files: DataFrame, load: Load) -> DataFrame:
    unknown = [name for name in load.columns if name not in COLUMNS]
    if unknown:
        raise PipelineError(f"there is no column {unknown[0]} of items; map some of {', '.join(COLUMNS)}")
    if not load.columns:
        return files
    try:
        return files.selectExpr(*[f"{expression} AS `{name}`" for name, expression in load.columns.items()])
    except (AnalysisException, ParseException) as error:
        raise PipelineError(
            f"an expression cannot be used: {error_sentence(error)}; the files have {', '.join(files.columns)}"
        ) from None


def _run_name(frame: DataFrame, load: Load) -> str:
    """Return a name that another load does not have, and that the same command has again."""
    text = json.dumps([sorted(frame.inputFiles()), load.format, dict(load.columns), dict(load.options), load.schema])
    return f"load-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _warn_of_short_window(connection: Connection) -> None:
    try:
        with connection.open_client() as client:
            window_ms = client.get_namespace(connection.namespace).key_window_ms or 0
    except FoqsError as error:
        raise PipelineError(f"the namespace {connection.namespace!r} cannot be read: {error}") from None
    say(f"If the load is interrupted, repeat it within {window_ms / 60_000:,.0f} minutes, the namespace's key window.")
