"""A Django project in this process, over files of SQLite, with tasks on FOQS.

Its import configures Django, once for a process. `created_tables` makes the tables when a test needs them.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.urls import path

_FOLDER: Final = Path(tempfile.mkdtemp(prefix="foqs-django-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)

QUEUES: Final = ["default", "mail", "slow"]
BACKEND: Final = "foqs_client.django.FoqsBackend"
_TASKS: Final[dict[str, Any]] = {
    "default": {
        "BACKEND": BACKEND,
        "QUEUES": QUEUES,
        "OPTIONS": {"results": True, "queues": {"mail": {"retries": 2}, "slow": {"timeout_s": 60}}, "processes": 2},
    },
    "atomic": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"prefix": "atomic.", "results": True, "atomic": True}},
    "plain": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"prefix": "plain.", "attempts_max": 3}},
}


def _database(name: str) -> dict[str, Any]:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(_FOLDER / f"{name}.db")}


settings.configure(
    SECRET_KEY="of a test",
    DATABASES={"default": _database("default"), "other": _database("other")},
    INSTALLED_APPS=[
        "django.contrib.admin",
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.messages",
        "django.contrib.sessions",
        *(["django_tasks"] if django.VERSION < (6,) else []),
        "foqs_client.django",
    ],
    LOGGING_CONFIG=None,
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
    ],
    ROOT_URLCONF=__name__,
    TASKS=_TASKS,
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {
                "context_processors": [
                    "django.template.context_processors.request",
                    "django.contrib.auth.context_processors.auth",
                    "django.contrib.messages.context_processors.messages",
                ]
            },
        }
    ],
    TIME_ZONE="UTC",
    USE_TZ=True,
    ALLOWED_HOSTS=["testserver"],
)
django.setup()

from django.contrib import admin  # noqa: E402 - its import needs the settings

urlpatterns: Final = [path("admin/", admin.site.urls)]


@cache
def created_tables() -> None:
    """Create the tables of both databases, once for a process."""
    call_command("migrate", verbosity=0)
    call_command("migrate", "foqs", database="other", verbosity=0)


@contextmanager
def databases_away() -> Iterator[Callable[[], None]]:
    """Take the files of both databases away until the end of the block, or until the function that it gives is called."""
    elsewhere = _FOLDER.with_suffix(".away")

    def bring_back() -> None:
        if elsewhere.exists():
            elsewhere.rename(_FOLDER)

    connections.close_all()
    _FOLDER.rename(elsewhere)
    try:
        yield bring_back
    finally:
        bring_back()


def query(statement: str, database: str = "default") -> list[tuple[Any, ...]]:
    """Return what a statement reads."""
    with connections[database].cursor() as cursor:
        cursor.execute(statement)
        return [tuple(row) for row in cursor.fetchall()]
