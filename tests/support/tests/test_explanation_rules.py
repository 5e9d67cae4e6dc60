"""The checker's rules for explanations: one violation of each, and none for explanations that may be true."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.checker import check
from tests.support.clock_bounds import ClockBounds
from tests.support.history import Event, History

BOUNDS = ClockBounds(lease_ms_default=10_000, attempts_max_default=0, backoff_ms_max=100)
ROW: Event = {"id": "1-1", "mark": "m", "topic": "t", "priority": 0, "state": "ready"}


class Log:
    """A history of one item, whose calls follow one another, a second apart."""

    def __init__(self, delay_ms: int | None = None) -> None:
        self._now_ms = 0.0
        self._history = History(lambda: self._now_ms)
        item = {"mark": "m", "topic": "t", "priority": 0, "metadata": "", "delay_ms": delay_ms}
        self.call("enqueue", items=[item], results=[{"id": "1-1", "repeated": False}])

    def call(self, op: str, *, items: Any = (), results: Any = (), **args: Any) -> None:
        self._now_ms += 1_000
        number = self._history.invoke("p", op, items, **{"namespace": "n", **args})
        self._now_ms += 10
        self._history.ok(number, results)

    def dequeue(self) -> None:
        result = {"id": "1-1", "mark": "m", "topic": "t", "priority": 0, "token": 1, "attempt": 1}
        self.call("dequeue", topics={"t": 5}, lease_ms=None, results=[result])

    def by_token(self, op: str) -> None:
        self.call(op, items=[{"id": "1-1", "token": 1}], results=[{}])

    def explain(self, state: str | None = None, *, described: str | None = None, attempt: int = 0, **more: Any) -> None:
        shown = {} if state is None else {"state": state, "attempt": attempt}
        self.call(
            "explain", id="1-1", results=[{"absent": state is None, "described": described or state, **shown}], **more
        )

    def judge(self, *rows: Event) -> list[int]:
        """The numbers of the invariants that were broken."""
        self._history.present(rows)
        return [violation.invariant for violation in check(self._history.events, BOUNDS)]


def test_an_item_that_is_seen_later_is_not_explained_as_absent() -> None:
    log = Log()
    log.explain()
    assert log.judge(ROW) == [15]
    log = Log()
    log.explain()
    log.dequeue()
    log.by_token("ack")
    assert log.judge() == [15]


def test_the_item_is_absent_in_another_namespace() -> None:
    log = Log()
    log.explain(namespace="other")
    assert log.judge(ROW) == []


@pytest.mark.parametrize(("described", "broken"), [("ready", []), ("deferred", [15])])
def test_sentences_describe_the_state_that_is_shown(described: str, broken: list[int]) -> None:
    log = Log()
    log.explain("ready", described=described)
    assert log.judge(ROW) == broken


def test_an_acked_item_is_not_shown() -> None:
    log = Log()
    log.dequeue()
    log.by_token("ack")
    log.explain("leased", attempt=1)
    assert log.judge() == [15]


def test_an_item_is_not_leased_before_any_dequeue() -> None:
    log = Log()
    log.explain("leased", attempt=1)
    assert log.judge(ROW) == [15]


@pytest.mark.parametrize(("delay_ms", "broken"), [(60_000, [15]), (500, [])])
def test_an_item_is_not_ready_before_its_deliver_after_time(delay_ms: int, broken: list[int]) -> None:
    log = Log(delay_ms)
    log.explain("ready")
    assert log.judge(ROW) == broken


@pytest.mark.parametrize(("state", "attempt", "broken"), [("leased", 1, []), ("leased", 2, [15]), ("ready", 1, [15])])
def test_a_leased_item_is_shown_with_its_attempt(state: str, attempt: int, broken: list[int]) -> None:
    log = Log()
    log.dequeue()
    log.explain(state, attempt=attempt)
    assert log.judge(ROW | {"state": "leased", "attempt": 1}) == broken


def test_a_nacked_item_may_be_shown_as_ready() -> None:
    log = Log()
    log.dequeue()
    log.by_token("release")
    log.explain("ready", attempt=0)
    assert log.judge(ROW) == []
