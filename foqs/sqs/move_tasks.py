"""The actions about message move tasks: each task is a bulk job that moves the messages of a dead letter queue.

Always true: a task that was answered goes on whichever host dies; a queue is the source
of one running task at most; a message is moved once. Messages in flight stay.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from uuid import uuid4

from foqs.catalog.document import QueueEntry
from foqs.core.items.item import State
from foqs.core.items.row_filter import RowFilter
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs.bulk_job import (
    BulkJobCommand,
    BulkJobRecord,
    BulkJobSpec,
    BulkJobState,
)
from foqs.queue.bulk_jobs.bulk_jobs import BulkJobs
from foqs.rpc.in_host_calls import InHostCalls
from foqs.sqs import fifo
from foqs.sqs.action_request import ActionRequest, ActionTarget
from foqs.sqs.errors import SqsError, from_foqs_error, invalid_parameter, invalid_value, unsupported
from foqs.sqs.identifiers import QueueName, parse_arn
from foqs.sqs.queue_directory import QueueDirectory
from foqs.sqs.redrive_policy import sources_of
from foqs_contract.bulk_actions import MOVE
from foqs_contract.errors import FoqsError, InvalidArgument, LimitExceeded, NotFound
from foqs_contract.idl import ttypes

RATE_MAX: Final = 500
RESULTS_MAX: Final = 10
HANDLE_CHARS_MAX: Final = 1_024
_MOVED_STATES: Final = (State.READY, State.DEFERRED)
_STATUS: Final = {
    BulkJobState.RUNNING: "RUNNING",
    BulkJobState.INTERRUPTED: "RUNNING",
    BulkJobState.DONE: "COMPLETED",
    BulkJobState.FAILED: "FAILED",
    BulkJobState.CANCELLED: "CANCELLED",
}


def target_of_source(request: ActionRequest) -> ActionTarget:
    """Return the queue of SourceArn, and that of DestinationArn. Raises `SqsError`."""
    source, text = _source(request), request.parameters.text("DestinationArn")
    destination = None if text is None else _queue_of(text, "DestinationArn").name
    return ActionTarget(source.account, source.name, destination)


def target_of_task(request: ActionRequest) -> ActionTarget:
    """Return the queue and the task in a TaskHandle. Raises `SqsError`."""
    task, source = _parse_handle(request.parameters.required_text("TaskHandle"))
    return ActionTarget(source.account, source.name, task=task)


def resource_not_found(parameter: str) -> SqsError:
    """Return the error for the ARN of a queue that does not exist."""
    return SqsError(
        "ResourceNotFoundException", f"The resource that you specified for the {parameter} parameter doesn't exist."
    )


class MoveTasks:
    """Serves the actions about message move tasks.

    Args:
        timeout_s: the time for each call.
        loop_time: the clock of deadlines, in seconds.
    """

    def __init__(
        self,
        directory: QueueDirectory,
        jobs: BulkJobs,
        calls: InHostCalls,
        timeout_s: float,
        loop_time: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._jobs = jobs
        self._calls = calls
        self._timeout_s = timeout_s
        self._loop_time = loop_time

    async def start(self, request: ActionRequest) -> Mapping[str, Any]:
        source = _source(request)
        rate = request.parameters.integer_in(
            "MaxNumberOfMessagesPerSecond", 1, RATE_MAX, f"Must be an integer between 1 and {RATE_MAX}."
        )
        await self._find(source, "SourceArn")
        sources = sources_of(source.name, self._directory.queues(self._namespace_of(source)))
        if not sources:
            raise invalid_value("Source queue must be configured as a Dead Letter Queue.")
        destination = await self._destination(request, source, sources)
        spec = BulkJobSpec(
            namespace=self._namespace_of(source),
            item_filter=RowFilter(source.name, _MOVED_STATES),
            change=BulkChange(MOVE, move_to=destination),
            start_key=_start_key(request.invocation_id, source.name, destination),
            rate_per_s=rate,
            expected=await self._count(request, source),
            started_by=None if request.principal is None else request.principal.name,
            is_exclusive=True,
        )
        try:
            job = await self._jobs.start(spec, self._deadline())
        except LimitExceeded as error:
            raise _start_error(error) from None
        return {"TaskHandle": _handle(job.id, source.arn)}

    async def list_tasks(self, request: ActionRequest) -> Mapping[str, Any]:
        source = _source(request)
        limit = request.parameters.integer_in(
            "MaxResults", 1, RESULTS_MAX, f"Value must be between 1 and {RESULTS_MAX}, if provided."
        )
        await self._find(source, "SourceArn")
        jobs = await self._tasks_of(source)
        return {"Results": [_task(job, source) for job in jobs[: limit or 1]]}

    async def cancel(self, request: ActionRequest) -> Mapping[str, Any]:
        job_id, source = _parse_handle(request.parameters.required_text("TaskHandle"))
        await self._find(source, "SourceArn")
        found = [job for job in await self._tasks_of(source) if job.id == job_id]
        if not found:
            raise SqsError("ResourceNotFoundException", "Task does not exist.")
        try:
            job = await self._jobs.control(self._namespace_of(source), job_id, BulkJobCommand.CANCEL, self._deadline())
        except NotFound:
            raise SqsError("ResourceNotFoundException", "Task does not exist.") from None
        except InvalidArgument:
            raise invalid_value("Only active tasks can be cancelled.") from None
        return {"ApproximateNumberOfMessagesMoved": job.counts.changed}

    async def cancel_into(self, queue: QueueName) -> None:
        """Cancel the tasks that move messages to a queue, because it is deleted. Raises `FoqsError`."""
        namespace = self._namespace_of(queue)
        for job in await self._jobs.list_jobs(namespace, self._deadline()):
            change = job.spec.change
            if job.state.is_live and change.action == MOVE and change.move_to == queue.name:
                with suppress(NotFound, InvalidArgument):  # it has ended meanwhile
                    await self._jobs.control(namespace, job.id, BulkJobCommand.CANCEL, self._deadline())

    # ---------------------------------------------------------------------- inside

    async def _tasks_of(self, source: QueueName) -> list[BulkJobRecord]:
        """Return the jobs that move the messages of a queue, the newest first."""
        return [
            job
            for job in await self._jobs.list_jobs(self._namespace_of(source), self._deadline())
            if job.spec.change.action == MOVE and job.spec.item_filter.topic_names == (source.name,)
        ]

    async def _destination(self, request: ActionRequest, source: QueueName, sources: list[str]) -> str:
        """Return the name of the queue that the messages go to. Raises `SqsError`."""
        text = request.parameters.text("DestinationArn")
        if text is None:
            if len(sources) > 1:
                raise unsupported(
                    f"{len(sources)} queues use {source.name} for dead letters; name one of them, or another queue, as "
                    "DestinationArn."
                )
            destination = QueueName(source.account, sources[0])
            text = destination.arn
        else:
            destination = _queue_of(text, "DestinationArn")
        entry = await self._find(destination, "DestinationArn")
        if self._namespace_of(destination) != self._namespace_of(source):
            raise invalid_parameter(text, "DestinationArn", "It must be of the account and region of the source queue.")
        if destination.is_fifo != source.is_fifo:
            raise invalid_parameter(text, "DestinationArn", "It must be the same type of queue as the source queue.")
        own = await self._find(source, "SourceArn")
        if entry.keys_in_topic != own.keys_in_topic:
            scope = fifo.scope_of(own)
            reason = f"It must have the DeduplicationScope {scope} of the source queue; name a queue that was created with it."
            raise invalid_parameter(text, "DestinationArn", reason)
        if destination.name == source.name:
            raise invalid_parameter(text, "DestinationArn", "Source and destination must be different queues.")
        return destination.name

    async def _find(self, queue: QueueName, parameter: str) -> QueueEntry:
        try:
            return await self._directory.find(queue)
        except SqsError:
            raise resource_not_found(parameter) from None

    async def _count(self, request: ActionRequest, source: QueueName) -> int | None:
        """Return how many messages there are to move; None if that is not known now."""
        counting = ttypes.CountItemsRequest(
            namespace_name=self._namespace_of(source).encode(),
            filter=ttypes.ItemFilter(topic=source.name.encode(), states=[int(state) for state in _MOVED_STATES]),
        )
        try:
            reply = await self._calls.call("countItems", counting, self._timeout_s, request.principal)
        except FoqsError:
            return None
        return int(reply.items or 0)

    def _namespace_of(self, queue: QueueName) -> str:
        return self._directory.namespace_of(queue.account)

    def _deadline(self) -> float:
        return self._loop_time() + self._timeout_s


def _task(job: BulkJobRecord, source: QueueName) -> dict[str, Any]:
    """Return an entry of ListMessageMoveTasks."""
    spec = job.spec
    status = _STATUS[job.state]
    if job.state is BulkJobState.CANCELLED and job.owner is not None:
        status = "CANCELLING"
    task: dict[str, Any] = {
        "Status": status,
        "SourceArn": source.arn,
        "DestinationArn": QueueName(source.account, spec.change.move_to or "").arn,
        "ApproximateNumberOfMessagesMoved": job.counts.changed,
        "StartedTimestamp": job.started_at_ms,
    }
    if spec.expected is not None:
        task["ApproximateNumberOfMessagesToMove"] = spec.expected
    if spec.rate_per_s is not None:
        task["MaxNumberOfMessagesPerSecond"] = spec.rate_per_s
    if job.state is BulkJobState.FAILED:
        task["FailureReason"] = job.problem or "unknown"
    if status == "RUNNING":
        task["TaskHandle"] = _handle(job.id, source.arn)
    return task


def _start_key(invocation_id: str | None, source: str, destination: str) -> str:
    """Return the key of a start: equal for all attempts of one call of an SDK."""
    text = f"{invocation_id or uuid4()}|{source}|{destination}"
    return "sqs-" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _start_error(error: LimitExceeded) -> SqsError:
    if error.field == "is_exclusive":
        return invalid_value(
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
        )
    return from_foqs_error(error)


def _source(request: ActionRequest) -> QueueName:
    return _queue_of(request.parameters.required_text("SourceArn"), "SourceArn")


def _queue_of(arn: str, parameter: str) -> QueueName:
    queue = parse_arn(arn)
    if queue is None:
        raise invalid_parameter(arn[:300], parameter, "It is not the ARN of a queue.")
    return queue


def _handle(job_id: str, source_arn: str) -> str:
    """Return the TaskHandle of a job, in the form that SQS' handles have."""
    return base64.b64encode(json.dumps({"taskId": job_id, "sourceArn": source_arn}).encode()).decode()


def _parse_handle(text: str) -> tuple[str, QueueName]:
    """Return the job and the source of a TaskHandle. Raises `SqsError`."""
    try:
        fields = json.loads(base64.b64decode(text[:HANDLE_CHARS_MAX].encode("ascii"), validate=True))
        job_id, source = fields["taskId"], parse_arn(fields["sourceArn"])
    except (ValueError, binascii.Error, TypeError, KeyError, AttributeError, RecursionError):
        job_id = source = None
    if not isinstance(job_id, str) or source is None:
        raise invalid_value("Value for parameter TaskHandle is invalid.")
    return job_id, source
