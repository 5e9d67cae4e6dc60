"""Runs the Spark jobs of docs/tour.md and docs/spark.md, and checks that the page names every option.

A program that is followed by a text block fails with that sentence, where `...` stands for anything.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import SparkSession

from foqs_client import Client, ItemFilter, ItemView, Namespace, SyncClient
from foqs_client.spark.item_columns import COLUMNS
from foqs_client.spark.item_view_columns import BATCH_COLUMNS, STREAM_COLUMNS
from foqs_client.spark.options import NUMBER_OPTIONS, OPTION_NAMES
from foqs_client.spark.source_options import SOURCE_NUMBERS, SOURCE_OPTION_NAMES, STREAM_SOURCE_NUMBERS
from tests.support.aio import run
from tests.support.processes import RestartableHost
from tests.support.spark_page import CLUSTER, CONNECT, PAGE, section
from tests.support.spark_queue import DAY_MS
from tests.support.tour import ADDRESS, ADDRESSES, part

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(480)]


def programs() -> list[tuple[str, str | None]]:
    """Return the programs of the page in order, each with the sentence with which it fails.

    Those of a cluster and of Spark Connect are run by test_cluster.py and test_connect.py.
    """
    page = PAGE.replace(section(CLUSTER), "").replace(section(CONNECT), "")
    blocks = re.findall(r"^```(python|text)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    following = [*blocks[1:], ("", "")]
    return [
        (program, sentence.strip() if next_kind == "text" else None)
        for (kind, program), (next_kind, sentence) in zip(blocks, following, strict=True)
        if kind == "python"
    ]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartableHost]:
    with RestartableHost(tmp_path_factory.mktemp("host"), "memory:") as host:
        host.start()
        yield host


async def held(address: str, topic: str, priority: int | None = None) -> int:
    async with Client(address) as client:
        return (await client.count(ItemFilter(topic=topic, priority_min=priority, priority_max=priority))).items


async def deferred(address: str, topic: str) -> list[ItemView]:
    async with Client(address) as client:
        return (await client.peek(topic, "deferred", with_payload=True)).items


def test_job_of_the_tour_enqueues_its_thousand_letters(spark: SparkSession, host: RestartableHost) -> None:
    [program] = [block.text for block in part("A Spark job") if block.language == "python"]
    assert ADDRESSES in program
    exec(program.replace(ADDRESSES, host.address), {})
    assert run(held(host.address, "letters.spark")) == 1_000
    assert run(held(host.address, "letters.spark", 9)) == 100


def test_programs_of_the_page_do_what_it_says(spark: SparkSession, host: RestartableHost, tmp_path: Path) -> None:
    write_orders(tmp_path / "orders")
    with SyncClient(host.address) as client:
        client.update_namespace(Namespace("default", key_window_ms=DAY_MS))
    variables: dict[str, Any] = {}
    for program, sentence in programs():
        text = program.replace(ADDRESS, host.address).replace("/data", str(tmp_path))
        if sentence is None:
            exec(text, variables)
            continue
        if "with other columns" in sentence:
            (tmp_path / "checkpoints" / "orders" / "commits" / "0").unlink()
            (tmp_path / "checkpoints" / "orders" / "commits" / ".0.crc").unlink()
        with pytest.raises((PythonException, AnalysisException, StreamingQueryException)) as raised:
            exec(text, variables)
        shown = sentence.replace("/data", str(tmp_path))
        expected = ".*".join(re.escape(part) for part in shown.split("..."))
        assert re.search(f"(Sink|Source)Error: {expected}", str(raised.value)), program
    found = {item.payload: item.priority for item in run(deferred(host.address, "invoices"))}
    assert found == {b'{"id":17,"customer":"Ada"}': 3, b'{"id":18,"customer":"Grace"}': 1}
    for topic, count in {"orders.new": 0, "orders.each": 0, "mail.bad": 1, "orders.late": 0, "customers": 0}.items():
        assert run(held(host.address, topic)) == count, topic
    archived = spark.read.parquet(str(tmp_path / "archive")).collect()
    assert Counter(row.topic for row in archived) == {"orders.new": 2, "orders.each": 2}


def write_orders(folder: Path) -> None:
    folder.mkdir()
    (folder / "one.json").write_text('{"id":17,"customer":"Ada"}\n{"id":18,"customer":"Grace"}\n')


def test_page_names_every_column_and_every_option_of_reads() -> None:
    _, _, reads = PAGE.partition("\n## Read the queue\n")
    reads, _, streams = reads.partition("\n## Take items out\n")
    for name in (*BATCH_COLUMNS, *SOURCE_OPTION_NAMES):
        assert f"`{name}`" in reads, name
    for name in (*STREAM_COLUMNS, "namespace", *STREAM_SOURCE_NUMBERS, "topics", "staging_location"):
        assert f"`{name}`" in streams, name
    for text, numbers in ((reads, SOURCE_NUMBERS), (streams, STREAM_SOURCE_NUMBERS)):
        for name, allowed in numbers.items():
            if text is reads or name not in SOURCE_NUMBERS:
                assert f"\n| `{name}` | {allowed.default:,} |" in text


def test_page_names_every_column_and_every_option_with_its_default() -> None:
    columns, _, options = PAGE.partition("\n## Options\n")
    for name in COLUMNS:
        assert f"\n| `{name}` |" in columns
    for name in OPTION_NAMES:
        assert f"`{name}`" in options or name in COLUMNS
    for name, allowed in NUMBER_OPTIONS.items():
        assert f"\n| `{name}` | {allowed.default:,} |" in options
