"""What must be true of what administrators do: pages of changes by filter, pauses, limits (invariants 1 and 19).

Always true: as `checker` promises; a page that ended unknown may have changed as
many items as it asked for, and a pause, resume or limit that did may still hold
from any moment on. What a page may have touched is in the casebook, as an
operation of unknown outcome on each item of its topic.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tests.support.certain_changes import SPREAD_MS, certainly_held
from tests.support.history import Call, CallEnd, entries
from tests.support.item_histories import PAGES, ItemHistories, ItemHistory

NAMES: Final = ("changed by filter", "pages unknown", "pauses", "limits", "refused by limits")
"""What `counts` counts."""

Where: TypeAlias = tuple[str | None, str | None]
"""Namespace and topic."""


def count_occurrences(book: ItemHistories) -> dict[str, int]:
    """How often administrators did something, for people."""
    count = dict.fromkeys(NAMES, 0)
    for call in book.record.calls:
        if call.op in PAGES:
            count["changed by filter"] += call.results[0]["changed"] if call.end is CallEnd.OK else 0
            count["pages unknown"] += call.end is CallEnd.UNKNOWN
        count["pauses"] += call.op == "pause" and call.end is CallEnd.OK
        count["limits"] += call.op == "limit" and call.end is CallEnd.OK
        if call.op == "enqueue":
            codes = [call.code, *(entry.code for entry in entries(call))]
            count["refused by limits"] += any(code in ("LIMIT_EXCEEDED", "RATE_LIMITED") for code in codes)
    return count


def check_pages(book: ItemHistories, gone: Callable[[ItemHistory], bool]) -> Iterator[tuple[list[str], str]]:
    """1: no more items are gone by pages than pages say that they cancelled.

    Args:
        gone: nothing but a page can have removed the item.

    Yields: the items' ids and what is wrong.
    """
    most: dict[Where, int] = defaultdict(int)
    for call in book.record.calls:
        if PAGES.get(call.op) == "cancel" and call.end is not CallEnd.FAILED:
            most[_where(call)] += call.results[0]["changed"] if call.end is CallEnd.OK else call.args["limit"]
    items: dict[Where, list[str]] = defaultdict(list)
    for case in book:
        if gone(case):
            items[case.namespace, case.requested("topic")].append(case.id)
    for (namespace, topic), ids in items.items():
        # A page without a topic may have removed items of each.
        told = most[namespace, topic] + most[namespace, None]
        if len(ids) > told:
            yield (
                ids,
                f"pages cancelled {told} items of topic {topic} at most, and {len(ids)} are gone for no other reason",
            )


def check_pauses(book: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[tuple[list[str], str]]:
    """19: whoever asks after a topic was paused gets nothing of it until somebody asks to have it resumed."""
    pauses, resumes, imports = _changes(book, "pause"), _changes(book, "resume"), _of(book, "import")
    for call in book.record.calls:
        if call.op != "dequeue" or not call.results:
            continue
        assert call.returned is not None
        for topic in call.args["topics"]:
            where = (call.args.get("namespace"), topic)
            for pause in pauses[where]:
                others = [*resumes[where], *imports]
                if certainly_held(pause, others, call.invoked, call.returned, book.record.healed, spread_ms):
                    ids = [result["id"] for result in call.results if result["topic"] == topic]
                    if ids:
                        yield ids, f"{call.name} brought items of topic {topic}, which {pause.name} had paused"
                    break


def check_limits(book: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[tuple[list[str], str]]:
    """19: what a namespace's limit forbids is refused from its answer until somebody asks for another."""
    changes = [call for call in _of(book, "limit") if call.args["metadata_bytes_max"] is not None]
    for at, change in enumerate(changes):
        if change.args["metadata_bytes_max"] != 0:
            continue
        others = [*changes[:at], *changes[at + 1 :]]
        others = [*(other for other in others if _where(other) == _where(change)), *_of(book, "import")]
        for call in book.record.calls:
            if call.op != "enqueue" or call.end is not CallEnd.OK or _where(call)[0] != _where(change)[0]:
                continue
            assert call.returned is not None
            if certainly_held(change, others, call.invoked, call.returned, book.record.healed, spread_ms):
                ids = [
                    entry.result["id"]
                    for entry in entries(call)
                    if entry.end is CallEnd.OK and entry.requested["metadata"]
                ]
                if ids:
                    yield ids, f"{call.name} enqueued items with metadata, which {change.name} had forbidden"


def _of(book: ItemHistories, op: str) -> list[Call]:
    return [call for call in book.record.calls if call.op == op and call.end is not CallEnd.FAILED]


def _changes(book: ItemHistories, op: str) -> dict[Where, list[Call]]:
    found: dict[Where, list[Call]] = defaultdict(list)
    for call in _of(book, op):
        found[_where(call)].append(call)
    return found


def _where(call: Call) -> Where:
    return call.args.get("namespace"), call.args.get("topic")
