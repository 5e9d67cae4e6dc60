"""The changes of a document: each takes a document and returns the next one.

Always true: the result has the next version, or is the same object if nothing
changes, so that a change can be repeated safely; all that a change does not name
stays, above all the fields of a newer version. Pure; does not check what only
a host knows, such as whether a namespace holds items.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from foqs.catalog.document import (
    EMPTY_DOCUMENT,
    GROUP_LEASES_MAX,
    Document,
    NamespaceRecord,
    Permission,
    PolicyRecord,
    QueueEntry,
)
from foqs.catalog.key_slot_assignment import SlotConflict, conflicting_slots, with_even_division, with_slots
from foqs.catalog.namespace_settings import SETTING_RANGES
from foqs.core.items import validation
from foqs_contract.errors import InvalidArgument, NamespaceNotFound, Unavailable


def new_catalog(namespace: str, identity: int) -> Document:
    """Return the first document of a new catalog, with one namespace.

    Args:
        identity: the identity of the catalog. It must differ from the identities of other catalogs, above all of one that was lost.
    """
    return replace(create(EMPTY_DOCUMENT, namespace, None, {}), identity=identity)


def create(
    document: Document, name: str, tier: str | None, settings: Mapping[str, int], *, incarnation: int = 0
) -> Document:
    """Add a namespace.

    Args:
        incarnation: the incarnation. It must differ from the incarnations of earlier namespaces of this name.

    Raises:
        InvalidArgument: it exists with other settings.
        Unavailable: it is being deleted.
    """
    created = NamespaceRecord(tier, _checked_settings(settings), incarnation=incarnation)
    existing = document.namespaces.get(name)
    if existing is None:
        return with_namespace(document, name, created)
    if existing.deleting is not None:
        raise Unavailable(f"the namespace {name!r} is being deleted; try again", retry_after_ms=1_000)
    _check_tier(name, existing, tier)
    if existing.settings != created.settings:
        raise InvalidArgument(
            f"the namespace {name!r} exists with other settings; change them with updateNamespace",
            field="settings.name",
        )
    return document


def update(document: Document, name: str, tier: str | None, settings: Mapping[str, int]) -> Document:
    """Change the given settings of a namespace, and record its tier. Raises `NamespaceNotFound`, `InvalidArgument`."""
    existing = find_namespace(document, name, "settings.name")
    _check_tier(name, existing, tier)
    changed = replace(
        existing,
        tier=existing.tier if tier is None else tier,
        settings={**existing.settings, **_checked_settings(settings)},
    )
    return document if changed == existing else with_namespace(document, name, changed)


def delete(document: Document, name: str) -> Document:
    """Remove a namespace. Raises `NamespaceNotFound`."""
    find_namespace(document, name)
    rest = {other: namespace for other, namespace in document.namespaces.items() if other != name}
    return _next_version(document, namespaces=rest)


def start_deletion(document: Document, name: str) -> Document:
    """Mark a namespace as being deleted: no host accepts items for it any more. Raises `NamespaceNotFound`."""
    namespace = find_namespace(document, name)
    return (
        document
        if namespace.deleting is not None
        else with_namespace(document, name, replace(namespace, deleting=frozenset()))
    )


def cancel_deletion(document: Document, name: str) -> Document:
    """Remove the mark of a namespace that is being deleted, if there is one."""
    namespace = document.namespaces.get(name)
    if namespace is None or namespace.deleting is None:
        return document
    return with_namespace(document, name, replace(namespace, deleting=None))


def record_empty_shards(
    document: Document, name: str, empty_shards: Collection[int], all_shards: Collection[int]
) -> Document:
    """Record that shards hold nothing of a namespace that is being deleted. It is deleted once all shards are recorded.

    Args:
        all_shards: all shards that may hold items of it; none if they are not known.
    """
    namespace = document.namespaces.get(name)
    if namespace is None or namespace.deleting is None:
        return document
    empty = namespace.deleting.union(empty_shards)
    if all_shards and empty >= set(all_shards):
        return delete(document, name)
    if empty == namespace.deleting:
        return document
    return with_namespace(document, name, replace(namespace, deleting=empty))


def grant(document: Document, name: str, principal: str, permissions: frozenset[Permission]) -> Document:
    """Set the permissions of a principal in a namespace; an empty set revokes the grant. Raises `NamespaceNotFound`."""
    namespace = find_namespace(document, name, "grant.namespace_name")
    grants = {other: granted for other, granted in namespace.grants.items() if other != principal}
    if permissions:
        grants[principal] = permissions
    if grants == namespace.grants:
        return document
    return with_namespace(document, name, replace(namespace, grants=grants))


def pause(document: Document, name: str, topic: str, *, paused: bool) -> Document:
    """Stop the delivery of a topic, or resume it. Raises `NamespaceNotFound`."""
    namespace = find_namespace(document, name)
    topics = namespace.paused | {topic} if paused else namespace.paused - {topic}
    if topics == namespace.paused:
        return document
    return with_namespace(document, name, replace(namespace, paused=topics))


def set_policy(document: Document, name: str, topic: str, policy: PolicyRecord) -> Document:
    """Replace the policy of a topic. Without any rule it is removed, but for what only a newer version knows.

    Raises `NamespaceNotFound`, `InvalidArgument`, `LimitExceeded`.
    """
    if policy.group_leases_max is not None:
        validation.check_number(policy.group_leases_max, 1, GROUP_LEASES_MAX, "policy.group_leases_max")
    if policy.weights and policy.fair is None:
        raise InvalidArgument(
            "only groups of a fair topic have weights; give policy.fair, or leave the weights out",
            field="policy.weights",
        )
    namespace = find_namespace(document, name)
    policy = replace(policy, unknown=namespace.policies.get(topic, PolicyRecord()).unknown)
    policies = {other: each for other, each in namespace.policies.items() if other != topic}
    if not policy.is_empty:
        policies[topic] = policy
    if policies == namespace.policies:
        return document
    return with_namespace(document, name, replace(namespace, policies=policies))


def restore(document: Document, imported: Document, *, incarnation: int = 0) -> Document:
    """Replace the content by that of `imported`; the version continues.

    A namespace that exists keeps its incarnation. A namespace that was deleted after the
    export gets the incarnation given here. If `imported` was exported from another catalog,
    perhaps because this one replaces a lost one, the incarnations of `imported` are used, and
    the catalog takes the identity of `imported`, if it has one.

    A queue that exists keeps what says where its messages are and which keys they have, whatever `imported` says of it.

    Fields that only a newer version knows stay as they are.

    The key slots of `imported` are added to the recorded ones. Shards without slots there are
    ignored, because they may have got some since.

    Args:
        incarnation: the incarnation of namespaces that are created again.

    Raises:
        InvalidArgument: a slot is recorded as another shard's.
    """
    slots = dict(document.slots)
    for tier, assignment in imported.slots.items():
        for shard, own in assignment.items():
            try:
                slots[tier] = with_slots(slots.get(tier, {}), shard, own) if own else slots.get(tier, {})
            except SlotConflict as error:
                raise InvalidArgument(
                    f"slots.{tier}.{shard}: {error}, which may hold keys in them; leave `slots` out of the document",
                    field="json",
                ) from None
    slots = {tier: assignment for tier, assignment in slots.items() if assignment}
    is_other_catalog = document.version == 0 or document.identity != imported.identity

    def incarnation_of(name: str, namespace: NamespaceRecord) -> int:
        existing = document.namespaces.get(name)
        if is_other_catalog and (existing is None or not existing.incarnation):
            return namespace.incarnation
        return incarnation if existing is None else existing.incarnation

    namespaces = {
        name: _with_kept_fields(
            document.namespaces.get(name), replace(own, deleting=None, incarnation=incarnation_of(name, own))
        )
        for name, own in imported.namespaces.items()
    }
    is_same = not is_other_catalog and (document.namespaces, document.slots) == (namespaces, slots)
    if is_same:
        return document
    return _next_version(document, namespaces=namespaces, slots=slots, identity=imported.identity or document.identity)


def _with_kept_fields(existing: NamespaceRecord | None, imported: NamespaceRecord) -> NamespaceRecord:
    """Return an imported namespace with the existing one's fields that an import does not change.

    These are the fields that only a newer version knows, and those about the keys of queues.
    """
    if existing is None:
        return imported
    queues = {
        name: _with_keys_of(existing.queues[name], queue) if name in existing.queues else queue
        for name, queue in imported.queues.items()
    }
    policies = {
        topic: replace(policy, unknown=existing.policies[topic].unknown) if topic in existing.policies else policy
        for topic, policy in imported.policies.items()
    }
    return replace(imported, queues=queues, policies=policies, unknown=existing.unknown)


def _with_keys_of(existing: QueueEntry, imported: QueueEntry) -> QueueEntry:
    """Return an imported queue with the existing one's keys, because its messages are placed and remembered by them."""
    return replace(
        imported,
        key_window_ms=existing.key_window_ms,
        keys_in_topic=existing.keys_in_topic,
        keys_alone=existing.keys_alone,
        keys_since_ms=existing.keys_since_ms,
        unknown=existing.unknown,
    )


