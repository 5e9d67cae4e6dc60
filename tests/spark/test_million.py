"""Writes a million rows from Spark to a cluster, as a frame and as a stream: every row is one item.

Meanwhile a task fails and a host dies; of the stream the driver dies five times. The
cluster has three host processes, two MariaDB servers, eight shards and ZooKeeper. The
short form of the frame is the same test with fewer rows; that of the stream is in
test_stream.py.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from foqs.dev.local_cluster import DATABASE, LocalCluster
from foqs_client import Namespace, SyncClient
from tests.support.poll import until
from tests.support.ports import free_port
from tests.support.spark_queue import DAY_MS
from tests.support.spark_stream import DriverProcess, batch_in_progress, stream_process, write_files

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper]

SHARDS: Final = 8
TOPIC: Final = "million"
_OF_TOPIC: Final = f"WHERE topic = '{TOPIC}'"
BATCHES: Final = 50
STREAM_ROWS: Final = 1_000_000
DRIVER_KILLS: Final = 5
FAILING: Final = 1
"""The partition whose first task fails; one of the first two, so that it runs by the time the host dies."""


def forms() -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("rows", "partitions"),
        [
            pytest.param(20_000, 8, id="short", marks=pytest.mark.timeout(300)),
            pytest.param(1_000_000, 32, id="long", marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
        ],
    )


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    options = {"log.level": "info", "cluster.session_timeout_ms": 6_000}
    with LocalCluster(shards=SHARDS, port=free_port, options=options) as found:
        yield found


class Tables:
    """Reads the databases directly."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._items = [
            (server, table)
            for server in cluster.databases
            for (table,) in server.query(
                f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{DATABASE}' "
                r"AND table_name LIKE 'foqs\_%\_item'"
            )
        ]
        assert len(self._items) == SHARDS

    def count(self) -> int:
        return sum(
            int(server.query(f"SELECT COUNT(*) FROM {DATABASE}.{table} {_OF_TOPIC}")[0][0])
            for server, table in self._items
        )

    def numbers(self) -> Iterator[int]:
        """Yield the number at the start of every payload."""
        number_of = "CAST(SUBSTR(payload, 1, 8) AS UNSIGNED)"
        for server, table in self._items:
            for (number,) in server.query(f"SELECT {number_of} FROM {DATABASE}.{table} {_OF_TOPIC}"):
                yield int(number)

    def check_each_once(self, rows: int) -> None:
        """Raise AssertionError unless each number below `rows` is in one item."""
        seen = bytearray(rows)
        for number in self.numbers():
            seen[number] += 1
        doubled = rows - seen.count(1) - seen.count(0)
        assert seen.count(1) == rows, f"{seen.count(0)} rows are lost and {doubled} doubled"


@forms()
def test_every_row_is_one_item_after_a_task_failed_and_a_host_died(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, rows: int, partitions: int
) -> None:
    tables, failed = Tables(cluster), tmp_path / "failed"

    def fail_once(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Fail in one task after half of its rows."""
        context = TaskContext.get()
        assert context is not None
        given = 0
        for frame in frames:
            yield frame
            given += len(frame)
            if (context.partitionId(), context.attemptNumber()) == (FAILING, 0) and given >= rows // partitions // 2:
                failed.touch()
                raise RuntimeError("on purpose")

    frame = (
        spark.range(0, rows, 1, partitions)
        .selectExpr("rpad(lpad(cast(id AS string), 8, '0'), 100, '.') AS payload")
        .mapInPandas(fail_once, "payload string")
    )
    killed = threading.Event()
    over = threading.Event()

    def kill() -> None:
        """Kill a host when a third of the rows is enqueued."""
        until(lambda: over.is_set() or tables.count() > rows // 3, "a third of the rows is there", 1_200)
        if not over.is_set():
            cluster.hosts[0].stop(signal.SIGKILL)
            killed.set()

    killer = threading.Thread(target=kill)
    with ExitStack() as stack:
        stack.callback(killer.join)
        stack.callback(over.set)
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 1_000)
        stack.callback(spark.conf.unset, "spark.sql.execution.arrow.maxRecordsPerBatch")
        killer.start()
        writer = frame.write.format("foqs").option("url", cluster.url).option("topic", TOPIC)
        writer.mode("append").save()
    assert failed.exists(), "no task failed"
    assert killed.is_set(), "no host died"
    tables.check_each_once(rows)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_every_row_of_a_stream_is_one_item_after_its_driver_died_five_times_and_a_host_once(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    tables, files, checkpoint, log = Tables(cluster), tmp_path / "files", tmp_path / "checkpoint", tmp_path / "log"
    per_batch = STREAM_ROWS // BATCHES
    write_files(files, BATCHES, per_batch, 100)
    with SyncClient(cluster.url) as client:
        client.update_namespace(Namespace("default", key_window_ms=DAY_MS))
    job = {
        "folder": str(files),
        "checkpoint": str(checkpoint),
        "scratch": str(tmp_path),
        "options": {"url": cluster.url, "topic": TOPIC},
        "settings": {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"},
    }
    kills = 0
    while kills < DRIVER_KILLS:
        next_count = STREAM_ROWS * (kills + 1) // (DRIVER_KILLS + 1)
        with stream_process(job, log) as process:
            in_a_batch = partial(is_in_a_batch, checkpoint, tables, next_count, per_batch)
            wait_for(process, in_a_batch, "the driver is in the middle of a batch", log)
            if kills == DRIVER_KILLS // 2 and cluster.hosts[0].exit_code is None:
                cluster.hosts[0].stop(signal.SIGKILL)
                in_the_next = partial(is_in_a_batch, checkpoint, tables, tables.count() + per_batch, per_batch)
                wait_for(process, in_the_next, "the stream goes on without the host", log)
            process.kill()
        # A batch may have ended between the look and the kill.
        kills += batch_in_progress(checkpoint) is not None
    with stream_process(job, log) as process:
        process.wait(1_800)
    tables.check_each_once(STREAM_ROWS)


def wait_for(process: DriverProcess, condition: Callable[[], bool], what: str, log: Path) -> None:
    """Wait for a condition while the process runs. Raise AssertionError with the end of its log if it ends."""
    until(lambda: not process.is_running or condition(), what, 1_800)
    assert process.is_running, log.read_text()[-4_000:]


def is_in_a_batch(checkpoint: Path, tables: Tables, count_min: int, per_batch: int) -> bool:
    """Return whether a batch has some of its rows in the queue, and the queue has enough items."""
    batch = batch_in_progress(checkpoint)
    if batch is None or (batch + 1) * per_batch < count_min:
        return False
    return batch * per_batch < tables.count() < (batch + 1) * per_batch
