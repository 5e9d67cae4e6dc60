"""What a job shall do survives the way into a request of `bulk` and back; wrong requests are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import State
from foqs.core.items.row_filter import ALL_STATES, RowFilter
from foqs.queue.bulk_change import BulkChange
from foqs.queue.bulk_jobs.bulk_job import (
    BulkJobCommand,
    BulkJobCounts,
    BulkJobOwner,
    BulkJobSpec,
    BulkJobState,
)
from foqs.rpc.bulk_job_structs import bulk_request, job_struct, parse_control, parse_start
from foqs.rpc.bulk_structs import parse_bulk
from foqs_contract.bulk_actions import BULK_ACTIONS, COUNT
from foqs_contract.errors import FoqsError, InvalidArgument
from foqs_contract.idl import ttypes
from tests.support.builders import NAMESPACE
from tests.support.bulk_job_world import job_of, spec_of

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
PRIORITIES = st.integers(-(2**31), 2**31 - 1)
AGES = st.integers(0, 10**12)


@st.composite
def filters_(draw: st.DrawFn) -> RowFilter:
    low, high = sorted((draw(PRIORITIES), draw(PRIORITIES)))
    youngest, oldest = sorted((draw(AGES), draw(AGES)))
    states = draw(st.lists(st.sampled_from(State), min_size=1, unique=True))
    found = RowFilter(
        states=draw(st.just(ALL_STATES) | st.just(tuple(sorted(states)))),
        priority_min=low,
        priority_max=high,
        age_min_ms=youngest,
        age_max_ms=oldest,
        group=draw(st.none() | NAMES.map(str.encode)),
    )
    if draw(st.booleans()):
        return replace(found, topics=tuple(sorted(draw(st.sets(NAMES, min_size=1, max_size=3)))))
    return replace(found, topic=draw(NAMES))


@st.composite
def specs(draw: st.DrawFn) -> BulkJobSpec:
    action = draw(st.sampled_from(list(BULK_ACTIONS.values())))
    only = draw(filters_())
    change = BulkChange(action)
    if action.takes == "change":
        change = BulkChange(
            action, draw(PRIORITIES), draw(st.none() | AGES), None, draw(st.none() | st.binary(max_size=9))
        )
    if action.in_one_topic:
        only = replace(only, topic="from", topics=None)
        change = BulkChange(action, move_to=draw(NAMES.filter(lambda name: name != "from")))
    if action.of_dead_items:
        only = replace(only, states=(State.DEAD,))
    return spec_of(item_filter=only, change=change)


def test_each_number_of_the_contract_has_a_row() -> None:
    numbers = {row.name.upper(): row.number for row in BULK_ACTIONS.values() if row.number is not None}
    assert numbers == {action.name: action for action in ttypes.BulkAction}


@given(specs())
def test_page_of_a_job_asks_for_what_the_job_shall_do(spec: BulkJobSpec) -> None:
    request = bulk_request(spec, "cursor", 7, 5_000)
    change, only = parse_bulk(request.filter, request, NAMESPACE)
    start = ttypes.StartBulkJobRequest(
        namespace_name=request.namespace_name,
        filter=request.filter,
        start_key=b"key",
        **{name: getattr(request, name) for name in spec.change.action.fields()},
    )
    assert parse_start(start, spec.namespace, NAMESPACE, None) == spec
    assert only == spec.item_filter
    assert change == spec.change
    assert request.page is not None
    assert (request.page.limit, request.page.cursor, request.timeout_ms) == (7, b"cursor", 5_000)


@given(specs().filter(lambda spec: spec.change.action != COUNT))
def test_count_keeps_the_change_that_it_is_made_for(meant: BulkJobSpec) -> None:
    spec = replace(meant, change=BulkChange(COUNT), counts_for=meant.change)
    shown = job_struct(job_of(1, **{name: getattr(spec, name) for name in BulkJobSpec.__dataclass_fields__}))
    assert shown.count_only
    assert shown.start_key == spec.start_key
    start = ttypes.StartBulkJobRequest(
        namespace_name=b"default",
        filter=shown.filter,
        start_key=b"key",
        counts_for=shown.counts_for,
        **{name: getattr(shown, name) for name in spec.change.action.fields()},
    )
    assert parse_start(start, spec.namespace, NAMESPACE, None) == spec
    request = bulk_request(spec, None, 7, 5_000)
    assert parse_bulk(request.filter, request, NAMESPACE) == (spec.change, spec.item_filter)
    start.count_only = start.counts_for = None
    with pytest.raises(InvalidArgument) as refused:
        parse_start(start, spec.namespace, NAMESPACE, None)
    assert refused.value.field == "action", "a host that knows no counts finds no change to make"


def good() -> Any:
    return ttypes.StartBulkJobRequest(b"default", ttypes.ItemFilter(b"t"), 3, start_key=b"k")


def test_start_has_rate_count_key_and_principal() -> None:
    request = good()
    request.rate_per_s, request.expected, request.exclusive = 5, 9, True
    spec = parse_start(request, "default", NAMESPACE, "ops")
    assert (spec.rate_per_s, spec.expected, spec.is_exclusive, spec.started_by) == (5, 9, True, "ops")
    assert spec.start_key == "k"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("start_key", None),
        ("start_key", b""),
        ("start_key", b"x" * 65),
        ("start_key", b"\xff"),
        ("rate_per_s", 0),
        ("rate_per_s", 10**9),
        ("expected", -1),
        ("filter", None),
        ("action", None),
    ],
)
def test_wrong_start_is_refused_with_the_field(field: str, value: object) -> None:
    request = good()
    setattr(request, field, value)
    with pytest.raises(FoqsError) as refused:
        parse_start(request, "default", NAMESPACE, None)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"counts_for": ttypes.BulkChange(9)}, "counts_for.action"),
        ({"counts_for": ttypes.BulkChange()}, "counts_for.action"),
        ({"counts_for": ttypes.BulkChange(2, ttypes.Change(delay_ms=-1))}, "counts_for.change.delay_ms"),
        ({"counts_for": ttypes.BulkChange(move_to=b"t")}, "counts_for.move_to"),
        ({"filter": ttypes.ItemFilter(), "counts_for": ttypes.BulkChange(move_to=b"u")}, "filter.topic"),
        ({"action": 1}, "action"),
        ({"move_to": b"u"}, "move_to"),
        ({"count_only": None, "action": 1, "counts_for": ttypes.BulkChange(1)}, "counts_for"),
    ],
)
def test_count_for_what_is_no_change_is_refused_with_the_field(changes: dict[str, Any], field: str) -> None:
    request = good()
    request.action, request.count_only = None, True
    for name, value in changes.items():
        setattr(request, name, value)
    with pytest.raises(InvalidArgument) as refused:
        parse_start(request, "default", NAMESPACE, None)
    assert refused.value.field == field


@pytest.mark.parametrize("field", ["action", "change", "move_to"])
def test_page_of_a_count_changes_nothing(field: str) -> None:
    request = ttypes.BulkRequest(b"default", ttypes.ItemFilter(b"t"), count_only=True)
    assert parse_bulk(request.filter, request, NAMESPACE)[0] == BulkChange(COUNT)
    setattr(request, field, {"action": 1, "change": ttypes.Change(1), "move_to": b"u"}[field])
    with pytest.raises(InvalidArgument) as refused:
        parse_bulk(request.filter, request, NAMESPACE)
    assert refused.value.field == field


def test_commands_are_parsed_and_wrong_ones_refused() -> None:
    commands = [parse_control(ttypes.ControlBulkJobRequest(b"n", b"0" * 16, number))[1] for number in (1, 2, 3)]
    assert commands == [BulkJobCommand.INTERRUPT, BulkJobCommand.RESUME, BulkJobCommand.CANCEL]
    for job_id, command, field in (
        (b"0" * 16, None, "command"),
        (b"x", 1, "id"),
        (None, 1, "id"),
        (b"0" * 17, 1, "id"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            parse_control(ttypes.ControlBulkJobRequest(b"n", job_id, command))
        assert refused.value.field == field


def test_job_is_shown_with_its_counts_owner_and_state() -> None:
    job = job_of(
        1,
        state=BulkJobState.FAILED,
        counts=BulkJobCounts(5, 4, 1, at_least=True),
        owner=BulkJobOwner("host1", "n"),
        problem="why",
        started_by="ops",
        ended_at_ms=9,
    )
    shown = job_struct(job)
    assert (shown.id, shown.state, shown.owner, shown.problem) == (job.id, ttypes.BulkJobState.FAILED, "host1", "why")
    assert (shown.seen, shown.changed, shown.failed, shown.at_least) == (5, 4, 1, True)
    assert (shown.started_by, shown.started_at_ms, shown.ended_at_ms) == ("ops", 1, 9)
