"""The commands of the policies of topics, with a client that records its calls."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import Result

from foqs_client import LimitExceeded, TopicPolicy
from tests.unit.cli.commands.test_item_commands import FakeClient, client, run

__all__ = ["client", "run"]

Run = Callable[..., Result]


@pytest.mark.parametrize(
    ("args", "policy", "words"),
    [
        (["--group-leases-max", "1"], TopicPolicy("t", 1), "At most 1 item of each group of t is leased at once."),
        (["--fair", "items"], TopicPolicy("t", fair="items"), "The groups of t take turns, by items."),
        (
            ["--group-leases-max", "3", "--fair", "time", "--weight", "Ada=4", "--weight", "a=b=2"],
            TopicPolicy("t", 3, "time", {"Ada": 4, "a=b": 2}),
            "3 items of each group of t are leased at once. The groups of t take turns, by time.",
        ),
        (["--order", "relaxed"], TopicPolicy("t", order="relaxed"), "Each host delivers its own items of t"),
        (["--remove"], TopicPolicy("t"), "t had no policy."),
    ],
)
def test_policy_is_replaced(run: Run, client: FakeClient, args: list[str], policy: TopicPolicy, words: str) -> None:
    client.answers |= {"set_topic_policy": None, "topic_policies": []}
    result = run("topic", "policy", "t", *args)
    assert result.exit_code == 0, result.output
    assert client.calls[-1] == ("set_topic_policy", (policy,), {})
    assert words in result.output
    assert "Changed" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("args", "words", "removed"),
    [
        (
            ["--order", "relaxed"],
            "Removed: group_leases_max 1 (strict order), fair items, weight of Ada 3, weight of Bob 2.",
            {"group_leases_max": 1, "fair": "items", "weights": {"Ada": 3, "Bob": 2}},
        ),
        (
            ["--group-leases-max", "4", "--fair", "time", "--weight", "Ada=5"],
            "Removed: weight of Bob 2. "
            "Changed: group_leases_max from 1 (strict order) to 4, fair from items to time, weight of Ada from 3 to 5.",
            {"weights": {"Bob": 2}},
        ),
        (
            ["--group-leases-max", "1", "--fair", "items", "--weight", "Ada=3", "--weight", "Bob=2"],
            "The groups of t take turns, by items.",
            {},
        ),
        (
            ["--remove"],
            "Removed the policy of t: group_leases_max 1 (strict order), fair items, weight of Ada 3, weight of Bob 2.",
            {"group_leases_max": 1, "fair": "items", "weights": {"Ada": 3, "Bob": 2}},
        ),
    ],
)
def test_removed_and_changed_rules_are_shown(
    run: Run, client: FakeClient, args: list[str], words: str, removed: dict[str, object]
) -> None:
    former = TopicPolicy("t", 1, "items", {"Ada": 3, "Bob": 2})
    client.answers |= {"set_topic_policy": None, "topic_policies": [TopicPolicy("s", order="relaxed"), former]}
    result = run("topic", "policy", "t", *args, "-o", "json")
    assert result.stderr.rstrip().endswith(words)
    [row] = json.loads(result.stdout)
    assert row["removed"] == removed
    assert row["before"] == {"group_leases_max": 1, "fair": "items", "weights": {"Ada": 3, "Bob": 2}}
    assert row["topic"] == "t"
    for name, value in row["after"].items():
        assert getattr(client.calls[-1][1][0], name) == value


def test_topics_that_were_done_before_a_failure_are_shown(run: Run, client: FakeClient) -> None:
    def set_policy(policy: TopicPolicy) -> None:
        if policy.topic == "b":
            raise LimitExceeded("too many policies")

    client.answers |= {"set_topic_policy": set_policy, "topic_policies": [TopicPolicy("a", 2)]}
    result = run("topic", "policy", "a", "b", "--remove", "-o", "json")
    assert result.exit_code == 2
    assert json.loads(result.stdout) == [
        {"topic": "a", "before": {"group_leases_max": 2}, "after": {}, "removed": {"group_leases_max": 2}}
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give some of --group-leases-max, --fair and --order, or else --remove"),
        (["--remove", "--fair", "items"], "or else --remove"),
        (["--remove", "--order", "relaxed"], "or else --remove"),
        (["--order", "exact"], "'relaxed'"),
        (["--fair", "all"], "'items', 'time'"),
        (["--group-leases-max", "1", "--weight", "a=2"], "--weight needs --fair"),
        (["--fair", "items", "--weight", "a=2", "--weight", "a=2"], "group 'a' has two weights; give it one"),
        *[
            (["--fair", "items", "--weight", text], "give GROUP=N with N from 1 to 100")
            for text in ("a", "=3", "a=", "a=0", "a=101", "a=-1", "a=x", "a=²", f"a={'9' * 30}")
        ],
    ],
)
def test_wrong_policy_is_refused_before_the_call(run: Run, client: FakeClient, args: list[str], words: str) -> None:
    result = run("topic", "policy", "t", *args)
    assert result.exit_code == 2
    assert words in result.output
    assert client.calls == []


def test_policies_are_listed(run: Run, client: FakeClient) -> None:
    client.answers["topic_policies"] = [
        TopicPolicy("mail", 1),
        TopicPolicy("orders", None, "items", {"Ada": 3, "Bob": 2}, "relaxed"),
    ]
    lines = [line.split() for line in run("topic", "policies").stdout.splitlines()]
    assert lines[1:3] == [["mail", "1", "-", "-", "-"], ["orders", "-", "items", "Ada=3,", "Bob=2", "relaxed"]]
    rows = json.loads(run("topic", "policies", "-o", "json").stdout)
    assert rows[1] == {
        "topic": "orders",
        "group_leases_max": None,
        "fair": "items",
        "weights": {"Ada": 3, "Bob": 2},
        "order": "relaxed",
    }
