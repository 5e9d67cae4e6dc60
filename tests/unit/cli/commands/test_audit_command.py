"""Tests of `foqs audit`: what it asks for, and what it shows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from click.testing import Result

from foqs_client import AuditPage
from tests.unit.cli.commands.test_item_commands import FakeClient, client, run
from tests.unit.cli.test_command_table import ENTRY

__all__ = ["client", "run"]

Run = Callable[..., Result]


def test_changes_are_shown_with_who_when_where_and_how_they_ended(run: Run, client: FakeClient) -> None:
    client.answers["audit"] = AuditPage([ENTRY], ("host2",))
    result = run("audit", "-n", "orders", "--limit", "5")
    assert re.search(
        r"2023-11-14T22:13:20.000[+]00:00 +ops +console +host1 +purgeTopic +default +UNAVAILABLE +topic=mail",
        result.stdout,
    )
    assert "did not report: host2" in result.stderr
    assert client.calls == [("audit", (5, "orders"), {})]


def test_changes_are_written_as_json(run: Run, client: FakeClient) -> None:
    client.answers["audit"] = AuditPage([ENTRY], ())
    [row] = json.loads(run("audit", "-o", "json").stdout)
    assert row["at"] == "2023-11-14T22:13:20.000+00:00"
    assert row["principal"] == "ops"
    client.answers["audit"] = AuditPage([], ())
    assert "No host remembers a change." in run("audit").stderr
    assert "No host remembers a change of orders." in run("audit", "-n", "orders").stderr


def test_namespace_of_the_environment_hides_no_change(
    run: Run, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.answers["audit"] = AuditPage([ENTRY], ())
    monkeypatch.setenv("FOQS_NAMESPACE", "default")
    run("audit")
    run("audit", "-n", "default")
    assert [arguments for _, arguments, _ in client.calls] == [(100, None), (100, "default")]
