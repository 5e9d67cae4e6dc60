"""Tests the Spark sink with a real Spark and a real host: every row is one item, even if a task is repeated."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, rpad, spark_partition_id

from foqs_client import Client, ItemFilter, Namespace, SyncClient
from tests.support.aio import run
from tests.support.poll import until
from tests.support.spark_queue import SparkQueue, spark_queue

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(240)]

_topics = itertools.count()


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkQueue]:
    with spark_queue(tmp_path_factory.mktemp("queue")) as found:
        yield found


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_topics)}"


def save(frame: DataFrame, url: str, **options: object) -> None:
    writer = frame.write.format("foqs").option("url", url)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.mode("append").save()


def test_each_column_becomes_its_field(spark: SparkSession, queue: SparkQueue, topic: str) -> None:
    run(create("orders", queue.host.address))
    frame = spark.sql(
        """SELECT 'hello' AS payload, -5S AS priority, X'00FF' AS metadata, 600000 AS ttl, 7000L AS lease,
           TIMESTAMP '2100-01-01 00:00:00.5 UTC' AS deliver_after, 'my key' AS idempotency_key,
           'orders' AS namespace"""
    ).drop("ttl")
    save(frame, queue.host.address, topic=topic)
    save(frame, queue.host.address, topic=topic)  # the key is the row's own: nothing is added
    found = queue.rows(topic, "payload, priority, metadata, lease_ms, deliver_after_ms, namespace")
    assert found == [(b"hello", -5, b"\0\xff", 7_000, 4_102_444_800_500, "orders")]


def test_options_replace_missing_columns(spark: SparkSession, queue: SparkQueue, topic: str) -> None:
    frame = spark.createDataFrame([("a", None), ("b", 7)], "payload string, priority int")
    save(frame, queue.host.address, Topic=topic, priority=3, lease=1_234)
    assert sorted(queue.rows(topic, "payload, priority, lease_ms")) == [(b"a", 3, 1_234), (b"b", 7, 1_234)]


def test_columns_of_any_case_and_columns_of_nulls_are_written(
    spark: SparkSession, queue: SparkQueue, topic: str
) -> None:
    frame = spark.sql(
        "SELECT 'a' AS PAYLOAD, 4 AS Priority, null AS metadata, null AS deliver_after, null AS Namespace"
    )
    save(frame, queue.host.address, topic=topic)
    assert queue.rows(topic, "payload, priority, metadata, namespace") == [(b"a", 4, b"", "default")]


def test_second_write_enqueues_again_unless_its_run_is_the_same(
    spark: SparkSession, queue: SparkQueue, topic: str
) -> None:
    frame = spark.createDataFrame([("a",), ("a",), ("b",)], "payload string").coalesce(1)
    for _ in range(2):
        save(frame, queue.host.address, topic=topic, run=f"{topic} monday")
    assert Counter(queue.rows(topic)) == {(b"a",): 2, (b"b",): 1}
    save(frame, queue.host.address, topic=topic)
    assert Counter(queue.rows(topic)) == {(b"a",): 4, (b"b",): 2}


def test_repeated_task_with_another_row_order_enqueues_each_row_once(
    spark: SparkSession, queue: SparkQueue, topic: str, tmp_path: Path
) -> None:
    count, partitions, batch, step = 20_000, 4, 500, 100
    url, early = queue.host.address, tmp_path / "early"

    def fail_once(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Fail once in one partition, after a part of its rows is enqueued; later reverse the rows."""
        rows = pd.concat(frames)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() != 1:
            yield rows
            return
        if context.attemptNumber() == 0:
            yield from (rows[begin : begin + step] for begin in range(0, len(rows) // 2, step))
            own = ItemFilter(topic=topic, priority_min=1, priority_max=1)
            with SyncClient(url) as client:
                until(lambda: client.count(own).items > 0, "some of the rows are in the queue", 120)
                early.write_text(str(client.count(own).items))
            raise RuntimeError("on purpose")
        yield rows[::-1]

    # Each payload is twice in its partition, and the partition is its priority. Spark passes rows in parts of some 64 KiB.
    frame = (
        spark.range(0, count, 1, partitions)
        .select(
            rpad((col("id") / 2).cast("long").cast("string"), 500, ".").alias("payload"),
            spark_partition_id().alias("priority"),
        )
        .mapInPandas(fail_once, "payload string, priority int")
    )
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch)
    try:
        save(frame, url, topic=topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert 0 < int(early.read_text()) < count // partitions
    found = Counter(queue.rows(topic))
    assert len(found) == count // 2
    assert set(found.values()) == {2}


async def create(namespace: str, url: str) -> None:
    async with Client(url) as client:
        await client.create_namespace(Namespace(namespace))


BAD_ROWS = """SELECT * FROM VALUES ('t0', 'good', 1L), (null, 'no topic', 1L), ('t0', 'no ttl', 0L), ('t0', repeat('x', 20000), 1L),
    (cast(X'FF' AS string), 'no text', 1L) AS rows(topic, payload, priority)"""


def bad_rows(spark: SparkSession, topic: str) -> DataFrame:
    """Return a good row, and four that cannot be items of a topic."""
    return (
        spark.sql(BAD_ROWS)
        .selectExpr(f"if(topic = 't0', '{topic}', topic) AS topic", "payload", "if(payload = 'no ttl', 0, null) AS ttl")
        .coalesce(1)
    )


def test_rows_that_cannot_be_items_are_skipped(spark: SparkSession, queue: SparkQueue, topic: str) -> None:
    save(bad_rows(spark, topic), queue.url, on_error="skip")
    assert queue.rows(topic) == [(b"good",)]


def test_rows_that_cannot_be_items_become_dead_letters_once(spark: SparkSession, queue: SparkQueue, topic: str) -> None:
    dead = f"{topic}.bad"
    for _ in range(2):
        save(bad_rows(spark, topic), queue.url, on_error="deadletter", dead_letter_topic=dead, run=topic)
    assert queue.rows(topic) == [(b"good",)]
    reasons = {
        payload[:8]: json.loads(metadata)["reason"] for payload, metadata in queue.rows(dead, "payload, metadata")
    }
    assert len(queue.rows(dead)) == 4
    assert "the column topic of a row is null" in reasons[b"no topic"]
    assert "the column topic of a row is not UTF-8" in reasons[b"no text"]
    assert "the column ttl of a row is 0; it must be from 1" in reasons[b"no ttl"]
    assert "the column payload of a row was refused: LIMIT_EXCEEDED" in reasons[b"x" * 8]
