"""`run_tasks` runs what a test has enqueued, in its transaction."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from foqs_client.django.task_classes import TaskResultStatus
from foqs_client.django.testing import run_tasks
from tests.support import django_sample_tasks as tasks
from tests.support.django_project import query
from tests.support.django_sample_tasks import calls


def test_tasks_run_by_priority_with_those_that_they_enqueue(project: None) -> None:
    tasks.enqueue_another.enqueue(2)
    tasks.note.using(priority=5).enqueue("first")

    assert run_tasks() == 4
    assert calls == [(("first",), {}), 2, 1, 0]
    assert query("SELECT id FROM foqs_outbox") == []


def test_a_task_that_raises_runs_again_and_fails(project: None) -> None:
    result = tasks.refuse.enqueue()

    assert run_tasks() == 3
    result.refresh()
    assert result.status == TaskResultStatus.FAILED


def test_a_task_of_later_and_one_of_another_backend_stay(project: None) -> None:
    tasks.note.using(run_after=timezone.now() + timedelta(days=1)).enqueue()
    tasks.note.using(backend="plain").enqueue()

    assert run_tasks() == 0
    assert run_tasks("plain") == 1
    assert len(query("SELECT id FROM foqs_outbox")) == 1


def test_tasks_without_an_end_are_reported(project: None) -> None:
    tasks.enqueue_another.enqueue(100)
    with pytest.raises(AssertionError, match="within 10 runs"):
        run_tasks(runs_max=10)
