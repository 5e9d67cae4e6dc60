"""Tests of commands on many items, by id or by filter: count, confirmation, retries, and the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from foqs.cli.commands import item_selection
from foqs_client import (
    BulkPage,
    Change,
    Enqueued,
    InvalidArgument,
    ItemCount,
    ItemFilter,
    ItemPage,
    NotFound,
    Outcome,
    UnknownOutcome,
)
from tests.unit.cli.commands.test_item_commands import VIEW, FakeClient, client, run

__all__ = ["client", "run"]

Run = Callable[..., Result]
DEAD = ItemFilter(None, ["dead"])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_selection, "PAUSE_S", 0.0)


def counts(*items: int) -> Callable[..., ItemCount]:
    left = list(items)
    return lambda only: ItemCount(left.pop(0), None)


def pages(*given: Any) -> Callable[..., Any]:
    left = list(given)
    return lambda *args, **options: left.pop(0)


def names(client: FakeClient) -> list[str]:
    return [name for name, _, _ in client.calls]


def test_ids_are_changed_without_a_question(run: Run, client: FakeClient) -> None:
    client.answers["cancel"] = [Outcome(), Outcome(already_gone=True)]
    result = run("item", "cancel", "0-7", "0-8", "-o", "json")
    assert result.exit_code == 0
    assert [row["outcome"] for row in json.loads(result.stdout)] == ["cancelled", "already gone"]
    client.answers["update"] = [Outcome()]
    assert run("item", "update", "0-7", "--priority", "-5", "--delay", "0", "--metadata", "m").exit_code == 0
    client.answers["redrive"] = [Outcome(NotFound("the item is not dead"))]
    assert run("dead", "redrive", "0-7").exit_code == 4
    assert [(name, args) for name, args, _ in client.calls] == [
        ("cancel", (("0-7", "0-8"),)),
        ("update", (("0-7",), Change(-5, 0, metadata=b"m"))),
        ("redrive", (("0-7",),)),
    ]


def test_moved_items_are_shown_with_their_new_ids(run: Run, client: FakeClient) -> None:
    client.answers["move"] = [Enqueued("0-17"), Enqueued("0-18", repeated=True), Enqueued(error=NotFound("gone"))]
    result = run("item", "move", "0-7", "0-8", "0-9", "--to", "other", "-o", "json")
    assert result.exit_code == 4
    rows = json.loads(result.stdout)
    assert [(row["outcome"], row["new_id"]) for row in rows] == [
        ("moved", "0-17"),
        ("moved before", "0-18"),
        ("NOT_FOUND", None),
    ]
    assert client.calls == [("move", (("0-7", "0-8", "0-9"), "other"), {})]


def test_items_of_a_topic_are_moved_by_filter(run: Run, client: FakeClient) -> None:
    client.answers["count"] = counts(2, 0)
    client.answers["move_matching"] = BulkPage(2, 0, None, None)
    assert run("item", "move", "--topic", "mail", "--state", "dead", "--to", "other", "--yes").exit_code == 0
    only = ItemFilter("mail", ["dead"])
    assert client.calls[1] == ("move_matching", (only, "other"), {"cursor": None})
    assert run("item", "move", "--state", "dead", "--to", "other", "--yes").exit_code == 2


def test_many_ids_go_in_several_calls(run: Run, client: FakeClient) -> None:
    client.answers["cancel"] = lambda ids: [Outcome()] * len(ids)
    assert run("item", "cancel", *(f"0-{number}" for number in range(1_001))).exit_code == 0
    assert [len(args[0]) for _, args, _ in client.calls] == [1_000, 1]


def test_filter_is_counted_and_confirmed_before_anything_is_changed(run: Run, client: FakeClient) -> None:
    client.answers["count"] = ItemCount(5, None)
    result = run("item", "cancel", "--topic", "mail", stdin="n\n")
    assert result.exit_code == 1
    assert "Cancel 5 items?" in result.stderr
    assert run("dead", "redrive", "--all").exit_code == 1
    assert names(client) == ["count", "count"]


def test_pages_are_called_for_until_the_last(run: Run, client: FakeClient) -> None:
    client.answers["count"] = counts(5, 0)
    client.answers["cancel_matching"] = pages(BulkPage(3, 0, None, "x"), BulkPage(2, 0, None, None))
    options = (
        "--topic mail --state ready --state dead --priority-min -1 --priority-max 4 --older-than 1h --newer-than 2d"
    )
    result = run("item", "cancel", *options.split(), "-o", "json", stdin="y\n")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"matched": 5, "changed": 5, "refused": 0, "left": 0}]
    only = ItemFilter("mail", ["ready", "dead"], -1, 4, 3_600_000, 2 * 86_400_000)
    assert client.calls == [
        ("count", (only,), {}),
        ("cancel_matching", (only,), {"cursor": None}),
        ("cancel_matching", (only,), {"cursor": "x"}),
        ("count", (only,), {}),
    ]


def test_items_that_match_afterwards_are_reported(run: Run, client: FakeClient) -> None:
    client.answers["count"] = counts(2, 1)
    client.answers["redrive_matching"] = BulkPage(2, 0, None, None)
    result = run("dead", "redrive", "--all", "--yes")
    assert result.exit_code == 0
    assert "1 items match now" in result.stderr
    assert client.calls[1] == ("redrive_matching", (DEAD,), {"cursor": None})


def test_filter_without_matches_does_not_ask(run: Run, client: FakeClient) -> None:
    client.answers["count"] = ItemCount(0, None)
    assert run("dead", "redrive", "--topic", "mail").exit_code == 0
    assert client.calls == [("count", (replace(DEAD, topic="mail"),), {})]


def test_page_of_unknown_outcome_is_requested_again(run: Run, client: FakeClient) -> None:
    client.answers["count"] = ItemCount(2, None)
    client.answers["update_matching"] = pages(
        BulkPage(1, 0, None, "x"), UnknownOutcome("?"), UnknownOutcome("?"), BulkPage(1, 0, None, None)
    )
    result = run("item", "update", "--all", "--priority", "3", "--yes")
    assert result.exit_code == 0
    asked = [options for name, _, options in client.calls if name == "update_matching"]
    assert asked == [{"cursor": None}] + [{"cursor": "x"}] * 3
    assert client.calls[1][1] == (ItemFilter(), Change(3))


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), InvalidArgument("no"), *[UnknownOutcome("?")] * 1])
def test_finished_part_of_an_interrupted_change_is_reported(
    run: Run, client: FakeClient, failure: BaseException
) -> None:
    given = [BulkPage(3, 0, None, "x")]

    def page(*args: Any, **options: Any) -> BulkPage:
        if given:
            return given.pop()
        raise failure

    client.answers["count"] = ItemCount(9, None)
    client.answers["cancel_matching"] = page
    result = run("item", "cancel", "--all", "--yes", "-o", "json")
    assert result.exit_code != 0
    assert "3 of 9 items are done; repeat the command for the others." in result.stderr
    assert json.loads(result.stdout)[0]["changed"] == 3
    assert len(client.calls) <= 2 + item_selection.ATTEMPTS_MAX


def test_items_that_were_refused_fail_the_command_with_the_reason(run: Run, client: FakeClient) -> None:
    client.answers["count"] = ItemCount(3, None)
    client.answers["update_matching"] = BulkPage(1, 2, InvalidArgument("it is leased", field="change.delay_ms"), None)
    result = run("item", "update", "--topic", "t", "--delay", "1h", "--yes")
    assert result.exit_code == 1
    assert "2 items were refused" in result.stderr
    assert "it is leased" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "item cancel",
        "item cancel 0-7 --topic t",
        "item cancel --all --topic t",
        "item update 0-7",
        "item update --priority 5",
        "dead redrive",
        "dead redrive 0-7 --all",
        "dead redrive --topic t --all",
    ],
)
def test_items_are_selected_in_one_way_only(run: Run, client: FakeClient, line: str) -> None:
    assert run(*line.split()).exit_code == 2
    assert client.calls == []


def test_dead_items_are_listed_with_the_reason(run: Run, client: FakeClient) -> None:
    view = replace(VIEW, state="dead", dead_reason="given up by its consumer in attempt 2", metadata=b"no such address")
    client.answers["dead"] = pages(ItemPage([], "x"), ItemPage([view], "y"))
    result = run("dead", "list", "--topic", "mail", "--limit", "1")
    assert result.exit_code == 0
    assert re.search("given up by its consumer in attempt 2 +no such address", result.stdout)
    assert "There may be more" in result.stderr
    assert client.calls[1] == ("dead", ("mail",), {"limit": 1, "cursor": "x", "with_payload": False})
    client.answers["dead"] = ItemPage([], None)
    assert "No item is dead." in run("dead", "list").stderr
