"""Reads a whole queue from Spark, and takes all items out of it while drivers and a host die.

The cluster has three host processes, two MariaDB servers, eight shards and ZooKeeper. The
short form of the batch is the same test with fewer items; that of the stream is in
test_source_stream.py.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from foqs.dev.local_cluster import DATABASE, LocalCluster
from foqs_client import Client, Item, ItemFilter, Nack, SyncClient
from tests.support.aio import run
from tests.support.poll import until
from tests.support.ports import free_port
from tests.support.spark_drain import MODULE
from tests.support.spark_stream import DriverProcess, batch_in_progress, stream_process

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.mysql, pytest.mark.zookeeper]

SHARDS: Final = 8
TOPICS: Final = ("a", "b", "c")
HOUR_MS: Final = 3_600_000
CALL_ITEMS: Final = 500
CALLS_IN_FLIGHT: Final = 16
CALL_MS: Final = 120_000
FILL_S: Final = 1_800.0
STATES: Final = {1: "deferred", 2: "ready", 3: "leased", 4: "dead"}

STREAM_ITEMS: Final = 200_000
DRIVER_KILLS: Final = 5
PER_BATCH: Final = 5_000


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    options = {
        "log.level": "info",
        "cluster.session_timeout_ms": 6_000,
        "shard.breaker_latency_ms_max": 60_000,
    }
    with LocalCluster(shards=SHARDS, port=free_port, options=options) as found:
        yield found


async def fill(url: str, count: int, deferred_each: int = 0) -> None:
    """Enqueue items of several topics and priorities. Each `deferred_each`-th one is deferred; 0: none."""
    room = asyncio.Semaphore(CALLS_IN_FLIGHT)
    # A call whose time is over may have written its items, which would then be there twice.
    async with Client(url, automatic_keys=False, timeout_ms=CALL_MS) as client, asyncio.TaskGroup() as calls:

        async def put(first: int) -> None:
            try:
                items = [
                    Item(
                        TOPICS[number % len(TOPICS)],
                        b"%08d" % number,
                        priority=number % 10,
                        delay_ms=HOUR_MS if deferred_each and number % deferred_each == 0 else None,
                    )
                    for number in range(first, min(first + CALL_ITEMS, count))
                ]
                while items:
                    results = await client.enqueue(items)
                    items = [item for item, each in zip(items, results, strict=True) if each.error is not None]
            finally:
                room.release()

        for first in range(0, count, CALL_ITEMS):
            await room.acquire()
            calls.create_task(put(first))


def lease_and_kill_some(url: str) -> None:
    """Leave some items leased, and some dead."""
    with SyncClient(url) as client:
        for _ in range(4):
            leased = client.dequeue(dict.fromkeys(TOPICS, 200), lease_ms=HOUR_MS)
            client.nack([Nack(each.id, each.token, dead=True) for each in leased[::2]])


def tables(cluster: LocalCluster, columns: str) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
    """Yield each shard with columns of its items, by id."""
    found = 0
    for server in cluster.databases:
        for (table,) in server.query(
            f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{DATABASE}' "
            r"AND table_name LIKE 'foqs\_%\_item'"
        ):
            shard = int(table.split("_")[1])
            yield shard, [tuple(row) for row in server.query(f"SELECT {columns} FROM {DATABASE}.{table} ORDER BY id")]
            found += 1
    assert found == SHARDS


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(20_000, id="short", marks=pytest.mark.timeout(300)),
        pytest.param(5_000_000, id="long", marks=[pytest.mark.long, pytest.mark.timeout(3_600)]),
    ],
)
def test_rows_are_the_items_of_all_shards_each_once(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path, count: int
) -> None:
    run(fill(cluster.url, count, deferred_each=50), FILL_S)
    lease_and_kill_some(cluster.url)
    with SyncClient(cluster.url) as client:
        until(lambda: client.count(ItemFilter()).items == count, "the queue is at rest", 300)
    frame = spark.read.format("foqs").option("url", cluster.url).option("page_rows", 1_000).load()
    assert frame.rdd.getNumPartitions() == SHARDS
    frame.select("id", "state", "topic", "priority", "shard").write.partitionBy("shard").parquet(str(tmp_path / "rows"))
    seen = Counter[str]()
    for shard, items in tables(cluster, "id, state, topic, priority"):
        listed = listed_rows(tmp_path / "rows" / f"shard={shard}")
        expected = [(id, STATES[int(state)], _text(topic), int(priority)) for id, state, topic, priority in items]
        assert len(listed) == len(expected)
        assert listed == expected, f"shard {shard}"
        seen.update(state for _, state, _, _ in listed)
    assert seen.total() == count
    assert seen.keys() == set(STATES.values())


def listed_rows(folder: Path) -> list[tuple[int, str, str, int]]:
    """Return id, state, topic and priority of a shard's rows, by id.

    Spark writes no folder for a shard without items: forty calls may all have chosen others.
    """
    if not folder.exists():
        return []
    rows = pq.read_table(folder)
    found = zip(*(rows[name].to_pylist() for name in ("id", "state", "topic", "priority")), strict=True)
    return sorted((int(id.partition("-")[2]), state, topic, priority) for id, state, topic, priority in found)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_each_item_is_in_parquet_once_after_its_driver_died_five_times_and_a_host_once(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    run(fill(cluster.url, STREAM_ITEMS), FILL_S)
    with SyncClient(cluster.url) as client:
        until(lambda: client.count(ItemFilter(states=["ready"])).items == STREAM_ITEMS, "all items are ready", 60)
    expected = {f"{shard}-{id}" for shard, items in tables(cluster, "id") for (id,) in items}
    log, checkpoint = tmp_path / "log", tmp_path / "checkpoint"
    job: dict[str, Any] = {
        "folder": str(tmp_path),
        "options": {
            "url": cluster.url,
            "topics": ",".join(TOPICS),
            "max_items_per_trigger": str(PER_BATCH),
            "lease_ms": "20000",
        },
        "available_now": False,
    }
    kills = 0
    while kills < DRIVER_KILLS:
        batch_min = STREAM_ITEMS * (kills + 1) // (DRIVER_KILLS + 1) // PER_BATCH
        with stream_process(job, log, MODULE) as process:
            if kills == DRIVER_KILLS // 2 and cluster.hosts[0].exit_code is None:
                wait_for(process, checkpoint, batch_min - 2, log)
                cluster.hosts[0].stop(signal.SIGKILL)
            wait_for(process, checkpoint, batch_min, log)
            process.kill()
        # A batch may have ended between the look and the kill.
        kills += batch_in_progress(checkpoint) is not None
    assert cluster.hosts[0].exit_code is not None, "no host died"
    job["available_now"] = True
    with SyncClient(cluster.url) as client:
        while client.count(ItemFilter()).items:
            with stream_process(job, log, MODULE) as process:
                process.wait(1_800)
    rows = [row.id for row in spark.read.parquet(str(tmp_path / "rows")).select("id").toLocalIterator()]
    assert len(rows) == STREAM_ITEMS
    assert set(rows) == expected


def wait_for(process: DriverProcess, checkpoint: Path, batch_min: int, log: Path) -> None:
    """Wait until a batch is under way, and at least this one. Raise AssertionError with the log if the process ends."""

    def is_in_a_batch() -> bool:
        batch = batch_in_progress(checkpoint)
        return not process.is_running or (batch is not None and batch >= batch_min)

    until(is_in_a_batch, f"batch {batch_min} is under way", 1_800)
    assert process.is_running, log.read_text()[-4_000:]
