"""Tests the pipelines with a real Spark and a real host, by the command line that people use."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from foqs_client import Delivery, Item, ItemFilter, ItemView, Nack, Namespace, SyncClient
from foqs_client.spark.pipelines import changes, item_calls
from foqs_client.spark.pipelines.command import main
from tests.support.spark_queue import SparkQueue, spark_queue

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(480)]

_names = itertools.count()


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkQueue]:
    with spark_queue(tmp_path_factory.mktemp("queue")) as found:
        yield found


@pytest.fixture
def namespace(queue: SparkQueue) -> str:
    """A new namespace."""
    name = f"space-{next(_names)}"
    with SyncClient(queue.url) as admin:
        admin.create_namespace(Namespace(name))
    return name


@pytest.fixture
def client(queue: SparkQueue, namespace: str) -> Iterator[SyncClient]:
    with SyncClient(queue.url, namespace=namespace) as client:
        yield client


class Command:
    """Runs pipelines on the queue. Each call returns (exit code, JSON on standard output, standard error)."""

    def __init__(self, url: str, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._url = url
        self.namespace = namespace
        self._capsys = capsys

    def __call__(self, pipeline: str, *arguments: object) -> tuple[int, Any, str]:
        self._capsys.readouterr()
        place = [] if pipeline == "measures" else ["--address", self._url, "--namespace", self.namespace]
        code = main([pipeline, *place, *map(str, arguments)])
        printed = self._capsys.readouterr()
        return code, json.loads(printed.out) if printed.out else None, printed.err


@pytest.fixture
def foqs_spark(spark: SparkSession, queue: SparkQueue, namespace: str, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(queue.url, namespace, capsys)


def make_dead(client: SyncClient, topic: str, count: int, **changes: Any) -> None:
    for result in client.enqueue([Item(topic, b"%d" % place, priority=place % 5, **changes) for place in range(count)]):
        result.require()
    taken: list[Delivery] = []
    while len(taken) < count:
        taken += client.dequeue({topic: count - len(taken)}, wait_ms=1_000, lease_ms=900_000)
    for outcome in client.nack([Nack(each.id, each.token, dead=True) for each in taken]):
        outcome.require()


def counted(client: SyncClient, topic: str, *states: str) -> int:
    return client.count(ItemFilter(topic, list(states) or None)).items


# ------------------------------------------------------------------------- load


def write_orders(spark: SparkSession, folder: Path, kind: str) -> None:
    frame = spark.range(0, 2_000, 1, 3).selectExpr("id AS number", "concat('customer ', id % 7) AS customer")
    writer = frame.write.format(kind)
    (writer.option("header", "true") if kind == "csv" else writer).save(str(folder))


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_load_enqueues_each_row_once_however_often_it_is_run(
    spark: SparkSession, client: SyncClient, foqs_spark: Command, tmp_path: Path, kind: str
) -> None:
    write_orders(spark, tmp_path / "orders", kind)
    arguments = (
        "load", tmp_path / "orders", "--format", kind, "--topic", "orders", "--map",
        "payload=to_json(struct(number, customer))", "--map", "priority=CAST(number AS int) % 3",
    )  # fmt: skip
    code, found, _ = foqs_spark(*arguments, "--dry-run")
    assert (code, found, counted(client, "orders")) == (0, {"rows": 2_000}, 0)
    for _ in range(2):
        code, found, printed = foqs_spark(*arguments)
        assert (code, found, counted(client, "orders")) == (0, {"rows": 2_000}, 2_000)
    assert "repeat it within 10 minutes" in printed
    [best] = client.peek("orders", limit=1, with_payload=True).items
    assert set(json.loads(best.payload or b"")) == {"number", "customer"}
    assert best.priority == 0


def test_load_that_was_interrupted_is_continued_by_the_same_command(
    spark: SparkSession, client: SyncClient, foqs_spark: Command, tmp_path: Path
) -> None:
    write_orders(spark, tmp_path / "orders", "parquet")
    limited = (
        "load",
        tmp_path / "orders",
        "--topic",
        "orders",
        "--set",
        "batch_items=100",
        "--map",
        "payload=customer",
    )
    # The rows of one customer are too long for a host, so the load stops in the middle.
    expression = "payload=IF(number = 1500, repeat('x', 20000), customer)"
    code, _, printed = foqs_spark(*limited[:-1], expression)
    assert code == 1
    assert re.search("Error: not all rows are in the queue: .*LIMIT_EXCEEDED.*; repeat the command", printed)
    assert 0 < counted(client, "orders") < 2_000
    client.update_namespace(Namespace(foqs_spark.namespace, payload_bytes_max=30_000))
    code, _, _ = foqs_spark(*limited[:-1], expression)
    assert (code, counted(client, "orders")) == (0, 2_000)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--map", "payload=nothing"), "an expression cannot be used: .*nothing.*; the files have number, customer"),
        (("--map", "body=customer"), "there is no column body of items; map some of topic, payload"),
        ((), "the frame has columns that the sink does not know: number, customer.*; map columns with --map"),
        (("--map", "payload=number"), "the column payload is of type long; cast it to string or binary"),
        (("--map", "payload=customer", "--set", "wrong=1"), "unknown options: wrong"),
    ],
)
def test_bad_load_fails_with_one_sentence(
    spark: SparkSession, foqs_spark: Command, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    write_orders(spark, tmp_path / "orders", "parquet")
    code, _, printed = foqs_spark("load", tmp_path / "orders", "--topic", "t", *arguments)
    assert code == 1
    [line] = [line for line in printed.splitlines() if line.startswith("Error: ")]
    assert re.search(f"Error: .*{sentence}", line)


def test_load_of_a_missing_folder_fails_with_one_sentence(foqs_spark: Command, tmp_path: Path) -> None:
    code, _, printed = foqs_spark("load", tmp_path / "nowhere", "--topic", "t")
    assert code == 1
    assert "Error: the files cannot be read: " in printed


# --------------------------------------------------------------- redrive, rewrite


def test_redrive_of_a_dry_run_changes_nothing_and_a_real_one_redrives_what_the_predicate_chooses(
    client: SyncClient, foqs_spark: Command
) -> None:
    make_dead(client, "mail", 50)
    make_dead(client, "letters", 10)
    arguments = ("redrive", "--where", "topic = 'mail' AND priority < 2")
    code, found, printed = foqs_spark(*arguments, "--dry-run")
    assert (code, found, counted(client, "mail", "dead")) == (0, {}, 50)
    assert "20 items match." in printed
    code, _, printed = foqs_spark(*arguments)
    assert code == 1
    assert "Error: Redrive 20 items? Nobody can be asked here: repeat the command with --yes" in printed
    code, found, _ = foqs_spark(*arguments, "--yes")
    assert (code, found) == (0, {"done": 20})
    assert (counted(client, "mail", "dead"), counted(client, "mail", "ready")) == (30, 20)
    assert counted(client, "letters", "dead") == 10


def test_items_that_match_only_after_the_count_are_not_changed(
    spark: SparkSession, client: SyncClient, foqs_spark: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dead(client, "mail", 20)

    def confirm(question: str, *, yes: bool) -> bool:
        """Let Spark lose what it has cached, while other items come to match."""
        spark.catalog.clearCache()
        make_dead(client, "mail", 5)
        return True

    monkeypatch.setattr(changes, "confirm", confirm)
    code, found, _ = foqs_spark("redrive", "--where", "topic = 'mail'", "--yes")
    assert (code, found) == (0, {"done": 20})
    assert counted(client, "mail", "dead") == 5


def test_rewrite_moves_cancels_and_reprioritises(client: SyncClient, foqs_spark: Command) -> None:
    make_dead(client, "mail", 30)
    client.enqueue([Item("mail", b"ready", priority=9)] * 5)
    code, found, _ = foqs_spark("rewrite", "--where", "state = 'dead'", "--move", "later", "--yes")
    assert (code, found) == (0, {"done": 30})
    assert (counted(client, "later", "ready"), counted(client, "mail")) == (30, 5)
    code, found, _ = foqs_spark("rewrite", "--where", "topic = 'later'", "--priority", "-7", "--yes")
    assert (code, found) == (0, {"done": 30})
    assert client.count(ItemFilter("later", priority_max=-7)).items == 30
    where = ("--where", "CAST(payload AS string) = '7' OR topic = 'mail'", "--payload")
    code, found, _ = foqs_spark("rewrite", *where, "--cancel", "--yes")
    assert (code, found) == (0, {"done": 6})
    assert (counted(client, "later"), counted(client, "mail")) == (29, 0)


def test_bad_predicate_fails_with_one_sentence_that_names_the_columns(client: SyncClient, foqs_spark: Command) -> None:
    for predicate in ("nothing = 1", "priority <", "payload = 'x'"):
        code, _, printed = foqs_spark("redrive", "--where", predicate, "--yes")
        assert code == 1
        [line] = [line for line in printed.splitlines() if line.startswith("Error: ")]
        assert re.search(r"the predicate .* cannot be used: .*; its columns are id, shard, topic, state", line)


def test_unreachable_host_fails_with_one_sentence(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command("foqs://127.0.0.1:1", "default", capsys)
    code, _, printed = command("export", "/nowhere", "--dry-run", "--timeout-ms", "1000")
    assert code == 1
    assert printed.count("Error: ") == 1


# ------------------------------------------------------------------------ report


def test_report_has_the_backlog_as_tables_and_a_page_without_scripts(
    spark: SparkSession, client: SyncClient, foqs_spark: Command, tmp_path: Path
) -> None:
    make_dead(client, "mail", 12)
    client.enqueue([Item("<b>orders</b>", b"x" * 2_000, priority=place % 3) for place in range(40)])
    client.enqueue([Item("later", delay_ms=3_600_000 * place) for place in range(1, 6)])
    code, found, printed = foqs_spark("report", tmp_path / "report")
    assert (code, found) == (0, {"items": 57})
    tables = {
        name: spark.read.parquet(str(tmp_path / "report" / f"{name}.parquet")).collect()
        for name in ("backlog", "due_by_hour", "dead_by_reason", "largest_payloads")
    }
    by_topic: Counter[tuple[str, str]] = Counter()
    for row in tables["backlog"]:
        by_topic[row["topic"], row["state"]] += row["items"]
    assert by_topic == {("mail", "dead"): 12, ("<b>orders</b>", "ready"): 40, ("later", "deferred"): 5}
    assert [row["items"] for row in tables["due_by_hour"]] == [1] * 5
    assert [(row["dead_reason"], row["items"]) for row in tables["dead_by_reason"]] == [
        ("given up by its consumer in attempt 1", 12)
    ]
    assert len(tables["largest_payloads"]) == 20
    page = (tmp_path / "report" / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "<script" not in page and "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<b>orders" not in page and "&lt;b&gt;orders" in page
    assert (tmp_path / "report" / "report.html").resolve().as_uri() in printed
    assert main_again(foqs_spark, tmp_path) == 1


def main_again(foqs_spark: Command, tmp_path: Path) -> int:
    """Write into the folder of the report again."""
    code, _, printed = foqs_spark("report", tmp_path / "report")
    assert "Error: the report cannot be written to" in printed
    return code


# ---------------------------------------------------------------- export, import


def contents(client: SyncClient, topics: list[str]) -> list[tuple[Any, ...]]:
    """Return all items, without what a copy cannot have: their ids, and their leases."""
    found: list[ItemView] = []
    for topic in topics:
        for state in ("ready", "deferred", "leased", "dead"):
            page = client.peek(topic, state, limit=1_000, with_payload=True)
            assert page.next_cursor is None
            found += [client.item(view.id, with_payload=True) for view in page.items]
    return sorted(
        (
            view.topic, view.payload, view.metadata or b"", view.priority, view.attempt, view.attempts_max, view.at_most_once,
            view.idempotency_key, view.state.replace("leased", "ready"), view.lease_ms, view.trace_context,
            # Minutes: time passes between the two looks.
            None if view.due_in_ms is None else round(view.due_in_ms / 600_000),
            None if view.ttl_remaining_ms is None else round(view.ttl_remaining_ms / 600_000),
        )
        for view in found
    )  # fmt: skip


def fill(client: SyncClient) -> list[str]:
    hour = 3_600_000
    for place in range(40):
        client.enqueue(
            [
                Item("a", b"a%d" % place, place % 7, b"m", idempotency_key=f"key-{place}", lease_ms=900_000),
                Item("a", bytes(range(256)) * 8, trace_context=b"\xff\0", at_most_once=place % 2 == 0),
                Item("b", b"b%d" % place, delay_ms=hour * (1 + place % 3), ttl_ms=10 * hour),
                Item("b", b"", priority=-place, ttl_ms=5 * hour, attempts_max=3),
            ]
        )
    make_dead(client, "c", 15)
    taken = client.dequeue({"a": 10, "b": 3}, lease_ms=900_000)
    client.nack([Nack(each.id, each.token, delay_ms=0) for each in taken if each.topic == "b"][:2])
    return ["a", "b", "c"]


def test_round_trip_is_equal_in_everything_but_ids_and_leases_and_may_be_repeated(
    queue: SparkQueue, client: SyncClient, foqs_spark: Command, tmp_path: Path
) -> None:
    topics, other = fill(client), f"{foqs_spark.namespace}-copy"
    leased = client.count(ItemFilter(states=["leased"])).items
    assert leased > 5
    code, found, _ = foqs_spark("export", tmp_path / "copy", "--dry-run")
    assert (code, sum(found.values()), (tmp_path / "copy").exists()) == (0, 175, False)
    before = [row for row in contents(client, topics) if not (row[6] and row[8] == "ready" and row[4])]
    code, found, _ = foqs_spark("export", tmp_path / "copy")
    assert (code, found) == (0, {"a": 80, "b": 80, "c": 15})
    with SyncClient(queue.url) as admin:
        admin.create_namespace(Namespace(other))
    with SyncClient(queue.url, namespace=other) as copy:
        code, found, _ = foqs_spark("import", tmp_path / "copy", "--namespace", other, "--dry-run")
        assert (code, found, copy.count(ItemFilter()).items) == (0, {}, 0)
        code, found, _ = foqs_spark("import", tmp_path / "copy", "--namespace", other, "--yes")
        assert (code, found) == (0, {"done": 175})
        # At most once and leased: it may have been worked on, so it is dead.
        after = [row for row in contents(copy, topics) if not (row[6] and row[8] == "dead")]
        assert after == before
        assert copy.count(ItemFilter(states=["leased"])).items == 0
        code, found, _ = foqs_spark("import", tmp_path / "copy", "--namespace", other, "--yes")
        assert (code, found) == (0, {"repeated": 175})
        assert copy.count(ItemFilter()).items == 175


def test_export_without_a_manifest_is_not_imported(client: SyncClient, foqs_spark: Command, tmp_path: Path) -> None:
    code, _, printed = foqs_spark("import", tmp_path, "--yes")
    assert code == 1
    assert f"Error: {tmp_path} holds no complete export; export the topics again into a new folder" in printed


# ----------------------------------------------------------------------- the page


def test_commands_of_the_page_do_what_it_says(
    queue: SparkQueue, client: SyncClient, namespace: str, foqs_spark: Command, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark-pipelines.md").read_text()
    commands = [
        shlex.split(line.replace("/data", str(tmp_path)).replace("--namespace copy", f"--namespace {namespace}-copy"))
        for block in re.findall(r"^```bash\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
        for line in block.splitlines()
    ]
    (tmp_path / "orders").mkdir()
    orders = [{"id": id, "customer": ("Ada", "Grace")[id % 2], "urgency": id % 4} for id in range(40)]
    (tmp_path / "orders" / "one.json").write_text("".join(json.dumps(order) + "\n" for order in orders))
    (tmp_path / "records").mkdir()
    records = re.findall(r'^ +({"event".*)$', page, re.MULTILINE)
    (tmp_path / "records" / "one.json").write_text("".join(record + "\n" for record in records))
    make_dead(client, "mail", 20, attempts_max=1)
    with SyncClient(queue.url) as admin:
        admin.create_namespace(Namespace(f"{namespace}-copy"))
    results = []
    for program, group, *arguments in commands:
        assert (program, group) == ("foqs", "spark")
        code, found, printed = foqs_spark(*arguments)
        assert code == 0, printed
        results.append(found)
    assert results == [
        {"rows": 40}, {"items": 60}, {}, {"done": 16}, {"done": 18}, {"done": 30}, {"done": 10}, {"orders": 30}, {"done": 30},
        {
            "enqueued": 1, "duplication_rate": 0, "loss_rate": 0, "out_of_order_rate": 0, "average_displacement": 0,
            "unknown": 0,
        },
    ]  # fmt: skip
    with SyncClient(queue.url, namespace=f"{namespace}-copy") as copy:
        assert copy.count(ItemFilter("orders", priority_min=1, priority_max=1)).items == 30


# -------------------------------------------------------------------- as programs


@pytest.mark.parametrize("program", ["foqs", pytest.param("spark-submit", marks=pytest.mark.long)])
def test_pipeline_runs_as_a_program(
    queue: SparkQueue, client: SyncClient, namespace: str, program: str, tmp_path: Path
) -> None:
    client.enqueue([Item("mail", b"x")] * 7)
    folder = Path(sys.executable).parent
    script = Path(item_calls.__file__).with_name("__main__.py")
    start = {
        "foqs": [str(folder / "foqs"), "spark"],
        "spark-submit": [str(folder / "spark-submit"), "--master", "local[2]", str(script)],
    }
    result = subprocess.run(
        [*start[program], "export", str(tmp_path / "copy"), "--address", queue.url, "--namespace", namespace],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        # spark-submit looks for PySpark with this Python, as in an activated environment.
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )
    # spark-submit writes both streams of the program to standard output.
    assert (result.returncode, result.stdout.splitlines()[-1:]) == (0, ['{"mail": 7}']), result.stderr[-4_000:]
