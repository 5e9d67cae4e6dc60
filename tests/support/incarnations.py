"""The lives of a namespace that is deleted and created again, as a history shows them.

Holds the rule that a reply names an item of the present life, for invariant 3.
Always true: only an acknowledged deletion ends a life for certain; a deletion or
an import of unknown outcome may have ended one.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.history import Call, CallEnd
from tests.support.item_histories import ItemHistories, ItemHistory

ENDING = ("delete", "import")


def ids_of_earlier_incarnations(book: ItemHistories) -> Iterator[tuple[tuple[str], str]]:
    """Ids that an enqueue was answered with, though they are of a life of the namespace that was over."""
    deletions = [call for call in book.calls_of("delete") if call.end is CallEnd.OK]
    for case in book:
        for deletion in deletions:
            if case.namespace == deletion.args.get("namespace") and _outlives(case, deletion):
                yield (case.id,), f"an enqueue names it after {deletion.name} had deleted its namespace"
                break


def _outlives(case: ItemHistory, deletion: Call) -> bool:
    """The item was acknowledged before the deletion began, and again by an enqueue that began after it was over."""
    over = deletion.returned
    known = any(entry.returned is not None and entry.returned.before(deletion.invoked) for entry in case.enqueued)
    return known and over is not None and any(over.before(entry.invoked) for entry in case.enqueued)


def incarnation_may_have_ended(book: ItemHistories, namespace: object, from_ms: float, to_ms: float) -> bool:
    """A life of the namespace may have ended between these moments, and its keys with it."""
    return any(
        call.args.get("namespace") == namespace
        and call.end is not CallEnd.FAILED
        and call.invoked.at_ms <= to_ms
        and (call.returned is None or call.end is not CallEnd.OK or call.returned.at_ms >= from_ms)
        for op in ENDING
        for call in book.calls_of(op)
    )
