"""The changes of a document: each takes one and returns the next.

Always true: what is returned has the next version, or is the very document that
was given when the change changes nothing, so that repeating one does no harm.
Pure; what only a host can tell (whether a namespace holds items) it does not ask.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from foqs.catalog.document import Document, Namespace, Permission
from foqs.catalog.key_slot_assignment import SlotConflict, conflicting_slots, with_even_division, with_slots
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs.core.errors import InvalidArgument, NamespaceNotFound, Unavailable
from foqs.core.items import validation


def create(
    document: Document, name: str, tier: str | None, settings: Mapping[str, int], *, incarnation: int = 0
) -> Document:
    """A namespace more. Raises `InvalidArgument`: it exists, with other settings; `Unavailable`: it is being deleted.

    Args:
        incarnation: of the new namespace, which no namespace of this name had before.
    """
    fresh = Namespace(tier, _checked_settings(settings), incarnation=incarnation)
    there = document.namespaces.get(name)
    if there is None:
        return _with_namespace(document, name, fresh)
    if there.deleting is not None:
        raise Unavailable(f"the namespace {name!r} is being deleted; try again", retry_after_ms=1_000)
    _check_tier(name, there, tier)
    if there.settings != fresh.settings:
        raise InvalidArgument(
            f"the namespace {name!r} exists with other settings; change them with updateNamespace",
            field="settings.name",
        )
    return document


def update(document: Document, name: str, tier: str | None, settings: Mapping[str, int]) -> Document:
    """Other settings; those not given stay as they are, and so does a tier that is recorded. Raises `NamespaceNotFound`, `InvalidArgument`."""
    there = find_namespace(document, name, "settings.name")
    _check_tier(name, there, tier)
    changed = replace(
        there, tier=there.tier if tier is None else tier, settings={**there.settings, **_checked_settings(settings)}
    )
    return document if changed == there else _with_namespace(document, name, changed)


def delete(document: Document, name: str) -> Document:
    """One namespace less. Raises `NamespaceNotFound`."""
    find_namespace(document, name)
    rest = {other: namespace for other, namespace in document.namespaces.items() if other != name}
    return _next_version(document, namespaces=rest)


def start_deletion(document: Document, name: str) -> Document:
    """No host takes in anything for a namespace any more. Raises `NamespaceNotFound`."""
    there = find_namespace(document, name)
    return (
        document
        if there.deleting is not None
        else _with_namespace(document, name, replace(there, deleting=frozenset()))
    )


def cancel_deletion(document: Document, name: str) -> Document:
    """A namespace that is being deleted stays; nothing where there is none."""
    there = document.namespaces.get(name)
    if there is None or there.deleting is None:
        return document
    return _with_namespace(document, name, replace(there, deleting=None))


def record_empty_shards(
    document: Document, name: str, empty_shards: Collection[int], all_shards: Collection[int]
) -> Document:
    """These shards hold nothing of a namespace that is being deleted; it is gone when that was said of all.

    Args:
        all_shards: all shards that may hold something of it; none where that is not known.
    """
    there = document.namespaces.get(name)
    if there is None or there.deleting is None:
        return document
    empty = there.deleting.union(empty_shards)
    if all_shards and empty >= set(all_shards):
        return delete(document, name)
    return document if empty == there.deleting else _with_namespace(document, name, replace(there, deleting=empty))


def grant(document: Document, name: str, principal: str, permissions: frozenset[Permission]) -> Document:
    """A principal has these permissions in a namespace, and no others; none revokes. Raises `NamespaceNotFound`."""
    there = find_namespace(document, name, "grant.namespace_name")
    grants = {who: given for who, given in there.grants.items() if who != principal}
    if permissions:
        grants[principal] = permissions
    return document if grants == there.grants else _with_namespace(document, name, replace(there, grants=grants))


def pause(document: Document, name: str, topic: str, *, paused: bool) -> Document:
    """A topic hands nothing out, or does so again. Raises `NamespaceNotFound`."""
    there = find_namespace(document, name)
    topics = there.paused | {topic} if paused else there.paused - {topic}
    return document if topics == there.paused else _with_namespace(document, name, replace(there, paused=topics))


def restore(document: Document, imported: Document, *, incarnation: int = 0) -> Document:
    """All that `imported` holds, in place of what there is; the version goes on.

    A namespace that exists keeps its incarnation. One that was deleted since `imported` was
    exported is created again; `imported` is believed where the catalog is younger than it.

    Slots that it gives to shards are added to those that are recorded. That a
    shard has none is for the shard to say, for it may have got some since.

    Args:
        incarnation: of namespaces that are created again.

    Raises:
        InvalidArgument: a slot is recorded as another shard's.
    """
    slots = dict(document.slots)
    for tier, held in imported.slots.items():
        for shard, its in held.items():
            try:
                slots[tier] = with_slots(slots.get(tier, {}), shard, its) if its else slots.get(tier, {})
            except SlotConflict as error:
                raise InvalidArgument(
                    f"slots.{tier}.{shard}: {error}, and keys are there; leave `slots` out of the document",
                    field="json",
                ) from None
    slots = {tier: held for tier, held in slots.items() if held}
    is_younger = document.version < imported.version

    def incarnation_of(name: str, given: Namespace) -> int:
        there = document.namespaces.get(name)
        if is_younger and (there is None or not there.incarnation):
            return given.incarnation  # the catalog was lost, and perhaps begun anew with its first namespace
        return incarnation if there is None else there.incarnation

    namespaces = {
        name: replace(own, deleting=None, incarnation=incarnation_of(name, own))
        for name, own in imported.namespaces.items()
    }
    same = document.version > 0 and (document.namespaces, document.slots) == (namespaces, slots)
    return document if same else _next_version(document, namespaces=namespaces, slots=slots)


def record_slots(
    document: Document, tier: str, held_slots: Mapping[int, frozenset[int]], tier_shards: Collection[int]
) -> Document:
    """What the tables of these shards hold is recorded, and the slots of a new tier are divided.

    A shard of whose slots one is recorded as another's is left out. Nothing that
    is recorded is taken away: what a shard does not hold of it, it is still to
    write down.

    Args:
        tier_shards: all shards of the tier; none where that is not known.
    """
    there = document.slots.get(tier, {})
    after = there
    for shard, slots in sorted(held_slots.items()):
        if not conflicting_slots(after, shard, slots):
            after = with_slots(after, shard, slots)
    after = with_even_division(after, tier_shards)
    return document if after == there else _next_version(document, slots={**document.slots, tier: after})


def find_namespace(document: Document, name: str, field: str = "namespace_name") -> Namespace:
    """A namespace. Raises `NamespaceNotFound`."""
    namespace = document.namespaces.get(name)
    if namespace is None:
        raise namespace_not_found(name, field)
    return namespace


def namespace_not_found(name: str, field: str = "namespace_name") -> NamespaceNotFound:
    """What says that there is none of this name."""
    return NamespaceNotFound(
        f"there is no namespace {name!r}; make it with createNamespace (foqs namespace create)", field=field
    )


def _check_tier(name: str, namespace: Namespace, tier: str | None) -> None:
    """A namespace stays in its tier: its items and keys are there. Raises `InvalidArgument`."""
    if tier is not None and namespace.tier not in (None, tier):
        raise InvalidArgument(
            f"the namespace {name!r} belongs to tier {namespace.tier!r}; ask a host of that tier", field="settings.tier"
        )


def _checked_settings(settings: Mapping[str, int]) -> Mapping[str, int]:
    return {
        key: validation.check_number(value, *SETTING_RANGES[key], f"settings.{key}") for key, value in settings.items()
    }


def _with_namespace(document: Document, name: str, namespace: Namespace) -> Document:
    return _next_version(document, namespaces={**document.namespaces, name: namespace})


def _next_version(document: Document, **changes: Any) -> Document:
    return replace(document, version=document.version + 1, **changes)
