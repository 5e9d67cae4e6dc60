"""Rules for atomic calls: all items are written, or none is (invariant 20).

Always true: as in `checker`. An item is judged to exist if a reply, a delivery or the final row shows it, so the
topics of these calls must be left alone by purges and TTLs, and drained at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.support.history import Call, CallEnd
from tests.support.item_histories import ItemHistories

NAMES: Final = ("atomic calls", "atomic calls unknown", "atomic repeats", "atomic key conflicts")
"""The keys of `count_occurrences`."""


def count_occurrences(histories: ItemHistories) -> dict[str, int]:
    """Count the atomic calls, for a report."""
    count = dict.fromkeys(NAMES, 0)
    for call in _atomic_calls(histories):
        count["atomic calls"] += 1
        count["atomic calls unknown"] += call.end is CallEnd.UNKNOWN
        count["atomic repeats"] += call.end is CallEnd.OK and bool(call.results[0].get("repeated"))
        count["atomic key conflicts"] += call.code == "KEY_CONFLICT"
    return count


def broken_calls(histories: ItemHistories) -> Iterator[tuple[list[str], str]]:
    """Yield (ids, problem) for each atomic call of which not all items are alike."""
    ids_by_mark: dict[str, list[str]] = {}
    for item in list(histories):
        for mark in item.marks:
            ids_by_mark.setdefault(mark, []).append(item.id)
    calls_by_mark: dict[str, list[Call]] = {}
    for call in _atomic_calls(histories):
        for mark in _marks(call):
            calls_by_mark.setdefault(mark, []).append(call)
        if (
            call.end is CallEnd.OK
            and len({(bool(each.get("error")), each.get("repeated")) for each in call.results}) > 1
        ):
            yield [each["id"] for each in call.results if each.get("id")], f"{call.name} has results of different kinds"
    for mark, calls in calls_by_mark.items():
        if mark in ids_by_mark and not any(
            ids_by_mark.keys() >= set(_marks(call)) for call in calls if call.may_have_effect
        ):
            names = ", ".join(call.name for call in calls)
            yield ids_by_mark[mark], f"of no call that may have written this item do all items exist: {names}"
    for call in _atomic_calls(histories):
        if call.code == "KEY_CONFLICT" and all(
            _marks(other) == _marks(call) for mark in _marks(call) for other in calls_by_mark[mark]
        ):
            yield [], f"{call.name} has a key conflict, but its keys were used for its own items only"


def _atomic_calls(histories: ItemHistories) -> list[Call]:
    return [call for call in histories.calls_of("enqueue") if call.args.get("atomic")]


def _marks(call: Call) -> list[str]:
    return [item["mark"] for item in call.items]
