"""What is configured by calls, namespaces with their settings, grants and paused topics, and which slots each shard
shall hold, as one frozen document.

Holds the document, and its form in JSON. Always true of a document in hand:
names are valid, settings lie within their ranges, a namespace has no empty
grant, no slot of a tier has two shards; `version` goes up by one with each change, and 0 is the empty document
that was never written. A namespace owns its grants and pauses: they go with it.
Pure; knows nothing of where documents are kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from foqs.access.permission import Permission as Permission
from foqs.catalog.key_slot_assignment import SlotAssignment, SlotConflict, format_slots, parse_slot_range, with_slots
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs.core.errors import FoqsError
from foqs.core.items import validation
from foqs.core.items.idempotency_keys import INCARNATION_MAX
from foqs.core.items.item import SHARD_MAX
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
    """A namespace as it was configured. What it does not set is as in the host's `[namespace]`."""

    tier: str | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    """Only those that it sets; see `settings.SETTING_RANGES`."""
    grants: Mapping[str, frozenset[Permission]] = field(default_factory=dict)
    """By principal; never an empty one."""
    paused: frozenset[str] = frozenset()
    """Topics that hand nothing out."""
    deleting: frozenset[int] | None = None
    """The shards that hold nothing of it and take nothing in for it, while it is being deleted; None: it is not."""
    incarnation: int = 0
    """Random at its creation: tells it from a deleted one of the same name. 0: made by an older version, or with its catalog."""


@dataclass(slots=True, frozen=True)
class Document:
    """All of it, at one version."""

    version: int
    namespaces: Mapping[str, Namespace]
    slots: Mapping[str, SlotAssignment] = field(default_factory=dict)
    """By tier."""


EMPTY_DOCUMENT: Final = Document(0, {})


# ------------------------------------------------------------------- to JSON


def render(document: Document) -> str:
    """The document as JSON, the same text for equal documents."""
    namespaces = {name: _namespace_to_json(namespace) for name, namespace in sorted(document.namespaces.items())}
    whole: dict[str, Any] = {"format": FORMAT_VERSION, "version": document.version, "namespaces": namespaces}
    if document.slots:
        whole["slots"] = {
            tier: {str(shard): format_slots(slots) for shard, slots in sorted(held.items())}
            for tier, held in sorted(document.slots.items())
        }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _namespace_to_json(namespace: Namespace) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    if namespace.tier is not None:
        plain["tier"] = namespace.tier
    if namespace.settings:
        plain["settings"] = dict(sorted(namespace.settings.items()))
    if namespace.grants:
        plain["grants"] = {
            principal: [permission.name.lower() for permission in sorted(permissions)]
            for principal, permissions in sorted(namespace.grants.items())
        }
    if namespace.paused:
        plain["paused"] = sorted(namespace.paused)
    if namespace.deleting is not None:
        plain["deleting"] = sorted(namespace.deleting)
    if namespace.incarnation:
        plain["incarnation"] = namespace.incarnation
    return plain


# ----------------------------------------------------------------- from JSON


def parse(text: str | bytes) -> Document:
    """The document of a JSON text.

    Raises:
        Malformed: it is none; the error names the place.
    """
    raw = parse_json(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    fields = parse_object_of(raw, "", ("format", "version", "namespaces", "slots"))
    form = fields.get("format")
    if form != FORMAT_VERSION or type(form) is not int:
        raise MalformedDocument(
            "format", f"{abbreviate(form)} is not a format that this version reads; it reads {FORMAT_VERSION}"
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
    found = parse_object_of(raw, path, ("tier", "settings", "grants", "paused", "deleting", "incarnation"))
    settings = parse_object_of(found.get("settings", {}), f"{path}.settings", tuple(SETTING_RANGES))
    grants = parse_object(found.get("grants", {}), f"{path}.grants")
    paused = parse_list(found.get("paused", []), f"{path}.paused")
    deleting = found.get("deleting")
    tier = found.get("tier")
    return Namespace(
        None if tier is None else _parse_name(tier, f"{path}.tier"),
        {key: integer_parser(*SETTING_RANGES[key])(value, f"{path}.settings.{key}") for key, value in settings.items()},
        {
            _parse_name(who, f"{path}.grants"): _parse_permissions(given, f"{path}.grants.{who}")
            for who, given in grants.items()
        },
        frozenset(_parse_name(topic, f"{path}.paused[{place}]") for place, topic in enumerate(paused)),
        None if deleting is None else _parse_shards(deleting, f"{path}.deleting"),
        integer_parser(0, INCARNATION_MAX)(found.get("incarnation", 0), f"{path}.incarnation"),
    )


def _parse_shards(raw: Any, path: str) -> frozenset[int]:
    return frozenset(
        integer_parser(0, SHARD_MAX)(shard, f"{path}[{at}]") for at, shard in enumerate(parse_list(raw, path))
    )


def _parse_slot_assignment(path: str, raw: Any) -> SlotAssignment:
    held: dict[int, frozenset[int]] = {}
    taken: set[int] = set()
    for name, texts in parse_object(raw, path).items():
        shard = parse_number_key(name, SHARD_MAX, path)
        where = f"{path}.{shard}"
        slots: set[int] = set()
        for place, text in enumerate(parse_list(texts, where)):
            try:
                slots.update(parse_slot_range(text if isinstance(text, str) else ""))
            except ValueError as error:
                raise MalformedDocument(f"{where}[{place}]", f"{abbreviate(text)} names no slots: {error}") from None
        try:
            before = held.get(shard, frozenset())
            held[shard] = before | slots if taken.isdisjoint(slots) else with_slots(held, shard, slots)[shard]
        except SlotConflict as error:
            raise MalformedDocument(where, f"{error}; a slot has one shard") from None
        taken |= slots
    return held


def _parse_permissions(raw: Any, path: str) -> frozenset[Permission]:
    names = parse_list(raw, path)
    if not names:
        raise MalformedDocument(path, "this grants nothing; leave the principal out")
    known = {permission.name.lower(): permission for permission in Permission}
    for place, name in enumerate(names):
        if not isinstance(name, str) or name not in known:
            raise MalformedDocument(
                f"{path}[{place}]", f"{abbreviate(name)} is not a permission; use {', '.join(known)}"
            )
    return frozenset(known[name] for name in names)


def _parse_name(raw: Any, path: str) -> str:
    if not isinstance(raw, str):
        raise MalformedDocument(path, f"this must be a text, not {abbreviate(raw)}")
    try:
        return validation.decode_name(raw.encode("utf-8", "surrogatepass"), "")
    except FoqsError as error:
        raise MalformedDocument(path, f"{abbreviate(raw)} is not a name: {error.message}") from None
