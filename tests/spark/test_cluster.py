"""Tests sinks and sources on Spark's standalone cluster of a master and two workers, with a shipped environment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from foqs_client import ItemFilter, SyncClient
from tests.support import spark_cluster_job
from tests.support.poll import until
from tests.support.spark_cluster import (
    SparkCluster,
    driver_variables,
    freeze_executor,
    make_environment,
    thaw_executor,
)
from tests.support.spark_page import CLUSTER, program
from tests.support.spark_queue import DAY_MS, SparkQueue, spark_queue
from tests.support.spark_stream import DriverProcess, driver_process
from tests.support.tour import ADDRESS

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(1_500)]

START_S: Final = 600.0
"""A driver and its executors start within this time, on a busy machine."""
LINES: Final = 200
ORDERS: Final = 1_000
SPECULATION: Final = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.efficiency.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100",
}


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkQueue]:
    with spark_queue(tmp_path_factory.mktemp("queue")) as found:
        found.set_key_window(DAY_MS)
        yield found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the environment, in which drivers start."""
    folder = tmp_path_factory.mktemp("driver")
    make_environment(folder, ["foqs_client", "foqs_contract", "pyspark_foqs"])
    return folder


@contextmanager
def driver(job: Mapping[str, Any], driver_folder: Path, settings: Mapping[str, str]) -> Iterator[DriverProcess]:
    """Yield a running driver. Its variables are those that the page names."""
    script = Path(spark_cluster_job.__file__)
    command = ["environment/bin/python", "-P", str(script), json.dumps(job)]
    local = {"spark.local.dir": f"{job['folder']}/local", "spark.log.level": "WARN"}
    variables = driver_variables({**settings, **local}, "./environment/bin/python")
    log = Path(job["folder"]) / "log"
    with driver_process(command, log, cwd=driver_folder, env=variables) as process:
        yield process


def test_frames_and_streams_run_on_workers_that_only_have_the_shipped_environment(
    queue: SparkQueue, cluster: SparkCluster, driver_folder: Path, tmp_path: Path
) -> None:
    lines = [f"line {number}" for number in range(LINES)]
    (tmp_path / "lines").mkdir()
    for place in range(2):
        (tmp_path / "lines" / f"{place}.txt").write_text("".join(f"{line}\n" for line in lines[place::2]))
    text = program(CLUSTER).replace("spark://one:7077", cluster.url).replace(ADDRESS, queue.url)
    job = {"name": "everything", "program": text, "url": queue.url, "folder": str(tmp_path)}
    with driver(job, driver_folder, cluster.settings) as process:
        process.wait(START_S)
    found = json.loads((tmp_path / "result").read_text())
    assert len(found["ids"]) == len(set(found["ids"])) == ORDERS
    assert found["addresses"] == cluster.addresses
    for package in found["packages"]:
        assert "/app-" in package and "/environment/lib/" in package, package
    assert Counter(found["taken"]) == Counter([*map(str, range(ORDERS)), *lines])
    assert queue.rows("orders") == queue.rows("lines") == []


@pytest.mark.long
def test_row_of_a_frozen_executor_and_of_its_speculative_copy_is_one_item(
    queue: SparkQueue, cluster: SparkCluster, driver_folder: Path, tmp_path: Path
) -> None:
    rows, partitions, topic = 8_000, 4, "twice"
    job = {
        "name": "twice", "url": queue.url, "topic": topic, "folder": str(tmp_path), "rows": rows,
        "partitions": partitions, "step": 100,
    }  # fmt: skip
    settings = {**cluster.settings, **SPECULATION, "spark.archives": "environment.tar.gz#environment"}
    own = ItemFilter(topic=topic, priority_min=0, priority_max=0)
    with driver(job, driver_folder, settings) as process, SyncClient(queue.url) as client:

        def attempt(number: int) -> int:
            """Return the executor of an attempt that has passed on half of its rows."""
            file = tmp_path / f"attempt-{number}"
            until(lambda: not process.is_running or file.exists(), f"attempt {number} is half way", START_S)
            assert process.is_running, process.log
            return cluster.executor_of(int(file.read_text()))

        slow = attempt(0)
        until(lambda: client.count(own).items > 0, "some of its rows are in the queue", 60)
        frozen = freeze_executor(slow)
        try:
            assert attempt(1) != slow
            assert client.count(own).items < rows // partitions
        finally:
            thaw_executor(frozen)
        (tmp_path / "go").touch()
        process.wait(START_S)
    found = Counter(queue.rows(topic))
    assert len(found) == rows
    assert set(found.values()) == {1}
