"""A Django project, whose changes a test leaves nothing of."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import django_project  # first: it configures Django


@pytest.fixture
def project() -> Iterator[None]:
    """The tables, within transactions that are rolled back."""
    from django.db import connections, transaction

    from tests.support import django_sample_tasks

    django_project.created_tables()
    django_sample_tasks.calls.clear()
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
    connections.close_all()


@pytest.fixture
def committing_project() -> Iterator[None]:
    """The tables, without an open transaction. What a test commits is deleted."""
    from django.db import connections

    from foqs_client.django.models import OutboxEntry, TaskRecord

    django_project.created_tables()
    yield
    for database in ("default", "other"):
        for model in (OutboxEntry, TaskRecord):
            model.objects.using(database).all().delete()
        django_project.query("DELETE FROM foqs_inbox", database)
    connections.close_all()
