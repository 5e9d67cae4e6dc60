"""A task with a number of retries and a time limit of its own."""

from __future__ import annotations

from dataclasses import dataclass

from foqs_client.django.task_classes import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class FoqsTask(Task):
    """A task of `FoqsBackend`, as `@task(retries=3, timeout_s=30)` makes it.

    Attributes:
        retries: how often it runs again after an exception. None: as the options of its queue, or of the backend, say.
        timeout_s: how long a run may take. None: as the options say.
    """

    retries: int | None = None
    timeout_s: float | None = None
