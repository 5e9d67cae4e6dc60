"""The layout, the plan and a member's entry as JSON, and the names of these documents.

Always true: equal values have equal texts; parsing a rendered text returns an equal
value. A text may have fields that only a newer version knows: a changed layout or plan
keeps them. Any other text is a `MalformedDocument`. A text names its format, so that a
host of a version that would misread it refuses it. A text that was parsed lately returns
the same value again; values are immutable. Pure.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

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
from shardmgr.strict_json import (
    DistinctNames,
    Form,
    Name,
    abbreviate,
    build,
    build_with_unknown,
    number_key,
    parse_document,
    printable,
)

FORMAT: Final = 1
LAYOUT: Final = "layout"
PLAN: Final = "plan"
MEMBERS: Final = "members"
LOAD_MAX: Final = 1e12
DATABASE_BYTES_MAX: Final = 127
"""The length of a database's name: the plan has one for each shard and must fit into one document."""
_CACHED_DOCUMENTS_MAX: Final = 4
"""The parsed layouts, and plans, that are remembered: a host's agent and planner read both at each change, and most have not changed."""
_CACHED_MEMBERS_MAX: Final = 1_024

_NONCE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

# ----------------------------------------------------------------- rendering


def render_layout(layout: Layout) -> bytes:
    """Return the JSON text of a layout; `parse_layout` reads it."""
    shards = {
        str(number): {"database": spec.database}
        | _without_none(
            tier=None if spec.tier == "default" else spec.tier,
            weight=None if spec.weight == 1 else spec.weight,
            region=spec.region or None,
            draining=spec.draining or None,
        )
        | dict(spec.unknown)
        for number, spec in sorted(layout.shards.items())
    }
    return _to_json(
        shards=shards,
        drained=sorted(layout.drained),
        pins={str(number): host for number, host in sorted(layout.pins.items())},
        **layout.unknown,
    )


def render_plan(plan: Plan) -> bytes:
    """Return the JSON text of a plan; `parse_plan` reads it."""
    assignments = {
        str(number): {"name": assignment.name, "nonce": assignment.nonce, "epoch": assignment.epoch}
        | _without_none(
            database=assignment.database or None, leaving=assignment.leaving or None, term=assignment.term or None
        )
        | dict(assignment.unknown)
        for number, assignment in sorted(plan.assignments.items())
    }
    return _to_json(
        assignments=assignments,
        epochs={str(number): epoch for number, epoch in sorted(plan.epochs.items())},
        **plan.unknown,
    )


def render_member(member: Member) -> bytes:
    """Return the JSON text of a member's entry; `parse_member` reads it."""
    return _to_json(
        name=member.name,
        nonce=member.nonce,
        address=member.address,
        tier=member.tier,
        region=member.region,
        capacity=member.capacity,
        load=member.load,
        leaving=member.leaving,
        holdings={
            str(number): {"epoch": holding.epoch, "state": holding.state}
            for number, holding in sorted(member.held_shards.items())
        },
        wants={str(number): epoch for number, epoch in sorted(member.taken_epochs.items())},
    )


def _to_json(**fields: Any) -> bytes:
    document = {"format": FORMAT, **fields}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _without_none(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {key: value for key, value in fields.items() if value is not None}


# ------------------------------------------------------------------- parsing


def _check_nonce(text: str) -> str:
    if _NONCE.fullmatch(text) is None:
        raise ValueError(f"{abbreviate(text)} is not a valid name of an entry")
    return text


_Shard = Annotated[int, number_key(SHARD_MAX)]
_Epoch = Annotated[int, Field(ge=0, le=EPOCH_MAX)]
_Weight = Annotated[int, Field(ge=1, le=WEIGHT_MAX)]
_Nonce = Annotated[str, AfterValidator(_check_nonce)]
_NameOrEmpty = Annotated[str, printable(bytes_min=0)]


class _SpecForm(Form):
    database: Annotated[str, printable(DATABASE_BYTES_MAX)]
    tier: Name = "default"
    weight: _Weight = 1
    region: _NameOrEmpty = ""
    draining: bool = False


class _LayoutForm(Form):
    shards: dict[_Shard, _SpecForm] = Field(default_factory=dict)
    drained: DistinctNames = Field(default_factory=list)
    pins: dict[_Shard, Name] = Field(default_factory=dict)


class _AssignmentForm(Form):
    name: Name
    nonce: _Nonce
    epoch: Annotated[int, Field(ge=1, le=EPOCH_MAX)]
    database: Annotated[str, printable(DATABASE_BYTES_MAX, bytes_min=0)] = ""
    leaving: bool = False
    term: Annotated[int, Field(ge=0, le=TERM_MAX)] = 0


class _PlanForm(Form):
    assignments: dict[_Shard, Annotated[_AssignmentForm, build_with_unknown(Assignment)]] = Field(default_factory=dict)
    epochs: dict[_Shard, _Epoch] = Field(default_factory=dict)


class _HeldShardForm(Form):
    epoch: _Epoch
    state: Annotated[OwnershipState, Field(strict=False), AfterValidator(lambda state: state.value)]


class _MemberForm(Form):
    name: Name
    nonce: _Nonce
    address: Name
    tier: Name = "default"
    region: _NameOrEmpty = ""
    capacity: _Weight = 1
    load: Annotated[float, Field(ge=0, le=LOAD_MAX)] = 0.0
    leaving: bool = False
    held_shards: dict[_Shard, Annotated[_HeldShardForm, build(HeldShard)]] = Field(
        default_factory=dict, alias="holdings"
    )
    taken_epochs: dict[_Shard, _Epoch] = Field(default_factory=dict, alias="wants")


@lru_cache(_CACHED_DOCUMENTS_MAX)
def parse_layout(text: bytes) -> Layout:
    """Parse a layout.

    Raises:
        MalformedDocument: the text is not a layout; the error names the place.
    """
    form = parse_document(_LayoutForm, text, FORMAT)
    shards = {number: ShardSpec(number, **vars(spec), unknown=spec.unknown) for number, spec in form.shards.items()}
    return Layout(shards, frozenset(form.drained), form.pins, form.unknown)


@lru_cache(_CACHED_DOCUMENTS_MAX)
def parse_plan(text: bytes) -> Plan:
    """Parse a plan.

    Raises:
        MalformedDocument: the text is not a plan; the error names the place.
    """
    form = parse_document(_PlanForm, text, FORMAT)
    plan = Plan(**vars(form), unknown=form.unknown)
    for number, assignment in plan.assignments.items():
        if assignment.epoch > plan.epochs.get(number, 0):
            problem = f"this must be at least {assignment.epoch}, the epoch of its assignment"
            raise MalformedDocument(f"epochs.{number}", problem)
    return plan


@lru_cache(_CACHED_MEMBERS_MAX)
def parse_member(nonce: str, text: bytes) -> Member:
    """Parse a member's entry. Only the member itself writes it, so unknown fields are ignored.

    Args:
        nonce: the entry's name.

    Raises:
        MalformedDocument: the text is not a member; the error names the place.
    """
    member = Member(**vars(parse_document(_MemberForm, text, FORMAT)))
    if member.nonce != nonce:
        raise MalformedDocument("nonce", f"this must be the entry's name, {abbreviate(nonce)}")
    return member
