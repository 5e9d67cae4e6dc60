"""The catalog's document: all that is configured by calls, and the assignment of key slots to shards.

Holds the frozen document and its JSON form. Always true: names are valid,
settings lie within their ranges, a namespace has no empty grant, no key slot of
a tier has two shards. Each change increases `version` by one; version 0 is the
empty document, which is never stored. Deleting a namespace deletes its grants
and pauses. Pure; knows nothing of where documents are stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from foqs.access.call_permissions import Permission as Permission
from foqs.catalog.key_slot_assignment import SlotAssignment, SlotConflict, format_slots, parse_slot_range, with_slots
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs.core.items import validation
from foqs.core.items.idempotency_keys import INCARNATION_MAX
from foqs.core.items.item import SHARD_MAX
from foqs_contract.errors import FoqsError
from shardmgr.model import MalformedDocument as MalformedDocument
from shardmgr.strict_json import (
    abbreviate,
    integer_parser,
    parse_json,
    parse_list,
    parse_number_key,
    parse_object,
    parse_object_of,
)

FORMAT_VERSION: Final = 1
VERSION_MAX: Final = (1 << 63) - 1


@dataclass(slots=True, frozen=True)
class Namespace:
    """A namespace as it was configured. Settings that it lacks are as in the host's `[namespace]`."""

    tier: str | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    """The settings that it has of its own; see `namespace_settings.SETTING_RANGES`."""
    grants: Mapping[str, frozenset[Permission]] = field(default_factory=dict)
    """The permissions by principal; none is empty."""
    paused: frozenset[str] = frozenset()
    """Topics that are not delivered."""
    deleting: frozenset[int] | None = None
    """While it is being deleted: the shards that hold no items of it and accept none. Else None."""
    incarnation: int = 0
    """Random number that distinguishes it from a deleted namespace of the same name.

    0 if it was created by an older version or together with the catalog.
    """


@dataclass(slots=True, frozen=True)
class Document:
    """One version of the catalog."""

    version: int
    namespaces: Mapping[str, Namespace]
    slots: Mapping[str, SlotAssignment] = field(default_factory=dict)
    """The assignment of key slots by tier."""


EMPTY_DOCUMENT: Final = Document(0, {})


# ------------------------------------------------------------------- to JSON


def render(document: Document) -> str:
    """Return the document as JSON, the same text for equal documents."""
    namespaces = {name: _namespace_to_json(namespace) for name, namespace in sorted(document.namespaces.items())}
    fields: dict[str, Any] = {"format": FORMAT_VERSION, "version": document.version, "namespaces": namespaces}
    if document.slots:
        fields["slots"] = {
            tier: {str(shard): format_slots(slots) for shard, slots in sorted(held.items())}
            for tier, held in sorted(document.slots.items())
        }
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def _namespace_to_json(namespace: Namespace) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if namespace.tier is not None:
        fields["tier"] = namespace.tier
    if namespace.settings:
        fields["settings"] = dict(sorted(namespace.settings.items()))
    if namespace.grants:
        fields["grants"] = {
            principal: [permission.name.lower() for permission in sorted(permissions)]
            for principal, permissions in sorted(namespace.grants.items())
        }
    if namespace.paused:
        fields["paused"] = sorted(namespace.paused)
    if namespace.deleting is not None:
        fields["deleting"] = sorted(namespace.deleting)
    if namespace.incarnation:
        fields["incarnation"] = namespace.incarnation
    return fields


# ----------------------------------------------------------------- from JSON


