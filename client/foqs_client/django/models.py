"""The tables of an outbox and of results, as Django sees them.

Always true: the migration creates the tables of the outbox with the SQL of `outbox_sql`, so the models of them are not
managed; the admin and checks read them, and nothing writes through them. Results are written by `task_records` only.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Final

from django.db import models

from foqs_client.django.task_classes import TaskResultStatus
from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX

NAME_LENGTH_MAX: Final = 255


class _Row(models.Model):
    """What a row of the outbox has and a parked row keeps."""

    id = models.BigAutoField(primary_key=True)
    event_id = models.CharField("result id", max_length=32)
    topic = models.TextField()
    row_group = models.TextField(null=True)
    payload = models.BinaryField()
    priority = models.BigIntegerField()
    deliver_after_ms = models.BigIntegerField(null=True)
    attempts_max = models.BigIntegerField(null=True)
    created_ms = models.BigIntegerField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"row {self.pk} of {self.topic}"


class OutboxEntry(_Row):
    """A row that the relay has not enqueued yet."""

    class Meta:
        managed = False
        db_table = f"{DEFAULT_PREFIX}outbox"
        verbose_name = "outbox row"
        ordering: ClassVar = ["id"]


class ParkedEntry(_Row):
    """A row that an operator decides."""

    reason = models.TextField()
    may_be_queued = models.BigIntegerField()
    verdict = models.TextField(null=True)

    class Meta:
        managed = False
        db_table = f"{DEFAULT_PREFIX}parked"
        verbose_name = "parked row"
        ordering: ClassVar = ["id"]


class TaskRecord(models.Model):
    """What is known of a task.

    Attributes:
        call: the task and its arguments, as the payload of its item has them.
        lease_ends_at: while it runs: the moment from which its worker counts as dead.
        is_last_attempt: while it runs: the item is not delivered again if this worker dies.
        worker_ids, errors, return_value: JSON. Text and not a JSON column: Postgres' has no NUL character.
    """

    id = models.CharField(primary_key=True, max_length=32)
    backend = models.CharField(max_length=NAME_LENGTH_MAX)
    path = models.CharField("task", max_length=NAME_LENGTH_MAX)
    queue = models.CharField(max_length=NAME_LENGTH_MAX)
    call = models.TextField()
    status = models.CharField(max_length=16)
    enqueued_at = models.DateTimeField(db_index=True)
    started_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True, db_index=True)
    lease_ends_at = models.DateTimeField(null=True)
    is_last_attempt = models.BooleanField(default=False)
    worker_ids = models.TextField(default="[]")
    errors = models.TextField(default="[]")
    return_value = models.TextField(default="null")

    class Meta:
        db_table = f"{DEFAULT_PREFIX}task_result"
        verbose_name = "task result"
        ordering: ClassVar = ["-enqueued_at"]

    def __str__(self) -> str:
        return f"{self.path} {self.pk}"

    def status_at(self, now: datetime) -> TaskResultStatus:
        """Return the status. A task whose worker is silent waits for another one, or has failed in its last attempt."""
        status = TaskResultStatus(self.status)
        if status != TaskResultStatus.RUNNING or self.lease_ends_at > now:
            return status
        return TaskResultStatus.FAILED if self.is_last_attempt else TaskResultStatus.READY
