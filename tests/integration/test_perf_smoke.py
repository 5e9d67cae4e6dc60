"""Every program of perf/ runs, counts every item, and says what it measured as JSON lines.

No figure is judged here: a test's machine is busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perf.lib.race import Broken, reckon

ROOT = Path(__file__).resolve().parents[2]
TINY = ["--seconds", "0.2", "--warmup", "0.1"]
ONCE = ["--repeats", "1"]

pytestmark = [pytest.mark.process, pytest.mark.mysql]


def lines(program: str, *args: str) -> list[dict[str, Any]]:
    """What a program says on standard output; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", f"perf.{program}", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
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
    ("fates", "seen", "acked"),
    [
        pytest.param(b"\1\1\1", [b"\1\0\1"], 2, id="lost"),
        pytest.param(b"\1\1\1", [b"\1\2\1"], 3, id="doubled"),
        pytest.param(b"\1\1\1", [b"\1\1\0", b"\0\1\1"], 3, id="doubled over two consumers"),
        pytest.param(b"\1\0\1", [b"\1\1\1"], 3, id="refused and yet received"),
        pytest.param(b"\1\1\1", [b"\1\1\1"], 2, id="received and not acked"),
    ],
)
def test_a_run_that_does_not_add_up_is_no_figure(fates: bytes, seen: list[bytes], acked: int) -> None:
    with pytest.raises(Broken):
        reckon(fates, seen, acked, empty=True)


def test_items_of_unknown_fate_may_be_received_or_not() -> None:
    assert reckon(b"\2\2\1\0", [b"\1\0\0\0", b"\0\0\1\0"], 2, empty=True) == 0


def test_items_left_are_counted_where_the_queue_is_not_emptied() -> None:
    assert reckon(b"\1\1\1\0", [b"\0\1\0\0"], 1, empty=False) == 2


def test_limit_measures_every_shape_on_both_databases() -> None:
    found = lines("limit", *ONCE, "--items", "200", "--singles", "20", "--flush", "20", "--no-plots")

    measured = {(line["parameters"]["database"], line["parameters"]["shape"]) for line in found}
    assert {database for database, _ in measured} == {"mariadb", "sqlite"}
    assert len({shape for _, shape in measured}) == 5
    assert len(measured) == 10
    assert all(line["figures"]["items_per_s"] > 0 for line in found)


@pytest.mark.parametrize("mode", ["both", "produce", "consume"])
def test_each_mode_accounts_for_every_item(mode: str) -> None:
    (found,) = lines("end_to_end", *TINY, *ONCE, "--system", "foqs-sqlite", "--mode", mode, "--no-plots")

    assert found["figures"]["items_per_s"] > 0
    assert found["figures"]["left"] == 0
    assert found["figures"]["errors"] == {}


def test_open_loop_reports_latencies_of_single_items() -> None:
    (found,) = lines(
        "end_to_end", "--seconds", "1", "--warmup", "0.1", *ONCE, "--system", "foqs-sqlite",
        "--batch", "1", "--callers", "8", "--rate", "50", "--no-plots",
    )  # fmt: skip

    assert found["parameters"]["rate"] == 50
    for name in ("enqueue_p50_ms", "enqueue_p99_ms", "delivery_p50_ms", "delivery_p99_ms"):
        assert found["figures"][name] > 0


def test_a_backlog_is_laid_into_mariadb_and_drained() -> None:
    (found,) = lines(
        "end_to_end", *TINY, *ONCE, "--system", "foqs-mariadb", "--mode", "consume", "--backlog", "400", "--no-plots"
    )

    assert found["figures"]["start_to_delivery_s"] > 0
    assert found["figures"]["left"] == 0


def test_hand_written_queues_on_mariadb_account_for_every_item() -> None:
    found = lines(
        "end_to_end", *TINY, *ONCE, "--system", "mariadb-prebuilt", "mariadb-aiomysql", "--batch", "10", "--no-plots"
    )

    assert [line["figures"]["left"] for line in found] == [0, 0]


@pytest.mark.long
def test_hand_written_queue_on_postgres_accounts_for_every_item() -> None:
    (found,) = lines("end_to_end", *TINY, *ONCE, "--system", "postgres", "--callers", "2", "--no-plots")

    assert found["figures"]["left"] == 0
    assert "valid" in found["figures"]


def test_profile_divides_the_hosts_cost_among_its_functions() -> None:
    (found,) = lines("profile", *TINY, "--system", "foqs-sqlite", "--batch", "100", "--no-plots")

    figures = found["figures"]
    assert figures["processes_us"]["host"] == pytest.approx(sum(figures["parts_us"].values()))
    assert any(name.startswith("foqs/shard/") for name in figures["functions_us"])


def test_bench_judges_a_row_by_its_cells() -> None:
    found = lines("bench", *TINY, *ONCE, "--items", "200", "--rows", "sqlite", "rest", "--no-plots")

    rows = {line["parameters"]["row"]: line["figures"] for line in found if "row" in line["parameters"]}
    cells = {line["parameters"]["cell"] for line in found if "cell" in line["parameters"]}
    assert cells == {"sqlite", "foqs", "rest"}
    assert rows["sqlite"]["value"] > 0
    assert rows["rest"]["must"] == 2
