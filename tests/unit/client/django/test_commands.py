"""The commands of `manage.py`: what they refuse before they ask a host, and how they connect to the database."""

from __future__ import annotations

import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections
from django.db.backends.postgresql.base import DatabaseWrapper
from django.utils import timezone

from foqs_client.django.driver_connections import copy_of
from foqs_client.django.models import TaskRecord
from tests.support import django_sample_tasks as tasks
from tests.support.django_project import query


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"backend": "nowhere"}, "The connection 'nowhere' doesn't exist"),
        ({"queue": ["mail", "mial"]}, r"has no queue 'mial'; it has: default, mail, slow"),
        ({"concurrency": 0}, "--concurrency is 0; give a number from 1 to 10000"),
    ],
)
def test_a_worker_refuses_a_wrong_option(options: dict[str, Any], text: str) -> None:
    with pytest.raises(CommandError, match=text):
        call_command("foqs_worker", **options)


def test_a_worker_starts_although_a_check_finds_its_database_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_checks(**_: Any) -> None:
        raise OperationalError("no server")

    monkeypatch.setattr("django.core.checks.run_checks", run_checks)
    errors = io.StringIO()
    with pytest.raises(CommandError, match="no queue 'mial'"):
        call_command("foqs_worker", queue=["mial"], skip_checks=False, stderr=errors)

    assert "left out, because a database does not answer: no server" in errors.getvalue()


def test_results_that_ended_long_ago_are_pruned(project: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_client.django.task_records._PRUNED_AT_ONCE", 2)
    long_ago, lately = timezone.now() - timedelta(days=3), timezone.now() - timedelta(hours=3)
    ends: list[dict[str, Any]] = [
        *[{"status": "SUCCESSFUL", "finished_at": long_ago}] * 3,
        {"status": "RUNNING", "is_last_attempt": True, "lease_ends_at": long_ago},
        {"status": "SUCCESSFUL", "finished_at": lately},
        {"status": "RUNNING", "is_last_attempt": True, "lease_ends_at": lately},
        {"status": "RUNNING", "lease_ends_at": long_ago},
        {"status": "READY"},
    ]
    kept = []
    for place, end in enumerate(ends):
        id = tasks.note.enqueue().id
        TaskRecord.objects.filter(pk=id).update(enqueued_at=long_ago, **end)
        if place >= 4:
            kept.append(id)
    output = io.StringIO()
    call_command("foqs_prune_results", days=2, stdout=output)

    assert output.getvalue() == "4 results deleted\n"
    assert {id for (id,) in query("SELECT id FROM foqs_task_result")} == set(kept)


@pytest.mark.parametrize("days", [0.5, -1.0, float("nan"), 1e300])
def test_results_are_kept_for_a_day_at_least(days: float) -> None:
    with pytest.raises(CommandError, match="--days is"):
        call_command("foqs_prune_results", days=days)


def test_the_connection_of_a_relay_gives_up_after_a_time() -> None:
    settings = {**connections.settings["default"], "NAME": "shop", "OPTIONS": {"connect_timeout": 3, "pool": True}}
    found = copy_of(DatabaseWrapper(settings, "default")).get_connection_params()

    assert (found["connect_timeout"], found["tcp_user_timeout"]) == (3, 60_000)
    assert "pool" not in found
