"""Tests the Spark stream with a real Spark and a real host: a batch that is run again enqueues nothing twice."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.support.poll import until
from tests.support.ports import free_port
from tests.support.spark_queue import DAY_MS, SparkQueue, spark_queue
from tests.support.spark_stream import batch_in_progress, start_stream, stream_process, write_files

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(240)]

FILES, ROWS = 2, 400
_topics = itertools.count()


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkQueue]:
    with spark_queue(tmp_path_factory.mktemp("queue")) as found:
        found.set_key_window(DAY_MS)
        yield found


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_topics)}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source") / "files"
    write_files(folder, FILES, ROWS)
    return folder


def stream(spark: SparkSession, files: Path, checkpoint: Path, **options: object) -> None:
    """Run a query to its end. Raises StreamingQueryException."""
    start_stream(spark, files, checkpoint, {name: str(value) for name, value in options.items()}).awaitTermination()


def failure(spark: SparkSession, files: Path, checkpoint: Path, **options: object) -> str:
    """Return the line of the error of a query that cannot run."""
    with pytest.raises(StreamingQueryException) as raised:
        stream(spark, files, checkpoint, **options)
    lines = [line for line in str(raised.value).splitlines() if "SinkError: " in line]
    assert lines, str(raised.value)
    return lines[0].partition("SinkError: ")[2]


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Leave the checkpoint as a driver does that was killed before it wrote the commit."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink()
    assert batch_in_progress(checkpoint) == batch


def test_batch_that_is_run_again_enqueues_nothing_twice(
    spark: SparkSession, queue: SparkQueue, files: Path, topic: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream(spark, files, checkpoint, url=queue.url, topic=topic)
    found = Counter(queue.rows(topic))
    assert len(found) == FILES * ROWS
    assert set(found.values()) == {1}
    forget_commit(checkpoint, FILES - 1)
    stream(spark, files, checkpoint, url=queue.url, topic=topic)
    assert Counter(queue.rows(topic)) == found
    assert batch_in_progress(checkpoint) is None


def test_batch_that_is_run_again_in_another_way_is_refused_before_its_first_row(
    spark: SparkSession, queue: SparkQueue, files: Path, topic: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    stream(spark, files, checkpoint, url=queue.url, topic=topic)
    forget_commit(checkpoint, FILES - 1)
    message = failure(spark, files, checkpoint, url=queue.url, topic=f"{topic}.other")
    assert f"batch {FILES - 1} of the query" in message
    assert "was begun with other columns or options, perhaps by another query with this checkpoint" in message
    spark.conf.set("spark.sql.files.maxPartitionBytes", "8k")
    try:
        message = failure(spark, files, checkpoint, url=queue.url, topic=topic)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert "was begun with another partitioning, and its rows would be enqueued twice" in message
    assert "spark.sql.files.maxPartitionBytes=8192" in message
    assert len(queue.rows(topic)) == FILES * ROWS
    assert not queue.rows(f"{topic}.other")


@pytest.mark.long  # starts Spark twice; that a batch is run again, the tests above show in one session
@pytest.mark.timeout(720)
def test_driver_that_was_killed_in_the_middle_of_a_batch_enqueues_each_row_once(
    queue: SparkQueue, topic: str, tmp_path: Path
) -> None:
    files, checkpoint, paused, log = (tmp_path / name for name in ("files", "checkpoint", "paused", "log"))
    write_files(files, FILES + 1, ROWS, 500)  # Spark passes rows in parts of some 64 KiB
    with (files / f"{FILES:05d}.txt").open("a") as last:
        last.write("x" * 20_000 + "\n")
    job: dict[str, Any] = {
        "folder": str(files),
        "checkpoint": str(checkpoint),
        "scratch": str(tmp_path),
        "options": {"url": queue.url, "topic": topic, "batch_items": "50", "on_error": "skip"},
        "settings": {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"},
        "pause_batch": 1,
        "pause_file": str(paused),
    }
    with stream_process(job, log) as process:
        until(
            lambda: not process.is_running or (paused.exists() and len(queue.rows(topic)) > ROWS),
            "a part of the second batch is enqueued",
            300,
        )
        assert process.is_running, log.read_text()
        process.kill()
    assert batch_in_progress(checkpoint) == 1
    assert ROWS < len(queue.rows(topic)) < 2 * ROWS
    with stream_process(job, log) as process:
        process.wait(300)
    found = Counter(queue.rows(topic))
    assert len(found) == (FILES + 1) * ROWS
    assert set(found.values()) == {1}
    assert f"batch {FILES} of a stream: {ROWS} items, 1 row skipped, 0 dead letters" in log.read_text()


def test_start_is_refused_if_the_namespace_forgets_keys_too_early(
    spark: SparkSession, queue: SparkQueue, files: Path, topic: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    message = failure(spark, files, checkpoint, url=queue.url, topic=topic, replay_window_ms=3 * DAY_MS)
    assert "the namespace 'default' remembers keys for 24h" in message
    assert "run foqs namespace update default --key-window 72h" in message
    assert not queue.rows(topic)


def test_wrong_options_and_frames_are_refused_on_the_driver(
    spark: SparkSession, queue: SparkQueue, files: Path, tmp_path: Path
) -> None:
    def refusal(**options: object) -> str:
        return failure(spark, files, tmp_path / "checkpoint", **options)

    url = queue.url
    assert "unknown options: onerror (write on_error)" in refusal(url=url, topic="t", onError="skip")
    assert "the option run is not for streams" in refusal(url=url, topic="t", run="monday")
    assert "the items need a topic" in refusal(url=url)
    nowhere = f"foqs://127.0.0.1:{free_port()}"
    assert "no host can be reached" in refusal(url=nowhere, topic="t", timeout_ms=1_000)
    assert "NAMESPACE_NOT_FOUND" in refusal(url=url, topic="t", namespace="nope")


@pytest.mark.parametrize("on_error", ["fail", "skip", "deadletter"])
def test_row_that_cannot_be_an_item_is_treated_as_on_error_says(
    spark: SparkSession, queue: SparkQueue, topic: str, tmp_path: Path, on_error: str
) -> None:
    folder, dead = tmp_path / "files", f"{topic}.bad"
    folder.mkdir()
    (folder / "one.txt").write_text("good\n" + "x" * 20_000 + "\n")
    options = {"url": queue.url, "topic": topic, "on_error": on_error}
    if on_error == "fail":
        message = failure(spark, folder, tmp_path / "checkpoint", **options)
        assert message.startswith("partition 0: the column payload of a row was refused: LIMIT_EXCEEDED")
        return
    if on_error == "deadletter":
        options["dead_letter_topic"] = dead
    for _ in range(2):
        stream(spark, folder, tmp_path / "checkpoint", **options)
        forget_commit(tmp_path / "checkpoint", 0)
    assert queue.rows(topic) == [(b"good",)]
    letters = queue.rows(dead, "payload, metadata")
    assert len(letters) == (on_error == "deadletter")
    for payload, metadata in letters:
        assert len(payload) == 1_024
        assert json.loads(metadata)["payload_bytes"] == 20_000
