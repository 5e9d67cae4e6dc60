"""Tests of commands on many items, by id or by filter: count, confirmation, retries, and the rest."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import Result

from foqs.cli.commands import bulk_runs
from foqs_client import (
    BulkJob,
    Change,
    DeadlineExceeded,
    Enqueued,
    InvalidArgument,
    ItemCount,
    ItemFilter,
    ItemPage,
    NotFound,
    Outcome,
    StaleLease,
    Unavailable,
)
from tests.unit.cli.commands.test_item_commands import VIEW, FakeClient, client, run
from tests.unit.cli.test_command_table import JOB

__all__ = ["client", "run"]

Run = Callable[..., Result]
DEAD = ItemFilter(None, ["dead"])


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAUSE_S", "POLL_S_MIN", "POLL_S_MAX"):
        monkeypatch.setattr(bulk_runs, name, 0.0)


def count_answers(*items: int) -> Callable[..., ItemCount]:
    left = list(items)
    return lambda only: ItemCount(left.pop(0), None)


def pages(*given: Any) -> Callable[..., Any]:
    left = list(given)
    return lambda *args, **options: left.pop(0)


def job(state: str = "running", **changes: Any) -> BulkJob:
    """Return the job that the command started, as it is at one look."""
    owner = "host1" if state == "running" else None
    return replace(JOB, **{"state": state, "owner": owner, "changed": 0, "failed": 0, "refusal": None, **changes})


def runs(client: FakeClient, *looks: Any) -> None:
    """Let a command start a job, and let it see the job like this."""
    client.answers["start_bulk_job"] = job()
    client.answers["bulk_job"] = pages(*looks)


def started(client: FakeClient) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of the job's start, without its key."""
    [(args, options)] = [(args, options) for name, args, options in client.calls if name == "start_bulk_job"]
    assert len(options.pop("start_key")) == 32
    return args, options


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


def test_leases_are_extended_by_id_only(run: Run, client: FakeClient) -> None:
    client.answers["extend_held_leases"] = [Outcome(), Outcome(StaleLease("the item is not leased"))]
    result = run("item", "extend", "0-7", "0-8", "--lease", "5m", "-o", "json")
    assert result.exit_code == 1
    assert [row["outcome"] for row in json.loads(result.stdout)] == ["extended", "STALE_LEASE"]
    client.answers["extend_held_leases"] = [Outcome()]
    assert run("item", "extend", "0-7").exit_code == 0
    assert client.calls == [
        ("extend_held_leases", (("0-7", "0-8"),), {"lease_ms": 300_000}),
        ("extend_held_leases", (("0-7",),), {"lease_ms": None}),
    ]
    assert run("item", "extend").exit_code == 2
    assert run("item", "extend", "--topic", "mail").exit_code == 2


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
    client.answers["count"] = count_answers(2, 0)
    runs(client, job("done", changed=2))
    options = ("--topic", "mail", "--state", "dead", "--group", "customer 7")
    assert run("item", "move", *options, "--to", "other", "--yes").exit_code == 0
    only = ItemFilter("mail", ["dead"], group="customer 7")
    assert started(client) == (("move", only, None), {"move_to": "other", "rate_per_s": None, "expected": 2})
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


def test_job_is_watched_until_it_has_ended(run: Run, client: FakeClient) -> None:
    client.answers["count"] = count_answers(5, 0)
    runs(client, job(changed=3), Unavailable("?"), job(changed=4), job("done", changed=5))
    options = (
        "--topic mail --state ready --state dead --priority-min -1 --priority-max 4 --older-than 1h --newer-than 2d"
    )
    result = run("item", "cancel", *options.split(), "--rate", "100", "-o", "json", stdin="y\n")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"job": JOB.id, "matched": 5, "changed": 5, "refused": 0, "left": 0}]
    only = ItemFilter("mail", ["ready", "dead"], -1, 4, 3_600_000, 2 * 86_400_000)
    assert started(client) == (("cancel", only, None), {"move_to": None, "rate_per_s": 100, "expected": 5})
    assert names(client) == ["count", "start_bulk_job", *["bulk_job"] * 4, "count"]


def test_items_that_a_call_cannot_count_are_counted_by_a_job(run: Run, client: FakeClient) -> None:
    client.answers["count"] = DeadlineExceeded("too many")
    client.answers["start_bulk_job"] = pages(job(action="count"), job())
    client.answers["bulk_job"] = pages(job(action="count", seen=3), job("done", action="count", seen=5))
    result = run("dead", "redrive", "--all", "--background", "-o", "json", stdin="y\n")
    assert result.exit_code == 0
    assert "Redrive 5 items?" in result.stderr
    assert json.loads(result.stdout)[0]["matched"] == 5
    counting, starting = [(args, options) for name, args, options in client.calls if name == "start_bulk_job"]
    assert counting == (("count", DEAD, None), {"move_to": None, "counts_for": "redrive"})
    assert (starting[0], starting[1]["expected"]) == (("redrive", DEAD, None), 5)


@pytest.mark.parametrize("state", ["failed", "cancelled", "interrupted"])
def test_nothing_is_changed_if_the_count_does_not_end(run: Run, client: FakeClient, state: str) -> None:
    client.answers["count"] = DeadlineExceeded("too many")
    client.answers["start_bulk_job"] = pages(job(action="count"))
    client.answers["bulk_job"] = job(state, action="count", seen=5)
    result = run("dead", "redrive", "--all", "--yes")
    assert result.exit_code == 1
    assert f"The job is {state}" in result.stderr
    assert names(client).count("start_bulk_job") == 1


