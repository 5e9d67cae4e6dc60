"""Tasks over `FoqsBackend`: what the framework promises of every backend, and what is written for a task."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connections, transaction
from django.test import override_settings
from django.utils import timezone
from django.utils.module_loading import import_string

from foqs_client import Item, LimitExceeded
from foqs_client.django import FoqsBackend
from foqs_client.django.foqs_task import FoqsTask
from foqs_client.django.task_classes import (
    InvalidTask,
    InvalidTaskBackend,
    TaskError,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task,
    task_backends,
    task_enqueued,
)
from foqs_client.errors import InvalidArgument
from foqs_client.outbox import NotInTransaction, enqueue
from tests.support import django_sample_tasks as tasks
from tests.support.django_project import BACKEND, query

ENQUEUED = "SELECT topic, priority, attempts_max, deliver_after_ms, event_id FROM foqs_outbox ORDER BY id"


@pytest.fixture(params=["blocking", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Calls a method of a task or a result: `call(task, "enqueue", 1)`, or its asynchronous twin."""

    def call(of: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "blocking":
            return getattr(of, method)(*args, **kwargs)
        return async_to_sync(getattr(of, f"a{method}"))(*args, **kwargs)

    return call


# ------------------------------------------------------------------ tasks


def test_settings_choose_the_backend_of_an_alias() -> None:
    assert isinstance(task_backends["default"], FoqsBackend)
    assert isinstance(tasks.note.get_backend(), FoqsBackend)
    assert tasks.note.using(backend="plain").get_backend() is task_backends["plain"]


@pytest.mark.parametrize("found", [tasks.note, tasks.answer, tasks.note_async])
def test_each_form_of_the_decorator_makes_a_task(found: Any) -> None:
    assert isinstance(found, FoqsTask)
    assert found.module_path == f"tests.support.django_sample_tasks.{found.name}"
    assert import_string(found.module_path) is found


def test_a_task_can_be_called_in_place() -> None:
    assert tasks.answer.call() == 42
    assert async_to_sync(tasks.answer.acall)() == 42
    assert tasks.note_async.call(1) == [1]
    assert async_to_sync(tasks.note_async.acall)(1) == [1]


def test_using_returns_a_changed_copy() -> None:
    soon = timezone.now()
    first = tasks.note.using(run_after=soon)
    second = first.using(priority=7, queue_name="mail")
    same = tasks.note.using()

    assert (second.run_after, second.priority, second.queue_name) == (soon, 7, "mail")
    assert (first.priority, tasks.note.run_after, tasks.note.queue_name) == (0, None, "default")
    assert same == tasks.note and same is not tasks.note


@pytest.mark.parametrize("priority", [-101, 101, 3.5])
def test_a_priority_beyond_the_range_is_refused(priority: float) -> None:
    with pytest.raises(InvalidTask, match="between -100 and 100"):
        tasks.note.using(priority=priority)


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_a_priority_in_the_range_is_taken(priority: int) -> None:
    assert tasks.note.using(priority=priority).priority == priority


def test_a_naive_moment_is_refused() -> None:
    with pytest.raises(InvalidTask, match="aware"):
        tasks.note.using(run_after=datetime.now())  # noqa: DTZ005


def test_a_queue_that_settings_do_not_name_is_refused_unless_they_name_none() -> None:
    with pytest.raises(InvalidTask, match="urgent"):
        tasks.note.using(queue_name="urgent")
    assert tasks.note.using(queue_name="urgent", backend="plain").queue_name == "urgent"


@pytest.mark.parametrize(("alias", "text"), [("unknown", "unknown"), ("missing", r"no\.such\.Backend")])
def test_an_alias_without_a_backend_is_refused(alias: str, text: str) -> None:
    settings = {"missing": {"BACKEND": "no.such.Backend"}}
    with override_settings(TASKS=settings), pytest.raises(InvalidTaskBackend, match=text):
        tasks.note.using(backend=alias)


def test_settings_without_backends_refuse_each_task() -> None:
    with override_settings(TASKS={}), pytest.raises(InvalidTaskBackend):
        tasks.note.enqueue()


def test_a_function_that_no_worker_could_import_is_refused() -> None:
    for function in (any, lambda: None):
        with pytest.raises(InvalidTask, match="module level"):
            task()(function)


def test_a_task_that_takes_its_context_has_an_argument_for_it() -> None:
    with pytest.raises(InvalidTask, match="context"):
        task(takes_context=True)(tasks.answer.func)


def test_run_after_is_no_argument_of_the_decorator() -> None:
    with pytest.raises(TypeError, match="run_after"):
        task(run_after=timezone.now())(tasks.answer.func)


@pytest.mark.parametrize("name", ["retries", "timeout_s"])
@pytest.mark.parametrize("value", [-1, "3", True])
def test_a_limit_that_is_none_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidTask, match=f"{name} of answer is"):
        task(**{name: value})(tasks.answer.func)


