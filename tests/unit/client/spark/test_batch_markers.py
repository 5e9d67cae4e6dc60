"""Tests the markers of a batch: the same in every task, another one if the batch is run again in another way."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest

from foqs_client.spark.batch_markers import BATCH_PROPERTY, QUERY_PROPERTY, BatchRun, stream_markers
from foqs_client.spark.item_columns import SinkError

TASK = {QUERY_PROPERTY: "q", BATCH_PROPERTY: "7", "spark.default.parallelism": "4", "spark.master": "local[2]"}
COLUMNS = [("payload", "string")]


def markers(
    changed: Mapping[str, str] = MappingProxyType({}), columns: list[tuple[str, str]] = COLUMNS, topic: str = "a"
) -> list[tuple[str, bytes]]:
    properties = {**TASK, **changed}
    found = stream_markers(BatchRun.of_task(properties.get), columns, {"topic": topic})
    return [(marker.item.idempotency_key or "", marker.item.payload) for marker in found]


def test_markers_of_a_batch_are_the_same_in_every_task() -> None:
    assert markers() == markers()
    assert len({key for key, _ in markers()}) == 2
    assert len({key[:4] for key, _ in markers()}) == 1, "they are not in one slot"


def test_other_partitioning_changes_only_the_first_marker() -> None:
    changed = markers({"spark.master": "local[3]"})
    assert changed[0] != markers()[0]
    assert changed[0][0] == markers()[0][0]
    assert changed[1] == markers()[1]
    assert markers({"spark.sql.files.maxPartitionBytes": "1m"})[0] != markers()[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.shuffle.partitions", "8"),
        ("spark.sql.adaptive.enabled", "false"),
        ("spark.sql.adaptive.streaming.stateless.enabled", "false"),
    ],
)
def test_setting_of_shuffles_is_part_of_the_partitioning(name: str, value: str) -> None:
    assert markers({name: value})[0] != markers()[0]


@pytest.mark.parametrize("size", ["1048576", "1048576b", "1024k", "1m", "1MB", " 1m "])
def test_size_is_the_same_in_each_unit(size: str) -> None:
    name = "spark.sql.files.maxPartitionBytes"
    assert markers({name: size}) == markers({name: "1m"})
    assert markers({name: size}) != markers({name: "1g"})


def test_other_columns_or_options_change_only_the_second_marker() -> None:
    for changed in (markers(columns=[("payload", "binary")]), markers(topic="b")):
        assert changed[0] == markers()[0]
        assert changed[1][0] == markers()[1][0]
        assert changed[1] != markers()[1]


def test_other_batch_or_query_has_other_keys() -> None:
    for changed in (markers({BATCH_PROPERTY: "8"}), markers({QUERY_PROPERTY: "r"})):
        assert not {key for key, _ in changed} & {key for key, _ in markers()}


def test_address_of_a_cluster_is_not_part_of_the_partitioning() -> None:
    assert BatchRun.of_task({**TASK, "spark.master": "spark://one"}.get).partitioning == "spark.default.parallelism=4"


def test_marker_comes_due_in_its_last_millisecond_and_names_its_batch_in_a_conflict() -> None:
    for marker in stream_markers(BatchRun("q", "7", ""), COLUMNS, {}):
        assert (marker.item.ttl_ms or 0) - (marker.item.delay_ms or 0) == 1
        assert marker.conflict.startswith("batch 7 of the query q was begun with ")


def test_task_without_query_or_batch_is_refused() -> None:
    with pytest.raises(SinkError, match="Spark does not name the query and the batch"):
        BatchRun.of_task({QUERY_PROPERTY: "q"}.get)
