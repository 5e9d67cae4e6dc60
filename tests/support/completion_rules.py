"""Rules for completions: an item is acked with the items that follow from it, or nothing is written (invariant 21).

Always true: as in `checker`. An item is judged to exist if a reply, a delivery or the final row shows it. So the topics
of completed items and of those that follow must be left alone by purges and TTLs, completed items must be acked by
nothing else before they are drained, and at the end all are drained.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final

from tests.support.history import Call, CallEnd, Entry, entries
from tests.support.item_histories import ItemHistories, ItemHistory

NAMES: Final = ("completions", "completions unknown", "completions repeated", "completions stale")
"""The keys of `count_occurrences`."""


def count_occurrences(histories: ItemHistories) -> dict[str, int]:
    """Count the completions, for a report."""
    count = dict.fromkeys(NAMES, 0)
    for entry in _completions(histories):
        count["completions"] += 1
        count["completions unknown"] += entry.end is CallEnd.UNKNOWN
        count["completions repeated"] += bool(entry.result.get("repeated"))
        count["completions stale"] += entry.code == "STALE_LEASE"
    return count


def broken_completions(histories: ItemHistories, window_ms: float = inf) -> Iterator[tuple[list[str], str]]:
    """Yield (ids, problem) for each item whose completion was not written as a whole, or twice, or is not remembered.

    Args:
        window_ms: how long a completion is remembered at least.
    """
    ids_by_mark: dict[str, list[str]] = {}
    for item in list(histories):
        for mark in item.marks:
            ids_by_mark.setdefault(mark, []).append(item.id)
    attempts: dict[str, list[Entry]] = {}
    for entry in _completions(histories):
        attempts.setdefault(entry.requested["id"], []).append(entry)
    for id, tried in attempts.items():
        item = histories.item_history(id)
        names = ", ".join(dict.fromkeys(entry.call.name for entry in tried))
        marks = {mark for entry in tried for mark in entry.requested["marks"]}
        existing = {mark for mark in marks if mark in ids_by_mark}
        new_ids = [new for mark in sorted(existing) for new in ids_by_mark[mark]]
        if len(new_ids) > len(existing):
            yield [id, *new_ids], f"an item that follows exists twice: {names}"
        whole = [entry for entry in tried if entry.may_have_effect and existing == set(entry.requested["marks"])]
        if existing and not whole:
            yield (
                [id, *new_ids],
                f"of no completion that may have been written do all items exist, and no others: {names}",
            )
        if existing:
            yield from ((([id, *new_ids]), problem) for problem in _is_still_there(item, new_ids, histories))
        elif _is_gone_by_completion(item, tried):
            yield [id], f"it is gone, and no item that follows exists: {names}"
        for entry in tried:
            if entry.code == "STALE_LEASE" and _must_be_remembered(entry, tried, window_ms):
                yield [id], f"{entry.call.name} repeats a completion that was written, and it is not remembered"


def _must_be_remembered(entry: Entry, tried: list[Entry], window_ms: float) -> bool:
    """Whether an entry repeats one that had succeeded, before the first attempt that may have written it can be forgotten."""
    same = [other for other in tried if other.requested == entry.requested and other.may_have_effect]
    return (
        entry.returned is not None
        and any(other.returned is not None and other.returned.before(entry.invoked) for other in same)
        and entry.returned.at_ms < min(other.invoked.at_ms for other in same) + window_ms
    )


def _is_still_there(item: ItemHistory, new_ids: list[str], histories: ItemHistories) -> Iterator[str]:
    """Yield a problem if a completed item is in the tables, or was delivered after an item that follows from it."""
    if item.row is not None:
        yield "it is in the tables, and so are, or were, the items that follow from it"
    received = [each.received for new in new_ids for each in histories.item_history(new).receipts]
    for each in item.receipts:
        if any(stamp.before(each.requested) for stamp in received):
            yield f"{each} was requested after an item that follows from it was delivered"


def _is_gone_by_completion(item: ItemHistory, tried: list[Entry]) -> bool:
    """Whether only one of these completions can have removed the item."""
    if item.histories.record.present is None or item.row is not None or not item.receipts:
        return False
    completed = {(entry.call.process, entry.requested["token"]) for entry in tried}
    others = [
        entry
        for entry in item.possible_operations("ack", "cancel")
        if (entry.call.process, entry.requested.get("token")) not in completed
    ]
    return not others and any(entry.may_have_effect for entry in tried)


def _completions(histories: ItemHistories) -> list[Entry]:
    calls: list[Call] = histories.calls_of("complete")
    return [entry for call in calls for entry in entries(call)]
