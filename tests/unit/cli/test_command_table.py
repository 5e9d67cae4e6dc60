"""Tests of every command that calls a host: its help has an example, it writes JSON, and fails with the same codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import click
import pytest
from click.testing import Result

from foqs.cli import root
from foqs_client import (
    AuditEntry,
    AuditPage,
    BulkJob,
    Enqueued,
    Explanation,
    FoqsError,
    Grant,
    Host,
    InvalidArgument,
    ItemFilter,
    ItemPage,
    ListedGroup,
    ListedGroups,
    Namespace,
    NamespaceNotFound,
    NamespacePage,
    Outcome,
    Routing,
    Shard,
    TopicPage,
    TopicPolicy,
    Unavailable,
    Unreachable,
    Usage,
)
from tests.unit.cli.commands.test_item_commands import DELIVERY, TOPIC, VIEW, FakeClient, client, commands, run

__all__ = ["client", "run"]

Run = Callable[..., Result]

DONE = [Outcome()]
ORDERS = Namespace("orders", weight=1)
HOST = Host("h", 7411, "here", "default", 1, False, None, "1", "host1", "ab", 1)
SHARD = Shard(3, "default", ("h", 7411), 4, "owned", None, None, None, "host1", "db1", 1, False, None)
JOB = BulkJob(
    id="5f3c9a0b7d2e4f10",
    action="redrive",
    only=ItemFilter("mail", ("dead",)),
    change=None,
    move_to=None,
    rate_per_s=None,
    expected=10,
    state="running",
    seen=5,
    changed=4,
    failed=1,
    at_least=True,
    refusal="it is leased",
    problem=None,
    started_by="ops",
    owner="host1",
    started_at_ms=1_700_000_000_000,
    changed_at_ms=1_700_000_001_000,
    ended_at_ms=None,
)
GROUPS = ListedGroups(
    groups=[ListedGroup("Ada", 1, "leased", 2, False, 1, 0, 0, 5_000, ("1-7",), None, None, None)],
    counts={"leased": 1},
    ungrouped=0,
    partial=False,
    full=False,
    group_leases_max=1,
    fair=None,
    paused=False,
)
ENTRY = AuditEntry(1_700_000_000_000, "ops", "console", "purgeTopic", "default", "topic=mail", "UNAVAILABLE", "host1")
DOCUMENT = json.dumps({"format": 1, "version": 1, "namespaces": {}})

TABLE: Final[dict[str, tuple[str, str, Any]]] = {
    "enqueue": ("mail hello", "enqueue", [Enqueued("0-1")]),
    "dequeue": ("mail", "dequeue", [DELIVERY]),
    "ack": ("0-7:9", "ack", DONE),
    "nack": ("0-7:9 --delay 1s", "nack", DONE),
    "peek": ("mail", "peek", ItemPage([VIEW], None)),
    "explain": ("0-7", "explain", Explanation(VIEW, ("It is ready.",), (), 0, False, False)),
    "topic list": ("", "topics", TopicPage([TOPIC], None)),
    "topic show": (TOPIC.topic, "topics", TopicPage([TOPIC], None)),
    "topic pause": ("mail", "pause_topic", None),
    "topic resume": ("mail", "resume_topic", None),
    "topic policy": ("mail --group-leases-max 1", "topic_policies", [TopicPolicy("mail", 2)]),
    "topic policies": ("", "topic_policies", [TopicPolicy("mail", 1)]),
    "topic groups": ("mail", "groups", GROUPS),
    "topic purge": ("mail --yes", "purge_topic", 3),
    "item show": ("0-7", "item", VIEW),
    "item list": ("0 --topic mail", "list_items", ItemPage([VIEW], None, 1)),
    "item cancel": ("0-7", "cancel", DONE),
    "item update": ("0-7 --priority 1", "update", DONE),
    "item extend": ("0-7 --lease 5m", "extend_held_leases", DONE),
    "item move": ("0-7 --to mail", "move", [Enqueued("0-9")]),
    "dead list": ("", "dead", ItemPage([VIEW], None)),
    "dead redrive": ("0-7", "redrive", DONE),
    "jobs list": ("", "bulk_jobs", [JOB]),
    "jobs show": (JOB.id, "bulk_job", JOB),
    "jobs interrupt": (JOB.id, "control_bulk_job", JOB),
    "jobs resume": (JOB.id, "control_bulk_job", JOB),
    "jobs cancel": (JOB.id, "control_bulk_job", JOB),
    "namespace create": ("orders", "create_namespace", ORDERS),
    "namespace update": ("orders --weight 2", "update_namespace", ORDERS),
    "namespace show": ("orders", "get_namespace", ORDERS),
    "namespace list": ("", "list_namespaces", NamespacePage([ORDERS], None)),
    "namespace delete": ("orders --yes", "delete_namespace", None),
    "namespace usage": ("orders", "usage", Usage(1, 2, 3, None)),
    "grant set": ("mailer consume", "set_grant", None),
    "grant list": ("", "grants", [Grant("mailer", "orders", ("consume",))]),
    "grant revoke": ("mailer", "set_grant", None),
    "cluster status": ("", "routing", Routing(1, [HOST], [SHARD])),
    "shard list": ("", "list_shards", [SHARD]),
    "shard add": ("3 --database db1", "add_shard", None),
    "shard remove": ("3 --yes", "remove_shard", None),
    "shard drain": ("3", "drain_shard", None),
    "shard undrain": ("3", "undrain_shard", None),
    "shard move": ("3 host1", "move_shard", None),
    "host list": ("", "list_hosts", [HOST]),
    "host drain": ("host1", "drain_host", None),
    "host undrain": ("host1", "undrain_host", None),
    "audit": ("", "audit", AuditPage([ENTRY], ())),
    "config export": ("", "export_config", DOCUMENT),
    "config import": ("{file} --yes", "import_config", None),
}
"""By command: valid arguments, the client's method that it calls, and a result of that method."""

