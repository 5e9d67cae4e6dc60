"""Tests of the commands that configure, with a client that records its calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from foqs.cli.commands.namespace_commands import SETTINGS
from foqs_client import (
    Grant,
    InvalidArgument,
    ItemCount,
    ItemFilter,
    Namespace,
    NamespaceNotFound,
    NamespacePage,
    UnknownOutcome,
    Usage,
)
from foqs_client.admin_calls import NAMESPACE_FIELDS
from tests.unit.cli.commands.test_item_commands import FakeClient, client, run

__all__ = ["client", "run"]

ORDERS = Namespace("orders", tier="default", weight=3, lease_ms_default=60_000, enqueues_per_minute=0)
EXPORTED = json.dumps({"format": 1, "version": 3, "namespaces": {"a": {}, "b": {"paused": ["t"]}}})
Run = Callable[..., Result]


def test_every_setting_has_its_option(run: Run, client: FakeClient) -> None:
    assert set(SETTINGS) == set(NAMESPACE_FIELDS) - {"name", "tier"}
    client.answers["create_namespace"] = ORDERS
    options: dict[str, int] = {}
    args: list[str] = []
    for number, name in enumerate(SETTINGS, 1):
        options[name] = number
        args += [f"--{name.replace('_ms', '').replace('_', '-')}", f"{number}ms" if "_ms" in name else str(number)]
    assert run("namespace", "create", "orders", *args).exit_code == 0
    assert client.calls == [("create_namespace", (Namespace("orders", **options),), {})]  # type: ignore[arg-type]


def test_namespace_is_created_changed_and_shown(run: Run, client: FakeClient) -> None:
    for call in ("create_namespace", "update_namespace", "get_namespace"):
        client.answers[call] = ORDERS
    assert run("namespace", "create", "orders").exit_code == 0
    result = run("namespace", "update", "orders", "--lease-default", "1m", "--weight", "3")
    assert client.calls[-1] == ("update_namespace", (Namespace("orders", lease_ms_default=60_000, weight=3),), {})
    assert "60000  (1.0m)" in result.stdout
    [row] = json.loads(run("namespace", "show", "orders", "-o", "json").stdout)
    assert (row["name"], row["weight"], row["topics_max"]) == ("orders", 3, None)
    assert run("namespace", "update", "orders").exit_code == 2


def test_people_read_that_zero_is_no_limit_and_programs_read_the_number(run: Run, client: FakeClient) -> None:
    client.answers["get_namespace"] = found = Namespace("orders", attempts_max_default=0, backlog_items_max=7, weight=1)
    client.answers["list_namespaces"] = NamespacePage([replace(found, lease_ms_default=1)], None)
    lines = [line.split(maxsplit=1) for line in run("namespace", "show", "orders").stdout.splitlines()]
    assert ["attempts_max_default", "0  (no limit)"] in lines
    assert ["backlog_items_max", "7"] in lines
    assert run("namespace", "list").stdout.splitlines()[1].endswith("no limit")
    [row] = json.loads(run("namespace", "show", "orders", "-o", "json").stdout)
    assert row["attempts_max_default"] == 0
    assert "Default: the namespace's, which is no limit" in " ".join(run("enqueue", "--help").stdout.split())


def test_namespaces_are_listed_over_all_pages(run: Run, client: FakeClient) -> None:
    pages = {None: NamespacePage([ORDERS], "orders"), "orders": NamespacePage([Namespace("z")], None)}
    client.answers["list_namespaces"] = lambda limit, cursor: pages[cursor]
    rows = [json.loads(line) for line in run("namespace", "list", "-o", "jsonl").stdout.splitlines()]
    assert [row["name"] for row in rows] == ["orders", "z"]
    assert "orders" in run("namespace", "list").stdout
    client.answers["list_namespaces"] = NamespacePage([], None)
    result = run("namespace", "list")
    assert (result.stdout, result.exit_code) == ("", 0)
    assert "foqs namespace create" in result.stderr


def test_a_namespace_is_deleted_when_that_is_confirmed(run: Run, client: FakeClient) -> None:
    client.answers["delete_namespace"] = None
    assert run("namespace", "delete", "orders", stdin="n\n").exit_code == 1
    assert client.calls == []
    assert run("namespace", "delete", "orders", stdin="y\n").exit_code == 0
    assert run("namespace", "delete", "orders", "--yes").exit_code == 0
    assert client.calls == [("delete_namespace", ("orders",), {})] * 2
    client.answers["delete_namespace"] = InvalidArgument("it holds 3 items")
    result = run("namespace", "delete", "orders", "--yes")
    assert result.exit_code == 2
    assert "holds 3 items" in result.stderr
    client.answers["delete_namespace"] = NamespaceNotFound("there is no such namespace")
    assert run("namespace", "delete", "orders", "--yes").exit_code == 4


def test_usage_shows_a_dash_for_an_unknown_count(run: Run, client: FakeClient) -> None:
    client.answers["usage"] = Usage(3, None, 2, None)
    lines = run("namespace", "usage", "orders").stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["name", "orders"], ["items", "3"], ["bytes", "-"], ["topics", "2"], ["enqueues_last_minute", "-"],
    ]  # fmt: skip


def test_usage_without_a_name_shows_every_namespace(run: Run, client: FakeClient) -> None:
    pages = {
        None: NamespacePage([Namespace("default"), Namespace("gone")], "more"),
        "more": NamespacePage([Namespace("orders")], None),
    }
    client.answers["list_namespaces"] = lambda limit, cursor: pages[cursor]
    held = {
        "default": Usage(3, 40, 2, 7),
        "gone": NamespaceNotFound("deleted meanwhile"),
        "orders": Usage(1, None, 1, 0),
    }
    client.answers["usage"] = held.__getitem__
    result = run("namespace", "usage")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()[1:]] == [
        ["default", "3", "40", "2", "7"],
        ["orders", "1", "-", "1", "0"],
    ]
    assert [row["name"] for row in json.loads(run("namespace", "usage", "-o", "json").stdout)] == ["default", "orders"]


def test_topics_are_paused_and_resumed(run: Run, client: FakeClient) -> None:
    client.answers |= {"pause_topic": None, "resume_topic": None}
    result = run("topic", "pause", "a", "b", "-n", "orders")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "foqs topic resume a" in result.stderr
    run("topic", "resume", "a")
    assert [(name, args) for name, args, _ in client.calls] == [
        ("pause_topic", ("a",)), ("pause_topic", ("b",)), ("resume_topic", ("a",)),
    ]  # fmt: skip
    assert client.opened[0][1] == "orders"


def test_topics_are_purged_after_confirmation(run: Run, client: FakeClient) -> None:
    client.answers |= {"count": ItemCount(3, None), "purge_topic": 3}
    result = run("topic", "purge", "a", "b", stdin="n\n")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a holds 3 items" in result.stderr
    assert "Delete 6 items?" in result.stderr
    assert {name for name, _, _ in client.calls} == {"count"}
    assert client.calls[0][1] == (ItemFilter(topic="a"),)
    result = run("topic", "purge", "a", "b", "-o", "json", stdin="y\n")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == [{"topic": "a", "purged": 3}, {"topic": "b", "purged": 3}]
    client.calls.clear()
    assert run("topic", "purge", "a", "--yes").exit_code == 0
    assert client.calls == [("purge_topic", ("a",), {})]


def test_interrupted_purge_reports_its_progress(run: Run, client: FakeClient) -> None:
    outcomes = iter((4, UnknownOutcome("it may be purged")))

    def purge(topic: str) -> int:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    client.answers["purge_topic"] = purge
    result = run("topic", "purge", "a", "b", "--yes", "-o", "jsonl")
    assert json.loads(result.stdout) == {"topic": "a", "purged": 4}
    assert result.exit_code != 0
    assert "it may be purged" in result.stderr
    assert "Not purged, or purged in part: b. Repeat the command for these only." in result.stderr


def test_grants_are_set_listed_and_revoked(run: Run, client: FakeClient) -> None:
    client.answers |= {"set_grant": None, "grants": [Grant("mailer", "default", ("enqueue", "consume"))]}
    assert run("grant", "set", "mailer", "enqueue", "consume").exit_code == 0
    assert run("grant", "revoke", "mailer").exit_code == 0
    assert [args for _, args, _ in client.calls] == [("mailer", ("enqueue", "consume")), ("mailer", ())]
    assert "enqueue, consume" in run("grant", "list").stdout
    assert json.loads(run("grant", "list", "-o", "json").stdout)[0]["permissions"] == ["enqueue", "consume"]
    assert run("grant", "set", "mailer", "own").exit_code == 2
    assert run("grant", "set", "mailer").exit_code == 2


def test_the_configuration_is_exported_as_it_is(run: Run, client: FakeClient) -> None:
    client.answers["export_config"] = EXPORTED + "\n"
    assert run("config", "export").stdout == EXPORTED + "\n"


def test_an_import_shows_what_will_change_and_asks(run: Run, client: FakeClient, tmp_path: Path) -> None:
    client.answers |= {"export_config": EXPORTED, "import_config": None}
    file = tmp_path / "saved.json"
    fresh: dict[str, dict[str, Any]] = {"b": {}, "c": {}}
    file.write_text(json.dumps({"format": 1, "version": 1, "namespaces": fresh}))
    result = run("config", "import", str(file), stdin="n\n")
    assert result.exit_code == 1
    assert "1 added, 1 changed, 1 deleted" in result.stderr
    assert [name for name, _, _ in client.calls] == ["export_config"]
    assert run("config", "import", str(file), stdin="y\n").exit_code == 0
    assert run("config", "import", "-", "--yes", stdin=file.read_text()).exit_code == 0
    assert [args for name, args, _ in client.calls if name == "import_config"] == [(file.read_text(),)] * 2
    file.write_text(EXPORTED)
    assert "Nothing to do" in run("config", "import", str(file)).stderr


@pytest.mark.parametrize("content", [b"\xff", b"{}", b"[", b"[1]"])
def test_malformed_import_is_refused_by_the_host(run: Run, client: FakeClient, tmp_path: Path, content: bytes) -> None:
    client.answers |= {"export_config": EXPORTED, "import_config": InvalidArgument("line 1: no")}
    file = tmp_path / "saved.json"
    file.write_bytes(content)
    result: Any = run("config", "import", str(file), stdin="y\n")
    assert result.exit_code == 2


def test_an_import_from_standard_input_cannot_ask(run: Run, client: FakeClient) -> None:
    assert run("config", "import", "-", stdin=EXPORTED).exit_code == 2
    assert client.opened == []
