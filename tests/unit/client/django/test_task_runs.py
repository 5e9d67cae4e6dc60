"""Deliveries of tasks: what a worker runs, records and does with the item."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError, connections
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist

from foqs_client.consumer import Dead, NotBegun, Retry
from foqs_client.django.running_tasks import LEASE_S_MIN, RunningTasks
from foqs_client.django.task_classes import (
    BaseTaskBackend,
    InvalidTaskBackend,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from foqs_client.django.task_records import AlreadyDone, begin_run
from foqs_client.django.task_runs import failures_of, run_task
from foqs_client.django.time_limits import TimeLimitExceeded
from foqs_client.inbox import once
from tests.support import django_sample_tasks as tasks
from tests.support.django_jobs import delivered
from tests.support.django_project import databases_away, query
from tests.support.django_sample_tasks import calls


def query_nothing(statement: str) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(statement)


def expire(id: str) -> None:
    """Let the lease of a record end."""
    from foqs_client.django.models import TaskRecord

    TaskRecord.objects.filter(pk=id).update(lease_ends_at=timezone.now() - timedelta(seconds=1))


# ------------------------------------------------------------------ success


@pytest.mark.parametrize("task", [tasks.note, tasks.note_async])
def test_a_task_runs_and_its_result_is_recorded(project: None, task: Any) -> None:
    result = task.enqueue("a", 1)
    run_task(delivered())
    result.refresh()

    assert result.status == TaskResultStatus.SUCCESSFUL and result.return_value == ["a", 1]
    assert len(calls) == 1
    assert len(result.worker_ids) == result.attempts == 1
    assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at


def test_a_task_without_a_record_runs_too(project: None) -> None:
    tasks.note.using(backend="plain").enqueue("a")
    found = run_task(delivered(attempt=3))

    assert found is not None and found.return_value == ["a"] and found.attempts == 3


def test_a_task_that_was_successful_does_not_run_again(project: None) -> None:
    tasks.note.enqueue()
    run_task(delivered())

    assert run_task(delivered(attempt=2)) is None
    assert len(calls) == 1


def test_a_task_gets_its_context(project: None) -> None:
    result = tasks.tell_attempt.enqueue()
    run_task(delivered())
    result.refresh()

    assert (result.return_value, calls) == (1, [result.id])


def test_signals_are_sent_at_the_begin_and_at_the_end(project: None) -> None:
    seen: list[Any] = []

    def see(signal: Any, task_result: Any, **_: Any) -> None:
        seen.append((signal, task_result.status))

    for each in (task_started, task_finished):
        each.connect(see)
    try:
        tasks.note.enqueue()
        run_task(delivered())
    finally:
        for each in (task_started, task_finished):
            each.disconnect(see)

    assert seen == [(task_started, TaskResultStatus.RUNNING), (task_finished, TaskResultStatus.SUCCESSFUL)]


# ------------------------------------------------------------------ effects once


def test_effects_row_of_the_inbox_and_result_are_one_transaction(project: None) -> None:
    result = tasks.save_and_raise.enqueue(False)
    job = delivered()
    run_task(job)
    result.refresh()

    assert result.status == TaskResultStatus.SUCCESSFUL
    assert len(query("SELECT id FROM foqs_outbox")) == 2
    assert query("SELECT delivery FROM foqs_inbox") == [(f"{1:016x}/{result.id}",)]
    query_nothing("DELETE FROM foqs_task_result")
    assert run_task(job) is None, "the row of the inbox alone says that it is done"
    assert len(query("SELECT id FROM foqs_outbox")) == 2


def test_a_task_that_raises_leaves_no_effects_and_no_row_of_the_inbox(project: None) -> None:
    result = tasks.save_and_raise.enqueue(True)
    with pytest.raises(Dead):
        run_task(delivered())
    result.refresh()

    assert result.status == TaskResultStatus.FAILED
    assert len(query("SELECT id FROM foqs_outbox")) == 1
    assert query("SELECT delivery FROM foqs_inbox") == []


def test_a_task_whose_transaction_is_rolled_back_without_an_exception_has_failed(project: None) -> None:
    result = tasks.save_and_roll_back.enqueue()
    with pytest.raises(Dead, match="TransactionManagementError"):
        run_task(delivered())
    result.refresh()

    assert result.status == TaskResultStatus.FAILED
    assert len(query("SELECT id FROM foqs_outbox")) == 1
    assert query("SELECT delivery FROM foqs_inbox") == []


def test_a_success_with_its_effects_counts_although_another_run_has_begun(
    project: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tasks.save_and_raise.enqueue(False)

    def once_late(*arguments: Any) -> bool:
        begin_run("default", result.id, "newer", 60, is_last_attempt=False)
        return once(*arguments)

    monkeypatch.setattr("foqs_client.django.task_runs.once", once_late)
    run_task(delivered())
    result.refresh()

    assert result.status == TaskResultStatus.SUCCESSFUL and len(result.worker_ids) == 2


def test_a_commit_that_fails_is_no_exception_of_the_task(project: None, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tasks.save_and_raise.enqueue(False)

    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("the server is gone")

    monkeypatch.setattr("foqs_client.django.task_records.BegunRun.end", fail)
    with pytest.raises(OperationalError):
        run_task(delivered())
    result.refresh()

    assert (result.status, result.errors) == (TaskResultStatus.RUNNING, [])
    assert query("SELECT delivery FROM foqs_inbox") == []


# ------------------------------------------------------------------ failures


def test_a_task_that_raises_runs_again_as_often_as_its_queue_says(project: None) -> None:
    result = tasks.refuse.enqueue("full")
    metadata = b""
    for attempt in (1, 2):
        with pytest.raises(Retry) as retried:
            run_task(delivered(attempt, metadata))
        metadata = retried.value.metadata or b""
        result.refresh()
        assert result.status == TaskResultStatus.READY and not result.is_finished
    with pytest.raises(Dead, match="Busy: full"):
        run_task(delivered(3, metadata))
    result.refresh()

    assert result.status == TaskResultStatus.FAILED and result.finished_at is not None
    assert [error.exception_class for error in result.errors] == [tasks.Busy] * 3
    assert "raise Busy" in result.errors[0].traceback
    assert result.attempts == 3


def test_a_death_of_a_worker_is_no_retry(project: None) -> None:
    tasks.refuse_twice.enqueue()
    metadata = b"failed: ProcessDied: the worker process was killed"
    with pytest.raises(Retry) as retried:
        run_task(delivered(4, metadata))

    assert failures_of(retried.value.metadata or b"") == 1


def test_an_exception_in_the_last_attempt_is_the_end(project: None) -> None:
    result = tasks.refuse_twice.enqueue()
    with pytest.raises(Dead):
        run_task(delivered(6))
    result.refresh()

    assert result.status == TaskResultStatus.FAILED


def test_an_exception_of_any_length_leaves_a_record_of_bounded_length(project: None) -> None:
    result = tasks.refuse.enqueue("x" * 8_000 + "the end")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Retry):
        patch.setattr("foqs_client.django.task_runs._TRACEBACK_CHARACTERS_MAX", 2_000)
        run_task(delivered())
    result.refresh()

    assert len(result.errors[0].traceback) < 2_100
    assert result.errors[0].traceback.startswith("Traceback")
    assert result.errors[0].traceback.endswith("the end\n")


def test_a_value_that_is_no_json_fails_the_task(project: None) -> None:
    result = tasks.give_a_set.enqueue()
    with pytest.raises(Dead, match="Unsupported type"):
        run_task(delivered())
    result.refresh()

    assert result.errors[0].exception_class is TypeError


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_a_task_that_would_end_its_worker_has_failed(project: None, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_client.django.task_runs.signal.getsignal", lambda _: None)  # as in a worker
    result = tasks.leave.enqueue(how)
    with pytest.raises(Dead):
        run_task(delivered())
    result.refresh()

    assert result.status == TaskResultStatus.FAILED


def test_ctrl_c_ends_a_test_and_not_its_task(project: None) -> None:
    tasks.leave.enqueue("interrupt")
    with pytest.raises(KeyboardInterrupt):
        run_task(delivered())


def test_a_payload_that_is_no_task_is_dead(project: None) -> None:
    tasks.note.enqueue()
    for payload in (b"\xff", b"[]", b'{"id": 3}'):
        with pytest.raises(Dead, match="no task of Django"):
            run_task(delivered(payload=payload))


@pytest.mark.parametrize("path", ["no.such.task", "tests.support.django_sample_tasks.NO_TASK"])
def test_a_task_that_this_program_does_not_have_is_left_to_another_worker(project: None, path: str) -> None:
    result = tasks.note.enqueue()
    job = delivered()
    payload = job.payload.replace(b"tests.support.django_sample_tasks.note", path.encode())
    with pytest.raises((ImportError, ValueError)):
        run_task(delivered(payload=payload))
    result.refresh()
    assert (result.status, len(result.errors)) == (TaskResultStatus.READY, 1)
    with pytest.raises((ImportError, ValueError)):
        run_task(delivered(5, payload=payload))
    result.refresh()

    assert result.status == TaskResultStatus.FAILED


@pytest.mark.parametrize("alias", ["gone", "immediate"])
def test_a_task_whose_backend_this_program_does_not_have_fails_in_its_last_attempt(
    project: None, alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is in a database of another backend, which the worker's settings name under another alias."""
    immediate = {"BACKEND": f"{BaseTaskBackend.__module__.rpartition('.')[0]}.immediate.ImmediateBackend"}
    monkeypatch.setitem(settings.TASKS, "immediate", immediate)
    monkeypatch.delattr(task_backends, "settings", raising=False)
    result = tasks.note.enqueue()
    payload = delivered().payload.replace(b'"backend":"default"', f'"backend":"{alias}"'.encode())
    for attempt, status in ((1, TaskResultStatus.READY), (5, TaskResultStatus.FAILED)):
        with pytest.raises((InvalidTaskBackend, TypeError), match=alias):
            run_task(delivered(attempt, payload=payload))
        result.refresh()
        assert (result.status, alias in result.errors[-1].traceback) == (status, True)

    assert result.finished_at is not None
    assert calls == []


