"""The jobs as JSON: what is written is read back, and what a newer version wrote is kept and not worked on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import State
from foqs.core.items.row_filter import ALL_STATES, RowFilter
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs.bulk_job import (
    REASON_CHARS_MAX,
    BulkJobCounts,
    BulkJobOwner,
    BulkJobRecord,
    BulkJobRecords,
    BulkJobState,
)
from foqs.queue.bulk_jobs.bulk_job_document import SPEC_BYTES_MAX, parse_jobs, render_jobs, spec_bytes
from foqs.queue.bulk_jobs.bulk_job_transitions import ENDED_MAX, LIVE_MAX
from foqs_contract.bulk_actions import BULK_ACTIONS
from shardmgr.model import MalformedDocument
from shardmgr.registry.port import DOCUMENT_BYTES_MAX
from tests.support.bulk_job_world import job_of

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
FILTERS = st.builds(
    RowFilter,
    topic=st.none() | NAMES,
    states=st.just(ALL_STATES)
    | st.lists(st.sampled_from(State), min_size=1, unique=True).map(lambda found: tuple(sorted(found))),
    priority_min=st.integers(-(2**31), 2**31 - 1),
    age_max_ms=st.integers(0, 10**9),
    topics=st.none() | st.lists(NAMES, min_size=1, max_size=3).map(tuple),
)
CHANGES = st.builds(
    BulkChange,
    action=st.sampled_from(list(BULK_ACTIONS.values())),
    priority=st.none() | st.integers(-(2**31), 2**31 - 1),
    delay_ms=st.none() | st.integers(0, 10**9),
    metadata=st.none() | st.binary(max_size=50),
    move_to=st.none() | NAMES,
)
COUNTS = st.builds(
    BulkJobCounts, st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**40), at_least=st.booleans()
)


@st.composite
def jobs(draw: st.DrawFn, number: int = 1) -> BulkJobRecord:
    return job_of(
        number,
        item_filter=draw(FILTERS),
        change=draw(CHANGES),
        counts_for=draw(st.none() | CHANGES),
        rate_per_s=draw(st.none() | st.integers(1, 10**6)),
        expected=draw(st.none() | st.integers(0, 10**12)),
        started_by=draw(st.none() | NAMES),
        is_exclusive=draw(st.booleans()),
        state=draw(st.sampled_from(BulkJobState)),
        cursor=draw(st.none() | NAMES),
        counts=draw(COUNTS),
        refusal=draw(st.none() | NAMES),
        problem=draw(st.none() | NAMES),
        owner=draw(st.none() | st.builds(BulkJobOwner, NAMES, NAMES)),
        run=draw(st.integers(0, 1_000)),
        ended_at_ms=draw(st.none() | st.integers(0, 10**13)),
    )


@given(jobs(1), jobs(2))
def test_written_jobs_are_read_back(first: BulkJobRecord, second: BulkJobRecord) -> None:
    before = BulkJobRecords({job.id: job for job in (second, first)})
    after = parse_jobs(render_jobs(before))
    assert after == before
    assert list(after.by_id) == list(before.by_id)
    assert render_jobs(after) == render_jobs(before)


def raw(job: BulkJobRecord) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(render_jobs(BulkJobRecords({job.id: job})))
    return document


@pytest.mark.parametrize("place", ["filter", "change"])
def test_job_with_an_unknown_condition_or_change_is_kept_and_not_read(place: str) -> None:
    document = raw(job_of(1))
    document["jobs"][job_of(1).id][place]["new"] = 1
    found = parse_jobs(json.dumps(document).encode())
    assert found.by_id == {}
    assert json.loads(render_jobs(found)) == document


@pytest.mark.parametrize(
    ("field", "value"), [("state", "sleeping"), ("run", -1), ("run", "1"), ("rate_per_s", 0), ("tier", None)]
)
def test_job_with_an_unreadable_field_is_kept_and_not_read(field: str, value: object) -> None:
    document = raw(job_of(1))
    document["jobs"][job_of(1).id][field] = value
    found = parse_jobs(json.dumps(document).encode())
    assert found.by_id == {}
    assert json.loads(render_jobs(found)) == document


def test_unknown_fields_beside_are_kept_with_the_job() -> None:
    document = raw(job_of(1))
    document["jobs"][job_of(1).id]["colour"] = "red"
    document["more"] = [1]
    found = parse_jobs(json.dumps(document).encode())
    assert found.by_id[job_of(1).id].unknown == {"colour": "red"}
    assert json.loads(render_jobs(found)) == document


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"format": 2, "jobs": {}}', b'{"format": 1, "jobs": {"1": {}}}', b"\xff"]
)
def test_text_that_is_no_document_of_jobs_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedDocument):
        parse_jobs(text)


def test_as_many_and_as_long_jobs_as_there_may_be_fit_into_one_document() -> None:
    longest = "\x01" * 255  # six bytes for each character as JSON
    job = job_of(1, namespace=longest, started_by=longest, start_key="k" * 64)
    topics: list[str] = []
    while spec_bytes(replace(job.spec, item_filter=RowFilter(topics=(*topics, "t" * 100)))) <= SPEC_BYTES_MAX:
        topics.append("t" * 100)
    reason = "\x01" * REASON_CHARS_MAX
    job = replace(
        job,
        spec=replace(job.spec, item_filter=RowFilter(topics=tuple(topics))),
        tier=longest,
        cursor=f"{10**14}:{2**31}:4:{2**31}:{10**14}:{2**63}:{longest}",
        counts=BulkJobCounts(2**50, 2**50, 2**50, at_least=True),
        refusal=reason,
        problem=reason,
        owner=BulkJobOwner("h" * 255, "n" * 64),
        run=2**31,
        ended_at_ms=10**14,
    )
    every = {f"{number:016x}": replace(job, id=f"{number:016x}") for number in range(LIVE_MAX + ENDED_MAX)}
    assert len(render_jobs(BulkJobRecords(every))) <= DOCUMENT_BYTES_MAX