def test_a_time_limit_that_nothing_could_enforce_is_refused() -> None:
    with pytest.raises(InvalidTask, match="processes"):
        task(backend="plain", timeout_s=3)(tasks.answer.func)
    assert task(backend="plain", timeout_s=3)(tasks.note_async.func).timeout_s == 3


def test_an_error_of_a_result_names_an_exception() -> None:
    assert TaskError(exception_class_path="builtins.KeyError", traceback="").exception_class is KeyError
    with pytest.raises(ValueError, match="valid exception"):
        _ = TaskError(exception_class_path="subprocess.run", traceback="").exception_class
    with pytest.raises(ImportError):
        _ = TaskError(exception_class_path="no.such.Error", traceback="").exception_class


# ------------------------------------------------------------------ enqueue


def test_an_enqueued_task_is_ready(project: None, call: Callable[..., Any]) -> None:
    result = call(tasks.note, "enqueue", 1, [2], three={"four": None})

    assert result.status == TaskResultStatus.READY
    assert (result.task, result.args, result.kwargs) == (tasks.note, [1, [2]], {"three": {"four": None}})
    assert (result.attempts, result.errors, result.is_finished) == (0, [], False)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_an_argument_that_is_no_json_is_refused_and_nothing_written(project: None, call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        call(tasks.note, "enqueue", timezone.now())

    assert query(ENQUEUED) == []


@pytest.mark.parametrize(
    ("values", "kind", "text"),
    [
        ([{1: "a"}], TypeError, r"args\[0\] has the key 1,"),
        ([1, [{"a": {None: 2}}]], TypeError, r"args\[1\]\[0\]\['a'\] has the key None"),
        ([float("nan")], ValueError, r"args\[0\] is nan"),
        ([{"a": (1.0, float("-inf"))}], ValueError, r"args\[0\]\['a'\]\[1\] is -inf"),
    ],
)
def test_an_argument_that_the_task_would_get_as_another_one_is_refused_by_its_place(
    project: None, values: list[Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        tasks.note.enqueue(*values)
    with pytest.raises(kind, match=text.replace(r"args\[", r"kwargs\['named'\]\[")):
        tasks.note.enqueue(named=values)

    assert query(ENQUEUED) == []


def test_a_task_is_a_row_with_topic_priority_and_moment(project: None) -> None:
    later = timezone.now() + timedelta(hours=1)
    result = tasks.refuse.using(priority=7, run_after=later).enqueue()
    plain = tasks.note.using(backend="plain", queue_name="any").enqueue()

    [first, second] = query(ENQUEUED)
    assert first[:3] == ("tasks.mail", -7, 7)
    assert first[3] / 1_000 == pytest.approx(later.timestamp(), abs=0.001) and first[3] >= later.timestamp() * 1_000
    assert second == ("plain.any", 0, 3, None, plain.id)
    assert first[4] == result.id and len(result.id) == 32


def test_a_task_shares_the_fate_of_the_open_transaction(committing_project: None) -> None:
    with transaction.atomic():
        kept = tasks.note.enqueue()
    with pytest.raises(IntegrityError), transaction.atomic():
        gone = tasks.note.enqueue()
        raise IntegrityError

    assert [row[4] for row in query(ENQUEUED)] == [kept.id]
    assert tasks.note.get_result(kept.id).status == TaskResultStatus.READY
    with pytest.raises(TaskResultDoesNotExist):
        tasks.note.get_result(gone.id)


def test_a_task_without_a_transaction_is_written_alone(committing_project: None) -> None:
    tasks.note.enqueue()
    connections["default"].close()

    assert len(query(ENQUEUED)) == 1


def test_a_task_beside_a_transaction_of_another_database_is_refused(committing_project: None) -> None:
    with transaction.atomic(using="other"):
        with pytest.raises(NotInTransaction, match="'other'"):
            tasks.note.enqueue()
        with transaction.atomic():
            tasks.note.enqueue()

    assert len(query(ENQUEUED)) == 1


def test_a_payload_beyond_the_limit_is_refused_and_nothing_written(project: None) -> None:
    with pytest.raises(LimitExceeded, match="at most 10240"):
        tasks.note.enqueue("x" * 11_000)

    assert query(ENQUEUED) == query("SELECT id FROM foqs_task_result") == []


def test_an_enqueue_sends_the_signal_of_django(project: None) -> None:
    seen = []

    def see(sender: Any, task_result: Any, **_: Any) -> None:
        seen.append((sender, task_result.id))

    task_enqueued.connect(see)
    try:
        result = tasks.note.enqueue()
    finally:
        task_enqueued.disconnect(see)

    assert seen == [(FoqsBackend, result.id)]


def test_the_payload_is_json_that_names_the_task(project: None) -> None:
    tasks.note.enqueue("\0ü")
    [(payload,)] = query("SELECT payload FROM foqs_outbox")

    found = json.loads(payload)
    assert (found["path"], found["args"]) == ("tests.support.django_sample_tasks.note", ["\0ü"])


# ------------------------------------------------------------------ results


def test_a_result_is_read_as_it_was_enqueued(project: None, call: Callable[..., Any]) -> None:
    soon = timezone.now()
    result = tasks.note.using(run_after=soon, priority=3).enqueue(1, two=3)
    found = call(tasks.note, "get_result", result.id)

    assert dataclasses.asdict(found) == dataclasses.asdict(result)


def test_a_refresh_of_an_unchanged_result_changes_nothing(project: None, call: Callable[..., Any]) -> None:
    result = tasks.note.enqueue()
    before = dataclasses.asdict(result)
    call(result, "refresh")

    assert dataclasses.asdict(result) == before


def test_a_result_that_is_not_there_is_named(project: None, call: Callable[..., Any]) -> None:
    with pytest.raises(TaskResultDoesNotExist, match="'123'"):
        call(tasks.note, "get_result", "123")


def test_a_result_of_another_task_is_refused(project: None, call: Callable[..., Any]) -> None:
    result = tasks.answer.enqueue()
    with pytest.raises(Exception, match="does not match"):
        call(tasks.note, "get_result", result.id)


def test_a_backend_without_results_says_so(project: None) -> None:
    result = tasks.note.using(backend="plain").enqueue()

    assert not task_backends["plain"].supports_get_result
    with pytest.raises(NotImplementedError):
        result.refresh()


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"retrys": 3}, "no option 'retrys'"),
        ({"retries": -1}, "retries is -1; give a number from 0 to 1000"),
        ({"processes": 1.5}, "processes is 1.5"),
        ({"results": 1}, "give True or False"),
        ({"prefix": None}, "give a text"),
        ({"client": {"namespaces": "shop"}}, r"\['client'\] has no option 'namespaces'; there are: namespace, "),
        ({"queues": []}, "give a dict"),
        ({"queues": {"mail": {"lease_ms": 3}}}, r"\['queues'\]\['mail'\] has no option 'lease_ms'"),
        ({"queues": {"mail": 3}}, "give a dict of options"),
    ],
)
def test_a_wrong_option_is_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidTaskBackend, match=text):
        FoqsBackend("default", {"OPTIONS": options})