def test_a_success_counts_for_a_program_without_its_backend_too(project: None) -> None:
    tasks.note.enqueue()
    payload = delivered().payload.replace(b'"backend":"default"', b'"backend":"gone"')
    run_task(delivered())

    assert run_task(delivered(2, payload=payload)) is None


def test_a_task_without_its_backend_is_charged_nothing_while_the_database_is_away(committing_project: None) -> None:
    tasks.note.enqueue()
    job = delivered(5)
    payload = job.payload.replace(b'"backend":"default"', b'"backend":"gone"')
    job = delivered(5, payload=payload)
    with databases_away(), pytest.raises(NotBegun):
        run_task(job)


# ------------------------------------------------------------------ workers that die


def test_a_task_whose_worker_died_is_ready_and_runs_again(project: None) -> None:
    result = tasks.note.enqueue()
    begin_run("default", result.id, "first", 60, is_last_attempt=False)
    result.refresh()
    assert result.status == TaskResultStatus.RUNNING
    expire(result.id)
    result.refresh()
    assert result.status == TaskResultStatus.READY
    run_task(delivered(2))
    result.refresh()

    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.worker_ids[0] == "first" and result.attempts == 2


def test_a_task_whose_last_worker_died_has_failed(project: None) -> None:
    result = tasks.note.enqueue()
    begin_run("default", result.id, "last", 60, is_last_attempt=True)
    expire(result.id)
    result.refresh()

    assert result.status == TaskResultStatus.FAILED and result.finished_at is not None
    assert result.errors[-1].exception_class_path.endswith("WorkerDied")
    assert "last" in result.errors[-1].traceback


