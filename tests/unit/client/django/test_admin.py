"""The admin shows the outbox and results, and decides about parked rows; the check names tables that are missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connections, transaction
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext

from foqs_client.django.table_checks import check_tables
from foqs_client.django.task_classes import TaskResultStatus
from foqs_client.django.task_records import RowDropped, begin_run
from tests.support import django_sample_tasks as tasks
from tests.support.django_project import BACKEND, query

PARK = (
    "INSERT INTO foqs_parked (id, event_id, topic, payload, reason, may_be_queued, verdict) "
    "VALUES (%s, '00', 'mail', 'a text', 'too long', %s, %s)"
)


@pytest.fixture
def log_in(project: None) -> Callable[..., Client]:
    """Returns a browser of a user with these permissions; without any: of one who may do everything."""

    def log_in(*permissions: str) -> Client:
        user = User.objects.create(username="Ada", is_staff=True, is_superuser=not permissions)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        client = Client()
        client.force_login(user)
        return client

    return log_in


def park(*rows: tuple[int, bool, str | None]) -> None:
    with connections["default"].cursor() as cursor:
        cursor.executemany(PARK, rows)


def decide(client: Client, action: str, rows: Sequence[int]) -> str:
    """Decide about parked rows, and return the page that follows."""
    place = "/admin/foqs/parkedentry/"
    reply = client.post(place, {"action": action, "_selected_action": rows}, follow=True)
    return str(reply.content.decode())


def verdicts() -> list[tuple[Any, ...]]:
    return query("SELECT id, verdict FROM foqs_parked ORDER BY id")


def test_rows_of_the_outbox_are_shown_and_not_changed(log_in: Callable[..., Client]) -> None:
    client = log_in()
    tasks.refuse.enqueue("over the wall")
    [(id,)] = query("SELECT id FROM foqs_outbox")

    assert "over the wall" in client.get("/admin/foqs/outboxentry/").content.decode()
    assert "tasks.mail" in client.get(f"/admin/foqs/outboxentry/{id}/change/").content.decode()
    assert client.post(f"/admin/foqs/outboxentry/{id}/change/", {}).status_code == 403
    assert client.post(f"/admin/foqs/outboxentry/{id}/delete/", {"post": "yes"}).status_code == 403
    assert client.get("/admin/foqs/outboxentry/add/").status_code == 403


def test_parked_rows_are_resent_and_dropped(log_in: Callable[..., Client]) -> None:
    client = log_in()
    park((1, False, None), (2, True, None), (3, False, None), (4, False, "resend"))
    page = client.get("/admin/foqs/parkedentry/").content.decode()
    assert "too long" in page and "a text" in page
    page = decide(client, "resend", [1, 2])
    assert "1 of the rows: resent." in page and "Row 2 may be in the queue already" in page
    assert "1 of the rows: resent." in decide(client, "resend_although_queued", [2])
    page = decide(client, "drop", [3, 4])

    assert "1 of the rows: dropped." in page and "Row 4 is being sent again already" in page
    assert verdicts() == [(1, "resend"), (2, "resend"), (4, "resend")]


def test_the_result_of_a_task_whose_row_is_dropped_has_failed_unless_its_item_may_be_queued(
    log_in: Callable[..., Client],
) -> None:
    client, results = log_in(), [tasks.note.enqueue(), tasks.note.enqueue()]
    park((1, False, None), (2, True, None))
    with connections["default"].cursor() as cursor:
        for row, result in enumerate(results, 1):
            cursor.execute("UPDATE foqs_parked SET event_id = %s WHERE id = %s", (result.id, row))
    decide(client, "drop", [1, 2])
    for result in results:
        result.refresh()

    assert [result.status for result in results] == [TaskResultStatus.FAILED, TaskResultStatus.READY]
    assert results[0].errors[0].exception_class is RowDropped
    assert results[0].finished_at is not None


def test_a_user_who_may_only_look_decides_nothing(log_in: Callable[..., Client]) -> None:
    client = log_in("view_parkedentry")
    park((1, False, None))
    decide(client, "drop", [1])

    assert verdicts() == [(1, None)]


def test_a_user_who_may_change_rows_does_not_drop_them(log_in: Callable[..., Client]) -> None:
    client = log_in("view_parkedentry", "change_parkedentry")
    park((1, False, None))
    decide(client, "drop", [1])
    decide(client, "resend", [1])

    assert verdicts() == [(1, "resend")]


def test_results_are_shown_with_their_present_status(log_in: Callable[..., Client]) -> None:
    client = log_in()
    result = tasks.note.enqueue()
    begin_run("default", result.id, "worker", -1, is_last_attempt=True)

    assert "FAILED" in client.get("/admin/foqs/taskrecord/").content.decode()
    assert "worker" in client.get(f"/admin/foqs/taskrecord/{result.id}/change/").content.decode()
    client.post(f"/admin/foqs/taskrecord/{result.id}/delete/", {"post": "yes"})
    assert query("SELECT id FROM foqs_task_result") == []


def test_a_list_reads_no_more_than_its_bound_of_a_large_table(
    log_in: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foqs_client.django.admin._ROWS_MAX", 2)
    monkeypatch.setattr("foqs_client.django.admin.TaskRecordAdmin.list_per_page", 1)
    client = log_in()
    for queue in ("default", "default", "default", "mail"):
        tasks.note.using(queue_name=queue).enqueue()
    with CaptureQueriesContext(connections["default"]) as found:
        page = client.get("/admin/foqs/taskrecord/").content.decode()
    reads = [each["sql"] for each in found if "foqs_task_result" in each["sql"]]

    assert "2 task results" in page
    assert reads and all("LIMIT" in each for each in reads)
    assert "1 task result" in client.get("/admin/foqs/taskrecord/", {"queue": "mail"}).content.decode()
    assert "0 task results" in client.get("/admin/foqs/taskrecord/", {"status": "FAILED"}).content.decode()
    assert "2 task results" in client.get("/admin/foqs/taskrecord/", {"backend": "default"}).content.decode()


def test_a_result_is_found_by_its_id(log_in: Callable[..., Client]) -> None:
    client = log_in()
    result, other = tasks.note.enqueue(), tasks.note.enqueue()
    page = client.get("/admin/foqs/taskrecord/", {"q": result.id}).content.decode()

    assert f"/{result.id}/" in page and f"/{other.id}/" not in page


def test_the_admin_shows_the_database_of_the_backends(log_in: Callable[..., Client]) -> None:
    client = log_in()
    elsewhere = {"default": {"BACKEND": BACKEND, "OPTIONS": {"database": "other", "prefix": "there."}}}
    with override_settings(TASKS=elsewhere), transaction.atomic("other"):
        tasks.note.enqueue()
        page = client.get("/admin/foqs/outboxentry/").content.decode()
        transaction.set_rollback(True, "other")

    assert "there.default" in page


def test_the_check_of_a_database_names_missing_tables(project: None) -> None:
    assert check_tables(databases=["default"]) == [] == check_tables()
    with connections["default"].cursor() as cursor:
        cursor.execute("DROP TABLE foqs_parked")
    [found] = check_tables(databases=["default"])

    assert found.id == "foqs.W001" and "lacks foqs_parked" in found.msg


def test_a_table_of_results_that_is_missing_counts_only_with_results(project: None) -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute("DROP TABLE foqs_task_result")
    assert len(check_tables(databases=["default"])) == 1
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}}):
        assert check_tables(databases=["default"]) == []


def test_the_migrations_make_what_the_models_say(project: None) -> None:
    call_command("makemigrations", "foqs", check_changes=True, dry_run=True, verbosity=3)
