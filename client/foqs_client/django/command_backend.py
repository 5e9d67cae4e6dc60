"""The backend that a command of `manage.py` works for."""

from __future__ import annotations

from argparse import ArgumentParser

from django.core.management.base import CommandError

from foqs_client.django.backend import FoqsBackend
from foqs_client.django.task_classes import InvalidTaskBackend, task_backends


def add_backend_argument(parser: ArgumentParser) -> None:
    """Give a command the option that names a backend."""
    parser.add_argument("--backend", default="default", help="The alias in TASKS. default: default")


def named_backend(alias: str) -> FoqsBackend:
    """Return a backend. Raises CommandError: there is none of this name, or it is another one's."""
    try:
        found = task_backends[alias]
    except InvalidTaskBackend as error:
        raise CommandError(str(error)) from None
    if not isinstance(found, FoqsBackend):
        raise CommandError(f"TASKS[{alias!r}] is no FoqsBackend; name one with --backend")
    return found
