"""Tests the Spark source of batches with a real Spark and a real host: its rows are the items of the tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, Not

import foqs_client.spark
from foqs_client import Item, Nack, SyncClient
from foqs_client.spark import item_reader
from foqs_client.spark.batch_reader import FoqsReader, PushdownReader
from foqs_client.spark.item_reader import Pacer
from foqs_client.spark.job_error import SourceError
from foqs_client.spark.pushdown_source import PushdownDataSource
from foqs_client.spark.source import FoqsDataSource
from tests.support.spark_queue import SparkQueue, spark_queue

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(240)]

HOUR_MS = 3_600_000
ITEMS = 120
STATES = {1: "deferred", 2: "ready", 3: "leased", 4: "dead"}


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkQueue]:
    """Yield a host with items of three topics in every state."""
    with spark_queue(tmp_path_factory.mktemp("queue")) as found:
        with SyncClient(found.url) as client:
            results = client.enqueue(
                [
                    Item(
                        f"t{number % 3}",
                        b"x" * number,
                        priority=number % 5,
                        metadata=b"m" if number % 2 else b"",
                        delay_ms=HOUR_MS if number % 7 == 0 else None,
                        ttl_ms=2 * HOUR_MS if number % 4 == 0 else None,
                        idempotency_key=f"key-{number}",
                        trace_context=b"trace" if number % 9 == 0 else None,
                    )
                    for number in range(ITEMS)
                ]
            )
            for result in results:
                result.require()
            leased = client.dequeue({"t0": 12}, lease_ms=HOUR_MS)
            client.nack([Nack(each.id, each.token, dead=True) for each in leased[:5]])
        yield found


def read(spark: SparkSession, queue: SparkQueue, **options: object) -> DataFrame:
    reader = spark.read.format("foqs").option("url", queue.url)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def stored(queue: SparkQueue) -> dict[str, tuple[Any, ...]]:
    """The items of the tables, by id."""
    columns = (
        "topic, state, priority, attempt, enqueued_at_ms, deliver_after_ms, due_ms, payload, metadata, trace_context"
    )
    return {
        f"{shard}-{row[0]}": tuple(row[1:])
        for shard in queue.tables.shards
        for row in queue.tables.query(shard, f"SELECT id, {columns} FROM {{item}}")
    }


def moment_ms(moment: datetime | None) -> int | None:
    """Return a moment that Spark gives in the time zone of the session, in ms since 1970-01-01 UTC."""
    return None if moment is None else round(moment.astimezone(UTC).timestamp() * 1_000)


def test_rows_are_the_items_of_the_tables(spark: SparkSession, queue: SparkQueue) -> None:
    frame = read(spark, queue, payload="true", details="true")
    assert frame.rdd.getNumPartitions() == len(queue.tables.shards)
    rows = {row.id: row for row in frame.collect()}
    items = stored(queue)
    assert rows.keys() == items.keys()
    for id_, (topic, state, priority, attempt, enqueued, after, due, payload, metadata, trace) in items.items():
        row = rows[id_]
        assert (row.topic, row.state, row.priority, row.attempt) == (topic, STATES[state], priority, attempt)
        assert (row.shard, row.payload_bytes, row.payload) == (int(id_.partition("-")[0]), len(payload), payload)
        assert (row.metadata, row.trace_context, row.at_most_once) == (metadata, trace, False)
        assert row.idempotency_key == f"key-{len(payload)}"
        assert moment_ms(row.enqueued_at) == enqueued
        assert moment_ms(row.due_at) == (after if state == 1 else None)
        assert moment_ms(row.lease_until) == (due if state == 3 else None)
        assert (row.dead_reason is not None) == (state == 4)
        assert (row.ttl_remaining is not None) == (len(payload) % 4 == 0)
        assert 0 <= row.age < HOUR_MS
    assert {row.state for row in rows.values()} == set(STATES.values())


def test_options_choose_items_and_columns(spark: SparkSession, queue: SparkQueue) -> None:
    items = stored(queue).values()
    frame = read(spark, queue, topics="t0,t2", states="ready", priority_min=1, priority_max=3, page_rows=7)
    assert "payload" not in frame.columns
    assert "idempotency_key" not in frame.columns
    expected = sum(item[0] in ("t0", "t2") and item[1] == 2 and 1 <= item[2] <= 3 for item in items)
    assert frame.count() == expected > 0
    assert read(spark, queue, age_min_ms=HOUR_MS).count() == 0
    assert read(spark, queue, topics="none").count() == 0


def test_rate_is_kept_within_a_tenth(spark: SparkSession, queue: SparkQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    waits_s: list[float] = []
    monkeypatch.setattr(item_reader, "Pacer", lambda rate: Pacer(rate, lambda: sum(waits_s), waits_s.append))
    reader = FoqsReader(FoqsDataSource({"url": queue.url, "rows_per_second": "60"})._checked_source(schema_of(spark)))
    [partition] = reader.partitions()
    assert sum(batch.num_rows for batch in reader.read(partition)) == ITEMS
    assert ITEMS / sum(waits_s) == pytest.approx(60, rel=0.1)


def schema_of(spark: SparkSession) -> Any:
    from pyspark.sql.types import _parse_datatype_string

    return _parse_datatype_string(FoqsDataSource({"url": "foqs://one"}).schema())


def test_reader_with_pushed_filters_leaves_items_out_at_the_hosts(spark: SparkSession, queue: SparkQueue) -> None:
    reader = PushdownDataSource({"url": queue.url}).reader(schema_of(spark))
    assert isinstance(reader, PushdownReader)
    pushed = [EqualTo(("topic",), "t1"), GreaterThan(("priority",), 2), In(("state",), ("ready", "dead"))]
    others = [Not(EqualTo(("topic",), "t1")), IsNotNull(("topic",))]
    assert list(reader.pushFilters([*pushed, *others])) == [*pushed, *others]
    read_rows = sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))
    items = stored(queue).values()
    assert read_rows == sum(item[0] == "t1" and item[2] > 2 and item[1] in (2, 4) for item in items) > 0
    reader.pushFilters([EqualTo(("topic",), "t2")])
    assert [list(reader.read(each)) for each in reader.partitions()] == [[]]


def test_pushed_filters_are_refused_where_spark_mixes_up_those_of_two_queries(
    spark: SparkSession, queue: SparkQueue
) -> None:
    with pytest.raises(SourceError) as raised:
        foqs_client.spark.register(spark, pushdown=True)
    assert str(raised.value).startswith(f"Spark {spark.version} reads a frame with the filters of an earlier query")
    frame = read(spark, queue)
    assert frame.where("topic = 't1'").count() < frame.count() == ITEMS


def test_wrong_read_fails_on_the_driver_with_one_sentence(
    spark: SparkSession, queue: SparkQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(**options: object) -> str:
        with pytest.raises((AnalysisException, PythonException)) as raised:
            read(spark, queue, **options).collect()
        [line] = [line for line in str(raised.value).splitlines() if "SourceError: " in line]
        return line.partition("SourceError: ")[2]

    assert refusal(rowsPerSecond=5).startswith("unknown options: rowspersecond (write rows_per_second); known are")
    assert refusal(states="asleep").startswith("the option states is 'asleep'; it must be some of deferred,")
    assert refusal(url="foqs://127.0.0.1:1", timeout_ms=1_000).startswith("no host can be reached: no connection to")
    assert "NAMESPACE_NOT_FOUND" in refusal(namespace="nope")
    assert "foqs namespace create" in refusal(namespace="nope")
    with pytest.raises((AnalysisException, PythonException)) as raised:
        spark.read.format("foqs").schema("id string").option("url", queue.url).load().collect()
    assert "leave .schema(...) out" in str(raised.value)
    monkeypatch.setattr("foqs_client.spark.environment.find_spec", lambda name: None if name == "pyarrow" else 1)
    with pytest.raises(SourceError) as missing:
        FoqsDataSource({"url": queue.url}).reader(schema_of(spark))
    assert "has no pyarrow: install foqs[spark] there" in str(missing.value)
