"""The check that the tables of the backends are in their databases. It runs with `manage.py check --database`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core import checks
from django.db import connections
from django.db.utils import Error

from foqs_client.django.backend import FoqsBackend
from foqs_client.django.models import TaskRecord
from foqs_client.django.task_classes import task_backends
from foqs_client.outbox.outbox_sql import table_names


def check_tables(
    app_configs: Any = None, databases: Sequence[str] | None = None, **_options: Any
) -> list[checks.CheckMessage]:
    """Warn of missing tables: `manage.py migrate`, which creates them, makes this check first."""
    backends = [backend for backend in task_backends.all() if isinstance(backend, FoqsBackend)]
    found: list[checks.CheckMessage] = []
    for database in sorted({backend.foqs.database for backend in backends} & set(databases or ())):
        has_results = any(each.supports_get_result for each in backends if each.foqs.database == database)
        found += _missing_tables(database, has_results)
    return found


def _missing_tables(database: str, has_results: bool) -> list[checks.CheckMessage]:
    wanted = {*table_names(), *([TaskRecord._meta.db_table] if has_results else [])}
    try:
        with connections[database].cursor() as cursor:
            missing = wanted - set(connections[database].introspection.table_names(cursor))
    except Error as error:
        return [checks.Error(f"The database {database!r} of tasks cannot be read: {error}", id="foqs.E005")]
    if not missing:
        return []
    return [
        checks.Warning(
            f"The database {database!r} of tasks lacks {', '.join(sorted(missing))}.",
            hint=f"Run: manage.py migrate foqs --database {database}",
            id="foqs.W001",
        )
    ]
