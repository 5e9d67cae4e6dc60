"""Every program of perf/ runs, counts every item, and prints its measurements as JSON lines.

The tests check no figure, because the machine of a test is busy.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foqs.store.row_columns import COLUMNS
from perf.lib import backlog, contest_table, packets, table
from perf.lib.race import Broken, reckon
from perf.lib.region_loss import CONDITIONS
from perf.lib.stage import PEERS, stage
from perf.lib.table import Row
from perf.lib.trial import Filled, Trial, once
from tests.support.descendants import descendants, is_running
from tests.support.poll import until
from tests.support.region_networks import network

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--seconds", "0.2", "--warmup", "0.1"]
ONCE = ["--repeats", "1"]

pytestmark = [pytest.mark.process, pytest.mark.mysql]

__all__ = ["network"]


def lines(program: str, *args: str, timeout_s: float = 240) -> list[dict[str, Any]]:
    """Run a program that must succeed. Return its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", f"perf.{program}", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found, done.stderr[-4000:]
    for line in found:
        assert line["program"] == program
        assert {"cpu", "cores", "kernel", "python", "packages", "commit", "dirty"} <= line["machine"].keys()
        assert "load" in line
    return found


@pytest.mark.parametrize(
    "program",
    ["race", *(pytest.param(program, marks=pytest.mark.long) for program in ("bench", "end_to_end", "limit"))],
)
def test_a_stopped_program_leaves_no_server_and_no_load_running(program: str, tmp_path: Path) -> None:
    args = {
        "bench": ["--rows", "single", "--seconds", "60", *ONCE],
        "end_to_end": ["--system", "foqs-mariadb", "--seconds", "60", *ONCE],
        "limit": ["--shape", "insert", "--items", "30000", "--repeats", "1000"],
        "race": ["--rows", "calls-100", "--systems", "foqs-mariadb", "--seconds", "60", "--no-plots"],
    }
    printed = tmp_path / "printed"
    with (
        printed.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", f"perf.{program}", *args[program]],
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        started: dict[int, str] = {}
        try:
            until(lambda: process.poll() is not None or _measures(process.pid), "the server and its load run", 180)
            assert process.poll() is None, f"the program ended before it measured: {printed.read_text()}"
            started = descendants(process.pid)
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) != 0
            until(lambda: not any(map(is_running, started)), f"all of {started} have ended")
        finally:
            started |= descendants(process.pid)
            process.kill()
            for pid in filter(is_running, started):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def _measures(pid: int) -> bool:
    """Return whether the program has a database and load."""
    lines = descendants(pid).values()
    return any("mariadbd" in line for line in lines) and any("spawn_main" in line for line in lines)


@pytest.mark.parametrize(
    ("fates", "seen", "acked"),
    [
        pytest.param(b"\1\1\1", [b"\1\0\1"], 2, id="lost"),
        pytest.param(b"\1\1\1", [b"\1\2\1"], 3, id="doubled"),
        pytest.param(b"\1\1\1", [b"\1\1\0", b"\0\1\1"], 3, id="doubled over two consumers"),
        pytest.param(b"\1\0\1", [b"\1\1\1"], 3, id="refused and yet received"),
        pytest.param(b"\1\1\1", [b"\1\1\1"], 2, id="received and not acked"),
    ],
)
def test_a_run_with_missing_items_gives_no_figure(fates: bytes, seen: list[bytes], acked: int) -> None:
    with pytest.raises(Broken):
        reckon(fates, seen, acked, empty=True)


def test_items_of_unknown_outcome_may_be_received_or_not() -> None:
    assert reckon(b"\2\2\1\0", [b"\1\0\0\0", b"\0\0\1\0"], 2, empty=True) == 0


def test_remaining_items_are_counted_if_the_queue_is_not_emptied() -> None:
    assert reckon(b"\1\1\1\0", [b"\0\1\0\0"], 1, empty=False) == 2


@pytest.mark.long
def test_the_consumer_is_compared_with_the_plain_client_and_reaches_every_topic() -> None:
    found = lines("consumer", "--items", "600", "--rounds", "1", "--in-flight", "100", "--topics", "30")

    assert [line["parameters"].get("handler") for line in found] == ["async", "thread", None]
    assert all(line["figures"]["ratio"] > 0 for line in found[:2])
    assert found[2]["figures"]["first_of_each_s"] > 0


