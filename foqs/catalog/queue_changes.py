"""The changes of a namespace's queues: each takes a document and returns the next one.

Always true: a change sees the stored queues, so two hosts that change them at the same
time do not overwrite each other; a namespace has at most the given number of queues.
Pure; knows nothing of the meaning of attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TypeAlias

from foqs.catalog.changes import find_namespace, with_namespace
from foqs.catalog.document import Document, QueueEntry
from foqs_contract.errors import LimitExceeded, Unavailable

QueueChange: TypeAlias = Callable[[QueueEntry | None], QueueEntry | None]
"""Returns the entry that replaces the stored one; None means that there is no such queue."""


def change_queue(document: Document, namespace_name: str, name: str, change: QueueChange, queues_max: int) -> Document:
    """Replace the entry of a queue.

    Raises:
        NamespaceNotFound: there is no such namespace.
        Unavailable: it is being deleted.
        LimitExceeded: it has `queues_max` queues already.
    """
    namespace = find_namespace(document, namespace_name)
    if namespace.deleting is not None:
        raise Unavailable(f"the namespace {namespace_name!r} is being deleted; try again", retry_after_ms=1_000)
    before = namespace.queues.get(name)
    after = change(before)
    if after == before:
        return document
    queues = {other: entry for other, entry in namespace.queues.items() if other != name}
    if after is not None:
        if before is None and len(queues) >= queues_max:
            raise LimitExceeded(
                f"the namespace {namespace_name!r} has {len(queues)} queues already; delete some, or raise sqs.queues_max"
            )
        queues[name] = after
    return with_namespace(document, namespace_name, replace(namespace, queues=queues))


def mark_fair(document: Document, namespace_name: str, names: Collection[str]) -> Document:
    """Let the groups of queues take turns. Queues that do not exist any more are ignored. Raises `NamespaceNotFound`."""
    namespace = find_namespace(document, namespace_name)
    marked = {
        name: replace(entry, is_fair=True)
        for name in names
        if (entry := namespace.queues.get(name)) is not None and not entry.is_fair
    }
    if not marked:
        return document
    return with_namespace(document, namespace_name, replace(namespace, queues={**namespace.queues, **marked}))
