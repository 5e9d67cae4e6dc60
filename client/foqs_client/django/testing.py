"""Tasks in tests: runs what the outbox holds, in this thread and in the open transaction.

result = send.enqueue("Ada")
run_tasks()
result.refresh()
"""

from __future__ import annotations

import time
from typing import Any, Final

from foqs_client.consumer import Dead, Job, Retry
from foqs_client.django.models import OutboxEntry
from foqs_client.django.task_classes import task_backends
from foqs_client.django.task_runs import run_task
from foqs_client.types import Delivery

_LEASE_MS: Final = 60_000
_INCARNATION: Final = 1


def run_tasks(backend: str = "default", *, runs_max: int = 1_000) -> int:
    """Run the tasks that are in the outbox, by priority, with those that they enqueue. Return how many runs there were.

    A task that raises runs again as often as its retries say. Its exception is in its result and in the log, and is not
    raised here. A task whose `run_after` lies in the future stays. The time limits of plain functions do not count.

    Args:
        backend: the alias in TASKS.
        runs_max: the most runs.

    Raises:
        AssertionError: tasks are left after the most runs, for example because one enqueues itself.
        ImportError: the program has no such task.
    """
    foqs = task_backends[backend].foqs
    rows = OutboxEntry.objects.using(foqs.database).filter(topic__startswith=foqs.prefix).order_by("priority", "id")
    runs = 0
    while (row := next((row for row in rows.all() if _is_due(row)), None)) is not None:
        row.delete()
        metadata: bytes | None = b""
        attempt = 0
        while metadata is not None:
            if runs >= runs_max:
                raise AssertionError(f"the tasks did not end within {runs_max} runs")
            runs, attempt = runs + 1, attempt + 1
            metadata = _run(row, attempt, metadata)
    return runs


def _run(row: Any, attempt: int, metadata: bytes) -> bytes | None:
    """Run a task once. Return its metadata if it runs again."""
    delivery = Delivery(
        id=row.event_id,
        topic=row.topic,
        payload=bytes(row.payload),
        token=attempt,
        attempt=attempt,
        attempts_max=row.attempts_max,
        lease_remaining_ms=_LEASE_MS,
        metadata=metadata,
        priority=row.priority,
        incarnation=_INCARNATION,
    )
    try:
        run_task(Job(delivery, lambda _job, _lease_ms: None))
    except Retry as retry:
        return retry.metadata or b""
    except Dead:
        return None
    return None


def _is_due(row: Any) -> bool:
    return row.deliver_after_ms is None or row.deliver_after_ms <= time.time() * 1_000