def test_a_worker_that_lost_its_lease_changes_nothing_after_another_has_begun(project: None) -> None:
    result = tasks.note.enqueue()
    older = begin_run("default", result.id, "older", 60, is_last_attempt=False)
    newer = begin_run("default", result.id, "newer", 60, is_last_attempt=False)
    assert older is not None and newer is not None
    result.refresh()
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
    older.end(result, "of the older one")
    result.refresh()

    assert result.status == TaskResultStatus.RUNNING and result.worker_ids == ["older", "newer"]


def test_a_success_is_recorded_although_the_lease_was_lost(project: None) -> None:
    result = tasks.note.enqueue()
    job = delivered()
    job.lost = True
    run_task(job)

    with pytest.raises(AlreadyDone):
        begin_run("default", result.id, "next", 60, is_last_attempt=False)


def test_a_beat_extends_the_records_of_running_tasks(project: None) -> None:
    result = tasks.note.enqueue()
    running, job = RunningTasks(), delivered()
    running._has_thread = True  # the test is the clock
    run = begin_run("default", result.id, "worker", LEASE_S_MIN, is_last_attempt=False)
    assert run is not None
    with running.kept(job, run, LEASE_S_MIN):
        expire(result.id)
        running.beat()
        result.refresh()
        assert result.status == TaskResultStatus.RUNNING
        job.lost = True
        expire(result.id)
        running.beat()
        result.refresh()

    assert result.status == TaskResultStatus.READY


