"""The rows of the race: their plan, their estimates and the reasons for dashes."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

import pytest

from perf.lib.contest_rows import KILLED, RACERS, RATE, ROWS, SNAPSHOT, Row, dashes, plan, row
from perf.lib.stage import SYSTEMS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "race.md"
SYSTEM_NAMES = {racer.system for racer in RACERS}


def test_every_racer_is_a_system_of_the_harness() -> None:
    assert set(SYSTEMS) >= SYSTEM_NAMES
    assert len(SYSTEM_NAMES) == len(RACERS)


def test_keys_of_rows_are_unique() -> None:
    assert len({known.key for known in ROWS}) == len(ROWS)


@pytest.mark.parametrize("known", ROWS, ids=lambda known: known.key)
def test_the_page_gives_the_meaning_of_each_row_in_the_same_words(known: Row) -> None:
    assert f"| `{known.key}` | {known.says} |" in PAGE.read_text()


def test_the_page_has_no_row_that_does_not_exist() -> None:
    section = PAGE.read_text().split("## The rows")[1].split("\n\n")[1]

    assert set(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)) == {known.key for known in ROWS}


@pytest.mark.parametrize("known", ROWS, ids=lambda known: known.key)
def test_dashes_name_known_systems_and_leave_some_that_run(known: Row) -> None:
    assert known.cannot.keys() <= SYSTEM_NAMES
    assert SYSTEM_NAMES - known.cannot.keys()
    assert all(known.cannot.values())


@pytest.mark.parametrize("short", [True, False])
def test_a_cell_is_planned_or_has_a_reason_for_its_dash(short: bool) -> None:
    planned = {(cell.row.key, cell.racer.system) for cell in plan(ROWS, RACERS, short=short)}
    given = dashes(ROWS, RACERS).keys()

    assert planned | given == {(known.key, system) for known in ROWS for system in SYSTEM_NAMES}
    assert not planned & given


def test_systems_without_sql_have_no_snapshot_and_no_report() -> None:
    reasons = dashes([row("snapshot"), row("report")], RACERS)

    assert {system for _, system in reasons} == {racer.system for racer in RACERS if not racer.is_sql}


def test_systems_alternate_within_each_round() -> None:
    (calls,) = (known for known in ROWS if known.key == "calls-100")
    order = [cell.racer.system for cell in plan([calls], RACERS, short=False)]
    rounds = [order[start : start + len(RACERS)] for start in range(0, len(order), len(RACERS))]

    assert len(rounds) == calls.whole.rounds
    assert all(set(systems) == SYSTEM_NAMES for systems in rounds)
    assert rounds[1] == rounds[0][::-1]


def test_rows_are_measured_one_after_the_other() -> None:
    keys = [key for key, _ in groupby(plan(ROWS, RACERS, short=False), key=lambda cell: cell.row.key)]

    assert keys == [known.key for known in ROWS]


@pytest.mark.parametrize(("short", "minutes"), [(True, 20), (False, 120)])
def test_a_run_is_estimated_to_take_no_longer_than_it_says(short: bool, minutes: float) -> None:
    assert sum(cell.estimate_s for cell in plan(ROWS, RACERS, short=short)) / 60 <= minutes


def test_the_whole_holds_its_snapshot_for_ten_minutes_after_one_without() -> None:
    length = row("snapshot").whole

    assert (length.slices - length.before) * length.seconds == 600
    assert length.before * length.seconds == 60
    assert length.rounds == 1


@pytest.mark.parametrize("short", [True, False])
def test_cells_have_the_lengths_of_their_rows(short: bool) -> None:
    for cell in plan(ROWS, RACERS, short=short):
        length = cell.row.short if short else cell.row.whole
        assert cell.length == length
        assert cell.trial.system == cell.racer.system
        assert cell.trial.seconds == length.seconds
        assert cell.trial.backlog == length.backlog
        assert bool(length.kills) == (cell.row.kind == KILLED)
        assert bool(length.slices) == (cell.row.kind not in (RATE, KILLED))
        assert (cell.row.kind == SNAPSHOT) == (bool(length.slices) and not length.every)


def test_a_label_names_the_versions_that_are_known() -> None:
    named = {racer.system: racer for racer in RACERS}

    assert named["foqs-mariadb"].named({"mariadb": "10.11.14-MariaDB"}) == "FOQS on MariaDB 10.11.14"
    assert named["pgqueuer"].named({"postgres": "15.1", "pgqueuer": "1.6.0"}) == "PgQueuer 1.6.0 on Postgres 15.1"
    assert named["rabbitmq-quorum"].named({}) == "RabbitMQ, quorum"
    assert named["foqs-mysql9"].named({}) == "FOQS on MySQL 9"
    assert named["foqs-mysql9"].named({"mysql9": "9.7.0"}) == "FOQS on MySQL 9.7.0"
