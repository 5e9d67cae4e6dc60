"""The layout, the plan and a member's entry as JSON, and the names of these documents.

Always true: equal values have equal texts; parsing a rendered text returns an equal
value; any other text is a `MalformedDocument`. A text names its format, so that a
host of another version refuses it and does not misread it. A text that was parsed
lately returns the same value again; values are immutable. Pure.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Final

from shardmgr.model import (
    EPOCH_MAX,
    SHARD_MAX,
    WEIGHT_MAX,
    Assignment,
    HeldShard,
    Layout,
    Member,
    Plan,
    ShardSpec,
)
from shardmgr.ownership import OwnershipState
from shardmgr.strict_json import JsonObject, abbreviate, integer_parser, parse_json, parse_name, raise_malformed

FORMAT: Final = 1
LAYOUT: Final = "layout"
PLAN: Final = "plan"
MEMBERS: Final = "members"
LOAD_MAX: Final = 1e12
DATABASE_BYTES_MAX: Final = 127
"""The length of a database's name: the plan has one for each shard and must fit into one document."""
_CACHED_DOCUMENTS_MAX: Final = 4
"""Parsed layouts and plans: a host's agent and planner read both at each change, and most have not changed."""
_CACHED_MEMBERS_MAX: Final = 1_024

_NONCE: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_STATES: Final = frozenset(state.value for state in OwnershipState)
_epoch: Final = integer_parser(0, EPOCH_MAX)

# ----------------------------------------------------------------- rendering


def render_layout(layout: Layout) -> bytes:
    """See `parse_layout`."""
    shards = {
        str(number): {"database": spec.database}
        | _without_none(
            tier=None if spec.tier == "default" else spec.tier,
            weight=None if spec.weight == 1 else spec.weight,
            region=spec.region or None,
            draining=spec.draining or None,
        )
        for number, spec in sorted(layout.shards.items())
    }
    return _to_json(
        shards=shards,
        drained=sorted(layout.drained),
        pins={str(number): host for number, host in sorted(layout.pins.items())},
    )


def render_plan(plan: Plan) -> bytes:
    """See `parse_plan`."""
    assignments = {
        str(number): {"name": assignment.name, "nonce": assignment.nonce, "epoch": assignment.epoch}
        | _without_none(database=assignment.database or None, leaving=assignment.leaving or None)
        for number, assignment in sorted(plan.assignments.items())
    }
    return _to_json(
        assignments=assignments, epochs={str(number): epoch for number, epoch in sorted(plan.epochs.items())}
    )


def render_member(member: Member) -> bytes:
    """See `parse_member`."""
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
    document = {"format": FORMAT} | fields
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def _without_none(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None."""
    return {key: value for key, value in fields.items() if value is not None}


# ------------------------------------------------------------------- parsing


@lru_cache(_CACHED_DOCUMENTS_MAX)
def parse_layout(text: bytes) -> Layout:
    """Parse a layout.

    Raises:
        MalformedDocument: the text is not a layout; the error names the place.
    """
    fields = _parse_fields(text, ("shards", "drained", "pins"))
    return Layout(
        {
            number: _parse_spec(number, *found)
            for number, found in fields.by_number("shards", SHARD_MAX, _raw_with_path).items()
        },
        fields.names("drained"),
        fields.by_number("pins", SHARD_MAX, parse_name),
    )


@lru_cache(_CACHED_DOCUMENTS_MAX)
def parse_plan(text: bytes) -> Plan:
    """Parse a plan.

    Raises:
        MalformedDocument: the text is not a plan; the error names the place.
    """
    fields = _parse_fields(text, ("assignments", "epochs"))
    plan = Plan(
        fields.by_number("assignments", SHARD_MAX, _parse_assignment), fields.by_number("epochs", SHARD_MAX, _epoch)
    )
    for number, assignment in plan.assignments.items():
        if assignment.epoch > plan.epochs.get(number, 0):
            raise_malformed(
                f"epochs.{number}", f"this must be at least {assignment.epoch}, the epoch of its assignment"
            )
    return plan


@lru_cache(_CACHED_MEMBERS_MAX)
def parse_member(nonce: str, text: bytes) -> Member:
    """Parse a member's entry.

    Args:
        nonce: the entry's name.

    Raises:
        MalformedDocument: the text is not a member; the error names the place.
    """
    known = ("name", "nonce", "address", "tier", "region", "capacity", "load", "leaving", "holdings", "wants")
    fields = _parse_fields(text, known)
    if _parse_nonce(fields, "") != nonce:
        raise_malformed("nonce", f"this must be the entry's name, {abbreviate(nonce)}")
    return Member(
        fields.name("name"),
        nonce,
        fields.name("address"),
        fields.name("tier", "default"),
        fields.name("region", ""),
        fields.integer("capacity", 1, WEIGHT_MAX, 1),
        fields.real("load", LOAD_MAX, 0.0),
        fields.boolean("leaving"),
        fields.by_number("holdings", SHARD_MAX, _parse_held_shard),
        fields.by_number("wants", SHARD_MAX, _epoch),
    )


def _parse_fields(text: bytes, known: tuple[str, ...]) -> JsonObject:
    raw = parse_json(text)
    form = raw.get("format") if isinstance(raw, dict) else FORMAT
    if form != FORMAT or type(form) is not int:
        raise_malformed("format", f"{abbreviate(form)} is not a format that this version reads; it reads {FORMAT}")
    return JsonObject(raw, "", ("format", *known))


def _raw_with_path(raw: Any, path: str) -> tuple[Any, str]:
    return raw, path


def _parse_spec(number: int, raw: Any, path: str) -> ShardSpec:
    fields = JsonObject(raw, path, ("database", "tier", "weight", "region", "draining"))
    return ShardSpec(
        number,
        fields.name("database", bytes_max=DATABASE_BYTES_MAX),
        fields.name("tier", "default"),
        fields.integer("weight", 1, WEIGHT_MAX, 1),
        fields.name("region", ""),
        fields.boolean("draining"),
    )


def _parse_assignment(raw: Any, path: str) -> Assignment:
    fields = JsonObject(raw, path, ("name", "nonce", "epoch", "database", "leaving"))
    return Assignment(
        fields.name("name"),
        _parse_nonce(fields, path),
        fields.integer("epoch", 1, EPOCH_MAX),
        fields.name("database", "", bytes_max=DATABASE_BYTES_MAX),
        fields.boolean("leaving"),
    )


def _parse_held_shard(raw: Any, path: str) -> HeldShard:
    fields = JsonObject(raw, path, ("epoch", "state"))
    state = fields.name("state")
    if state not in _STATES:
        raise_malformed(f"{path}.state", f"{abbreviate(state)} is not a state; use {', '.join(sorted(_STATES))}")
    return HeldShard(fields.integer("epoch", 0, EPOCH_MAX), state)


def _parse_nonce(fields: JsonObject, path: str) -> str:
    nonce = fields.name("nonce")
    if _NONCE.fullmatch(nonce) is None:
        raise_malformed(f"{path}.nonce" if path else "nonce", f"{abbreviate(nonce)} is not a valid name of an entry")
    return nonce
