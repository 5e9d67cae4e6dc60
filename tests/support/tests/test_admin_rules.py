"""What the checker makes of pages, pauses and limits: each rule broken once, and near misses let through."""

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


@pytest.mark.parametrize(("told", "broken"), [(1, [1]), (2, []), (3, [])])
def test_no_more_is_gone_than_pages_say_that_they_cancelled(told: int, broken: list[int]) -> None:
    log = Log()
    log.enqueue("1-1", "1-2")
    log.page("cancel", told)
    assert log.judge() == broken


def test_a_page_that_ended_unknown_may_have_cancelled_as_many_as_it_asked_for() -> None:
    log = Log()
    log.enqueue("1-1", "1-2", "1-3", "1-4", "1-5")
    log.page("cancel", 0, failed=UNKNOWN)
    assert log.judge() == []
    log = Log()
    log.enqueue("1-1", "1-2", "1-3", "1-4", "1-5", "1-6")
    log.page("cancel", 0, failed=UNKNOWN)
    assert log.judge() == [1]


def test_what_was_acked_need_not_have_been_cancelled() -> None:
    log = Log()
    log.enqueue("1-1")
    log.dequeue("1-1")
    log.ack("1-1")
    log.page("cancel", 0)
    assert log.judge() == []


@pytest.mark.parametrize("verb", ["update", "redrive"])
def test_only_pages_that_cancel_explain_a_loss(verb: str) -> None:
    log = Log()
    log.enqueue("1-1")
    log.page(verb, 1)
    assert log.judge() == [1]


def test_a_page_of_another_topic_or_one_that_failed_explains_no_loss() -> None:
    log = Log()
    log.enqueue("1-1")
    log.page("cancel", 1, topic="u")
    log.page("cancel", 1, failed="UNAVAILABLE")
    assert log.judge() == [1]


def test_a_page_that_was_over_before_an_item_was_enqueued_explains_no_loss() -> None:
    log = Log()
    log.page("cancel", 1)
    log.enqueue("1-1")
    assert log.judge() == [1]


def test_a_paused_topic_brings_nothing_until_it_is_resumed() -> None:
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
def test_a_resume_that_may_have_come_later_excuses_what_came(resume: str) -> None:
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


def test_a_pause_of_another_topic_or_one_that_failed_forbids_nothing() -> None:
    log = Log()
    log.enqueue("1-1")
    log.call("pause", topic="u")
    log.call("pause", topic="t", failed="UNAVAILABLE")
    log.dequeue("1-1")
    log.ack("1-1")
    assert log.judge() == []


@pytest.mark.parametrize(("metadata", "broken"), [("some", [19]), ("", [])])
def test_what_a_limit_forbids_is_not_enqueued_after_its_answer(metadata: str, broken: list[int]) -> None:
    log = Log()
    log.call("limit", metadata_bytes_max=0)
    log.enqueue("1-1", metadata=metadata)
    log.call("limit", metadata_bytes_max=10)
    log.enqueue("1-2", metadata="some")
    log.call("cancel", items=[{"id": "1-1"}, {"id": "1-2"}], results=[{}, {}])
    assert log.judge() == broken
