"""Databases that are away when a task begins, runs or ends: no item is charged for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from random import Random
from typing import Any

import pytest
from django.db import OperationalError, connections

from foqs.testing import FakeHost
from foqs_client import Client, Item
from foqs_client.consumer import Consumer, Dead, Job, NotBegun, Retry
from foqs_client.django import task_databases
from foqs_client.django.task_classes import TaskResultStatus
from foqs_client.django.task_databases import REFUSED_S_MAX, open_database, write_when_it_answers
from foqs_client.django.task_runs import run_in_thread, run_task
from tests.support import django_sample_tasks as tasks
from tests.support.consumer_stories import play, until
from tests.support.django_jobs import delivered
from tests.support.django_project import databases_away, query
from tests.support.django_sample_tasks import calls


@pytest.fixture(autouse=True)
def no_calls(committing_project: None) -> None:
    calls.clear()


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The databases are away from the call of `lose_databases` until the worker first waits for them."""
    with ExitStack() as stack:
        back: list[Any] = []
        monkeypatch.setattr(tasks, "lose_databases", lambda: back.append(stack.enter_context(databases_away())))
        waiting = partial(write_when_it_answers, pause=lambda _pause_s: back[-1]())
        monkeypatch.setattr("foqs_client.django.task_runs.write_when_it_answers", waiting)
        yield


def begin(backend: str) -> Job:
    tasks.note.using(backend=backend).enqueue("a")
    return delivered()


@pytest.mark.parametrize("backend", ["default", "atomic", "plain"])
def test_a_task_that_finds_no_database_does_not_begin(backend: str) -> None:
    job = begin(backend)
    with databases_away(), pytest.raises(NotBegun, match="unable to open database file"):
        run_in_thread(job)
    assert calls == []
    run_in_thread(job)

    assert len(calls) == 1


@pytest.mark.parametrize("table", ["foqs_task_result", "foqs_inbox"])
def test_a_task_whose_begin_cannot_be_written_does_not_begin_and_waits_on(table: str) -> None:
    result = tasks.note.using(backend="atomic").enqueue("a")
    job = delivered()
    query(f"ALTER TABLE {table} RENAME TO renamed")
    try:
        with pytest.raises(NotBegun):
            run_task(job)
    finally:
        query(f"ALTER TABLE renamed RENAME TO {table}")
    result.refresh()

    assert calls == []
    assert (result.status, result.worker_ids, result.errors) == (TaskResultStatus.READY, [], [])


def test_a_task_that_loses_its_database_runs_again_without_a_retry_of_its_own(losing: None) -> None:
    result = tasks.use_a_lost_database.enqueue()
    with pytest.raises(Retry) as retried:
        run_task(delivered())
    result.refresh()

    assert retried.value.metadata == b"raised: 0"
    assert result.status == TaskResultStatus.READY
    assert [error.exception_class for error in result.errors] == [OperationalError]


def test_a_task_without_a_record_that_loses_its_database_runs_again(losing: None) -> None:
    tasks.use_a_lost_database.using(backend="plain").enqueue()
    job = delivered()
    with pytest.raises(Retry):
        run_task(job)
    with pytest.raises(NotBegun):
        run_task(job)

    assert calls == ["begun"]


def test_a_success_is_recorded_when_the_database_is_back(losing: None) -> None:
    result = tasks.note_and_lose_the_databases.enqueue()
    run_task(delivered())
    result.refresh()

    assert (result.status, result.return_value, calls) == (TaskResultStatus.SUCCESSFUL, "noted", ["noted"])


def test_an_error_of_sql_is_no_loss_of_the_database() -> None:
    tasks.run_wrong_sql.enqueue()
    with pytest.raises(Dead, match="no such table"):
        run_task(delivered())


def test_a_transaction_that_a_task_leaves_open_is_rolled_back(caplog: pytest.LogCaptureFixture) -> None:
    tasks.leave_a_transaction_open.using(backend="plain").enqueue()
    run_in_thread(delivered())
    assert "left a transaction open in the database 'default'" in caplog.text
    run_in_thread(delivered())

    assert len(query("SELECT id FROM foqs_outbox")) == 1
    assert not connections["default"].in_atomic_block


# ------------------------------------------------------------------ the wait for a database


def refuse() -> None:
    raise OperationalError("read-only")


def test_a_write_is_given_up_when_the_lease_is_lost() -> None:
    lost = iter([False, False, True])
    pauses: list[float] = []
    with databases_away(), pytest.raises(OperationalError):
        write_when_it_answers("default", refuse, lambda: next(lost), pauses.append)

    assert pauses == [0.1, 0.2]


def test_a_write_waits_for_a_database_that_is_away_for_as_long_as_the_lease_is_held() -> None:
    pauses: list[float] = []
    with databases_away(), pytest.raises(OperationalError):
        write_when_it_answers("default", refuse, lambda: sum(pauses) > 10 * REFUSED_S_MAX, pauses.append)

    assert max(pauses) == 5.0


def test_a_write_that_a_database_refuses_is_given_up() -> None:
    pauses: list[float] = []
    with pytest.raises(OperationalError):
        write_when_it_answers("default", refuse, lambda: False, pauses.append)

    assert REFUSED_S_MAX < sum(pauses) <= REFUSED_S_MAX + 5.0


def test_a_kept_connection_that_is_broken_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = connections["default"]
    connection.ensure_connection()
    broken = connection.connection
    monkeypatch.setattr(type(connection), "is_usable", lambda self: self.connection is not broken)
    open_database("default")
    assert connection.connection not in (None, broken)
    broken = connection.connection
    task_databases.close_stale_connections()

    assert connection.connection is None


# ------------------------------------------------------------------ with a worker


def test_tasks_that_are_due_while_the_database_is_away_for_a_minute_run_in_their_only_attempt() -> None:
    results = [tasks.note.enqueue(number) for number in range(3)]
    items = [
        Item("tasks.default", bytes(payload), attempts_max=1) for (payload,) in query("SELECT payload FROM foqs_outbox")
    ]
    with databases_away() as bring_back:

        async def story(fake: FakeHost, client: Client) -> None:
            await client.enqueue(items)
            consumer = Consumer(client, run_in_thread, ["tasks.*"], rng=Random(1))
            running = asyncio.ensure_future(consumer.run())
            await asyncio.sleep(60)
            assert consumer.counts.released > 0
            bring_back()
            await until(lambda: consumer.counts.done == len(items) or consumer.counts.dead > 0)
            consumer.stop()
            assert (await running).dead == 0

        play(story)

    assert len(calls) == 3
    assert [tasks.note.get_result(each.id).attempts for each in results] == [1, 1, 1]
