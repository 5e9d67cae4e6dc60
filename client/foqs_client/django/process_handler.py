"""The handler of a worker's processes, each of which imports it: the import sets Django up."""

from __future__ import annotations

import django

django.setup()

from foqs_client.consumer import Job  # noqa: E402
from foqs_client.django.task_runs import run_in_own_process  # noqa: E402


def run_delivery(job: Job) -> None:
    """Run the task of an item. See `task_runs`."""
    run_in_own_process(job)