def parse(text: str | bytes) -> Document:
    """Parse a document from JSON.

    Raises:
        MalformedDocument: names the place that is wrong.
    """
    raw = parse_json(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    fields = parse_object_of(raw, "", ("format", "version", "namespaces", "slots"))
    version_read = fields.get("format")
    if version_read != FORMAT_VERSION or type(version_read) is not int:
        raise MalformedDocument(
            "format", f"{abbreviate(version_read)} is not a format that this version reads; it reads {FORMAT_VERSION}"
        )
    version = integer_parser(0, VERSION_MAX)(fields.get("version"), "version")
    namespaces = parse_object(fields.get("namespaces"), "namespaces")
    slots = parse_object(fields.get("slots", {}), "slots")
    return Document(
        version,
        {_parse_name(name, "namespaces"): _parse_namespace(name, part) for name, part in namespaces.items()},
        {_parse_name(tier, "slots"): _parse_slot_assignment(f"slots.{tier}", part) for tier, part in slots.items()},
    )


def _parse_namespace(name: str, raw: Any) -> Namespace:
    path = f"namespaces.{name}"
    fields = parse_object_of(raw, path, ("tier", "settings", "grants", "paused", "deleting", "incarnation"))
    settings = parse_object_of(fields.get("settings", {}), f"{path}.settings", tuple(SETTING_RANGES))
    grants = parse_object(fields.get("grants", {}), f"{path}.grants")
    paused = parse_list(fields.get("paused", []), f"{path}.paused")
    deleting = fields.get("deleting")
    tier = fields.get("tier")
    return Namespace(
        None if tier is None else _parse_name(tier, f"{path}.tier"),
        {key: integer_parser(*SETTING_RANGES[key])(value, f"{path}.settings.{key}") for key, value in settings.items()},
        {
            _parse_name(principal, f"{path}.grants"): _parse_permissions(permissions, f"{path}.grants.{principal}")
            for principal, permissions in grants.items()
        },
        frozenset(_parse_name(topic, f"{path}.paused[{i}]") for i, topic in enumerate(paused)),
        None if deleting is None else _parse_shards(deleting, f"{path}.deleting"),
        integer_parser(0, INCARNATION_MAX)(fields.get("incarnation", 0), f"{path}.incarnation"),
    )


def _parse_shards(raw: Any, path: str) -> frozenset[int]:
    return frozenset(
        integer_parser(0, SHARD_MAX)(shard, f"{path}[{i}]") for i, shard in enumerate(parse_list(raw, path))
    )


def _parse_slot_assignment(path: str, raw: Any) -> SlotAssignment:
    assignment: dict[int, frozenset[int]] = {}
    assigned: set[int] = set()
    for name, texts in parse_object(raw, path).items():
        shard = parse_number_key(name, SHARD_MAX, path)
        shard_path = f"{path}.{shard}"
        slots: set[int] = set()
        for i, text in enumerate(parse_list(texts, shard_path)):
            try:
                slots.update(parse_slot_range(text if isinstance(text, str) else ""))
            except ValueError as error:
                raise MalformedDocument(f"{shard_path}[{i}]", f"{abbreviate(text)} names no slots: {error}") from None
        try:
            before = assignment.get(shard, frozenset())
            assignment[shard] = (
                before | slots if assigned.isdisjoint(slots) else with_slots(assignment, shard, slots)[shard]
            )
        except SlotConflict as error:
            raise MalformedDocument(shard_path, f"{error}; a slot has one shard") from None
        assigned |= slots
    return assignment


def _parse_permissions(raw: Any, path: str) -> frozenset[Permission]:
    names = parse_list(raw, path)
    if not names:
        raise MalformedDocument(path, "this grants nothing; leave the principal out")
    permissions = {permission.name.lower(): permission for permission in Permission}
    for i, name in enumerate(names):
        if not isinstance(name, str) or name not in permissions:
            raise MalformedDocument(
                f"{path}[{i}]", f"{abbreviate(name)} is not a permission; use {', '.join(permissions)}"
            )
    return frozenset(permissions[name] for name in names)


def _parse_name(raw: Any, path: str) -> str:
    if not isinstance(raw, str):
        raise MalformedDocument(path, f"this must be a string, not {abbreviate(raw)}")
    try:
        return validation.decode_name(raw.encode("utf-8", "surrogatepass"), "")
    except FoqsError as error:
        raise MalformedDocument(path, f"{abbreviate(raw)} is not a name: {error.message}") from None
