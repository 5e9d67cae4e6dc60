"""One delivery of a task: runs it, records how it ended, and says what becomes of its item.

Always true: the item of a task whose run was recorded as successful is acked, and the task does not run again; an exception
of a task counts against its retries, the death of a worker or the loss of a database does not; a task that does not begin
because a database fails is charged nothing; the signals of Django are sent as its own backends do.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.db import Error, connections, transaction
from django.utils import timezone

from foqs_client.consumer import Dead, Job, NotBegun, Retry
from foqs_client.django.backend import FoqsBackend
from foqs_client.django.running_tasks import LEASE_S_MIN, RUNNING_TASKS
from foqs_client.django.task_call import TaskCall, read_call
from foqs_client.django.task_classes import (
    InvalidTaskBackend,
    Task,
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from foqs_client.django.task_databases import (
    fresh_connections,
    lost_databases,
    open_database,
    write_when_it_answers,
)
from foqs_client.django.task_records import AlreadyDone, BegunRun, begin_run
from foqs_client.django.time_limits import process_limit, run_coroutine
from foqs_client.inbox import once

LimitOfFunction = Callable[[float], AbstractContextManager[None]]

_RAISED: Final = b"raised: "
"""The metadata of an item whose task has raised: how often."""
_UNKNOWN_WORKER: Final = "unknown"
_TRACEBACK_CHARACTERS_MAX: Final = 50_000
"""Of each error of a record. A longer one loses its middle, or a database could refuse the end of the task."""

log: Final = logging.getLogger("foqs.worker")


def run_in_thread(job: Job) -> None:
    """Run the task of an item in a thread of the worker: the handler of its consumer."""
    _run_with_fresh_connections(job, _no_limit)


def run_in_own_process(job: Job) -> None:
    """Run the task of an item in a process of its own, which its time limit may end."""
    _run_with_fresh_connections(job, process_limit)


def run_task(job: Job, limit_of_function: LimitOfFunction | None = None) -> TaskResult | None:
    """Run the task of an item. Return its result; None if it was done already.

    Raises:
        Retry: it runs again.
        Dead: it has failed for good, or the item is no task.
        NotBegun: a database failed before its function was called.
        Exception: it could not be tried. The item is delivered again as after any failure.
    """
    try:
        call = read_call(job.payload)
    except ValueError as error:
        raise Dead(f"this payload is no task of Django: {error}") from error
    try:
        backend = _backend_named(call.backend)
    except (InvalidTaskBackend, TypeError) as error:
        if _is_done_without_backend(job, call, error):
            return None
        raise
    return _TaskRun(job, call, backend, limit_of_function or _no_limit).run()


def failures_of(metadata: bytes) -> int:
    """Return how often a task has raised, of its item's metadata."""
    number = metadata.removeprefix(_RAISED)
    return int(number) if metadata.startswith(_RAISED) and number.isdigit() else 0


def _backend_named(alias: str) -> FoqsBackend:
    """Return a backend of this program. Raises InvalidTaskBackend: it has none of this name. TypeError: that is another one's."""
    backend = task_backends[alias]
    if not isinstance(backend, FoqsBackend):
        raise TypeError(f"the backend {alias!r} of this program is no FoqsBackend")
    return backend


def _is_done_without_backend(job: Job, call: TaskCall, error: Exception) -> bool:
    """Record that this program lacks the backend of a task, in the database of its backends that has the result.

    Return whether the task was successful already. Raises NotBegun: a database failed.
    """
    backends = [each for each in task_backends.all() if isinstance(each, FoqsBackend) and each.supports_get_result]
    for database in sorted({each.foqs.database for each in backends}):
        try:
            open_database(database)
            record = begin_run(database, call.id, _worker_of(job), LEASE_S_MIN, is_last_attempt=_is_last(job))
            if record is not None:
                record.fail_unread([*record.errors, _task_error(error)], is_over=_is_last(job))
                return False
        except AlreadyDone:
            return True
        except Error as failure:
            raise _not_begun(failure) from failure
    return False


