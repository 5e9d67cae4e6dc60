"""The settings of the suite."""

from __future__ import annotations

import os

import django

SECRET_KEY = "of a test"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SUITE_FOLDER"] + "/suite.db",
        "TEST": {"NAME": os.environ["SUITE_FOLDER"] + "/test.db"},
    }
}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "foqs_client.django",
    "django_tasks_db",
]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default", "queue-1"]}}
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TEMPLATES: list[object] = []
MIDDLEWARE: list[str] = []
SILENCED_SYSTEM_CHECKS = ["admin.E403", "admin.E408", "admin.E409", "admin.E410"]