@pytest.mark.long
def test_a_worker_in_which_items_wait_is_compared_with_one_in_which_none_does() -> None:
    options = ("--items", "200", "--rounds", "1", "--concurrency", "2", "--times", "1", "2", "--handlers", "plain")
    found = lines("in_flight", "--system", "foqs-sqlite", *options)

    assert [line["parameters"]["times"] for line in found] == [1, 2]
    assert all(line["figures"]["items_per_s"] > 0 for line in found)


@pytest.mark.long
def test_limit_measures_every_shape_on_both_databases() -> None:
    found = lines("limit", *ONCE, "--items", "200", "--singles", "20", "--flush", "20", "--no-plots")

    measured = {(line["parameters"]["database"], line["parameters"]["shape"]) for line in found}
    assert {database for database, _ in measured} == {"mariadb", "sqlite"}
    assert len({shape for _, shape in measured}) == 6
    assert len(measured) == 12
    assert all(line["figures"]["items_per_s"] > 0 for line in found)


@pytest.mark.long
def test_each_client_of_sqs_accounts_for_every_message() -> None:
    options = ["--system", "foqs-sqlite", "--batch", "1", "10", "--seconds", "1", "--warmup", "0.2", *ONCE]
    found = lines("sqs", *options)

    measured = {tuple(line["parameters"][name] for name in ("client", "work", "batch")) for line in found}
    assert len(measured) == len(found) == 12
    assert all(line["figures"]["items_per_s"] > 0 for line in found)
    assert [line["figures"]["aim"] for line in found].count(None) == 9


@pytest.mark.parametrize(
    "mode", ["both", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("produce", "consume"))]
)
def test_each_mode_accounts_for_every_item(mode: str) -> None:
    (found,) = lines("end_to_end", *TINY, *ONCE, "--system", "foqs-sqlite", "--mode", mode, "--no-plots")

    # The count of the window is not checked: it is so short that a busy machine may deliver no item.
    assert found["figures"]["items_per_s"] >= 0
    assert found["figures"]["left"] == 0
    assert found["figures"]["errors"] == {}


@pytest.mark.long
def test_open_loop_reports_latencies_of_single_items() -> None:
    (found,) = lines(
        "end_to_end", "--seconds", "1", "--warmup", "0.1", *ONCE, "--system", "foqs-sqlite",
        "--batch", "1", "--callers", "8", "--rate", "50", "--no-plots",
    )  # fmt: skip

    assert found["parameters"]["rate"] == 50
    for name in ("enqueue_p50_ms", "enqueue_p99_ms", "delivery_p50_ms", "delivery_p99_ms"):
        assert found["figures"][name] > 0


@pytest.mark.long
def test_a_backlog_is_loaded_into_mariadb_and_consumed() -> None:
    (found,) = lines(
        "end_to_end", *TINY, *ONCE, "--system", "foqs-mariadb", "--mode", "consume", "--backlog", "400", "--no-plots"
    )

    assert found["figures"]["start_to_delivery_s"] > 0
    assert found["figures"]["left"] == 0


@pytest.mark.zookeeper
@pytest.mark.long
def test_a_host_with_zookeeper_is_compared_with_a_standalone_host() -> None:
    plain, coordinated = lines(
        "end_to_end", *TINY, *ONCE, "--system", "foqs-mariadb", "foqs-zookeeper", "--callers", "4", "--no-plots"
    )

    assert plain["figures"]["left"] == coordinated["figures"]["left"] == 0
    assert "coordinator_us" not in plain["figures"]
    assert coordinated["figures"]["coordinator_us"] >= 0


@pytest.mark.long
def test_hand_written_queues_on_mariadb_account_for_every_item() -> None:
    found = lines(
        "end_to_end", *TINY, *ONCE, "--system", "mariadb-prebuilt", "mariadb-aiomysql", "--batch", "10", "--no-plots"
    )

    assert [line["figures"]["left"] for line in found] == [0, 0]


@pytest.mark.long
def test_the_minimal_queue_accounts_for_every_item_of_single_item_calls() -> None:
    (found,) = lines(
        "end_to_end", "--seconds", "2", "--warmup", "0.1", *ONCE, "--system", "least", "--batch", "1",
        "--callers", "6", "--no-plots",
    )  # fmt: skip

    assert found["figures"]["items_per_s"] > 0
    assert found["figures"]["left"] == 0


