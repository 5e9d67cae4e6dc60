"""`manage.py foqs_prune_results`: deletes results of tasks that have ended long ago."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import timedelta
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from foqs_client.django.command_backend import add_backend_argument, named_backend
from foqs_client.django.task_records import prune_results

_DAYS: Final = 30
_DAYS_MIN: Final = 1
"""A task whose ack was lost would run again without its result; it is delivered again long before."""


class Command(BaseCommand):
    """Deletes old results of a backend's database."""

    help = (
        "Delete the results of tasks that have succeeded or failed for good. Run it daily. The result of a task that has not "
        "ended stays."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add_backend_argument(parser)
        parser.add_argument(
            "--days",
            type=float,
            default=_DAYS,
            help=f"Days that results are kept, at least {_DAYS_MIN}. default: {_DAYS}",
        )

    def handle(self, *, backend: str, days: float, **_options: Any) -> None:
        """Delete results by parts. Raises CommandError."""
        found = named_backend(backend)
        try:
            before = timezone.now() - timedelta(days=days)
        except (OverflowError, ValueError):
            raise CommandError(f"--days is {days}; give a number of days.") from None
        if days < _DAYS_MIN:
            raise CommandError(f"--days is {days:g}; give {_DAYS_MIN} or more.")
        self.stdout.write(f"{prune_results(found.foqs.database, before)} results deleted")