def test_a_limit_of_a_task_goes_before_that_of_its_queue_and_of_the_backend() -> None:
    foqs = FoqsBackend(
        "default", {"QUEUES": [], "OPTIONS": {"retries": 1, "timeout_s": 9, "queues": {"mail": {"retries": 2}}}}
    ).foqs
    limits = foqs.limits_of(tasks.note), foqs.limits_of(tasks.refuse), foqs.limits_of(tasks.never_end)

    assert [(each.retries, each.timeout_s) for each in limits] == [(1, 9), (2, 9), (1, 0.001)]


def test_topics_are_those_of_the_queues_or_a_pattern() -> None:
    named, free = task_backends["default"], task_backends["plain"]

    assert named.topics() == ["tasks.default", "tasks.mail", "tasks.slow"]
    assert named.topics(["mail"]) == ["tasks.mail"]
    assert free.topics() == ["plain.*"]


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({}, []),
        ({"QUEUES": ["a" * 300]}, ["foqs.E004"]),
        ({"OPTIONS": {"database": "nowhere"}}, ["foqs.E002"]),
    ],
)
def test_the_check_names_what_is_wrong_with_the_settings(params: dict[str, Any], ids: list[str]) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, **params}}):
        assert [each.id for each in task_backends["default"].check()] == ids


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, []),
        ({"client": {"namespace": "default", "token_file": "/run/token"}}, []),
        ({"url": "foqs://elsewhere", "database": "other"}, []),
        ({"url": "foqs://elsewhere"}, ["foqs.E007"]),
        ({"client": {"namespace": "shop"}}, ["foqs.E007"]),
    ],
)
def test_the_check_finds_two_namespaces_in_one_outbox(options: dict[str, Any], ids: list[str]) -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}, "mail": {"BACKEND": BACKEND, "OPTIONS": options}}):
        assert [each.id for alias in ("default", "mail") for each in task_backends[alias].check()] == ids


def test_the_check_finds_a_database_that_commits_nothing_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["other"], "AUTOCOMMIT", False)
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"database": "other"}}}):
        assert [each.id for each in task_backends["default"].check()] == ["foqs.E006"]


def test_the_check_misses_the_application() -> None:
    with override_settings(INSTALLED_APPS=["django.contrib.contenttypes"]):
        assert [each.id for each in task_backends["default"].check()] == ["foqs.E001"]


# ------------------------------------------------------------------ the outbox of django


def test_an_item_is_written_through_a_database_of_django(project: None) -> None:
    enqueue("default", [Item("mail", b"one")])
    enqueue(connections["default"], [Item("mail", b"two")])

    assert query("SELECT payload FROM foqs_outbox ORDER BY id") == [(b"one",), (b"two",)]


def test_a_database_of_django_that_commits_each_statement_is_refused(committing_project: None) -> None:
    with pytest.raises(NotInTransaction, match=r"transaction\.atomic"):
        enqueue("default", [Item("mail", b"one")])


def test_a_database_that_django_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nowhere"):
        enqueue("nowhere", [Item("mail", b"one")])
