"""The command that lists groups, with a client that records its calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
from click.testing import Result

from foqs.cli.commands.group_commands import STATES
from foqs_client import ListedGroup, ListedGroups
from foqs_client.listed_groups import GROUP_STATES
from tests.unit.cli.commands.test_item_commands import FakeClient, client, run

__all__ = ["client", "run"]

Run = Callable[..., Result]

ADA: Final = ListedGroup("Ada", 1, "eligible", 64, True, 0, 0, -3, 90_000, (), None, None, None)
BOB: Final = ListedGroup(
    "Bob", 2, "leased", 2, False, 5, 0, 0, 5_000, ("2-1", "2-2", "2-3", "2-4", "2-5"), None, None, None
)
CLEO: Final = ListedGroup("Cleo", 1, "backing_off", 0, False, 0, 1, None, None, ("1-9",), 60_000, None, None)
LISTED: Final = ListedGroups(
    groups=[ADA, BOB, CLEO],
    counts={"eligible": 1, "leased": 1, "backing_off": 1},
    ungrouped=2,
    partial=False,
    full=False,
    group_leases_max=5,
    fair=None,
    paused=False,
)


def lines(result: Result) -> list[list[str]]:
    return [line.split() for line in result.stdout.splitlines()]


def test_groups_are_shown_with_what_holds_them_back(run: Run, client: FakeClient) -> None:
    client.answers["groups"] = LISTED
    result = run("topic", "groups", "t")
    assert result.exit_code == 0, result.output
    assert client.calls == [("groups", ("t", "size", 20), {"states": None, "group": None})]
    head, ada, bob, cleo = lines(result)
    assert head == ["GROUP", "STATE", "READY", "LEASED", "BEST", "OLDEST", "HELD", "BACK", "BY"]
    assert ada[:5] == ["Ada", "eligible", "≥64", "0", "-3"]
    assert " ".join(bob[-6:]) == "2-1, 2-2, 2-3 and 2 more"
    assert cleo[:5] == ["Cleo", "backing-off", "0", "0", "-"]
    assert cleo[-3:] == ["1-9,", "for", "1.0m"]
    assert result.stderr == "3 groups in memory: 1 eligible, 1 leased, 1 backing off; 2 ready items without a group.\n"


def test_turns_and_weights_of_a_fair_topic_are_shown(run: Run, client: FakeClient) -> None:
    fair = replace(ADA, leased=None, groups_before=4, weight=2)
    idle = replace(ADA, group="Bob", state="idle", leased=None, weight=1)
    client.answers["groups"] = replace(LISTED, groups=[fair, idle], fair="items", group_leases_max=None)
    head, ada, bob = lines(run("topic", "groups", "t"))
    assert head[-2:] == ["BEFORE", "WEIGHT"]
    assert (ada[3], ada[-2:]) == ("-", ["4", "2"])
    assert bob[-2:] == ["-", "1"]


def test_options_choose_order_states_group_and_number(run: Run, client: FakeClient) -> None:
    client.answers["groups"] = replace(LISTED, groups=[CLEO])
    options = ["--by", "age", "--state", "backing-off", "--state", "leased", "--group", "Cleo", "--limit", "5"]
    result = run("topic", "groups", "t", *options, "-o", "json")
    assert client.calls == [("groups", ("t", "age", 5), {"states": ["backing_off", "leased"], "group": "Cleo"})]
    [row] = json.loads(result.stdout)
    assert (row["group"], row["state"], row["blockers"], row["resumes_in_ms"]) == (
        "Cleo",
        "backing_off",
        ["1-9"],
        60_000,
    )
    assert tuple(state.replace("-", "_") for state in STATES) == GROUP_STATES


@pytest.mark.parametrize(
    ("found", "args", "sentence"),
    [
        ({"group_leases_max": None, "groups": [], "counts": {}}, [], "foqs topic policy t --group-leases-max 1"),
        ({"partial": True}, [], "Not all ready items are in memory"),
        ({"full": True}, [], "full of groups under delivery"),
        ({"paused": True}, [], "foqs topic resume t"),
        ({"groups": [], "counts": {}}, [], "No group is in memory."),
        ({"groups": [], "counts": {}, "ungrouped": None}, ["--group", "Eve"], "This group is not in memory."),
    ],
)
def test_what_a_reader_must_know_is_said(
    run: Run, client: FakeClient, found: dict[str, Any], args: list[str], sentence: str
) -> None:
    client.answers["groups"] = replace(LISTED, **found)
    result = run("topic", "groups", "t", *args)
    assert result.exit_code == 0, result.output
    assert sentence in result.stderr


@pytest.mark.parametrize("args", [["--limit", "1001"], ["--limit", "0"], ["--by", "name"], ["--state", "blocked"]])
def test_bad_options_are_usage_errors(run: Run, client: FakeClient, args: list[str]) -> None:
    result = run("topic", "groups", "t", *args)
    assert result.exit_code == 2
    assert client.calls == []
