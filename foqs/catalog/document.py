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

from foqs.catalog.settings import RANGES
from foqs.catalog.slots import Holdings, SlotsTaken, joined, slots_of_span, spans
from foqs.core import validate
from foqs.core.errors import FoqsError
from foqs.core.item import SHARD_MAX
from foqs.core.permission import Permission as Permission

FORMAT: Final = 1
VERSION_MAX: Final = (1 << 63) - 1
_SHOWN_MAX: Final = 60
_DIGITS_MAX: Final = 20


@dataclass(slots=True, frozen=True)
class Namespace:
    """A namespace as it was configured. What it does not set is as in the host's `[namespace]`."""

    tier: str | None = None
    settings: Mapping[str, int] = field(default_factory=dict)
    """Only those that it sets; see `settings.RANGES`."""
    grants: Mapping[str, frozenset[Permission]] = field(default_factory=dict)
    """By principal; never an empty one."""
    paused: frozenset[str] = frozenset()
    """Topics that hand nothing out."""
    deleting: frozenset[int] | None = None
    """The shards that hold nothing of it and take nothing in for it, while it is being deleted; None: it is not."""


@dataclass(slots=True, frozen=True)
class Document:
    """All of it, at one version."""

    version: int
    namespaces: Mapping[str, Namespace]
    slots: Mapping[str, Holdings] = field(default_factory=dict)
    """By tier."""


EMPTY: Final = Document(0, {})


class Malformed(Exception):
    """A text that is no document: where in it, and what is wrong there."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


# ------------------------------------------------------------------- to JSON


def render(document: Document) -> str:
    """The document as JSON, the same text for equal documents."""
    namespaces = {name: _plain(namespace) for name, namespace in sorted(document.namespaces.items())}
    whole: dict[str, Any] = {"format": FORMAT, "version": document.version, "namespaces": namespaces}
    if document.slots:
        whole["slots"] = {
            tier: {str(shard): spans(slots) for shard, slots in sorted(held.items())}
            for tier, held in sorted(document.slots.items())
        }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _plain(namespace: Namespace) -> dict[str, Any]:
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
    return plain


# ----------------------------------------------------------------- from JSON


def parse(text: str | bytes) -> Document:
    """The document of a JSON text.

    Raises:
        Malformed: it is none; the error names the place.
    """
    try:
        raw = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise Malformed(f"line {error.lineno}, column {error.colno}", f"this is not JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise Malformed(f"byte {error.start}", "this is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Malformed("", "this is not JSON that can be read") from None
    whole = _members(raw, "", ("format", "version", "namespaces", "slots"))
    form = whole.get("format")
    if form != FORMAT or type(form) is not int:
        raise Malformed("format", f"{_shown(form)} is not a format that this version reads; it reads {FORMAT}")
    version = _number(whole.get("version"), "version", 0, VERSION_MAX)
    namespaces = _table(whole.get("namespaces"), "namespaces")
    slots = _table(whole.get("slots", {}), "slots")
    return Document(
        version,
        {_name(name, "namespaces"): _namespace(name, part) for name, part in namespaces.items()},
        {_name(tier, "slots"): _holdings(f"slots.{tier}", part) for tier, part in slots.items()},
    )


def _namespace(name: str, raw: Any) -> Namespace:
    path = f"namespaces.{name}"
    members = _members(raw, path, ("tier", "settings", "grants", "paused", "deleting"))
    settings = _members(members.get("settings", {}), f"{path}.settings", tuple(RANGES))
    grants = _table(members.get("grants", {}), f"{path}.grants")
    paused = _list(members.get("paused", []), f"{path}.paused")
    deleting = members.get("deleting")
    tier = members.get("tier")
    return Namespace(
        None if tier is None else _name(tier, f"{path}.tier"),
        {key: _number(value, f"{path}.settings.{key}", *RANGES[key]) for key, value in settings.items()},
        {_name(who, f"{path}.grants"): _permissions(given, f"{path}.grants.{who}") for who, given in grants.items()},
        frozenset(_name(topic, f"{path}.paused[{place}]") for place, topic in enumerate(paused)),
        None if deleting is None else _shards(deleting, f"{path}.deleting"),
    )


def _shards(raw: Any, path: str) -> frozenset[int]:
    return frozenset(_number(shard, f"{path}[{at}]", 0, SHARD_MAX) for at, shard in enumerate(_list(raw, path)))


def _holdings(path: str, raw: Any) -> Holdings:
    held: Holdings = {}
    for name, texts in _table(raw, path).items():
        where = f"{path}.{_cut(name)}"
        if not (name.isascii() and name.isdigit() and str(int(name[:_DIGITS_MAX])) == name and int(name) <= SHARD_MAX):
            raise Malformed(where, f"a shard is named by its number, from 0 to {SHARD_MAX}")
        slots: set[int] = set()
        for place, text in enumerate(_list(texts, where)):
            try:
                slots.update(slots_of_span(text if isinstance(text, str) else ""))
            except ValueError as error:
                raise Malformed(f"{where}[{place}]", f"{_shown(text)} names no slots: {error}") from None
        try:
            held = joined(held, int(name), slots)
        except SlotsTaken as error:
            raise Malformed(where, f"{error}; a slot has one shard") from None
    return held


def _permissions(raw: Any, path: str) -> frozenset[Permission]:
    names = _list(raw, path)
    if not names:
        raise Malformed(path, "this grants nothing; leave the principal out")
    known = {permission.name.lower(): permission for permission in Permission}
    for place, name in enumerate(names):
        if not isinstance(name, str) or name not in known:
            raise Malformed(f"{path}[{place}]", f"{_shown(name)} is not a permission; use {', '.join(known)}")
    return frozenset(known[name] for name in names)


class _Twice(dict[str, Any]):
    """A JSON object in which a name stands twice."""

    name: str


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    names = [name for name, _ in pairs]
    twice = _Twice(table)
    twice.name = next(name for name in names if names.count(name) > 1)
    return twice


def _table(raw: Any, path: str) -> dict[str, Any]:
    if isinstance(raw, _Twice):
        raise Malformed(path, f"{_shown(raw.name)} stands in it twice; name it once")
    if not isinstance(raw, dict):
        raise Malformed(path, f"this must be an object, not {_shown(raw)}")
    return raw


def _members(raw: Any, path: str, known: tuple[str, ...]) -> dict[str, Any]:
    table = _table(raw, path)
    for key in table:
        if key not in known:
            unknown = _cut(json.dumps(key)[1:-1])
            where = f"{path}.{unknown}" if path else unknown
            raise Malformed(where, f"there is no such field; there are {', '.join(known)}")
    return table


def _list(raw: Any, path: str) -> list[Any]:
    if not isinstance(raw, list):
        raise Malformed(path, f"this must be a list, not {_shown(raw)}")
    return raw


def _number(raw: Any, path: str, low: int, high: int) -> int:
    if type(raw) is not int or not low <= raw <= high:
        raise Malformed(path, f"this must be a whole number from {low} to {high}, not {_shown(raw)}")
    return raw


def _name(raw: Any, path: str) -> str:
    if not isinstance(raw, str):
        raise Malformed(path, f"this must be a text, not {_shown(raw)}")
    try:
        return validate.name(raw.encode("utf-8", "surrogatepass"), "")
    except FoqsError as error:
        raise Malformed(path, f"{_shown(raw)} is not a name: {error.message}") from None


def _shown(raw: Any) -> str:
    return _cut(json.dumps(raw))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
