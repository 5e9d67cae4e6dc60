"""Planted bugs of permissions, of namespaces that are created and deleted, and of explanations; see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from foqs.catalog import changes
from foqs.catalog.document import Document, Permission
from foqs.catalog.namespace_settings import NamespaceSettings
from foqs.catalog.namespaces import Namespaces
from foqs.core.items.explanation import ItemSnapshot, Reasons
from foqs.core.items.item import State
from foqs.core.memory.topic_counts import TopicCounts
from foqs.queue.reads import explainer
from foqs.rpc.auth_session import AuthSession
from foqs_contract.errors import NamespaceNotFound
from tests.simulation.planting import plant


def permission_missing_for_one_call() -> None:
    """One call needs no permission, only a token."""

    def authorize(self: AuthSession, method: Any, request: Any) -> None:
        if method.row.name != "peek":
            original(self, method, request)

    original = plant(AuthSession, "authorize", authorize)


def authentication_skipped() -> None:
    """A client without a token is admitted."""
    plant(AuthSession, "require_principal", lambda self, method: None)


def grants_never_revoked() -> None:
    """A revoked grant stays in force."""

    def permissions(self: Namespaces, principal: str, name: str) -> frozenset[Permission]:
        granted[principal, name] = granted.get((principal, name), frozenset()) | original(self, principal, name)
        return granted[principal, name]

    granted: dict[tuple[str, str], frozenset[Permission]] = {}
    original = plant(Namespaces, "permissions_of", permissions)


def deleted_with_deferred_items() -> None:
    """A namespace that holds only deferred items counts as empty."""

    def items(self: TopicCounts, namespace: str) -> int:
        return original(self, namespace) - deferred(self, namespace)

    def deferred(counts: TopicCounts, namespace: str) -> int:
        return sum(counts.count((namespace, topic), State.DEFERRED) for topic in counts.topic_names(namespace))

    original = plant(TopicCounts, "item_count", items)


def deleted_namespace_served() -> None:
    """A host still serves a namespace that was deleted."""

    def settings_of(self: Namespaces, name: str) -> NamespaceSettings:
        try:
            served[name] = original(self, name)
        except NamespaceNotFound:
            if name not in served:
                raise
        return served[name]

    served: dict[str, NamespaceSettings] = {}
    original = plant(Namespaces, "settings_of", settings_of)


def leased_explained_as_ready() -> None:
    """A leased item is explained as ready."""

    def explain(snapshot: ItemSnapshot) -> Reasons:
        row = snapshot.row
        if row is not None and row.state is State.LEASED:
            snapshot = replace(snapshot, row=replace(row, state=State.READY))
        return original(snapshot)

    original: Callable[[ItemSnapshot], Reasons] = plant(explainer, "explain", explain)


def deferred_explained_as_absent() -> None:
    """A deferred item is explained as absent."""

    def item_explanation(snapshot: ItemSnapshot, view: Any) -> Any:
        if view is not None and view.row.state is State.DEFERRED:
            snapshot, view = replace(snapshot, row=None), None
        return original(snapshot, view)

    original = plant(explainer, "_item_explanation", item_explanation)


def imports_without_grants() -> None:
    """An import leaves out the grants of its namespaces."""

    def restored(document: Document, imported: Document, **incarnation: int) -> Document:
        bare = {name: replace(each, grants={}) for name, each in imported.namespaces.items()}
        kept = {
            name: replace(each, grants=document.namespaces[name].grants)
            for name, each in bare.items()
            if name in document.namespaces
        }
        return original(document, replace(imported, namespaces={**bare, **kept}), **incarnation)

    original = plant(changes, "restore", restored)