@pytest.mark.parametrize("other", [{"batch": 2}, {"mode": "consume"}, {"processes": 2}, {"gather": False}])
def test_the_minimal_queue_refuses_options_that_it_lacks(other: dict[str, Any]) -> None:
    with pytest.raises(Broken, match=f"only {next(iter(other))}"):
        once(replace(Trial(system="least", batch=1), **other))


@pytest.mark.long
def test_hand_written_queue_on_postgres_accounts_for_every_item() -> None:
    (found,) = lines("end_to_end", *TINY, *ONCE, "--system", "postgres", "--callers", "2", "--no-plots")

    assert found["figures"]["left"] == 0
    assert "valid" in found["figures"]


@pytest.mark.long
def test_profile_divides_the_hosts_cost_among_its_functions() -> None:
    (found,) = lines(
        "profile", "--seconds", "2", "--warmup", "0.1", "--system", "foqs-sqlite", "--batch", "100", "--no-plots"
    )

    figures = found["figures"]
    assert figures["processes_us"]["host"] == pytest.approx(sum(figures["parts_us"].values()))
    assert any(name.startswith("foqs/shard/") for name in figures["functions_us"])


@pytest.mark.parametrize(
    "items",
    [
        pytest.param(3_000, marks=pytest.mark.long),
        pytest.param(1_000_000, marks=[pytest.mark.long, pytest.mark.timeout(1_500)]),
    ],
)
def test_items_that_come_due_in_one_second_are_all_delivered_beside_other_load(items: int) -> None:
    (found,) = lines("burst", "--items", str(items), "--lead", "4" if items < 10_000 else "12", timeout_s=1_200)

    figures = found["figures"]
    assert figures["delivered"] == items
    assert figures["doubled"] == figures["early"] == 0
    assert figures["neighbour"] > 0
    assert figures["stranger"] > 0
    assert figures["host_grown_mib"] < 400, "the rows written last, and the windows of the index; not all of them"


@pytest.mark.parametrize("items", [2_000, pytest.param(250_000, marks=[pytest.mark.long, pytest.mark.timeout(1_200)])])
def test_young_items_of_a_killed_host_are_all_delivered_after_a_takeover(items: int) -> None:
    for _ in range(3):
        (found,) = lines("takeover", "--items", str(items), timeout_s=1_000)
        figures = found["figures"]
        if figures["young"] == items:  # else the machine was so slow that the host has written rows back by their age
            break
    assert figures["young"] == items
    assert 0 < figures["ready_s"] < figures["first_s"] < figures["all_s"]


def test_trials_of_fairness_deliver_every_item() -> None:
    small = ("--system", "foqs-sqlite", "--shards", "1", "--work", "1", "--no-plots", "--tenants", "60", "5", "90")
    found = lines("fairness", *small, "--clients", "40", "--seconds", "1", "--flood", "500")

    assert [(line["parameters"]["trial"], line["parameters"]["policy"]) for line in found] == [
        (trial, policy) for trial in ("tenants", "pareto", "flood") for policy in ("none", "items", "time")
    ]
    for line in found:
        assert line["figures"]["delivered"] > 0
        assert line["figures"]["missing"] == 0 or line["parameters"]["trial"] == "flood"


@pytest.mark.long
@pytest.mark.zookeeper
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("network")
def test_items_are_counted_at_each_distance_between_regions() -> None:
    small = ("--shards", "2", "--seconds", "0.5", "--callers", "3", "--calls", "2", "--no-plots")
    found = lines("regions", "distance", *small, "--distances", "0", "40", "--batch", "10", timeout_s=800)

    assert [line["parameters"]["distance_ms"] for line in found] == [0, 40]
    for line in found:
        assert line["figures"]["left"] == 0
        assert line["figures"]["trip_ms"] >= line["parameters"]["distance_ms"]
        # A commit waits for a replica in another region.
        assert line["figures"]["alone_enqueue_ms"] >= line["parameters"]["distance_ms"]


@pytest.mark.long
@pytest.mark.zookeeper
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("network")
def test_the_loss_of_a_primary_is_within_its_bound_and_its_report() -> None:
    small = ("--shards", "2", "--seconds", "2", "--rate", "60", "--no-plots")
    (found,) = lines("regions", "loss", *small, "--delays", "200", "--repetitions", "1", timeout_s=800)

    figures = found["figures"]
    assert figures["lost"] > 0, "nothing was on its way"
    assert {name: figures[name] for name in CONDITIONS} == dict.fromkeys(CONDITIONS, True)