def test_job_in_the_background_is_started_and_not_watched(run: Run, client: FakeClient) -> None:
    client.answers["count"] = count_answers(5)
    runs(client)
    result = run("item", "cancel", "--all", "--yes", "--background", "-o", "json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)[0]["job"] == JOB.id
    assert f"foqs jobs show {JOB.id}" in result.stderr


def test_items_that_match_afterwards_are_reported(run: Run, client: FakeClient) -> None:
    client.answers["count"] = count_answers(2, 1)
    runs(client, job("done", changed=2))
    result = run("dead", "redrive", "--all", "--yes")
    assert result.exit_code == 0
    assert "1 item matches now" in result.stderr
    assert started(client)[0] == ("redrive", DEAD, None)


@pytest.mark.parametrize("failure", [DeadlineExceeded("too many"), Unavailable("no host"), KeyboardInterrupt()])
def test_job_that_is_done_is_not_said_to_go_on_if_the_items_left_are_not_counted(
    run: Run, client: FakeClient, failure: BaseException
) -> None:
    counts = [ItemCount(2, None)]

    def count(only: ItemFilter) -> ItemCount:
        if counts:
            return counts.pop()
        raise failure

    client.answers["count"] = count
    runs(client, job("done", changed=2))
    result = run("dead", "redrive", "--all", "--yes", "-o", "json")
    assert json.loads(result.stdout) == [{"job": JOB.id, "matched": 2, "changed": 2, "refused": 0, "left": None}]
    assert "goes on" not in result.stderr
    assert names(client).count("start_bulk_job") == 1
    if not isinstance(failure, KeyboardInterrupt):
        assert result.exit_code == 0
        assert "could not be counted" in result.stderr


def test_filter_without_matches_does_not_ask(run: Run, client: FakeClient) -> None:
    client.answers["count"] = ItemCount(0, None)
    assert run("dead", "redrive", "--topic", "mail").exit_code == 0
    assert client.calls == [("count", (replace(DEAD, topic="mail"),), {})]


def test_update_by_filter_counts_once(run: Run, client: FakeClient) -> None:
    client.answers["count"] = count_answers(2)
    runs(client, job("done", changed=2))
    assert run("item", "update", "--all", "--priority", "3", "--yes").exit_code == 0
    assert started(client)[0] == ("update", ItemFilter(), Change(3))


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), InvalidArgument("no"), Unavailable("no host")])
def test_job_that_cannot_be_watched_goes_on_and_the_command_says_so(
    run: Run, client: FakeClient, failure: BaseException
) -> None:
    looks = [job(changed=3)]

    def look(job_id: str) -> BulkJob:
        if looks:
            return looks.pop()
        raise failure

    client.answers["count"] = ItemCount(9, None)
    client.answers["start_bulk_job"] = job()
    client.answers["bulk_job"] = look
    result = run("item", "cancel", "--all", "--yes", "-o", "json")
    assert result.exit_code != 0
    assert f"The job goes on; see it with: foqs jobs show {JOB.id}" in result.stderr
    assert json.loads(result.stdout)[0]["changed"] == 3
    assert len(client.calls) <= 3 + bulk_runs.ATTEMPTS_MAX


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        (job("failed", problem="the topic is wrong"), "The job is failed: the topic is wrong"),
        (job("cancelled"), "The job is cancelled"),
        (job("interrupted"), f"foqs jobs resume {JOB.id}"),
    ],
)
def test_job_that_does_not_do_all_fails_the_command(run: Run, client: FakeClient, last: BulkJob, sentence: str) -> None:
    client.answers["count"] = count_answers(9)
    runs(client, job("cancelled", owner="host1"), last)
    result = run("item", "cancel", "--all", "--yes")
    assert result.exit_code == 1
    assert sentence in result.stderr


def test_items_that_were_refused_fail_the_command_with_the_reason(run: Run, client: FakeClient) -> None:
    client.answers["count"] = ItemCount(3, None)
    runs(client, job("done", changed=1, failed=2, refusal="it is leased"))
    result = run("item", "update", "--topic", "t", "--delay", "1h", "--yes")
    assert result.exit_code == 1
    assert "2 items were refused" in result.stderr
    assert "it is leased" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "item cancel",
        "item cancel 0-7 --topic t",
        "item cancel 0-7 --rate 5",
        "dead redrive 0-7 --background",
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


def test_jobs_are_listed_with_their_counts(run: Run, client: FakeClient) -> None:
    client.answers["bulk_jobs"] = [JOB]
    result = run("jobs", "list")
    assert re.search("redrive +running +at least 4 +10 +1 +2023-11-14T22:13:20[+]00:00 +it is leased", result.stdout)
    client.answers["bulk_jobs"] = []
    assert "no bulk job" in run("jobs", "list").stderr


def test_job_is_shown_with_what_it_does(run: Run, client: FakeClient) -> None:
    client.answers["bulk_job"] = replace(JOB, action="update", change=Change(3, metadata=b"\xff"))
    [row] = json.loads(run("jobs", "show", JOB.id, "-o", "json").stdout)
    assert row["filter"] == {"topic": "mail", "states": ["dead"]}
    assert row["change"] == {"priority": 3, "metadata": None, "metadata_base64": "/w=="}
    assert (row["started_at"], row["ended_at"]) == ("2023-11-14T22:13:20+00:00", None)
    assert client.calls == [("bulk_job", (JOB.id,), {})]


@pytest.mark.parametrize("command", ["interrupt", "resume", "cancel"])
def test_command_reaches_the_job(run: Run, client: FakeClient, command: str) -> None:
    client.answers["control_bulk_job"] = job("interrupted")
    assert run("jobs", command, JOB.id).exit_code == 0
    assert client.calls == [("control_bulk_job", (JOB.id, command), {})]
