"""The pipelines `export` and `import`: topics to Parquet files, and back.

Holds `export_items` and `import_items`. Always true: an export is complete if it has a
manifest, which is written last. Every item has a key that does not change, so an import
may be repeated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import uuid4

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from foqs_client.spark.pipelines.connection import Connection, PipelineError
from foqs_client.spark.pipelines.item_actions import ItemAction
from foqs_client.spark.pipelines.item_calls import ItemCalls, count_outcomes
from foqs_client.spark.pipelines.item_frame import STATES, read_items
from foqs_client.spark.pipelines.terminal import confirm, progress, say
from foqs_contract.plurals import counted

FORMAT: Final = 1
_ITEMS_PER_TASK: Final = 20_000
_ITEMS, _MANIFEST = "items", "manifest"


def export_items(
    spark: SparkSession, connection: Connection, folder: str, topics: Sequence[str] | None, *, dry_run: bool
) -> dict[str, int]:
    """Write the items of topics into a new folder. Return their number by topic.

    Raises:
        PipelineError: the folder exists, or the items cannot be read or written.
    """
    items = read_items(spark, connection, topics=topics, states=STATES, payload=not dry_run, details=not dry_run)
    with progress(spark.sparkContext, "export"):
        if dry_run:
            return _by_topic(items)
        try:
            items.write.parquet(f"{folder}/{_ITEMS}")
        except AnalysisException as error:
            raise PipelineError(f"the items cannot be written to {folder}: {_first_line(error)}") from None
        counts = _by_topic(spark.read.parquet(f"{folder}/{_ITEMS}"))
    name = f"export-{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"
    manifest = {"format": FORMAT, "name": name, "namespace": connection.namespace, "items": sum(counts.values())}
    spark.createDataFrame([(json.dumps(manifest),)], "value string").coalesce(1).write.text(f"{folder}/{_MANIFEST}")
    return counts


def import_items(
    spark: SparkSession, connection: Connection, folder: str, topics: Sequence[str] | None, *, dry_run: bool, yes: bool
) -> dict[tuple[str, str], int]:
    """Restore exported items. Return their number by (outcome, message); empty if nothing was done.

    Raises:
        PipelineError: the folder holds no complete export, nobody agrees, or a task failed.
    """
    manifest, items = _read_export(spark, folder)
    if topics is not None:
        items = items.where(items.topic.isin(list(topics)))
    with progress(spark.sparkContext, "count"):
        counts = _by_topic(items)
    matched = sum(counts.values())
    for topic, number in counts.items():
        say(f"  {number:>10,}  {topic}")
    say(f"{counted(matched, 'item')} of {manifest['name']}.")
    if dry_run or not matched or not confirm(f"Restore {counted(matched, 'item')}?", yes=yes):
        return {}
    calls = ItemCalls(connection, ItemAction("restore", manifest["name"]))
    with progress(spark.sparkContext, "import"):
        return count_outcomes(items.repartition(min(64, 1 + matched // _ITEMS_PER_TASK)), calls)


def _read_export(spark: SparkSession, folder: str) -> tuple[dict[str, Any], DataFrame]:
    try:
        (row,) = spark.read.text(f"{folder}/{_MANIFEST}").collect()
        manifest = json.loads(row["value"])
        items = spark.read.parquet(f"{folder}/{_ITEMS}")
    except (AnalysisException, ValueError):
        raise PipelineError(f"{folder} holds no complete export; export the topics again into a new folder") from None
    if manifest.get("format") != FORMAT:
        raise PipelineError(f"{folder} has format {manifest.get('format')}; this version reads format {FORMAT}")
    return manifest, items


def _by_topic(items: DataFrame) -> dict[str, int]:
    return {row["topic"]: row["count"] for row in items.groupBy("topic").count().orderBy("topic").collect()}


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