def test_a_backlog_names_its_topic_if_the_schema_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "now_ms", lambda: 900)
    file = tmp_path / "shard-0.db"
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.execute(f"CREATE TABLE item ({', '.join(COLUMNS)})")
        db.execute("CREATE TABLE topic (namespace TEXT, topic TEXT, PRIMARY KEY (namespace, topic))")
        db.execute("INSERT INTO item (id, namespace, topic, payload) VALUES (5, 'n', 't', x'00')")

    backlog.fill_sqlite([file], [range(1, 304)], 10)

    with contextlib.closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT namespace, topic FROM topic").fetchall() == [("n", "t")]
        found = db.execute("SELECT id, namespace, topic, payload FROM item WHERE id > 5 ORDER BY id").fetchall()
        moments = db.execute(
            "SELECT deliver_after_ms, COUNT(*) FROM item WHERE id > 5 GROUP BY 1 ORDER BY 1"
        ).fetchall()
    assert [row[:3] for row in found] == [(5 + number, "n", "t") for number in range(1, 304)]
    assert [int(row[3][:16]) for row in found] == [*range(1, 304)]
    assert moments == [(897, 99), (898, 100), (899, 100), (900, 4)], "as they would come in time, none later than now"


@pytest.mark.long
def test_a_backlog_is_spread_over_all_shards() -> None:
    with stage("foqs-mariadb", 2) as found:
        found.fill(60_000, 100)
        assert found.mariadb is not None
        order = "ORDER BY deliver_after_ms, id LIMIT 30000"
        shards = [f"(SELECT {shard} AS shard, deliver_after_ms, id FROM foqs_{shard}_item {order})" for shard in (0, 1)]
        first = f"SELECT shard FROM ({' UNION ALL '.join(shards)}) AS found {order}"
        with contextlib.closing(found.mariadb.connect()) as connection:
            text = f"SELECT shard, COUNT(*) FROM ({first}) AS found GROUP BY shard ORDER BY shard"
            counts = [int(count or 0) for _, count in connection.run(packets.query(text))[0].rows]

    assert len(counts) == 2
    assert min(counts) > 5_000, "one shard would be drained after the other"


@pytest.mark.long
def test_a_second_race_continues_on_the_backlog_of_the_first() -> None:
    trial = Trial(
        system="foqs-sqlite", mode="consume", payload_bytes=100, backlog=60_000, seconds=0.05, warmup_s=0, empty=False
    )
    with stage("foqs-sqlite", 2) as found:
        filled = Filled(found, trial)
        first, second = filled.run(), filled.run()

    assert 0 < second["left"] < first["left"] < 60_000


def test_plan_measures_every_phase_of_a_cluster() -> None:
    found = lines("plan", "--shards", "20", "--hosts", "4", "--rounds", "1")
    assert len({(line["parameters"]["moment"], line["parameters"]["weights"]) for line in found}) == len(found) == 14
    changed = {
        line["parameters"]["moment"]: line["figures"]["changed"] for line in found if line["parameters"]["weights"] == 1
    }
    assert (changed["nothing planned yet"], changed["nothing to be done"], changed["a host has died"]) == (20, 0, 5)


@pytest.mark.long
def test_bench_judges_a_row_by_its_cells() -> None:
    found = lines(
        "bench", "--seconds", "2", "--warmup", "0.1", *ONCE, "--idle-seconds", "1", "--items", "200", "--deep", "50000",
        "--rows", "sqlite", "rest", "keys", "rested", "chain", "memory", "start", "--no-plots",
    )  # fmt: skip

    rows = {line["parameters"]["row"]: line["figures"] for line in found if "row" in line["parameters"]}
    cells = {line["parameters"]["cell"] for line in found if "cell" in line["parameters"]}
    assert cells == {"sqlite", "foqs", "keyed", "rest", "idle", "rested", "chain", "bare", "deep", "tiny"}
    assert rows["sqlite"]["value"] > 0
    assert rows["start"]["value"] > 0
    assert rows["keys"]["value"] > 0
    assert rows["rested"]["value"] > 0
    assert rows["chain"]["value"] > 0
    drawn = table.markdown(found)
    assert "| calls of 100, with automatic keys against without | at least 0.7 | 0.9 | " in drawn
    assert found[0]["machine"]["commit"][:12] in drawn


