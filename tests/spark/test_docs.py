"""Runs the Spark jobs of docs/tour.md and docs/spark.md, and checks that the page names every option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from foqs_client import Client, ItemFilter, ItemView
from foqs_client.spark.item_columns import COLUMNS
from foqs_client.spark.options import NUMBER_OPTIONS, OPTION_NAMES
from tests.support.aio import run
from tests.support.processes import RestartableHost
from tests.support.tour import ADDRESS, ADDRESSES, part

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(240)]

PAGE: Final = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def job(text: str) -> str:
    [block] = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert ADDRESS in block
    return str(block)


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


def test_job_of_the_page_enqueues_its_invoices_once(spark: SparkSession, host: RestartableHost) -> None:
    exec(job(PAGE).replace(ADDRESS, host.address), {})
    found = {item.payload: item.priority for item in run(deferred(host.address, "invoices"))}
    assert found == {b'{"id":17,"customer":"Ada"}': 3, b'{"id":18,"customer":"Grace"}': 1}


def test_page_names_every_column_and_every_option_with_its_default() -> None:
    columns, _, options = PAGE.partition("\n## Options\n")
    for name in COLUMNS:
        assert f"\n| `{name}` |" in columns
    for name in OPTION_NAMES:
        assert f"`{name}`" in options or name in COLUMNS
    for name, allowed in NUMBER_OPTIONS.items():
        assert f"\n| `{name}` | {allowed.default:,} |" in options
