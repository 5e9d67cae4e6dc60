"""The rules for completions find what they are for, and nothing else."""

from __future__ import annotations

import pytest

from tests.support.completion_rules import broken_completions, count_occurrences
from tests.support.history import UNKNOWN, Event, History, read
from tests.support.item_histories import ItemHistories, sort_by_item

STALE = "STALE_LEASE"
ACKED = "1-x"
"""The id of the item that is completed."""


class Story:
    """Records a history in which item `x` is delivered and completed. Marks of new items are single letters."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self.history = History(self._clock)
        call = self.history.invoke("p", "enqueue", [{"mark": "x", "topic": "t"}], namespace="n")
        self.history.ok(call, [{"id": ACKED}])
        self.deliver("x", token=1)

    def _clock(self) -> float:
        self._now_ms += 1
        return self._now_ms

    def deliver(self, mark: str, token: int) -> None:
        """Deliver the item of a mark."""
        call = self.history.invoke("c", "dequeue", [], topics={"t": 1}, namespace="n")
        self.history.ok(call, [{"id": f"1-{mark}", "mark": mark, "token": token, "topic": "t"}])

    def complete(self, marks: str, result: Event | str, token: int = 1, process: str = "c") -> None:
        """Complete item `x`. The result is an entry's, or the code of the whole call."""
        lease = {"id": ACKED, "token": token}
        calls = [
            self.history.invoke(process, "complete", [{**lease, "marks": list(marks)}], namespace="n"),
            self.history.invoke(process, "ack", [lease], namespace="n"),
        ]
        for call in calls:
            if isinstance(result, str):
                self.history.fail(call, result)
            else:
                self.history.ok(call, [result])

    def ack(self) -> None:
        call = self.history.invoke("drainer", "ack", [{"id": ACKED, "token": 1}], namespace="n")
        self.history.ok(call, [{}])

    def end(self, present: str) -> ItemHistories:
        rows = [{"id": f"1-{name}", "mark": name[0], "state": "ready"} for name in present.split()]
        self.history.present(rows)
        return sort_by_item(read(self.history.events))


def written(marks: str) -> Event:
    return {"ids": [f"1-{mark}" for mark in marks]}


@pytest.mark.parametrize(
    ("completions", "present"),
    [
        ([("ab", written("ab"))], "a b"),
        ([("ab", UNKNOWN)], "a b"),
        ([("ab", UNKNOWN)], "x"),
        ([("ab", UNKNOWN), ("ab", written("ab"))], "a b"),
        ([("ab", UNKNOWN), ("cd", UNKNOWN)], "c d"),
        ([("ab", {"error": STALE})], "x"),
        ([("ab", written("ab")), ("cd", {"error": STALE})], "a b"),
    ],
)
def test_completion_that_is_written_as_a_whole_or_not_at_all_is_in_order(
    completions: list[tuple[str, Event | str]], present: str
) -> None:
    story = Story()
    for marks, result in completions:
        story.complete(marks, result)
    assert list(broken_completions(story.end(present))) == []


@pytest.mark.parametrize(
    ("completions", "present", "problem"),
    [
        ([("ab", UNKNOWN)], "a", "do all items exist"),
        ([("ab", {"error": STALE})], "x a b", "do all items exist"),
        ([("ab", UNKNOWN), ("cd", UNKNOWN)], "a b c d", "do all items exist"),
        ([("ab", UNKNOWN)], "a b x", "it is in the tables"),
        ([("ab", UNKNOWN)], "", "no item that follows exists"),
        ([("ab", UNKNOWN), ("ab", UNKNOWN)], "a a2 b b2", "exists twice"),
        ([("ab", written("ab")), ("ab", {"error": STALE})], "a b", "it is not remembered"),
    ],
)
def test_completion_that_is_half_written_or_written_twice_is_found(
    completions: list[tuple[str, Event | str]], present: str, problem: str
) -> None:
    story = Story()
    for marks, result in completions:
        story.complete(marks, result)
    assert any(problem in found for _, found in broken_completions(story.end(present)))


def test_delivery_after_an_item_that_follows_is_found_and_an_earlier_one_is_not() -> None:
    story = Story()
    story.complete("a", UNKNOWN)
    story.deliver("x", token=2)
    story.deliver("a", token=1)
    assert list(broken_completions(story.end("a"))) == []
    story = Story()
    story.complete("a", UNKNOWN)
    story.deliver("a", token=1)
    story.deliver("x", token=2)
    [(_, problem)] = broken_completions(story.end("a"))
    assert "was requested after an item that follows from it was delivered" in problem


def test_completion_is_remembered_for_the_key_window_only() -> None:
    story = Story()
    story.complete("ab", written("ab"))
    story.complete("ab", {"error": STALE})
    histories = story.end("a b")
    assert list(broken_completions(histories, window_ms=3)) == []
    assert len(list(broken_completions(histories, window_ms=30))) == 1


def test_item_that_another_client_acked_needs_no_items() -> None:
    story = Story()
    story.complete("ab", UNKNOWN)
    story.ack()
    histories = story.end("")
    assert list(broken_completions(histories)) == []
    assert count_occurrences(histories)["completions unknown"] == 1