@pytest.mark.long
def test_a_race_of_one_system_gives_figures_and_reasons() -> None:
    found = lines(
        "race", "--short", "--systems", "foqs-sqlite", "--seconds", "0.5", "--backlog", "3000", "--no-plots",
        "--rows", "one-item", "backlog", "killed", "snapshot", "report",
    )  # fmt: skip

    figures = {line["parameters"]["row"]: line["figures"] for line in found}
    assert figures.keys() == {"one-item", "backlog", "killed", "snapshot", "report"}
    assert figures["one-item"]["left"] == 0
    assert figures["backlog"]["counted_left"] == figures["backlog"]["left"]
    assert figures["report"]["counted_left"] == figures["report"]["left"]
    assert figures["killed"]["lost"] == 0
    assert len(figures["snapshot"]["slices"]) > 2
    drawn = "\n".join(each.text() for each in contest_table.tables(found))
    assert sqlite3.sqlite_version in drawn


def test_a_race_prints_one_document_and_the_reason_for_a_dash() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perf.race", "-o", "json", "--rows", "snapshot", "--systems", "redis"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=True,
    )  # fmt: skip

    found = json.loads(done.stdout)
    assert found["rows"][0]["row"] == "snapshot"
    assert found["cells"] == [{"row": "snapshot", "system": "redis", "label": "Redis", "dash": "no SQL database"}]


@pytest.mark.long
@pytest.mark.parametrize("batch", ["100", "1"])
@pytest.mark.parametrize("system", ["pgqueuer", "foqs-mysql9", *PEERS])
def test_every_other_system_accounts_for_every_item(system: str, batch: str) -> None:
    (found,) = lines(
        "end_to_end", "--seconds", "2", "--warmup", "0.5", *ONCE, "--system", system, "--batch", batch, "--no-plots"
    )

    assert found["figures"]["items_per_s"] > 0
    assert found["figures"]["left"] == 0
    assert found["figures"]["versions"]


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(1_800)  # txoutbox holds the rows of a killed relay for a minute
def test_each_way_to_enqueue_in_a_transaction_is_judged() -> None:
    found = lines("outbox_kills", "--transactions", "60", "--kills", "1", timeout_s=1_500)
    figures = {line["parameters"]["way"]: line["figures"] for line in found}

    assert set(figures) == {"foqs", "txoutbox", "txoutbox-keys", "on-commit"}
    assert all(each["committed_items"] > 0 == each["rolled_back_items"] for each in figures.values())
    assert not any(figures["foqs"][name] for name in ("lost", "doubled", "overtaken"))


def test_bench_refuses_to_measure_and_show_at_once() -> None:
    asked = [sys.executable, "-m", "perf.bench", "--markdown", "--repeats", "1"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    assert "--markdown measures nothing" in done.stderr


@pytest.mark.parametrize(
    ("value", "so"),
    [pytest.param(61.0, "missed"), pytest.param(60.0, "must"), pytest.param(20.0, "aim")],
)
def test_a_row_that_must_stay_small_passes_below_its_limit(value: float, so: str) -> None:
    row = Row("memory", "", ("deep",), lambda found: float(found["deep"]["items_per_s"]), 60, 20, least=False)

    _, figures = table.judge(row, {"deep": {"items_per_s": value}}, {})

    assert figures["so"] == so


def test_cpu_per_item_is_not_compared_if_a_host_did_not_keep_the_rate() -> None:
    (row,) = (row for row in table.ROWS if row.key == "shards")
    kept = {"items_per_s": 9_990.0, "host_us": 20.0, "database_us": 20.0}

    _, both = table.judge(row, {"shards-2": kept, "shards-32": {**kept, "host_us": 30.0}}, {})
    _, one = table.judge(row, {"shards-2": kept, "shards-32": {**kept, "items_per_s": 7_000.0}}, {})

    assert both["value"] == pytest.approx(1.25)
    assert one["not_measured"] == "shards-32 reached 7,000/s of 10,000/s"
    assert "value" not in one


def test_a_quiet_namespace_has_no_figure_without_a_flood() -> None:
    (row,) = (row for row in table.ROWS if row.key == "quiet")
    calm = {"items_per_s": 1.0, "delivery_p99_ms": 10.0}

    def judged(taken: float) -> dict[str, Any]:
        flooded = {**calm, "delivery_p99_ms": 15.0, "other_offered_per_s": 1_000.0, "other_put_per_s": taken}
        return table.judge(row, {"flooded": flooded, "unflooded": calm}, {})[1]

    assert judged(500.0)["value"] == pytest.approx(1.5)
    assert "no flood" in judged(1_000.0)["not_measured"]
