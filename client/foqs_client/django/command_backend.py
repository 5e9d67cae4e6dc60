"""What the commands of `manage.py` share: the backend that they work for, and a start without a database."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import Error

from foqs_client.django.backend import FoqsBackend
from foqs_client.django.task_classes import InvalidTaskBackend, task_backends


class LastingCommand(BaseCommand):
    """A command that runs until a signal, and starts although a database is away."""

    def check(self, *args: Any, **options: Any) -> None:
        """Make the system checks. From Django 6.1 on, those of models ask a database of MySQL."""
        try:
            super().check(*args, **options)
        except Error as error:
            self.stderr.write(f"The system checks were left out, because a database does not answer: {error}")


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
