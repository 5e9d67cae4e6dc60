"""Tests of the commands that show something: explain, topic show, and --watch."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click
import pytest
from click.testing import Result

from foqs_client import Explanation, FoqsError, ItemPage, NotFound, TopicPage, Unreachable, Usage
from tests.unit.cli.commands.test_item_commands import TOPIC, VIEW, FakeClient, client, run

__all__ = ["client", "run"]

Run = Callable[..., Result]

WHY = Explanation(VIEW, ("It is ready.", "Its topic \x1b[2J is paused."), ("Resume it.",), 3, False, False)
GONE = Explanation(None, ("It is gone.",), ("Look again.",), None, False, True)
UNKNOWN = Explanation(None, ("Its shard cannot be asked.",), (), None, False, False)


# ----------------------------------------------------------------------- why


def test_explain_shows_sentences_that_cannot_move_the_cursor(run: Run, client: FakeClient) -> None:
    client.answers["explain"] = WHY
    result = run("explain", "0-7")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "0-7 in mail: ready, priority 1, 10ms old",
        "",
        "Why",
        "  - It is ready.",
        "  - Its topic \\x1b[2J is paused.",
        "",
        "What would change it",
        "  - Resume it.",
    ]
    assert client.calls == [("explain", ("0-7",), {})]


def test_explain_writes_every_field_as_json(run: Run, client: FakeClient) -> None:
    client.answers["explain"] = WHY
    [row] = json.loads(run("explain", "0-7", "-o", "json").stdout)
    assert (row["id"], row["item"]["state"], row["better_items"], row["better_items_more"]) == (
        "0-7",
        "ready",
        3,
        False,
    )
    assert (row["blockers"], row["group_items_before"], row["groups_before"]) == ([], None, None)
    assert (row["reasons"][0], row["remedies"], row["absent"]) == ("It is ready.", ["Resume it."], False)
    assert json.loads(run("explain", "0-7", "-o", "jsonl").stdout) == row


@pytest.mark.parametrize(("found", "code", "word"), [(GONE, 4, "no such item"), (UNKNOWN, 5, "unknown")])
def test_explain_says_whether_an_item_that_it_cannot_show_exists(
    run: Run, client: FakeClient, found: Explanation, code: int, word: str
) -> None:
    client.answers["explain"] = found
    result = run("explain", "0-8")
    assert result.exit_code == code
    assert result.stdout.startswith(f"0-8: {word}\n\nWhy\n  - {found.reasons[0]}\n")
    assert run("explain", "0-8", "-o", "json").exit_code == code


# ---------------------------------------------------------------- topic show


def test_topic_show_ignores_topics_with_the_same_prefix(run: Run, client: FakeClient) -> None:
    client.answers["topics"] = TopicPage([replace(TOPIC, topic="mail")], None)
    result = run("topic", "show", "mail")
    assert result.exit_code == 0
    fields = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[1:])
    assert (fields["topic"], fields["ready"], fields["paused"], fields["next_due_in_ms"]) == ("mail", "1", "yes", "-")
    assert fields["oldest_ready_age_ms"] == "1000  (1.0s)"
    [(_, _, options)] = client.calls
    assert (options["prefix"], options["limit"], len(options["states"])) == ("mail", 1, 4)
    [row] = json.loads(run("topic", "show", "mail", "-o", "json").stdout)
    assert (row["topic"], row["dead"], row["paused"]) == ("mail", 4, True)
    client.answers["topics"] = TopicPage([replace(TOPIC, topic="mail.in")], None)
    result = run("topic", "show", "mail")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "holds no item" in result.stderr


@pytest.mark.parametrize(("command", "method"), [("peek mail", "peek"), ("dead list", "dead")])
def test_payloads_have_a_column_if_requested(run: Run, client: FakeClient, command: str, method: str) -> None:
    client.answers[method] = ItemPage([VIEW], None)
    assert "PAYLOAD" not in run(*command.split()).stdout
    assert "PAYLOAD" in run(*command.split(), "--payload").stdout


# --------------------------------------------------------------------- watch

WATCHED: list[tuple[str, str, Any]] = [
    ("topic list --all", "topics", TopicPage([TOPIC], None)),
    ("namespace usage orders", "usage", Usage(1, 2, 3, None)),
    ("dead list", "dead", ItemPage([VIEW], None)),
]


def interrupted(looks: int, answer: Any) -> Callable[..., Any]:
    """Answers so often; with the last answer it is as if Ctrl-C were typed."""
    left = looks

    def look(*args: object, **options: object) -> Any:
        nonlocal left
        left -= 1
        if not left:
            signal.raise_signal(signal.SIGINT)
        return answer

    return look


@pytest.mark.parametrize(("command", "method", "answer"), WATCHED)
def test_watch_repeats_until_ctrl_c_with_exit_code_0(
    run: Run, client: FakeClient, command: str, method: str, answer: Any
) -> None:
    client.answers[method] = answer
    once = run(*command.split(), "-o", "json").stdout
    client.answers[method] = interrupted(3, answer)
    result = run(*command.split(), "--watch", "1ms", "-o", "json")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    assert [json.loads(line) for line in lines] == [json.loads(once)] * 3
    assert len(client.opened) == 2


@pytest.mark.parametrize(("command", "method", "answer"), WATCHED)
def test_watched_tables_follow_each_other_without_a_terminal(
    run: Run, client: FakeClient, command: str, method: str, answer: Any
) -> None:
    client.answers[method] = answer
    once = run(*command.split()).stdout
    client.answers[method] = interrupted(2, answer)
    result = run(*command.split(), "--watch=1ms")
    assert (result.exit_code, result.stdout) == (0, once * 2)


def test_watch_clears_a_terminal_for_each_result(run: Run, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click, "clear", lambda: click.echo("--"))
    client.answers["usage"] = Usage(1, 2, 3, None)
    once = run("namespace", "usage", "orders").stdout
    client.answers["usage"] = interrupted(2, Usage(1, 2, 3, None))
    assert run("namespace", "usage", "orders", "--watch", "1ms").stdout == f"--\n{once}" * 2


def test_watch_ends_with_the_code_of_a_failed_call(run: Run, client: FakeClient) -> None:
    looks: list[TopicPage | FoqsError] = [TopicPage([TOPIC], None), Unreachable("no connection")]
    client.answers["topics"] = lambda **options: looks.pop(0)
    result = run("topic", "list", "--watch", "1ms", "-o", "json")
    assert result.exit_code == 3
    assert len(result.stdout.splitlines()) == 1
    assert "no connection" in result.stderr


def test_watch_needs_no_time(run: Run, client: FakeClient) -> None:
    for more in ("--watch", "--watch --all"):
        client.answers["topics"] = interrupted(1, TopicPage([], None))
        assert run("topic", "list", *more.split()).exit_code == 0
    for time in ("0", "nonsense"):
        assert run("topic", "list", "--watch", time).exit_code == 2


def test_an_interrupted_command_that_does_not_watch_has_failed(run: Run, client: FakeClient) -> None:
    def interrupt(**options: object) -> None:
        raise KeyboardInterrupt

    client.answers["topics"] = interrupt
    assert run("topic", "list").exit_code == 1
    assert run("topic", "list", "--watch").exit_code == 0


def test_watch_writes_a_line_for_an_empty_result(run: Run, client: FakeClient) -> None:
    client.answers["dead"] = interrupted(2, ItemPage([], None))
    assert run("dead", "list", "--watch", "1ms", "-o", "json").stdout == "[]\n[]\n"
    client.answers["dead"] = NotFound("x")
    assert run("dead", "list", "--watch", "1ms").exit_code == 4
