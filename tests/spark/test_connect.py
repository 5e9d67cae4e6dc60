"""Tests sinks and sources from a session of Spark Connect, whose server has no foqs of its own."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.spark_cluster import ROOT, machine_variables
from tests.support.spark_connect import ConnectServer, zip_packages
from tests.support.spark_page import CONNECT, program
from tests.support.spark_queue import DAY_MS, SparkQueue, spark_queue
from tests.support.spark_stream import driver_process
from tests.support.tour import ADDRESS

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.long, pytest.mark.timeout(480)]

LINES: Final = 100
ORDERS: Final = 1_000
STREAMS: Final = """
lines = spark.readStream.schema("value string").text("{folder}/lines").selectExpr("value AS payload")
into = lines.writeStream.format("foqs").option("url", "{url}").option("topic", "lines")
into.option("checkpointLocation", "{folder}/into").trigger(availableNow=True).start().awaitTermination()

out = spark.readStream.format("foqs").option("url", "{url}").option("topics", "orders,lines")
taken = out.option("staging_location", "{folder}/staged").load().selectExpr("CAST(payload AS string) AS text")
files = taken.writeStream.format("parquet").option("path", "{folder}/rows")
files.option("checkpointLocation", "{folder}/out").trigger(availableNow=True).start().awaitTermination()
texts = [row.text for row in spark.read.parquet("{folder}/rows").collect()]
open("{folder}/taken", "w").writelines(text + "\\n" for text in texts)
"""
"""What follows the page's program: a stream into the queue, and one that takes all items out."""


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkQueue]:
    with spark_queue(tmp_path_factory.mktemp("queue")) as found:
        found.set_key_window(DAY_MS)
        yield found


def test_session_brings_foqs_to_a_server_that_has_none(queue: SparkQueue, tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(LINES)]
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "one.txt").write_text("".join(f"{line}\n" for line in lines))
    zip_packages(tmp_path / "foqs.zip")
    log = tmp_path / "log"
    variables = machine_variables() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
    with ConnectServer(tmp_path / "server") as server:
        text = program(CONNECT).replace("127.0.0.1:15002", f"127.0.0.1:{server.port}").replace(ADDRESS, queue.url)
        text += STREAMS.format(folder=tmp_path, url=queue.url)
        with driver_process([sys.executable, "-c", text], log, cwd=tmp_path, env=variables) as process:
            process.wait(240)
    assert str(ORDERS) in log.read_text().splitlines()
    taken = (tmp_path / "taken").read_text().splitlines()
    assert Counter(taken) == Counter([*map(str, range(ORDERS)), *lines])
    assert queue.rows("orders") == queue.rows("lines") == []
