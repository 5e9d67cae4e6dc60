"""Tests the Spark stream out of a queue with a real Spark and a real host: each item is in the sink once, and acked."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from foqs_client import Item, SyncClient
from foqs_client.spark.job_error import SourceError
from foqs_client.spark.source import FoqsDataSource
from tests.support.poll import until
from tests.support.spark_drain import MODULE, start_drain
from tests.support.spark_queue import SparkQueue, spark_queue
from tests.support.spark_stream import batch_in_progress, stream_process

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(240)]

_topics = itertools.count()


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkQueue]:
    with spark_queue(tmp_path_factory.mktemp("queue")) as found:
        yield found


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_topics)}"


def put(queue: SparkQueue, topic: str, count: int) -> list[str]:
    with SyncClient(queue.url) as client:
        items = [Item(topic, b"%d" % number, priority=number % 3) for number in range(count)]
        return [each.require() for each in client.enqueue(items)]


def drain(spark: SparkSession, folder: Path, **options: object) -> None:
    """Run a query to its end. Raises StreamingQueryException."""
    start_drain(spark, folder, {name: str(value) for name, value in options.items()}).awaitTermination()


def failure(spark: SparkSession, folder: Path, **options: object) -> str:
    """Return the sentence with which a query fails."""
    with pytest.raises(StreamingQueryException) as raised:
        drain(spark, folder, **options)
    lines = [line for line in str(raised.value).splitlines() if "SourceError: " in line]
    assert lines, str(raised.value)
    return lines[0].partition("SourceError: ")[2]


def ids(spark: SparkSession, folder: Path) -> Counter[str]:
    """Return how often each item is in the sink."""
    return Counter(row.id for row in spark.read.parquet(str(folder / "rows")).select("id").collect())


def test_available_items_are_taken_in_batches_and_none_is_left(
    spark: SparkSession, queue: SparkQueue, topic: str, tmp_path: Path
) -> None:
    options = {"url": queue.url, "topics": f"{topic},{topic}.other", "max_items_per_trigger": 100}
    expected = Counter(put(queue, topic, 250) + put(queue, f"{topic}.other", 20))
    drain(spark, tmp_path, **options)
    assert ids(spark, tmp_path) == expected
    assert queue.rows(topic) == queue.rows(f"{topic}.other") == []
    offsets = [file for file in (tmp_path / "checkpoint" / "offsets").iterdir() if file.name.isdigit()]
    assert len(offsets) == 3
    expected += Counter(put(queue, topic, 30))
    drain(spark, tmp_path, **options)
    assert ids(spark, tmp_path) == expected
    assert queue.rows(topic) == []


@pytest.mark.long
@pytest.mark.timeout(480)
def test_driver_that_was_killed_in_a_batch_writes_each_item_once(
    spark: SparkSession, queue: SparkQueue, topic: str, tmp_path: Path
) -> None:
    expected = Counter(put(queue, topic, 500))
    log = tmp_path / "log"
    options = {"url": queue.url, "topics": topic, "max_items_per_trigger": "200", "lease_ms": "2000"}
    job = {"folder": str(tmp_path), "options": options, "pause_batch": 1}
    with stream_process(job, log, MODULE) as process:
        paused = tmp_path / "paused"
        until(lambda: not process.is_running or paused.exists(), "the second batch is under way", 300)
        assert process.is_running, log.read_text()
        process.kill()
    assert batch_in_progress(tmp_path / "checkpoint") == 1
    assert len(queue.rows(topic)) == 300
    with SyncClient(queue.url) as client:
        until(lambda: len(client.peek(topic, limit=500).items) == 300, "the leases have ended", 60)
    with stream_process(job, log, MODULE) as process:
        process.wait(300)
    assert ids(spark, tmp_path) == expected
    assert queue.rows(topic) == []


def test_query_that_cannot_run_fails_with_one_sentence(
    spark: SparkSession, queue: SparkQueue, topic: str, tmp_path: Path
) -> None:
    put(queue, topic, 3)
    good = {"url": queue.url, "topics": topic}
    assert failure(spark, tmp_path, **{**good, "url": "foqs://127.0.0.1:1", "timeout_ms": 1_000}).startswith(
        "no host can be reached: no connection to 127.0.0.1:1"
    )
    assert "NAMESPACE_NOT_FOUND" in failure(spark, tmp_path, **good, namespace="nope")
    assert "allows leases of at most" in failure(spark, tmp_path, **good, lease_ms=86_400_000)
    drain(spark, tmp_path, **good)
    assert "has no stream: start each query with its own checkpoint" in failure(
        spark, tmp_path, **good, staging_location=tmp_path / "other"
    )
    (tmp_path / "file").touch()
    assert "cannot be used: " in failure(spark, tmp_path, **good, staging_location=tmp_path / "file" / "staged")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "a stream needs a folder of its own that keeps its batches: .option("),
        ({"staging_location": "staged"}, "a stream needs a folder of its own that keeps its batches: .option("),
        ({"staging_location": "/tmp/staged", "topics": ""}, "the option topics is ''; it must be names"),
        (
            {"staging_location": "/tmp/staged", "maxitemspertrigger": "1"},
            "unknown options: maxitemspertrigger (write max_",
        ),
        ({"staging_location": "/tmp/staged", "states": "dead"}, "unknown options: states; known are url,"),
    ],
)
def test_wrong_option_of_a_stream_is_refused_on_the_driver(given: dict[str, str], sentence: str) -> None:
    from pyspark.sql.types import StructType

    with pytest.raises(SourceError) as raised:
        FoqsDataSource({"url": "foqs://one", "topics": "t", **given}).streamReader(StructType())
    assert str(raised.value).startswith(sentence)


def test_option_of_a_stream_is_refused_for_a_batch_and_an_old_pyspark_for_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pyspark.sql.types import StructType

    staged = {"url": "foqs://one", "topics": "t", "staging_location": "/tmp/staged"}
    with pytest.raises(SourceError) as raised:
        FoqsDataSource(staged).reader(StructType())
    assert str(raised.value).startswith("the option staging_location is only for spark.readStream")
    monkeypatch.setattr("foqs_client.spark.source.find_spec", lambda name: None)
    with pytest.raises(SourceError) as raised:
        FoqsDataSource(staged).streamReader(StructType())
    assert str(raised.value).startswith("spark.readStream needs PySpark 4.2 or later")
