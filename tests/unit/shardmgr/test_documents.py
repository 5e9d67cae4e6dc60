"""Tests of the layout, the plan and members as JSON: they survive a round trip, and errors name the place."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardmgr.documents import (
    DATABASE_BYTES_MAX,
    parse_layout,
    parse_member,
    parse_plan,
    render_layout,
    render_member,
    render_plan,
)
from shardmgr.model import (
    EPOCH_MAX,
    SHARD_MAX,
    TERM_MAX,
    WEIGHT_MAX,
    Assignment,
    HeldShard,
    Layout,
    MalformedDocument,
    Member,
    Plan,
    ShardSpec,
)
from shardmgr.ownership import OwnershipState
from shardmgr.plan import next_plan
from shardmgr.registry.port import DOCUMENT_BYTES_MAX

MIB = 1 << 20

printable = st.characters(exclude_categories=["C", "Z"], include_characters=" ")
names = st.text(printable, min_size=1, max_size=12)
nonces = st.text("abcXYZ019_.-", min_size=1, max_size=64)
numbers = st.integers(0, SHARD_MAX)
epochs = st.integers(0, EPOCH_MAX)
sizes = st.integers(1, WEIGHT_MAX)
members = st.builds(
    Member,
    names,
    nonces,
    names,
    names,
    st.just("") | names,
    sizes,
    st.floats(0, 1e12),
    st.booleans(),
    st.dictionaries(numbers, st.builds(HeldShard, epochs, st.sampled_from([state.value for state in OwnershipState]))),
    st.dictionaries(numbers, epochs),
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shards = {
        number: ShardSpec(number, draw(names), draw(names), draw(sizes), draw(st.just("") | names), draw(st.booleans()))
        for number in draw(st.sets(numbers, max_size=5))
    }
    return Layout(shards, draw(st.frozensets(names, max_size=3)), draw(st.dictionaries(numbers, names, max_size=3)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    issued = draw(st.dictionaries(numbers, epochs, max_size=6))
    assignments = {
        number: Assignment(
            draw(names),
            draw(nonces),
            draw(st.integers(1, epoch)),
            draw(st.just("") | names),
            draw(st.booleans()),
            draw(st.integers(0, TERM_MAX)),
        )
        for number, epoch in issued.items()
        if epoch and draw(st.booleans())
    }
    return Plan(assignments, issued)


@given(layouts())
def test_layout_survives_rendering_and_parsing(layout: Layout) -> None:
    assert parse_layout(render_layout(layout)) == layout


@given(plans())
def test_plan_survives_rendering_and_parsing(plan: Plan) -> None:
    assert parse_plan(render_plan(plan)) == plan


@given(members)
def test_member_survives_rendering_and_parsing(member: Member) -> None:
    assert parse_member(member.nonce, render_member(member)) == member


def test_a_text_that_is_read_again_is_not_parsed_again() -> None:
    plan, layout = Plan({}, {1: 1}), Layout({1: ShardSpec(1, "main")})
    member = Member("alpha", "n1", "alpha:1")
    assert parse_plan(render_plan(plan)) is parse_plan(render_plan(plan))
    assert parse_layout(render_layout(layout)) is parse_layout(render_layout(layout))
    assert parse_member("n1", render_member(member)) is parse_member("n1", render_member(member))


def test_equal_plans_have_equal_texts() -> None:
    one, two = Assignment("a", "n1", 1, "main"), Assignment("b", "n2", 2, "main")
    first, second = Plan({1: one, 2: two}, {1: 1, 2: 2}), Plan({2: two, 1: one}, {2: 2, 1: 1})
    assert render_plan(first) == render_plan(second)


def test_plan_of_a_thousand_shards_is_far_smaller_than_the_registry_limit() -> None:
    shards = range(1_000)
    usual = Plan(
        {shard: Assignment(f"foqs-host-{shard % 50}.example.net", "f" * 32, 100_000, "main-1") for shard in shards},
        dict.fromkeys(shards, 100_000),
    )
    assert len(render_plan(usual)) < MIB / 6
    numbers = range(SHARD_MAX - 999, SHARD_MAX + 1)
    longest = Plan(
        {
            number: Assignment('"' * 255, "n" * 64, EPOCH_MAX, '"' * DATABASE_BYTES_MAX, leaving=True, term=TERM_MAX)
            for number in numbers
        },
        dict.fromkeys(numbers, EPOCH_MAX),
    )
    assert len(render_plan(longest)) < DOCUMENT_BYTES_MAX * 95 / 100


LAYOUT = {"format": 1, "shards": {"1": {"database": "a"}}, "drained": [], "pins": {}}
PLAN = {
    "format": 1,
    "assignments": {"1": {"name": "a", "nonce": "n", "epoch": 3}},
    "epochs": {"1": 3},
}
MEMBER = {
    "format": 1,
    "name": "a",
    "nonce": "n",
    "address": "a:1",
    "holdings": {"1": {"epoch": 1, "state": "owned"}},
    "wants": {"1": 1},
}


def read(whole: dict[str, Any]) -> None:
    text = json.dumps(whole).encode()
    if "shards" in whole:
        parse_layout(text)
    elif "assignments" in whole:
        parse_plan(text)
    else:
        parse_member("n", text)


@pytest.mark.parametrize("whole", [LAYOUT, PLAN, MEMBER])
def test_base_texts_of_the_malformed_ones_are_valid(whole: dict[str, Any]) -> None:
    read(whole)


@pytest.mark.parametrize(
    ("whole", "place", "value", "where"),
    [
        (LAYOUT, "format", 2, "format"),
        (LAYOUT, "format", True, "format"),
        (LAYOUT, "shards", [], "shards"),
        (LAYOUT, "shards", None, "shards"),
        (LAYOUT, "shards.01", {"database": "a"}, "shards.01"),
        (LAYOUT, "shards.-1", {"database": "a"}, "shards.-1"),
        (LAYOUT, f"shards.{SHARD_MAX + 1}", {"database": "a"}, f"shards.{SHARD_MAX + 1}"),
        (LAYOUT, "shards.1", {}, "shards.1.database"),
        (LAYOUT, "shards.1.database", "", "shards.1.database"),
        (LAYOUT, "shards.1.database", "a\n", "shards.1.database"),
        (LAYOUT, "shards.1.database", "a" * (DATABASE_BYTES_MAX + 1), "shards.1.database"),
        (LAYOUT, "shards.1.database", "\ud800", "shards.1.database"),
        (LAYOUT, "shards.1.weight", 0, "shards.1.weight"),
        (LAYOUT, "shards.1.weight", 1.0, "shards.1.weight"),
        (LAYOUT, "shards.1.weight", WEIGHT_MAX + 1, "shards.1.weight"),
        (LAYOUT, "shards.1.draining", 1, "shards.1.draining"),
        (LAYOUT, "drained", {}, "drained"),
        (LAYOUT, "drained", ["a", ""], "drained[1]"),
        (LAYOUT, "drained", ["a", "a"], "drained"),
        (LAYOUT, "pins.1", 7, "pins.1"),
        (PLAN, "assignments.1.epoch", 0, "assignments.1.epoch"),
        (PLAN, "assignments.1.epoch", 4, "epochs.1"),
        (PLAN, "assignments.1.epoch", True, "assignments.1.epoch"),
        (PLAN, "assignments.1.nonce", "a/b", "assignments.1.nonce"),
        (PLAN, "assignments.1.database", "a" * (DATABASE_BYTES_MAX + 1), "assignments.1.database"),
        (PLAN, "assignments.1.leaving", None, "assignments.1.leaving"),
        (PLAN, "epochs.1", EPOCH_MAX + 1, "epochs.1"),
        (PLAN, "epochs", {}, "epochs.1"),
        (MEMBER, "nonce", "m", "nonce"),
        (MEMBER, "address", "", "address"),
        (MEMBER, "capacity", 0, "capacity"),
        (MEMBER, "load", -1, "load"),
        (MEMBER, "load", "1", "load"),
        (MEMBER, "load", True, "load"),
        (MEMBER, "load", float("nan"), ""),
        (MEMBER, "leaving", "yes", "leaving"),
        (MEMBER, "holdings.1.state", "happy", "holdings.1.state"),
        (MEMBER, "holdings.1.epoch", -1, "holdings.1.epoch"),
        (MEMBER, "wants.1", EPOCH_MAX + 1, "wants.1"),
    ],
)
def test_malformed_field_is_refused_with_its_place(whole: dict[str, Any], place: str, value: Any, where: str) -> None:
    changed = json.loads(json.dumps(whole))
    *path, last = place.split(".")
    part = changed
    for step in path:
        part = part[step]
    part[last] = value
    with pytest.raises(MalformedDocument) as refused:
        read(changed)
    assert refused.value.path == where
    assert refused.value.problem


def test_layout_keeps_the_fields_of_a_newer_version() -> None:
    newer = {"format": 1, "shards": {"1": {"database": "a", "zone": ["x"]}}, "drained": [], "pins": {}, "zones": {}}
    layout = parse_layout(json.dumps(newer).encode())
    changed = replace(layout, shards={1: replace(layout.shards[1], draining=True)}, pins={1: "h"})
    assert json.loads(render_layout(changed)) == {
        **newer,
        "shards": {"1": {"database": "a", "draining": True, "zone": ["x"]}},
        "pins": {"1": "h"},
    }
    assert parse_layout(render_layout(changed)) == changed


def test_plan_keeps_the_fields_of_a_newer_version_while_their_assignment_lasts() -> None:
    member = Member("a", "n", "a:1", held_shards={1: HeldShard(3, "owned"), 2: HeldShard(3, "owned")})
    newer = {
        "format": 1,
        "assignments": {
            "1": {"name": "a", "nonce": "n", "epoch": 3, "database": "d", "since": 5},
            "2": {"name": "b", "nonce": "gone", "epoch": 3, "database": "d", "since": 5},
        },
        "epochs": {"1": 3, "2": 3},
        "round": 8,
    }
    layout = Layout({1: ShardSpec(1, "d"), 2: ShardSpec(2, "d")})
    plan = next_plan(layout, parse_plan(json.dumps(newer).encode()), [member], frozenset(), 1)
    written = json.loads(render_plan(plan))
    assert written["round"] == 8
    assert written["assignments"]["1"]["since"] == 5
    assert written["assignments"]["2"] == {"name": "a", "nonce": "n", "epoch": 4, "database": "d"}


def test_member_of_a_newer_version_is_read() -> None:
    newer = {**MEMBER, "versions": {"schema": [8, 9]}, "holdings": {"1": {"epoch": 1, "state": "owned", "rows": 5}}}
    assert parse_member("n", json.dumps(newer).encode()) == parse_member("n", json.dumps(MEMBER).encode())


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"", "line 1, column 1"),
        (b"[]", ""),
        (b"{", "line 1, column 2"),
        (b"\xff", "byte 0"),
        (b"[" * 100_000, ""),
        (b'{"format":1,"shards":{"1":{"database":"a"},"1":{"database":"b"}}}', "shards"),
        (b'{"format":1,"format":1}', ""),
        (b'{"format":' + b"9" * 5_000 + b"}", ""),
    ],
)
def test_text_that_is_not_a_document_is_refused(text: bytes, where: str) -> None:
    with pytest.raises(MalformedDocument) as refused:
        parse_layout(text)
    assert refused.value.path == where