class _TaskRun:
    """One run of one task."""

    def __init__(self, job: Job, call: TaskCall, backend: FoqsBackend, limit_of_function: LimitOfFunction) -> None:
        self._job = job
        self._call = call
        self._backend = backend
        self._limit_of_function = limit_of_function
        self._worker = _worker_of(job)
        self._is_last_attempt = _is_last(job)
        self._lease_s = max(LEASE_S_MIN, job.lease_remaining_ms / 1_000)
        self._record: BegunRun | None = None
        self._raised: BaseException | None = None
        """What the task has raised. Another error is of the database in which its effects are."""
        self._has_begun = False
        """The function of the task was called."""

    def run(self) -> TaskResult | None:
        try:
            open_database(self._backend.foqs.database)
            if self._backend.supports_get_result:
                self._record = self._begin_record()
            if self._record is None:
                return self._run_task()
            with RUNNING_TASKS.kept(self._job, self._record, self._lease_s):
                return self._run_task()
        except AlreadyDone:
            return None
        except Error as error:
            if self._has_begun:
                raise
            self._withdraw_record()
            raise _not_begun(error) from error

    def _withdraw_record(self) -> None:
        if self._record is not None:
            with suppress(Error):  # without it, the record says RUNNING for as long as after the death of a worker
                self._record.withdraw()

    def _begin_record(self) -> BegunRun | None:
        return begin_run(
            self._backend.foqs.database,
            self._call.id,
            self._worker,
            self._lease_s,
            is_last_attempt=self._is_last_attempt,
        )

    def _run_task(self) -> TaskResult:
        try:
            task = self._call.task()
        except Error:  # while its module was imported
            raise
        except Exception as error:
            self._fail_unread(error)
            raise
        result = self._started_result(task)
        task_started.send(type(self._backend), task_result=result)
        try:
            with self._transaction():
                self._succeed(task, result)
        except BaseException as error:
            if error is not self._raised:
                raise
            self._fail(task, result, error)
        task_finished.send(type(self._backend), task_result=result)
        return result

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """With OPTIONS["atomic"], one transaction for the task, its row of the inbox and its result.

        Raises:
            AlreadyDone: an earlier one has committed.
        """
        foqs = self._backend.foqs
        if not foqs.atomic:
            yield
            return
        with transaction.atomic(using=foqs.database):
            if not once(connections[foqs.database], self._job):
                raise AlreadyDone(self._call.id)
            yield

    def _succeed(self, task: Task, result: TaskResult) -> None:
        """Run the task and record its success. Raises what the task raises, which `_raised` then is."""
        self._has_begun = True
        try:
            return_value = normalize_json(self._call_function(task, result))
            self._check_transaction()
        except BaseException as error:
            if not (isinstance(error, KeyboardInterrupt) and _may_be_from_keyboard()):
                self._raised = error
            raise
        object.__setattr__(result, "_return_value", return_value)
        self._end(result, TaskResultStatus.SUCCESSFUL, return_value)

    def _check_transaction(self) -> None:
        """Raise TransactionManagementError if Django would roll the transaction of the task back without a word."""
        foqs = self._backend.foqs
        if foqs.atomic and transaction.get_rollback(using=foqs.database):
            raise transaction.TransactionManagementError(
                "the transaction of this task is rolled back, because the task caught an error of the database, or closed "
                "the connection; put what may fail into transaction.atomic()"
            )

    def _call_function(self, task: Task, result: TaskResult) -> Any:
        args = [TaskContext(task_result=result), *result.args] if task.takes_context else result.args
        timeout_s = self._backend.foqs.limits_of(task).timeout_s
        if iscoroutinefunction(task.func):
            work = task.func(*args, **result.kwargs)
            return async_to_sync(run_coroutine)(work, timeout_s, lambda: self._job.lost)
        with nullcontext() if timeout_s is None else self._limit_of_function(timeout_s):
            return task.func(*args, **result.kwargs)

    def _started_result(self, task: Task) -> TaskResult:
        record, now = self._record, timezone.now()
        return TaskResult(
            task=task,
            id=self._call.id,
            status=TaskResultStatus.RUNNING,
            enqueued_at=self._call.enqueued_time(),
            started_at=now if record is None else record.started_at,
            finished_at=None,
            last_attempted_at=now if record is None else record.last_attempted_at,
            args=self._call.args,
            kwargs=self._call.kwargs,
            backend=self._backend.alias,
            errors=[] if record is None else list(record.errors),
            worker_ids=self._worker_ids(),
        )

    def _worker_ids(self) -> list[str]:
        """Return a name for each run. Without a record, those before this one are unknown."""
        if self._record is not None:
            return self._record.all_worker_ids()
        return [_UNKNOWN_WORKER] * (self._job.attempt - 1) + [self._worker]

    def _fail(self, task: Task, result: TaskResult, error: BaseException) -> None:
        """Record an exception of the task. Raises Retry or Dead, and the error itself if the lease was lost."""
        if self._job.lost:  # the item is delivered again whatever is raised here
            raise error
        lost = lost_databases()
        failures = failures_of(self._job.metadata) + (not lost)
        is_over = self._is_last_attempt or failures > self._backend.foqs.limits_of(task).retries
        result.errors.append(_task_error(error))
        if not is_over:
            self._end(result, TaskResultStatus.READY)
            log.warning(
                "the task %s of %s raised in attempt %d, and runs again%s",
                result.id,
                self._call.path,
                self._job.attempt,
                f"; no retry is counted, because the database {lost[0]!r} was lost" if lost else "",
                exc_info=error,
            )
            raise Retry(metadata=_RAISED + str(failures).encode()) from error
        self._end(result, TaskResultStatus.FAILED)
        task_finished.send(type(self._backend), task_result=result)
        raise Dead(f"{type(error).__name__}: {error}") from error

    def _fail_unread(self, error: Exception) -> None:
        """Record that this program has no such task. Another one may have it, so it counts against the attempts only."""
        if self._record is not None:
            self._record.fail_unread([*self._record.errors, _task_error(error)], is_over=self._is_last_attempt)

    def _end(self, result: TaskResult, status: TaskResultStatus, return_value: Any = None) -> None:
        object.__setattr__(result, "status", status)
        if status != TaskResultStatus.READY:
            object.__setattr__(result, "finished_at", timezone.now())
        if self._record is None:
            return
        foqs = self._backend.foqs
        is_committed_with_effects = status == TaskResultStatus.SUCCESSFUL and foqs.atomic
        write = partial(self._record.end, result, return_value, counts_always=is_committed_with_effects)
        if is_committed_with_effects:
            write()
        else:
            write_when_it_answers(foqs.database, write, lambda: self._job.lost)


def _worker_of(job: Job) -> str:
    """Return a name for the run of this delivery."""
    return f"{socket.gethostname()[:32]}:{os.getpid()}:{job.attempt}"


def _is_last(job: Job) -> bool:
    return 0 < job.attempts_max <= job.attempt


def _not_begun(error: Error) -> NotBegun:
    return NotBegun(f"a database failed before a task began: {type(error).__name__}: {error}")


def _may_be_from_keyboard() -> bool:
    """Return whether Ctrl-C interrupts this thread, as in a test. In a worker only a task raises KeyboardInterrupt."""
    in_main = threading.current_thread() is threading.main_thread()
    return in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def _task_error(error: BaseException) -> TaskError:
    kind, text = type(error), "".join(traceback.format_exception(error))
    if len(text) > _TRACEBACK_CHARACTERS_MAX:
        half = _TRACEBACK_CHARACTERS_MAX // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    return TaskError(exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback=text)


def _run_with_fresh_connections(job: Job, limit_of_function: LimitOfFunction) -> None:
    with fresh_connections():
        run_task(job, limit_of_function)


def _no_limit(_timeout_s: float) -> AbstractContextManager[None]:
    return nullcontext()
