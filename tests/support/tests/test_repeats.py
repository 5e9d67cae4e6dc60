"""The causes of repeated deliveries, and the gap between two owners of a shard, in histories written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from foqs.core.items.item import format_id, make_number
from tests.support.clock_bounds import ClockBounds
from tests.support.history import UNKNOWN, Event, History, mark, read
from tests.support.item_histories import ItemHistories, sort_by_item
from tests.support.repeats import NO_CAUSE, acked_twice, owner_changes, repeats

BOUNDS = ClockBounds()
LEASE_MS = 100
ITEM = format_id(0, make_number(1, 1))


class HistoryBuilder:
    """Builds a history call by call."""

    def __init__(self) -> None:
        self._now_ms = 0.0
        self._history = History(lambda: self._now_ms)

    def call(
        self, at: float, till: float, op: str, items: list[Event], results: list[Event], **args: Any
    ) -> HistoryBuilder:
        self._now_ms = at
        number = self._history.invoke("p", op, items, **args)
        self._now_ms = till
        self._history.ok(number, results)
        return self

    def put(self, at: float, till: float, id: str = ITEM) -> HistoryBuilder:
        return self.call(at, till, "enqueue", [{"mark": mark(id.encode()), "topic": "t"}], [{"id": id}])

    def got(self, at: float, token: int) -> HistoryBuilder:
        result = {"id": ITEM, "token": token, "topic": "t", "mark": mark(ITEM.encode()), "attempt": token}
        return self.call(at, at + 1, "dequeue", [], [result], topics={"t": 1}, lease_ms=LEASE_MS)

    def did(self, at: float, op: str, token: int, result: Event) -> HistoryBuilder:
        return self.call(at, at + 1, op, [{"id": ITEM, "token": token}], [result])

    def book(self) -> ItemHistories:
        return sort_by_item(read(self._history.events))


@pytest.mark.parametrize(
    ("between", "again_ms", "cause"),
    [
        pytest.param(("nack", {}), 20, "nack", id="nacked"),
        pytest.param(("release", {"error": UNKNOWN}), 20, "release", id="perhaps released"),
        pytest.param(("nack", {"error": "STALE_LEASE"}), 20, NO_CAUSE, id="nack refused"),
        pytest.param(("ack", {"error": UNKNOWN}), 200, "lease end, ack unknown", id="perhaps acked"),
        pytest.param(("ack", {"error": "UNAVAILABLE"}), 200, "lease end, ack refused", id="not acked"),
        pytest.param(None, 200, "lease end", id="forgotten"),
        pytest.param(None, 20, NO_CAUSE, id="too early"),
    ],
)
def test_a_repeated_delivery_has_the_cause_that_the_history_shows(
    between: tuple[str, Event] | None, again_ms: float, cause: str
) -> None:
    history = HistoryBuilder().put(0, 1).got(2, 1)
    if between is not None:
        op, result = between
        history.did(10, op, 1, result)
    assert dict(repeats(history.got(again_ms, 2).book(), BOUNDS)) == {cause: 1}


def test_an_item_that_two_consumers_acked_is_reported() -> None:
    once = HistoryBuilder().put(0, 1).got(2, 1).did(10, "ack", 1, {}).did(20, "ack", 1, {"already_gone": True})
    assert not acked_twice(once.book())
    [story] = acked_twice(once.did(30, "ack", 2, {}).book())
    assert "ack" in story


def test_the_gap_between_two_owners_lasts_from_the_last_call_of_one_to_the_first_reply_of_the_other() -> None:
    ids = [format_id(0, make_number(epoch, 1)) for epoch in (1, 2)]
    other = format_id(1, make_number(2, 1))
    [change] = owner_changes(HistoryBuilder().put(0, 5, ids[0]).put(6, 7, other).put(8, 9, ids[1]).book())
    assert (change.shard, change.gap_ms) == (0, 9)
    [overlap] = owner_changes(HistoryBuilder().put(0, 5, ids[1]).put(8, 9, ids[0]).book())
    assert overlap.gap_ms < 0
