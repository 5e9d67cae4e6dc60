"""Tests sinks and sources from a session of Spark Connect: frames on a server without foqs, streams on one that has it."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.spark_cluster import ROOT, machine_variables
from tests.support.spark_connect import PACKAGES, ConnectServer, zip_packages
from tests.support.spark_page import CONNECT, program
from tests.support.spark_queue import DAY_MS, SparkQueue, spark_queue
from tests.support.spark_stream import DriverProcess, driver_process
from tests.support.tour import ADDRESS

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.long, pytest.mark.timeout(480)]

LINES: Final = [f"line {number}" for number in range(100)]
ORDERS: Final = 1_000
START_S: Final = 240.0
REFUSAL: Final = (
    r"without the packages that a session of Spark Connect added: install foqs\[spark\] in the Python of the server"
)
INTO: Final = """
lines = spark.readStream.schema("value string").text("{folder}/lines").selectExpr("value AS payload")
into = lines.writeStream.format("foqs").option("url", "{url}").option("topic", "lines")
into.option("checkpointLocation", "{folder}/into").trigger(availableNow=True).start().awaitTermination()
"""
"""What follows the page's program: a stream into the queue."""
OUT: Final = """
out = spark.readStream.format("foqs").option("url", "{url}").option("topics", "orders,lines")
taken = out.option("staging_location", "{folder}/staged").load().selectExpr("CAST(payload AS string) AS text")
files = taken.writeStream.format("parquet").option("path", "{folder}/rows")
files.option("checkpointLocation", "{folder}/out").trigger(availableNow=True).start().awaitTermination()
texts = [row.text for row in spark.read.parquet("{folder}/rows").collect()]
open("{folder}/taken", "w").writelines(text + "\\n" for text in texts)
"""
"""A stream that takes all items out."""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[SparkQueue]:
    with spark_queue(tmp_path / "queue") as found:
        found.set_key_window(DAY_MS)
        yield found


@contextmanager
def session(queue: SparkQueue, folder: Path, port: int, text: str) -> Iterator[DriverProcess]:
    """Yield the running client of a server."""
    (folder / "lines").mkdir()
    (folder / "lines" / "one.txt").write_text("".join(f"{line}\n" for line in LINES))
    text = text.replace("127.0.0.1:15002", f"127.0.0.1:{port}").replace(ADDRESS, queue.url)
    variables = machine_variables() | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
    with driver_process([sys.executable, "-c", text], folder / "log", cwd=folder, env=variables) as process:
        yield process


def test_session_brings_foqs_to_a_server_that_has_none_for_frames(queue: SparkQueue, tmp_path: Path) -> None:
    zip_packages(tmp_path / "foqs.zip")
    text = program(CONNECT) + INTO.format(folder=tmp_path, url=queue.url)
    with (
        ConnectServer(tmp_path / "server") as server,
        session(queue, tmp_path, server.port, text) as process,
        pytest.raises(AssertionError, match=REFUSAL),
    ):
        process.wait(START_S)
    assert str(ORDERS) in (tmp_path / "log").read_text().splitlines()


def test_streams_run_on_a_server_that_has_foqs(queue: SparkQueue, tmp_path: Path) -> None:
    zip_packages(tmp_path / "foqs.zip")
    text = program(CONNECT) + (INTO + OUT).format(folder=tmp_path, url=queue.url)
    with (
        ConnectServer(tmp_path / "server", PACKAGES) as server,
        session(queue, tmp_path, server.port, text) as process,
    ):
        process.wait(START_S)
    taken = (tmp_path / "taken").read_text().splitlines()
    assert Counter(taken) == Counter([*map(str, range(ORDERS)), *LINES])
    assert queue.rows("orders") == queue.rows("lines") == []
