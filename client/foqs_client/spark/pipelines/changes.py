"""The pipelines `redrive` and `rewrite`: change the items that an SQL predicate chooses.

Holds `change_items`. Always true: what is changed was counted before; the rows are kept
on Spark's disks between count and change, so both are about the same items. If a disk is
lost meanwhile, the change fails. A host judges each item by its state when the call arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from foqs_client.spark.pipelines.connection import Connection, PipelineError
from foqs_client.spark.pipelines.item_actions import ItemAction
from foqs_client.spark.pipelines.item_calls import ItemCalls, count_outcomes
from foqs_client.spark.pipelines.item_frame import read_items
from foqs_client.spark.pipelines.terminal import confirm, progress, say
from foqs_contract.plurals import counted

EXAMPLES = 10
"""The number of items that a dry run shows."""
_SHOWN = ("id", "topic", "state", "priority", "attempt")
_ITEMS_PER_TASK = 20_000


@dataclass(slots=True, frozen=True)
class Selection:
    """The items to change.

    Attributes:
        where: an SQL predicate over the columns of the source.
        topics: None means all topics.
        states: the states of the items.
        payload: the predicate needs the column payload.
    """

    where: str
    topics: Sequence[str] | None
    states: Sequence[str]
    payload: bool = False


def change_items(
    spark: SparkSession, connection: Connection, selection: Selection, action: ItemAction, *, dry_run: bool, yes: bool
) -> dict[tuple[str, str], int]:
    """Count the items, ask, and change them. Return the number of items by (outcome, message); empty if nothing was done.

    Raises:
        PipelineError: the predicate is wrong, nobody agrees, or a task failed.
    """
    context = spark.sparkContext
    with progress(context, "read"):
        # Not a cache: rows that a cache has lost are read again, and others may match then.
        chosen = (
            _chosen(spark, connection, selection).select(*_SHOWN).localCheckpoint(storageLevel=StorageLevel.DISK_ONLY)
        )
        by_topic = {row["topic"]: row["count"] for row in chosen.groupBy("topic").count().orderBy("topic").collect()}
    matched = sum(by_topic.values())
    for topic, items in by_topic.items():
        say(f"  {items:>10,}  {topic}")
    say(f"{counted(matched, 'item matches', 'items match')}.")
    if dry_run:
        for row in chosen.limit(EXAMPLES).collect():
            say(f"  {row['id']}  {row['topic']}  {row['state']}  priority {row['priority']}  attempt {row['attempt']}")
    if dry_run or not matched or not confirm(f"{str(action).capitalize()} {counted(matched, 'item')}?", yes=yes):
        return {}
    tasks = min(64, 1 + matched // _ITEMS_PER_TASK)
    with progress(context, str(action)):
        return count_outcomes(chosen.select("id").repartition(tasks), ItemCalls(connection, action))


def _chosen(spark: SparkSession, connection: Connection, selection: Selection) -> DataFrame:
    items = read_items(spark, connection, topics=selection.topics, states=selection.states, payload=selection.payload)
    try:
        return items.where(selection.where)
    except (AnalysisException, ParseException) as error:
        reason = str(error).strip().splitlines()[0]
        raise PipelineError(
            f"the predicate {selection.where!r} cannot be used: {reason}; its columns are {', '.join(items.columns)}"
        ) from None
