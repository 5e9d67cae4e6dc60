"""Converts bulk jobs to Thrift structs, and requests to the specifications of jobs.

Always true: a job's filter and change survive the way there and back. Knows nothing of
calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from foqs.core.items import validation
from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX
from foqs.core.items.row_filter import ALL_STATES, RowFilter
from foqs.options.options import NamespaceOptions
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs.bulk_job import (
    JOB_ID_CHARS,
    BulkJobCommand,
    BulkJobRecord,
    BulkJobSpec,
    BulkJobState,
    is_job_id,
)
from foqs.rpc import request_structs
from foqs.rpc.bulk_structs import change_fields, parse_bulk
from foqs_contract.errors import FoqsError, InvalidArgument
from foqs_contract.idl import ttypes

START_KEY_BYTES_MAX: Final = 64
RATE_MAX: Final = 1_000_000
_COUNT_MAX: Final = (1 << 63) - 1

_STATES: Final = {
    BulkJobState.RUNNING: ttypes.BulkJobState.RUNNING,
    BulkJobState.INTERRUPTED: ttypes.BulkJobState.INTERRUPTED,
    BulkJobState.DONE: ttypes.BulkJobState.DONE,
    BulkJobState.FAILED: ttypes.BulkJobState.FAILED,
    BulkJobState.CANCELLED: ttypes.BulkJobState.CANCELLED,
}
_COMMANDS: Final[Mapping[int | None, BulkJobCommand]] = {
    ttypes.BulkJobCommand.INTERRUPT: BulkJobCommand.INTERRUPT,
    ttypes.BulkJobCommand.RESUME: BulkJobCommand.RESUME,
    ttypes.BulkJobCommand.CANCEL: BulkJobCommand.CANCEL,
}


# ----------------------------------------------------------------- to structs


def bulk_request(spec: BulkJobSpec, cursor: str | None, limit: int, timeout_ms: int) -> ttypes.BulkRequest:
    """Return the request for a page of a job."""
    return ttypes.BulkRequest(
        namespace_name=spec.namespace.encode(),
        page=ttypes.Page(limit, None if cursor is None else cursor.encode()),
        timeout_ms=timeout_ms,
        filter=_filter_struct(spec.item_filter),
        **change_fields(spec.change),
    )


def job_struct(job: BulkJobRecord) -> ttypes.BulkJob:
    """Return a job as replies have it."""
    spec, counts = job.spec, job.counts
    return ttypes.BulkJob(
        id=job.id,
        namespace_name=spec.namespace,
        filter=_filter_struct(spec.item_filter),
        **change_fields(spec.change),
        counts_for=None if spec.counts_for is None else ttypes.BulkChange(**change_fields(spec.counts_for)),
        start_key=spec.start_key,
        rate_per_s=spec.rate_per_s,
        expected=spec.expected,
        state=_STATES[job.state],
        seen=counts.seen,
        changed=counts.changed,
        failed=counts.failed,
        at_least=counts.at_least or None,
        refusal=job.refusal,
        problem=job.problem,
        started_by=spec.started_by,
        owner=None if job.owner is None else job.owner.name,
        started_at_ms=job.started_at_ms,
        changed_at_ms=job.changed_at_ms,
        ended_at_ms=job.ended_at_ms,
    )


def _filter_struct(only: RowFilter) -> ttypes.ItemFilter:
    """Return a filter with the conditions that it has; texts are bytes, as in a decoded request."""
    return ttypes.ItemFilter(
        topic=None if only.topic is None else only.topic.encode(),
        states=None if only.states == ALL_STATES else [int(state) for state in only.states],
        priority_min=None if only.priority_min == PRIORITY_MIN else only.priority_min,
        priority_max=None if only.priority_max == PRIORITY_MAX else only.priority_max,
        age_min_ms=only.age_min_ms or None,
        age_max_ms=None if only.age_max_ms == TIME_MS_MAX else only.age_max_ms,
        topics=None if only.topics is None else [name.encode() for name in only.topics],
        group=only.group,
    )


# ------------------------------------------------------------------- parsing


def parse_start(
    request: ttypes.StartBulkJobRequest, namespace: str, settings: NamespaceOptions, started_by: str | None
) -> BulkJobSpec:
    """Parse a `StartBulkJobRequest`. Raises FoqsError."""
    change, counts_for, item_filter = _parse_work(request, settings)
    rate = request.rate_per_s
    expected = request.expected
    return BulkJobSpec(
        namespace=namespace,
        item_filter=item_filter,
        change=change,
        counts_for=counts_for,
        start_key=_parse_text(request.start_key, START_KEY_BYTES_MAX, "start_key", "give a random text"),
        rate_per_s=None if rate is None else validation.check_number(rate, 1, RATE_MAX, "rate_per_s"),
        expected=None if expected is None else validation.check_number(expected, 0, _COUNT_MAX, "expected"),
        started_by=started_by,
        is_exclusive=bool(request.exclusive),
    )


def _parse_work(
    request: ttypes.StartBulkJobRequest, settings: NamespaceOptions
) -> tuple[BulkChange, BulkChange | None, RowFilter]:
    """Return the change of a job, the change for which it counts (None if for none), and the filter. Raises FoqsError."""
    change, item_filter = parse_bulk(request.filter, request, settings)
    meant = request.counts_for
    if meant is None:
        return change, None, item_filter
    if change.action.changes_items:
        raise InvalidArgument("only the action COUNT takes this; leave it out", field="counts_for")
    return change, *_parse_counted_change(request.filter, meant, settings)


def _parse_counted_change(
    raw_filter: ttypes.ItemFilter | None, meant: ttypes.BulkChange, settings: NamespaceOptions
) -> tuple[BulkChange, RowFilter]:
    """Return the change for which a job counts, and the filter of its items. Raises FoqsError."""
    try:
        return parse_bulk(raw_filter, meant, settings)
    except FoqsError as error:
        if error.field and not error.field.startswith("filter"):
            raise request_structs.with_path("counts_for", error) from None
        raise


def parse_control(request: ttypes.ControlBulkJobRequest) -> tuple[str, BulkJobCommand]:
    """Parse (id of the job, command) of a `ControlBulkJobRequest`. Raises FoqsError."""
    command = _COMMANDS.get(request.command)
    if command is None:
        raise InvalidArgument("this is not a command; give INTERRUPT, RESUME or CANCEL", field="command")
    return parse_job_id(request.id), command


_JOB_ID_REMEDY: Final = "give the id that startBulkJob or listBulkJobs returned"


def parse_job_id(raw: bytes | None) -> str:
    """Parse the id of a job. Raises FoqsError."""
    if not is_job_id(job_id := _parse_text(raw, JOB_ID_CHARS, "id", _JOB_ID_REMEDY)):
        raise InvalidArgument(f"this is not the id of a bulk job; {_JOB_ID_REMEDY}", field="id")
    return job_id


def _parse_text(raw: bytes | None, bytes_max: int, field: str, remedy: str) -> str:
    if not raw:
        raise InvalidArgument(f"this is missing; {remedy}", field=field)
    return validation.decode_text(raw, bytes_max, field)
