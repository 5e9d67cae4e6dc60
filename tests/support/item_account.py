"""The account of a run: the end of every item, and invariant 1 as a sum.

Always true: an item is counted exactly if the outcome of all its calls is known and
the server may not drop it; any other item may count on either side. Checks only the
sum; the checker checks single items.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.history import Call, CallEnd, Event, Record, Stamp, read
from tests.support.item_histories import BY_ID, DESTROYING, ItemHistory, sort_by_item

_WRITES = frozenset(("enqueue", "dequeue", *BY_ID))


@dataclass(slots=True)
class ItemAccount:
    """Counts of items."""

    acknowledged: int = 0
    unknown: int = 0
    """Items whose enqueue ended unknown."""
    removed: int = 0
    """Acknowledged items that an ack or a cancel is known to have removed."""
    present: int = 0
    """Acknowledged items that are in the tables."""
    vague: int = 0
    """Acknowledged items that are in neither place and may be gone: TTL, at most once, an unknown ack."""
    exact: int = 0
    """Acknowledged items of which nothing is unknown and that cannot drop out by themselves."""
    wrong: list[str] = field(default_factory=list)
    """The stories of exact items that are not in exactly one place."""


def account(events: Iterable[Event]) -> ItemAccount:
    """Counts the items of a finished history, which must contain the items that are present."""
    record = read(events)
    assert record.present is not None, "the history does not say what the tables held"
    book = sort_by_item(record)
    found = ItemAccount()
    found.unknown = sum(entry.end is CallEnd.UNKNOWN for tried in book.by_mark.values() for entry in tried)
    for case in book:
        if not case.enqueued:
            continue
        places = (case.row is not None) + len(_removals(case))
        found.acknowledged += 1
        found.present += case.row is not None
        found.removed += bool(_removals(case))
        found.vague += not places
        if _is_exact(case):
            found.exact += 1
            if places != 1:
                found.wrong.append(f"item {case.id} is in {places} places\n" + "\n".join(case.timeline()))
    return found


def _removals(case: ItemHistory) -> list[Event]:
    """The call that removed it. If no call reports that, one that found it gone: a client retries by itself."""
    done = [entry.result for entry in case.acknowledged_operations(*DESTROYING)]
    return [result for result in done if not result.get("already_gone")] or done[:1]


def _is_exact(case: ItemHistory) -> bool:
    drops = case.requested("ttl_ms") is not None or case.requested("at_most_once", False)
    return not drops and not any(entry.end is CallEnd.UNKNOWN for op in DESTROYING for entry in case.ops[op])


def in_flight(record: Record, at_ms: float) -> list[Call]:
    """The calls that may write and were under way at a moment of the observer's clock."""

    def over(stamp: Stamp | None) -> bool:
        return stamp is not None and stamp.at_ms < at_ms

    return [
        call for call in record.calls if call.op in _WRITES and call.invoked.at_ms <= at_ms and not over(call.returned)
    ]
