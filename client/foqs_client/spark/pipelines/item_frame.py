"""The items of a queue as a frame: the only place where pipelines read items.

Holds `read_items`. Always true: an item is in the frame at most once, as it was when its
page was read. Pause the topics to have one moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from foqs_client.spark.pipelines.connection import Connection, PipelineError
from foqs_client.spark.pipelines.error_sentence import error_sentence

STATES: Final = ("deferred", "ready", "leased", "dead")
_TOPICS_MAX: Final = 1_000
"""Limit of the topics that the source accepts."""


def read_items(
    spark: SparkSession,
    connection: Connection,
    *,
    topics: Sequence[str] | None = None,
    states: Sequence[str] = STATES,
    payload: bool = False,
    details: bool = False,
) -> DataFrame:
    """Return the items as rows of the source `foqs`.

    Args:
        topics: None means all topics of the namespace.
        payload: with the column payload.
        details: with the columns that a copy of an item needs.

    The first action on the frame calls the hosts.

    Raises:
        PipelineError: an option is wrong.
    """
    reader = spark.read.format("foqs").options(**connection.spark_options())
    reader = reader.option("states", ",".join(states)).option("payload", payload).option("details", details)
    is_option = topics is not None and _fit_an_option(topics)
    if topics is not None and is_option:
        reader = reader.option("topics", ",".join(topics))
    try:
        items = reader.load()
    except Exception as error:
        raise PipelineError(f"the items of {connection.namespace!r} cannot be read: {error_sentence(error)}") from None
    return items.where(items.topic.isin(list(topics))) if topics is not None and not is_option else items


def _fit_an_option(topics: Sequence[str]) -> bool:
    """Return whether the source can be given these topics: it separates their names by commas."""
    return 0 < len(topics) <= _TOPICS_MAX and all("," not in name and name == name.strip() for name in topics)
