"""Mistakes planted in who gets in, in namespaces that come and go, and in explanations; see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from foqs.catalog import changes
from foqs.catalog.document import Document, Permission
from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.namespaces import Namespaces
from foqs.core.errors import NamespaceNotFound
from foqs.core.items.explanation import Explanation, ItemSnapshot
from foqs.core.items.item import State
from foqs.core.memory.topic_counts import TopicCounts
from foqs.queue import explainer as service_explain
from foqs.rpc.auth_session import AuthSession
from tests.simulation.planting import plant


def permission_missing_for_one_call() -> None:
    """The gate forgets one call: whoever has a token may make it."""

    def permit(self: AuthSession, method: Any, request: Any) -> None:
        if method.name != "peek":
            original(self, method, request)

    original = AuthSession.authorize
    AuthSession.authorize = permit  # type: ignore[method-assign]


def authentication_skipped() -> None:
    """Who has shown nothing is let in."""
    AuthSession.require_principal = lambda self, method: None  # type: ignore[method-assign]


def grants_for_ever() -> None:
    """What was granted once stays granted."""

    def permissions(self: Namespaces, principal: str, name: str) -> frozenset[Permission]:
        ever[principal, name] = ever.get((principal, name), frozenset()) | original(self, principal, name)
        return ever[principal, name]

    ever: dict[tuple[str, str], frozenset[Permission]] = {}
    original = Namespaces.permissions_of
    Namespaces.permissions_of = permissions  # type: ignore[method-assign]


def deleted_with_what_is_deferred() -> None:
    """A namespace that holds deferred items alone counts as empty."""

    def items(self: TopicCounts, namespace: str) -> int:
        return original(self, namespace) - deferred(self, namespace)

    def deferred(counts: TopicCounts, namespace: str) -> int:
        return sum(counts.count((namespace, topic), State.DEFERRED) for topic in counts.topic_names(namespace))

    original = TopicCounts.item_count
    TopicCounts.item_count = items  # type: ignore[method-assign]


def deleted_and_served_on() -> None:
    """A host goes on with the calls of a namespace that was deleted."""

    def settings_of(self: Namespaces, name: str) -> NamespaceSettings:
        try:
            served[name] = original(self, name)
        except NamespaceNotFound:
            if name not in served:
                raise
        return served[name]

    served: dict[str, NamespaceSettings] = {}
    original = Namespaces.settings_of
    Namespaces.settings_of = settings_of  # type: ignore[method-assign]


def leased_explained_as_ready() -> None:
    """An item that somebody has is said to be the next of its topic."""

    def told(scene: ItemSnapshot) -> Explanation:
        row = scene.row
        if row is not None and row.state is State.LEASED:
            scene = replace(scene, row=replace(row, state=State.READY))
        return original(scene)

    original: Callable[[ItemSnapshot], Explanation] = plant(service_explain, "explain", told)


def deferred_explained_as_gone() -> None:
    """An item that waits for its time is said not to be there."""

    def told(scene: ItemSnapshot, seen: Any) -> Any:
        if seen is not None and seen.row.state is State.DEFERRED:
            scene, seen = replace(scene, row=None), None
        return original(scene, seen)

    original = plant(service_explain, "_item_explanation", told)


def imports_without_grants() -> None:
    """An import brings namespaces without the grants in them."""

    def restored(document: Document, imported: Document, **incarnation: int) -> Document:
        bare = {name: replace(each, grants={}) for name, each in imported.namespaces.items()}
        kept = {
            name: replace(each, grants=document.namespaces[name].grants)
            for name, each in bare.items()
            if name in document.namespaces
        }
        return original(document, replace(imported, namespaces={**bare, **kept}), **incarnation)

    original = changes.restore
    changes.restore = restored
