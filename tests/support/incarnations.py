"""The incarnations of a namespace that is deleted and created again, as a history shows them.

Holds the rule that a reply names an item of the current incarnation, for
invariant 3. Always true: only an acknowledged deletion certainly ends an
incarnation; a deletion or an import of unknown outcome may have ended one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.history import Call, CallEnd
from tests.support.item_histories import ItemHistories, ItemHistory

ENDING = ("delete", "import")


def ids_of_earlier_incarnations(histories: ItemHistories) -> Iterator[tuple[tuple[str], str]]:
    """Yield the ids that an enqueue returned although their incarnation of the namespace had ended."""
    deletions = [call for call in histories.calls_of("delete") if call.end is CallEnd.OK]
    for item in histories:
        for deletion in deletions:
            if item.namespace == deletion.args.get("namespace") and _outlives(item, deletion):
                yield (item.id,), f"an enqueue returned it after {deletion.name} had deleted its namespace"
                break


def _outlives(item: ItemHistory, deletion: Call) -> bool:
    """Whether an enqueue returned the item before the deletion began, and another that began after it had ended."""
    deleted = deletion.returned
    existed = any(entry.returned is not None and entry.returned.before(deletion.invoked) for entry in item.enqueued)
    return existed and deleted is not None and any(deleted.before(entry.invoked) for entry in item.enqueued)


def incarnation_may_have_ended(histories: ItemHistories, namespace: object, from_ms: float, to_ms: float) -> bool:
    """Whether an incarnation of the namespace, and its keys, may have ended between these moments."""
    return any(
        call.args.get("namespace") == namespace
        and call.end is not CallEnd.FAILED
        and call.invoked.at_ms <= to_ms
        and (call.returned is None or call.end is not CallEnd.OK or call.returned.at_ms >= from_ms)
        for op in ENDING
        for call in histories.calls_of(op)
    )
