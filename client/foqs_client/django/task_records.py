"""The records of tasks in Django's database, from which results are read.

Always true: a run that begins adds its worker to the record, and a later change of this run applies only while its worker
is the last one; so a run whose lease was lost changes nothing after another one has begun. No transaction is open between
the read and the write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from foqs_client.django.task_call import TaskCall, read_call
from foqs_client.django.task_classes import TaskError, TaskResult, TaskResultDoesNotExist, TaskResultStatus

_PRUNED_AT_ONCE: Final = 500


class WorkerDied(Exception):
    """The error of a result whose last worker ended, or lost its lease, before the task did."""


class RowDropped(Exception):
    """The error of a result whose row in the outbox an operator has dropped, so that the task does not run."""


class AlreadyDone(Exception):
    """The task was successful, and its item was delivered again because an ack was lost."""


@dataclass(slots=True, frozen=True)
class BegunRun:
    """A run of a task as its record has it.

    Attributes:
        worker_ids: the JSON of all runs so far; this one is the last.
    """

    database: str
    id: str
    worker_ids: str
    started_at: datetime
    last_attempted_at: datetime
    errors: Sequence[TaskError]

    def all_worker_ids(self) -> list[str]:
        """Return the worker of each run so far."""
        found: list[str] = json.loads(self.worker_ids)
        return found

    def extend(self, lease_s: float) -> None:
        """Record that the worker lives."""
        self._update(lease_ends_at=timezone.now() + timedelta(seconds=lease_s))

    def end(self, result: TaskResult, return_value: Any = None, *, counts_always: bool = False) -> None:
        """Record how the run has ended, as the result says it.

        Args:
            counts_always: its effects are committed with the record, so it counts although another run has begun.
        """
        self._update(
            counts_always=counts_always,
            status=result.status.value,
            finished_at=result.finished_at,
            lease_ends_at=None,
            errors=_errors_json(result.errors),
            return_value=json.dumps(return_value),
        )

    def withdraw(self) -> None:
        """Record that the run did not begin."""
        earlier = json.dumps(self.all_worker_ids()[:-1])
        self._update(status=TaskResultStatus.READY.value, lease_ends_at=None, worker_ids=earlier)

    def fail_unread(self, errors: Sequence[TaskError], *, is_over: bool) -> None:
        """Record the errors of a run whose task, or its backend, this program does not have."""
        self._update(
            status=(TaskResultStatus.FAILED if is_over else TaskResultStatus.READY).value,
            finished_at=timezone.now() if is_over else None,
            lease_ends_at=None,
            errors=_errors_json(errors),
        )

    def _update(self, *, counts_always: bool = False, **values: Any) -> None:
        records = _records(self.database).filter(pk=self.id)
        if not counts_always:
            records = records.filter(worker_ids=self.worker_ids, status=TaskResultStatus.RUNNING.value)
        records.update(**values)


def add_record(database: str, call: TaskCall) -> None:
    """Record a new task, in the open transaction."""
    _records(database).create(
        id=call.id,
        backend=call.backend,
        path=call.path,
        queue=call.queue,
        call=call.payload().decode(),
        status=TaskResultStatus.READY.value,
        enqueued_at=call.enqueued_time(),
    )


def begin_run(database: str, id: str, worker: str, lease_s: float, *, is_last_attempt: bool) -> BegunRun | None:
    """Record that a worker begins a task. Return None if there is no record of it.

    Raises:
        AlreadyDone: an earlier run was successful.
    """
    while True:
        record = _records(database).filter(pk=id).first()
        if record is None:
            return None
        if record.status == TaskResultStatus.SUCCESSFUL.value:
            raise AlreadyDone(id)
        now = timezone.now()
        worker_ids = json.dumps([*json.loads(record.worker_ids), worker])
        started_at = record.started_at or now
        if (
            _records(database)
            .filter(pk=id, worker_ids=record.worker_ids)
            .update(
                status=TaskResultStatus.RUNNING.value,
                started_at=started_at,
                last_attempted_at=now,
                finished_at=None,
                lease_ends_at=now + timedelta(seconds=lease_s),
                is_last_attempt=is_last_attempt,
                worker_ids=worker_ids,
            )
        ):
            return BegunRun(database, id, worker_ids, started_at, now, _errors(record.errors))


def record_drop(database: str, id: str) -> None:
    """Record that a task was dropped before the relay enqueued it, if it has a record."""
    error = TaskError(
        exception_class_path=f"{RowDropped.__module__}.{RowDropped.__qualname__}",
        traceback="The row of the task was parked, and an operator has dropped it.\n",
    )
    _records(database).filter(pk=id, status=TaskResultStatus.READY.value).update(
        status=TaskResultStatus.FAILED.value, finished_at=timezone.now(), errors=_errors_json([error])
    )


def read_result(database: str, id: str) -> TaskResult:
    """Return what is known of a task.

    Raises:
        TaskResultDoesNotExist: nothing is.
    """
    record = _records(database).filter(pk=id).first()
    if record is None:
        raise TaskResultDoesNotExist(f"there is no result {id!r} in the database {database!r}")
    call = read_call(record.call)
    status, errors, finished_at = record.status_at(timezone.now()), _errors(record.errors), record.finished_at
    if status == TaskResultStatus.FAILED and finished_at is None:  # with its last worker
        errors.append(_worker_died(record))
        finished_at = record.lease_ends_at
    result = TaskResult(
        task=call.task(),
        id=id,
        status=status,
        enqueued_at=record.enqueued_at,
        started_at=record.started_at,
        finished_at=finished_at,
        last_attempted_at=record.last_attempted_at,
        args=call.args,
        kwargs=call.kwargs,
        backend=record.backend,
        errors=errors,
        worker_ids=json.loads(record.worker_ids),
    )
    object.__setattr__(result, "_return_value", json.loads(record.return_value))
    return result


def prune_results(database: str, before: datetime) -> int:
    """Delete the records of tasks that have ended before this moment, by parts. Return how many."""
    records = _records(database)
    with_last_worker = {"status": TaskResultStatus.RUNNING.value, "is_last_attempt": True, "lease_ends_at__lt": before}
    old = (
        records.filter(finished_at__lt=before).order_by("finished_at"),
        records.filter(enqueued_at__lt=before, **with_last_worker).order_by("enqueued_at"),
    )
    deleted = 0
    for each in old:
        while ids := list(each.values_list("pk", flat=True)[:_PRUNED_AT_ONCE]):
            records.filter(pk__in=ids).delete()
            deleted += len(ids)
    return deleted


def _records(database: str) -> Any:
    from foqs_client.django.models import TaskRecord  # the applications must be loaded before it

    return TaskRecord.objects.using(database)


def _errors(text: str) -> list[TaskError]:
    return [TaskError(exception_class_path=path, traceback=traceback) for path, traceback in json.loads(text)]


def _errors_json(errors: Sequence[TaskError]) -> str:
    return json.dumps([[error.exception_class_path, error.traceback] for error in errors])


def _worker_died(record: Any) -> TaskError:
    worker = json.loads(record.worker_ids)[-1]
    return TaskError(
        exception_class_path=f"{WorkerDied.__module__}.{WorkerDied.__qualname__}",
        traceback=f"The worker {worker} ended before the task did, in the last of its attempts.\n",
    )