def record_slots(
    document: Document, tier: str, held_slots: Mapping[int, frozenset[int]], tier_shards: Collection[int]
) -> Document:
    """Record the key slots that shards hold in their tables, and divide the slots of a new tier.

    A shard is skipped if one of its slots is recorded as another's. Recorded
    slots are never removed: a shard that lacks one has yet to write it.

    Args:
        tier_shards: all shards of the tier; none if they are not known.
    """
    before = document.slots.get(tier, {})
    after = before
    for shard, slots in sorted(held_slots.items()):
        if not conflicting_slots(after, shard, slots):
            after = with_slots(after, shard, slots)
    after = with_even_division(after, tier_shards)
    return document if after == before else _next_version(document, slots={**document.slots, tier: after})


def find_namespace(document: Document, name: str, field: str = "namespace_name") -> NamespaceRecord:
    """Return a namespace. Raises `NamespaceNotFound`."""
    namespace = document.namespaces.get(name)
    if namespace is None:
        raise namespace_not_found(name, field)
    return namespace


def namespace_not_found(name: str, field: str = "namespace_name") -> NamespaceNotFound:
    """Return the error for a namespace that does not exist."""
    return NamespaceNotFound(
        f"there is no namespace {name!r}; create it with createNamespace (foqs namespace create)", field=field
    )


def _check_tier(name: str, namespace: NamespaceRecord, tier: str | None) -> None:
    """Refuse to move a namespace to another tier, because its items and keys cannot move. Raises `InvalidArgument`."""
    if tier is not None and namespace.tier not in (None, tier):
        raise InvalidArgument(
            f"the namespace {name!r} belongs to tier {namespace.tier!r}; call a host of that tier",
            field="settings.tier",
        )


def _checked_settings(settings: Mapping[str, int]) -> Mapping[str, int]:
    return {
        key: validation.check_number(value, *SETTING_RANGES[key], f"settings.{key}") for key, value in settings.items()
    }


def with_namespace(document: Document, name: str, namespace: NamespaceRecord) -> Document:
    """Return the next version of a document, with this namespace in place of the one of its name."""
    return _next_version(document, namespaces={**document.namespaces, name: namespace})


def in_one_version(before: Document, after: Document) -> Document:
    """Return the result of several changes of `before` as the version that follows it."""
    return after if after is before else replace(after, version=before.version + 1)


def _next_version(document: Document, **changes: Any) -> Document:
    return replace(document, version=document.version + 1, **changes)
