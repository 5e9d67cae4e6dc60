"""Tests the pipeline `measures` with a real Spark, by the command line that people use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from foqs_client.spark.pipelines.command import main

pytestmark = [pytest.mark.spark, pytest.mark.timeout(480)]

Record = Mapping[str, Any]


def enqueues(topic: str, count: int) -> list[Record]:
    """Items 1 to `count`, enqueued a second apart."""
    return [
        {"event": "enqueue", "topic": topic, "item": f"m{n}", "at_ms": 1_000 * n, "took_ms": n, "sequence": n}
        for n in range(1, count + 1)
    ]


def deliveries(topic: str, received: Sequence[int], event: str = "delivery", at_ms: float = 10_000) -> list[Record]:
    """The replies to one call: only the sequence has their order."""
    return [
        {"event": event, "topic": topic, "item": f"m{item}", "at_ms": at_ms, "sequence": place}
        for place, item in enumerate(received)
    ]


RECORDS: Sequence[Record] = [
    # The examples of the BDQS paper.
    *enqueues("one back", 5),
    *deliveries("one back", [2, 1, 3, 4, 5]),
    *enqueues("first is last", 5),
    *deliveries("first is last", [2, 3, 4, 5, 1]),
    # Five enqueued: the first is delivered twice more, the third not at all, the fifth damaged. The sixth is of nobody.
    *enqueues("faults", 5),
    *deliveries("faults", [1, 2, 4, 6]),
    *deliveries("faults", [1, 1, 6], at_ms=20_000),
    *deliveries("faults", [5], "corrupt"),
    {"event": "ack", "topic": "faults", "item": "m1", "at_ms": 20_500, "took_ms": 7},
    {"event": "ack", "topic": "faults", "item": "m1", "at_ms": 21_000, "took_ms": 9},
    # A lower priority is delivered first.
    *[{**each, "priority": 9 - each["sequence"]} for each in enqueues("priorities", 3)],
    *deliveries("priorities", [3, 2, 1]),
]


def write_json(folder: Path, records: Sequence[Record]) -> Path:
    folder.mkdir()
    (folder / "client.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_measures_of_the_papers_examples_are_exact(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    records = write_json(tmp_path / "records", RECORDS)
    if kind == "parquet":
        spark.read.json(str(records)).write.parquet(str(tmp_path / "parquet"))
        records = tmp_path / "parquet"
    arguments = ["measures", str(records), str(tmp_path / "found"), "--format", kind]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "enqueued": 18, "duplication_rate": 2 / 18, "loss_rate": 2 / 18, "out_of_order_rate": 2 / 16,
        "average_displacement": 10 / 16, "unknown": 1,
    }  # fmt: skip
    found = spark.read.parquet(str(tmp_path / "found" / "topics.parquet")).collect()
    assert {
        row.topic: (row.duplication_rate, row.loss_rate, row.out_of_order_rate, row.average_displacement)
        for row in found
    } == {
        "one back": (0, 0, 0.2, 0.4), "first is last": (0, 0, 0.2, 1.6), "faults": (0.4, 0.4, 0, 0),
        "priorities": (0, 0, 0, 0),
    }  # fmt: skip
    faults = next(row for row in found if row.topic == "faults")
    assert (faults.enqueued, faults.received, faults.acked, faults.unknown) == (5, 3, 1, 1)
    latency = {
        row.step: (row["count"], row.p50_ms, row.p90_ms, row.max_ms)
        for row in spark.read.parquet(str(tmp_path / "found" / "latency.parquet")).collect()
        if row.topic == "faults"
    }
    assert latency == {
        "enqueue call": (5, 3, 4.6, 5), "ack call": (2, 8, 8.8, 9), "wait": (3, 8_000, 8_800, 9_000),
        "work": (1, 10_500, 10_500, 10_500),
    }  # fmt: skip
    page = tmp_path / "found" / "measures.html"
    assert page.resolve().as_uri() in printed.err
    assert "<td>first is last<td class=n>5<td class=n>0.0000<td class=n>0.0000<td class=n>0.2000" in page.read_text()


def test_dry_run_measures_and_writes_nothing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = write_json(tmp_path / "records", enqueues("t", 4))
    assert main(["measures", str(records), str(tmp_path / "found"), "--dry-run"]) == 0
    assert json.loads(capsys.readouterr().out)["loss_rate"] == 1
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([{"event": "enqueue", "topic": "t", "item": "m1", "at_ms": 1}], "1 of the records are malformed"),
        ([{"event": "sent", "topic": "t", "item": "m1", "at_ms": 1}], "one of enqueue, delivery, corrupt, ack"),
        ([{"event": "ack", "topic": "t", "item": "m1", "at_ms": "now"}], "each needs event, topic, item, at_ms;"),
    ],
)
def test_malformed_records_fail_with_one_sentence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], records: Sequence[Record], sentence: str
) -> None:
    folder = write_json(tmp_path / "records", [*records, *enqueues("t", 1)])
    assert main(["measures", str(folder), str(tmp_path / "found")]) == 1
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: ")]
    assert sentence in line


def test_records_without_a_needed_column_fail_with_one_sentence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.range(3).selectExpr("'ack' AS event", "id AS at_ms").write.parquet(str(tmp_path / "records"))
    assert main(["measures", str(tmp_path / "records"), str(tmp_path / "found"), "--format", "parquet"]) == 1
    assert "Error: the records have no column topic; they have event, at_ms" in capsys.readouterr().err


def test_missing_records_fail_with_one_sentence(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["measures", str(tmp_path / "nowhere"), str(tmp_path / "found")]) == 1
    assert "Error: the records cannot be read: " in capsys.readouterr().err