def test_a_database_that_is_away_does_not_stop_the_beat_of_records_in_another_one(project: None) -> None:
    result = tasks.note.enqueue()
    running = RunningTasks()
    running._has_thread = True
    run = begin_run("default", result.id, "worker", LEASE_S_MIN, is_last_attempt=False)
    assert run is not None
    away = replace(run, database="away")
    with running.kept(delivered(), away, LEASE_S_MIN), running.kept(delivered(2), run, LEASE_S_MIN):
        expire(result.id)
        with pytest.raises(ConnectionDoesNotExist):
            running.beat()
        result.refresh()

    assert result.status == TaskResultStatus.RUNNING


# ------------------------------------------------------------------ time limits


def test_a_coroutine_is_cancelled_after_its_time(project: None) -> None:
    result = tasks.never_end.enqueue()
    with pytest.raises(Dead, match=r"did not end within 0\.001 s"):
        run_task(delivered())
    result.refresh()

    assert result.errors[0].exception_class is TimeLimitExceeded


def test_a_coroutine_is_cancelled_when_its_lease_is_lost(project: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foqs_client.django.time_limits.LOST_POLL_S", 0.001)
    result = tasks.wait_for_ever.enqueue()
    job = delivered()
    job.lost = True
    with pytest.raises(asyncio.CancelledError):
        run_task(job)
    result.refresh()

    assert calls == ["begun"]
    assert (result.status, result.errors) == (TaskResultStatus.RUNNING, [])


def test_a_process_is_interrupted_after_its_time_and_killed_if_it_goes_on() -> None:
    program = (
        "import threading\nfrom foqs_client.django import time_limits\ntime_limits.KILL_AFTER_S = 0.2\n"
        "with time_limits.process_limit(0.05):\n"
        "    while True:\n"
        "        try: threading.Event().wait()\n"
        "        except TimeoutError as error: print(error, flush=True)\n"
    )
    for _ in range(20):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "Timeout" in done.stderr
        if done.stdout:  # a process that stood still until both times were over may be killed before it says anything
            break

    assert done.stdout == "the task did not end within 0.05 s\n"