SHOW_ONE_OBJECT: Final = frozenset({"cluster status"})
"""Commands that show one object in every format."""

UNTIL_STOPPED: Final = frozenset({"worker"})
"""Commands that show nothing before their end; see test_worker_command."""

SHOW_FINDINGS: Final = frozenset({"doctor"})
"""Commands for which a failed call is a finding; see test_address_checks."""

SILENT: Final = frozenset(name for name, (_, _, answer) in TABLE.items() if answer is None)
"""Commands that show only a sentence for a person."""


def ask(run: Run, tmp_path: Path, name: str, *more: str) -> Result:
    file = tmp_path / "config.json"
    file.write_text(DOCUMENT)
    return run(*name.split(), *TABLE[name][0].format(file=file).split(), *more)


def test_every_command_that_calls_a_host_is_in_the_table() -> None:
    found = {
        " ".join(path)
        for path, command in commands(root)
        if not isinstance(command, click.Group)
        and "--address" in {flag for param in command.params for flag in param.opts}
    }
    assert found == set(TABLE) | UNTIL_STOPPED | SHOW_FINDINGS


def test_every_help_has_a_description_an_example_and_the_options_of_a_call(run: Run) -> None:
    for path, command in commands(root):
        name = " ".join(path)
        result = run(*path, "--help")
        assert (result.exit_code, bool(command.help)) == (0, True), name
        if not path or not isinstance(command, click.Group):
            assert "Example" in result.stdout, name
        if name in TABLE:
            assert re.search(rf"\n +foqs {name}\b", result.stdout), name
            assert all(option in result.stdout for option in ("--address", "--namespace", "--output", "--timeout")), (
                name
            )


@pytest.mark.parametrize("form", ["json", "jsonl"])
@pytest.mark.parametrize("name", TABLE)
def test_json_output_is_the_only_text_on_standard_output(
    run: Run, client: FakeClient, tmp_path: Path, name: str, form: str
) -> None:
    _, method, answer = TABLE[name]
    # The policy of a topic is read before it is set.
    client.answers |= {"set_topic_policy": None, method: answer}
    result = ask(run, tmp_path, name, "-o", form)
    assert result.exit_code == 0, result.stderr
    if name in SILENT:
        assert result.stdout == ""
        assert result.stderr
    elif name != "config export":
        found = json.loads(result.stdout)
        assert isinstance(found, list) is (form == "json" and name not in SHOW_ONE_OBJECT)
        assert found


FAILURES = [
    (Unavailable("x", retry_after_ms=5), 1),
    (InvalidArgument("x", field="f"), 2),
    (Unreachable("x"), 3),
    (NamespaceNotFound("x"), 4),
]


@pytest.mark.parametrize(("name", "failure"), [*zip(TABLE, cycle(FAILURES))])
def test_failed_call_is_one_line_and_the_exit_code_of_its_error(
    run: Run, client: FakeClient, tmp_path: Path, name: str, failure: tuple[FoqsError, int]
) -> None:
    error, code = failure
    client.answers[TABLE[name][1]] = error
    result = ask(run, tmp_path, name, "-o", "json")
    assert result.exit_code == code
    assert result.stdout in ("", "[]\n")
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert error.code in line or isinstance(error, Unreachable)


def test_unknown_command_is_answered_with_a_near_one_or_with_all_of_its_group(run: Run) -> None:
    assert run("namespace", "updat", "a").stderr.endswith("Error: No such command 'updat'. Did you mean 'update'?\n")
    unlike = run("namespace", "set", "a").stderr
    assert unlike.endswith(" namespace: create, delete, list, show, update, usage.\n"), unlike


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("why 0-7", "'foqs why' was renamed; use: foqs explain"),
        ("enqueue mail hello --key k", "--key was renamed; use --idempotency-key."),
    ],
)
def test_old_spelling_fails_with_the_new_one(run: Run, client: FakeClient, line: str, sentence: str) -> None:
    result = run(*line.split())
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(f"Error: {sentence}")
    assert client.calls == []
