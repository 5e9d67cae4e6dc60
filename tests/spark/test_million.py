"""Writes a million rows from Spark to a cluster, as a frame and as a stream: every row is one item.

Meanwhile a task fails and a host dies. The stream runs on a cluster of Spark with two
workers, of which an executor dies, too, and its driver dies five times. The queue has three
host processes, two MariaDB servers, eight shards and ZooKeeper. The short forms are the
same tests with fewer rows, and with one death of the driver. That of the stream is a long
test, too: beside it, test_stream.py kills a driver, and test_cluster.py repeats tasks on a
cluster of Spark.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
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
from tests.support.spark_cluster import ROOT, SparkCluster
from tests.support.spark_queue import DAY_MS
from tests.support.spark_stream import DriverProcess, batch_in_progress, stream_process, write_files

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper]

SHARDS: Final = 8
TOPIC: Final = "million"
_OF_TOPIC: Final = f"WHERE topic = '{TOPIC}'"
LINE_BYTES: Final = 100
TASKS: Final = 4
"""The tasks of a batch."""
HELD: Final = 2
"""The partitions that wait for the death of a host, so that not all rows are there before it; as many as run at once."""
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
    options = {
        "log.level": "info",
        "cluster.session_timeout_ms": 6_000,
        "shard.breaker_latency_ms_max": 60_000,
    }
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
    tables, failed, died = Tables(cluster), tmp_path / "failed", tmp_path / "died"

    def fail_once(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Fail in one task after half of its rows. The last tasks wait until a host has died."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() >= partitions - HELD:
            until(died.exists, "a host has died", 1_200)
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
            died.touch()

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


@dataclass(frozen=True, slots=True)
class StreamForm:
    """A form of the stream.

    Attributes:
        rows: the number of rows.
        batches: the number of batches.
        driver_kills: how often the driver is killed in the middle of a batch.
        options: more options of the sink.
    """

    rows: int
    batches: int
    driver_kills: int
    options: Mapping[str, str]


SHORT_STREAM: Final = StreamForm(15_000, 5, 1, {"batch_items": "5", "calls_in_flight": "1"})
"""Small calls, one at a time, so that a batch takes a second or two and is met in its middle."""
LONG_STREAM: Final = StreamForm(1_000_000, 50, 5, {})


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(SHORT_STREAM, id="short", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param(LONG_STREAM, id="long", marks=[pytest.mark.long, pytest.mark.timeout(3_600)]),
    ],
)
def test_every_row_of_a_stream_is_one_item_after_drivers_an_executor_and_a_host_died(
    cluster: LocalCluster, tmp_path: Path, form: StreamForm
) -> None:
    tables, checkpoint, log = Tables(cluster), tmp_path / "checkpoint", tmp_path / "log"
    per_batch = form.rows // form.batches
    write_files(tmp_path / "files", form.batches, per_batch, LINE_BYTES)
    with SyncClient(cluster.url) as client:
        client.update_namespace(Namespace("default", key_window_ms=DAY_MS))
    with SparkCluster(tmp_path / "spark") as machines:
        job = {
            "folder": str(tmp_path / "files"),
            "checkpoint": str(checkpoint),
            "scratch": str(tmp_path),
            "options": {"url": cluster.url, "topic": TOPIC, **form.options},
            "settings": {
                **machines.settings,
                "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")]),
                "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
                "spark.sql.files.maxPartitionBytes": str(per_batch * LINE_BYTES // TASKS),
            },
        }
        others: list[Callable[[], object]] = [
            partial(cluster.hosts[0].stop, signal.SIGKILL),
            machines.kill_executor,
        ]
        kills = 0
        while kills < form.driver_kills:
            count_min = form.rows * (kills + 1) // (form.driver_kills + 2)
            with stream_process(job, log) as process:
                wait_until_in_a_batch(process, checkpoint, tables, count_min, per_batch)
                while others and kills == form.driver_kills // 2:
                    others.pop()()
                    if others:
                        wait_until_in_a_batch(process, checkpoint, tables, tables.count() + per_batch, per_batch)
                process.kill()
            # A batch may have ended between the look and the kill.
            kills += batch_in_progress(checkpoint) is not None
        assert not others, "a host or an executor did not die"
        with stream_process(job, log) as process:
            process.wait(1_800)
    tables.check_each_once(form.rows)


def wait_until_in_a_batch(
    process: DriverProcess, checkpoint: Path, tables: Tables, count_min: int, per_batch: int
) -> None:
    """Wait for the middle of a batch that ends at `count_min` items or later. Raise AssertionError if the driver ends."""
    until(
        lambda: not process.is_running or is_in_a_batch(checkpoint, tables, count_min, per_batch),
        f"a batch that ends at {count_min} items or later is in its middle",
        1_800,
    )
    assert process.is_running, process.log


def is_in_a_batch(checkpoint: Path, tables: Tables, count_min: int, per_batch: int) -> bool:
    """Return whether a batch has some of its rows in the queue, and the queue has enough items."""
    batch = batch_in_progress(checkpoint)
    if batch is None or (batch + 1) * per_batch < count_min:
        return False
    return batch * per_batch < tables.count() < (batch + 1) * per_batch
