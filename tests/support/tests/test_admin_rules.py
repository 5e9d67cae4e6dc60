"""The checker's rules for pages, pauses and limits: one violation of each, and near misses without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.checker import check
from tests.support.clock_bounds import ClockBounds
from tests.support.history import UNKNOWN, Event, History

BOUNDS = ClockBounds(lease_ms_default=1_000, attempts_max_default=0, backoff_ms_max=100)


class Log:
    """A history whose calls follow one another, a second apart."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._history = History(lambda: self._now_ms)

    def call(
        self, op: str, *, items: Sequence[Event] = (), results: Sequence[Event] = (), failed: str = "", **args: Any
    ) -> None:
        self._now_ms += 1_000
        number = self._history.invoke("p", op, items, namespace="n", **args)
        self._now_ms += 10
        if failed:
            self._history.fail(number, failed)
        else:
            self._history.ok(number, results)

    def enqueue(self, *ids: str, topic: str = "t", metadata: str = "") -> None:
        items = [{"mark": id, "topic": topic, "priority": 0, "metadata": metadata} for id in ids]
        self.call("enqueue", items=items, results=[{"id": id, "repeated": False} for id in ids])

    def page(self, verb: str, changed: int, *, topic: str | None = "t", failed: str = "") -> None:
        results = [{"changed": changed}]
        self.call(f"{verb} matching", topic=topic, limit=5, change={}, results=results, failed=failed)

    def dequeue(self, *ids: str, topic: str = "t") -> None:
        results = [{"id": id, "mark": id, "topic": topic, "priority": 0, "token": 1, "attempt": 1} for id in ids]
        self.call("dequeue", topics={topic: 5}, results=results)

    def ack(self, id: str) -> None:
        self.call("ack", items=[{"id": id, "token": 1}], results=[{}])

    def judge(self) -> list[int]:
        """The numbers of the invariants that were broken."""
        self._history.present([])
        return [violation.invariant for violation in check(self._history.events, BOUNDS)]


@pytest.mark.parametrize(("changed", "broken"), [(1, [1]), (2, []), (3, [])])
def test_pages_remove_no_more_items_than_their_replies_say(changed: int, broken: list[int]) -> None:
    log = Log()
    log.enqueue("1-1", "1-2")
    log.page("cancel", changed)
    assert log.judge() == broken


def test_a_page_of_unknown_outcome_may_have_cancelled_its_whole_limit() -> None:
    log = Log()
    log.enqueue("1-1", "1-2", "1-3", "1-4", "1-5")
    log.page("cancel", 0, failed=UNKNOWN)
    assert log.judge() == []
    log = Log()
    log.enqueue("1-1", "1-2", "1-3", "1-4", "1-5", "1-6")
    log.page("cancel", 0, failed=UNKNOWN)
    assert log.judge() == [1]


def test_an_acked_item_does_not_count_as_cancelled_by_a_page() -> None:
    log = Log()
    log.enqueue("1-1")
    log.dequeue("1-1")
    log.ack("1-1")
    log.page("cancel", 0)
    assert log.judge() == []


@pytest.mark.parametrize("verb", ["update", "redrive"])
def test_only_cancelling_pages_explain_a_missing_item(verb: str) -> None:
    log = Log()
    log.enqueue("1-1")
    log.page(verb, 1)
    assert log.judge() == [1]


def test_a_failed_page_or_one_of_another_topic_explains_no_missing_item() -> None:
    log = Log()
    log.enqueue("1-1")
    log.page("cancel", 1, topic="u")
    log.page("cancel", 1, failed="UNAVAILABLE")
    assert log.judge() == [1]


def test_a_page_that_ended_before_the_enqueue_explains_no_missing_item() -> None:
    log = Log()
    log.page("cancel", 1)
    log.enqueue("1-1")
    assert log.judge() == [1]


def test_a_paused_topic_delivers_nothing_until_it_is_resumed() -> None:
    log = Log()
    log.enqueue("1-1", "1-2")
    log.call("pause", topic="t")
    log.dequeue("1-1")
    log.call("resume", topic="t")
    log.dequeue("1-2")
    log.ack("1-1")
    log.ack("1-2")
    assert log.judge() == [19]


@pytest.mark.parametrize("resume", ["", UNKNOWN])
def test_a_resume_that_may_have_come_later_permits_deliveries(resume: str) -> None:
    log = Log()
    log.enqueue("1-1")
    if resume:
        log.call("resume", topic="t", failed=resume)
        log.call("pause", topic="t")
    else:
        log.call("pause", topic="t", failed=UNKNOWN)
    log.dequeue("1-1")
    log.ack("1-1")
    assert log.judge() == []


def test_a_failed_pause_or_one_of_another_topic_forbids_nothing() -> None:
    log = Log()
    log.enqueue("1-1")
    log.call("pause", topic="u")
    log.call("pause", topic="t", failed="UNAVAILABLE")
    log.dequeue("1-1")
    log.ack("1-1")
    assert log.judge() == []


@pytest.mark.parametrize(("metadata", "broken"), [("some", [19]), ("", [])])
def test_a_limit_refuses_items_once_it_was_acknowledged(metadata: str, broken: list[int]) -> None:
    log = Log()
    log.call("limit", metadata_bytes_max=0)
    log.enqueue("1-1", metadata=metadata)
    log.call("limit", metadata_bytes_max=10)
    log.enqueue("1-2", metadata="some")
    log.call("cancel", items=[{"id": "1-1"}, {"id": "1-2"}], results=[{}, {}])
    assert log.judge() == broken
