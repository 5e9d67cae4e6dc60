"""The backend: a task becomes a row of the outbox, in the transaction of the caller.

Holds `FoqsBackend`. Always true: the row and the record of its result are written in one transaction of one database; what
is wrong with a task is said before anything is written. Knows nothing of workers and relays.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.db import connections, transaction
from django.utils import timezone

from foqs_client.consumer import prefix_pattern
from foqs_client.django.backend_options import BackendOptions, check_limit, read_options
from foqs_client.django.foqs_task import FoqsTask
from foqs_client.django.task_call import TaskCall, call_of, check_arguments
from foqs_client.django.task_classes import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from foqs_client.django.task_records import add_record, read_result
from foqs_client.errors import InvalidArgument
from foqs_client.outbox.enqueueing import insert_rows
from foqs_client.outbox.new_rows import check_name, new_rows
from foqs_client.outbox.outbox_errors import NotInTransaction
from foqs_client.outbox.outbox_sql import DEFAULT_PREFIX, Dialect, dialect_named
from foqs_client.types import Item

_APPLICATION: Final = "foqs_client.django"


class FoqsBackend(BaseTaskBackend):
    """A backend of Django's tasks on FOQS.

    A task is enqueued if the open transaction of `OPTIONS["database"]` commits. Without an open one it is written alone.

    Attributes:
        foqs: its OPTIONS.

    Raises:
        InvalidTaskBackend: one of the OPTIONS is unknown or wrong.
    """

    task_class = FoqsTask
    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.foqs: BackendOptions = read_options(alias, self.options)
        self.supports_get_result = self.foqs.results

    def validate_task(self, task: Task) -> None:
        """Raise InvalidTask for a task that this backend cannot run."""
        super().validate_task(task)
        for name in ("retries", "timeout_s"):
            fault = check_limit(name, getattr(task, name, None))
            if fault is not None:
                raise InvalidTask(f"{name} of {task.name} {fault}")
        has_limit = self.foqs.limits_of(task).timeout_s is not None
        if has_limit and not self.foqs.processes and not iscoroutinefunction(task.func):
            raise InvalidTask(
                f"{task.name} has a time limit and would run in a thread, which nothing can end; set OPTIONS['processes'] of "
                f"the backend {self.alias!r}, or make it an async function"
            )

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Write a task into the outbox.

        Raises:
            InvalidTask: the backend cannot run it.
            TypeError, ValueError: an argument is no JSON, or a key in it is no text.
            InvalidArgument, LimitExceeded: the item would be refused, for example for its length.
            NotInTransaction: only another database has an open transaction.
        """
        self.validate_task(task)
        check_arguments(args, kwargs)
        result = self._new_result(task, args, kwargs)
        call = call_of(result)
        rows = new_rows([self._item(task, call)], None, self.foqs.payload_bytes_max, [result.id])
        self._require_shared_fate()
        database = self.foqs.database
        with transaction.atomic(using=database, savepoint=False):
            insert_rows(connections[database], rows, DEFAULT_PREFIX, notify=self.foqs.notify)
            if self.supports_get_result:
                add_record(database, call)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult:
        """Return what is recorded of a task. Raises TaskResultDoesNotExist; NotImplementedError without OPTIONS["results"]."""
        if not self.supports_get_result:
            return super().get_result(result_id)
        return read_result(self.foqs.database, result_id)

    def topic_of(self, queue: str) -> str:
        """Return the topic of a queue."""
        return f"{self.foqs.prefix}{queue}"

    def topics(self, queues: Sequence[str] = ()) -> list[str]:
        """Return the topics and patterns of some queues, or of all."""
        if queues or self.queues:
            return [self.topic_of(queue) for queue in queues or sorted(self.queues)]
        return [prefix_pattern(self.foqs.prefix)]

    def check(self, **_options: Any) -> Iterable[checks.CheckMessage]:
        """Say what is wrong with the settings."""
        place = f"TASKS[{self.alias!r}]"
        if not apps.is_installed(_APPLICATION):
            yield checks.Error(
                f"{place} needs the application {_APPLICATION}.",
                hint=f"Add {_APPLICATION!r} to INSTALLED_APPS.",
                id="foqs.E001",
            )
        yield from self._check_database(place)
        yield from self._check_shared_outbox(place)
        for queue in sorted(self.queues):
            try:
                check_name(self.topic_of(queue), "topic")
            except InvalidArgument as error:
                yield checks.Error(
                    f"{place}: the queue {queue!r} is no topic: {error.message}.", hint="Rename it.", id="foqs.E004"
                )

    def _check_database(self, place: str) -> Iterable[checks.CheckMessage]:
        database = self.foqs.database
        if database not in connections.settings:
            yield checks.Error(
                f"{place}: there is no database {database!r}.",
                hint="Set OPTIONS['database'] to an alias of DATABASES.",
                id="foqs.E002",
            )
            return
        try:
            dialect_named(connections[database].vendor)
        except InvalidArgument:
            yield checks.Error(
                f"{place}: the database {database!r} has no outbox.",
                hint=f"Use one of {', '.join(each.value for each in Dialect)}.",
                id="foqs.E003",
            )
        if not connections.settings[database]["AUTOCOMMIT"]:
            yield checks.Error(
                f"{place}: the database {database!r} has AUTOCOMMIT False, so no result would be committed.",
                hint="Leave AUTOCOMMIT True, and use transaction.atomic().",
                id="foqs.E006",
            )

    def _check_shared_outbox(self, place: str) -> Iterable[checks.CheckMessage]:
        """A relay sends all rows of a database to one namespace."""
        for other in task_backends.all():
            if not isinstance(other, FoqsBackend) or other.alias >= self.alias:
                continue
            if other.foqs.database == self.foqs.database and other.foqs.namespace != self.foqs.namespace:
                yield checks.Error(
                    f"{place} and TASKS[{other.alias!r}] have one database, {self.foqs.database!r}, and two namespaces. The "
                    "relay of a database sends all of its rows to one namespace.",
                    hint="Give them the same 'url' and 'client', or each its own 'database'.",
                    id="foqs.E007",
                )

    def _new_result(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        return TaskResult(
            task=task,
            id=uuid.uuid4().hex,
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _item(self, task: Task, call: TaskCall) -> Item:
        run_after = task.run_after
        return Item(
            self.topic_of(task.queue_name),
            call.payload(),
            priority=-int(task.priority),
            deliver_after_ms=None if run_after is None else math.ceil(run_after.timestamp() * 1_000),
            lease_ms=self.foqs.lease_ms,
            attempts_max=self.foqs.attempts_max + self.foqs.limits_of(task).retries,
        )

    def _require_shared_fate(self) -> None:
        """Raise NotInTransaction if the task would be written for good, and the caller's data not yet."""
        own = connections[self.foqs.database]
        if not own.get_autocommit():
            return
        for other in connections.all(initialized_only=True):
            if other.alias != own.alias and other.in_atomic_block:
                raise NotInTransaction(
                    f"a transaction is open in the database {other.alias!r}, and tasks are written into {own.alias!r}; open "
                    f"one there too, as with transaction.atomic(using={own.alias!r}), or enqueue after the other one ends"
                )
