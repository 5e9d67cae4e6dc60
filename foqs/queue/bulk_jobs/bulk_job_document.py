"""The document of the jobs, as JSON.

Always true: equal jobs have equal texts; parsing a rendered text returns equal jobs. A
job that cannot be read whole, because a newer version wrote it, is kept as it is and
never worked on: to leave out an unknown condition of its filter would change too many
items. Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, ValidationError

from foqs.core.items.item import PRIORITY_MAX, PRIORITY_MIN, TIME_MS_MAX, State
from foqs.core.items.row_filter import ALL_STATES, RowFilter
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs.bulk_job import (
    BulkJobCounts,
    BulkJobOwner,
    BulkJobRecord,
    BulkJobRecords,
    BulkJobSpec,
    BulkJobState,
    is_job_id,
)
from foqs_contract.bulk_actions import BULK_ACTIONS, BulkActionRow
from shardmgr.strict_json import Form, build, build_with_unknown, parse_document

FORMAT: Final = 1
DOCUMENT_NAME: Final = "jobs"
"""The name of the document in the registry, and of the file without its ending."""
SPEC_BYTES_MAX: Final = 4_096

_STATES: Final = {state.name.lower(): state for state in State}


# ----------------------------------------------------------------- rendering


def render_jobs(jobs: BulkJobRecords) -> bytes:
    """Return the document of the jobs as JSON. `parse_jobs` reads it."""
    by_id = {job_id: _job_to_json(job) for job_id, job in jobs.by_id.items()}
    return _to_json({"format": FORMAT, "jobs": {**by_id, **jobs.unread}, **jobs.unknown})


def spec_bytes(spec: BulkJobSpec) -> int:
    """Return the length of a spec as JSON, in bytes."""
    return len(_to_json(_spec_to_json(spec)))


def _job_to_json(job: BulkJobRecord) -> dict[str, Any]:
    counts, owner = job.counts, job.owner
    return _without_none(
        **_spec_to_json(job.spec),
        tier=job.tier,
        incarnation=job.incarnation,
        started_at_ms=job.started_at_ms,
        changed_at_ms=job.changed_at_ms,
        ended_at_ms=job.ended_at_ms,
        state=job.state.value,
        cursor=job.cursor,
        counts=_without_none(
            seen=counts.seen,
            changed=counts.changed,
            failed=counts.failed,
            at_least=counts.at_least or None,
            **counts.unknown,
        ),
        refusal=job.refusal,
        problem=job.problem,
        owner=None if owner is None else {"name": owner.name, "nonce": owner.nonce, **owner.unknown},
        run=job.run,
        **job.unknown,
    )


def _spec_to_json(spec: BulkJobSpec) -> dict[str, Any]:
    return _without_none(
        namespace=spec.namespace,
        filter=_filter_to_json(spec.item_filter),
        change=_change_to_json(spec.change),
        counts_for=None if spec.counts_for is None else _change_to_json(spec.counts_for),
        start_key=spec.start_key,
        rate_per_s=spec.rate_per_s,
        expected=spec.expected,
        started_by=spec.started_by,
        is_exclusive=spec.is_exclusive or None,
    )


def _change_to_json(change: BulkChange) -> dict[str, Any]:
    return _without_none(
        action=change.action.name,
        priority=change.priority,
        delay_ms=change.delay_ms,
        deliver_after_ms=change.deliver_after_ms,
        metadata=None if change.metadata is None else base64.b64encode(change.metadata).decode(),
        move_to=change.move_to,
    )


def _filter_to_json(item_filter: RowFilter) -> dict[str, Any]:
    """Return the conditions that the filter has. Its `at_ms` is in the cursor."""
    plain = RowFilter()
    return _without_none(
        topic=item_filter.topic,
        topics=None if item_filter.topics is None else list(item_filter.topics),
        group=None if item_filter.group is None else item_filter.group.decode(),
        states=None
        if item_filter.states == ALL_STATES
        else [state.name.lower() for state in sorted(item_filter.states)],
        **{
            name: getattr(item_filter, name)
            for name in ("priority_min", "priority_max", "age_min_ms", "age_max_ms")
            if getattr(item_filter, name) != getattr(plain, name)
        },
    )


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _to_json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


# ------------------------------------------------------------------- parsing


def _check_id(text: str) -> str:
    if not is_job_id(text):
        raise ValueError("this must be 16 hexadecimal digits")
    return text


def _parse_state(raw: Any) -> State:
    if not isinstance(raw, str) or raw not in _STATES:
        raise ValueError(f"this must be one of {', '.join(_STATES)}")
    return _STATES[raw]


def _parse_action(raw: Any) -> BulkActionRow:
    if not isinstance(raw, str) or raw not in BULK_ACTIONS:
        raise ValueError(f"this must be one of {', '.join(BULK_ACTIONS)}")
    return BULK_ACTIONS[raw]


def _parse_group(raw: Any) -> bytes:
    if not isinstance(raw, str) or not raw:
        raise ValueError("this must be a name")
    return raw.encode()


def _parse_bytes(raw: Any) -> bytes:
    try:
        return base64.b64decode(raw, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ValueError("this must be base64") from None


_Time = Annotated[int, Field(ge=0, le=TIME_MS_MAX)]
_Count = Annotated[int, Field(ge=0)]
_Priority = Annotated[int, Field(ge=PRIORITY_MIN, le=PRIORITY_MAX)]


class _KnownForm(Form):
    """An object in which an unknown field would change the meaning of the others."""

    model_config = ConfigDict(extra="forbid")


class _FilterForm(_KnownForm):
    topic: str | None = None
    topics: Annotated[list[str], AfterValidator(tuple)] | None = None
    group: Annotated[bytes, PlainValidator(_parse_group)] | None = None
    states: Annotated[list[Annotated[State, PlainValidator(_parse_state)]], AfterValidator(tuple)] | None = None
    priority_min: _Priority = PRIORITY_MIN
    priority_max: _Priority = PRIORITY_MAX
    age_min_ms: _Time = 0
    age_max_ms: _Time = TIME_MS_MAX


class _ChangeForm(_KnownForm):
    action: Annotated[BulkActionRow, PlainValidator(_parse_action)]
    priority: _Priority | None = None
    delay_ms: _Time | None = None
    deliver_after_ms: _Time | None = None
    metadata: Annotated[bytes, PlainValidator(_parse_bytes)] | None = None
    move_to: str | None = None


class _CountsForm(Form):
    seen: _Count
    changed: _Count
    failed: _Count
    at_least: bool = False


class _OwnerForm(Form):
    name: str
    nonce: str


class _BulkJobForm(Form):
    namespace: str
    filter: _FilterForm
    change: Annotated[_ChangeForm, build(BulkChange)]
    counts_for: Annotated[_ChangeForm, build(BulkChange)] | None = None
    start_key: str
    rate_per_s: Annotated[int, Field(ge=1)] | None = None
    expected: _Count | None = None
    started_by: str | None = None
    is_exclusive: bool = False
    tier: str
    incarnation: _Count
    started_at_ms: _Time
    changed_at_ms: _Time
    ended_at_ms: _Time | None = None
    state: Annotated[BulkJobState, Field(strict=False)]
    cursor: str | None = None
    counts: Annotated[_CountsForm, build_with_unknown(BulkJobCounts)]
    refusal: str | None = None
    problem: str | None = None
    owner: Annotated[_OwnerForm, build_with_unknown(BulkJobOwner)] | None = None
    run: _Count


class _BulkJobsForm(Form):
    jobs: dict[Annotated[str, AfterValidator(_check_id)], Any] = Field(default_factory=dict)


_SPEC_FIELDS: Final = (
    "namespace",
    "change",
    "counts_for",
    "start_key",
    "rate_per_s",
    "expected",
    "started_by",
    "is_exclusive",
)


def parse_jobs(text: bytes) -> BulkJobRecords:
    """Parse the document.

    Raises:
        MalformedDocument: the text is no document of jobs; the error names the place.
    """
    form = parse_document(_BulkJobsForm, text, FORMAT)
    by_id: dict[str, BulkJobRecord] = {}
    unread: dict[str, Any] = {}
    for job_id, raw in form.jobs.items():
        try:
            by_id[job_id] = _build_job(job_id, _BulkJobForm.model_validate(raw))
        except ValidationError:
            unread[job_id] = raw
    return BulkJobRecords(by_id, unread, form.unknown)


def _build_job(job_id: str, form: _BulkJobForm) -> BulkJobRecord:
    fields = dict(vars(form))
    raw_filter: _FilterForm = fields.pop("filter")
    conditions = {name: value for name, value in vars(raw_filter).items() if value is not None}
    spec = BulkJobSpec(item_filter=RowFilter(**conditions), **{name: fields.pop(name) for name in _SPEC_FIELDS})
    return BulkJobRecord(id=job_id, spec=spec, unknown=form.unknown, **fields)
