"""Rules for administrators' calls: pages of changes by filter, pauses, limits (invariants 1 and 19).

Always true: as in `checker`. A page of unknown outcome may have changed as many
items as it asked for; a pause, resume or limit of unknown outcome may take effect
at any later moment. Each item that a page may have changed has an operation of
unknown outcome in its history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from tests.support.certain_changes import SPREAD_MS, certainly_held
from tests.support.history import Call, CallEnd, entries
from tests.support.item_histories import PAGES, ItemHistories, ItemHistory

NAMES: Final = ("changed by filter", "pages unknown", "pauses", "limits", "refused by limits")
"""The keys of `count_occurrences`."""

TopicKey: TypeAlias = tuple[str | None, str | None]
"""Namespace and topic."""


def count_occurrences(histories: ItemHistories) -> dict[str, int]:
    """Count what administrators did, for a report."""
    count = dict.fromkeys(NAMES, 0)
    for call in histories.record.calls:
        if call.op in PAGES:
            count["changed by filter"] += call.results[0]["changed"] if call.end is CallEnd.OK else 0
            count["pages unknown"] += call.end is CallEnd.UNKNOWN
        count["pauses"] += call.op == "pause" and call.end is CallEnd.OK
        count["limits"] += call.op == "limit" and call.end is CallEnd.OK
        if call.op == "enqueue":
            codes = [call.code, *(entry.code for entry in entries(call))]
            count["refused by limits"] += any(code in ("LIMIT_EXCEEDED", "RATE_LIMITED") for code in codes)
    return count


def check_pages(
    histories: ItemHistories, was_cancelled_by_page: Callable[[ItemHistory], bool]
) -> Iterator[tuple[list[str], str]]:
    """1: pages remove no more items than their replies say.

    Args:
        was_cancelled_by_page: whether only a page can have removed the item.

    Yields: the items' ids and the problem.
    """
    cancelled_max: dict[TopicKey, int] = defaultdict(int)
    for call in histories.record.calls:
        if PAGES.get(call.op) == "cancel" and call.end is not CallEnd.FAILED:
            cancelled_max[_topic_key(call)] += (
                call.results[0]["changed"] if call.end is CallEnd.OK else call.args["limit"]
            )
    items: dict[TopicKey, list[str]] = defaultdict(list)
    for item in histories:
        if was_cancelled_by_page(item):
            items[item.namespace, item.requested("topic")].append(item.id)
    for (namespace, topic), ids in items.items():
        # A page without a topic may have removed items of any topic.
        cancelled = cancelled_max[namespace, topic] + cancelled_max[namespace, None]
        if len(ids) > cancelled:
            yield (
                ids,
                f"pages cancelled at most {cancelled} items of topic {topic}, but {len(ids)} are gone for no other reason",
            )


def check_pauses(histories: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[tuple[list[str], str]]:
    """19: a dequeue of a paused topic gets nothing until the topic is resumed."""
    pauses, resumes, imports = _changes(histories, "pause"), _changes(histories, "resume"), _of(histories, "import")
    for call in histories.record.calls:
        if call.op != "dequeue" or not call.results:
            continue
        assert call.returned is not None
        for topic in call.args["topics"]:
            topic_key = (call.args.get("namespace"), topic)
            for pause in pauses[topic_key]:
                others = [*resumes[topic_key], *imports]
                if certainly_held(pause, others, call.invoked, call.returned, histories.record.healed, spread_ms):
                    ids = [result["id"] for result in call.results if result["topic"] == topic]
                    if ids:
                        yield ids, f"{call.name} delivered items of topic {topic}, which {pause.name} had paused"
                    break


def check_limits(histories: ItemHistories, spread_ms: float = SPREAD_MS) -> Iterator[tuple[list[str], str]]:
    """19: from the moment when a limit is set, the namespace refuses what it forbids, until another limit is set."""
    changes = [call for call in _of(histories, "limit") if call.args["metadata_bytes_max"] is not None]
    for index, change in enumerate(changes):
        if change.args["metadata_bytes_max"] != 0:
            continue
        others = [*changes[:index], *changes[index + 1 :]]
        others = [*(other for other in others if _topic_key(other) == _topic_key(change)), *_of(histories, "import")]
        for call in histories.record.calls:
            if call.op != "enqueue" or call.end is not CallEnd.OK or _topic_key(call)[0] != _topic_key(change)[0]:
                continue
            assert call.returned is not None
            if certainly_held(change, others, call.invoked, call.returned, histories.record.healed, spread_ms):
                ids = [
                    entry.result["id"]
                    for entry in entries(call)
                    if entry.end is CallEnd.OK and entry.requested["metadata"]
                ]
                if ids:
                    yield ids, f"{call.name} enqueued items with metadata, which {change.name} had forbidden"


def _of(histories: ItemHistories, op: str) -> list[Call]:
    return [call for call in histories.record.calls if call.op == op and call.end is not CallEnd.FAILED]


def _changes(histories: ItemHistories, op: str) -> dict[TopicKey, list[Call]]:
    found: dict[TopicKey, list[Call]] = defaultdict(list)
    for call in _of(histories, op):
        found[_topic_key(call)].append(call)
    return found


def _topic_key(call: Call) -> TopicKey:
    return call.args.get("namespace"), call.args.get("topic")
