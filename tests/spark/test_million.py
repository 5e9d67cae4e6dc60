"""Writes a million rows from Spark to a cluster while a task fails and a host dies: every row is one item.

The cluster has three host processes, two MariaDB servers, eight shards and ZooKeeper.
The short form is the same test with fewer rows.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from foqs.dev.local_cluster import DATABASE, LocalCluster
from tests.support.poll import until
from tests.support.ports import free_port

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper]

SHARDS: Final = 8
TOPIC: Final = "million"
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
        return sum(int(server.query(f"SELECT COUNT(*) FROM {DATABASE}.{table}")[0][0]) for server, table in self._items)

    def numbers(self) -> Iterator[int]:
        """Yield the number at the start of every payload."""
        for server, table in self._items:
            for (number,) in server.query(f"SELECT CAST(SUBSTR(payload, 1, 8) AS UNSIGNED) FROM {DATABASE}.{table}"):
                yield int(number)


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
    seen = bytearray(rows)
    for number in tables.numbers():
        seen[number] += 1
    assert seen.count(1) == rows, f"{seen.count(0)} rows are lost and {rows - seen.count(1) - seen.count(0)} doubled"
