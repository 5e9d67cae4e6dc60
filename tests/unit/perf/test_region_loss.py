"""A loss of a primary is judged by the ledger of its producers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from foqs_client import Client, Enqueued, FoqsError, Item, Unavailable, UnknownOutcome
from perf.lib.region_loss import Ledger, judged
from tests.support.aio import run

_BOUND_MS = 3_000


def ledger(*acknowledged: tuple[int, float, float], unanswered: int = 0) -> Ledger:
    """Return the ledger of items 0, 1 and so on, each with its shard and when it was sent and acknowledged."""
    found = Ledger("t")
    for number, (shard, sent_s, acknowledged_s) in enumerate(acknowledged):
        found.sent_s[b"%d" % number] = sent_s
        found.acknowledged[b"%d" % number] = shard, acknowledged_s
    for number in range(unanswered):
        found.sent_s[b"unanswered %d" % number] = 0.0
    return found


def row(shard: int, least: int | None, most: int | None) -> dict[str, Any]:
    return {"shard": shard, "lost_enqueues_min": least, "lost_enqueues_max": most}


def test_a_loss_is_counted_by_item_and_measured_by_shard() -> None:
    found = judged(
        ledger((0, 0.0, 0.1), (0, 1.0, 1.1), (0, 1.9, 2.2), (1, 5.0, 5.1)),
        [b"0"],
        [row(0, 1, 9), row(1, 0, 9)],
        _BOUND_MS,
    )
    assert (found.acknowledged, found.lost, found.reported_min, found.reported_max) == (4, 3, 1, 18)
    assert found.acknowledged_ms == pytest.approx(1_100)
    assert found.accepted_ms == pytest.approx(800)
    assert found.faults == []


def test_loss_above_the_bound_is_a_fault() -> None:
    found = judged(ledger((0, 0.0, 0.1), (0, 3.2, 3.3)), [], [row(0, 0, 9)], _BOUND_MS)
    assert found.faults == ["within_bound"]


def test_loss_whose_last_item_may_have_been_accepted_in_time_is_no_fault() -> None:
    found = judged(ledger((0, 0.0, 0.1), (0, 3.0, 3.3)), [], [row(0, 0, 9)], _BOUND_MS)
    assert found.faults == []


@pytest.mark.parametrize(
    ("rows", "unanswered", "is_within"),
    [
        pytest.param([row(0, 0, 2)], 0, True, id="at the maximum"),
        pytest.param([row(0, 0, 1), row(1, 0, 9)], 0, False, id="more of one shard"),
        pytest.param([row(1, 0, 9)], 0, False, id="of a shard that is not reported"),
        pytest.param([row(0, None, None)], 0, True, id="unknown"),
        pytest.param([row(0, 3, 9)], 0, False, id="less than the minimum"),
        pytest.param([row(0, 3, 9)], 1, True, id="inserted and not acknowledged"),
    ],
)
def test_a_loss_outside_the_reported_range_is_a_fault(
    rows: list[dict[str, Any]], unanswered: int, is_within: bool
) -> None:
    found = judged(ledger((0, 0.0, 0.1), (0, 0.1, 0.2), unanswered=unanswered), [], rows, _BOUND_MS)
    assert found.within_report is is_within


def test_an_item_that_came_twice_is_a_fault() -> None:
    assert not judged(ledger((0, 0.0, 0.1)), [b"0", b"0"], [], _BOUND_MS).once


def test_an_item_that_nobody_sent_is_a_fault() -> None:
    assert not judged(ledger((0, 0.0, 0.1)), [b"0", b"stranger"], [], _BOUND_MS).only_sent


@pytest.mark.parametrize(("error", "is_sent"), [(Unavailable("recovers"), False), (UnknownOutcome("lost host"), True)])
def test_item_counts_as_sent_unless_it_was_refused(error: FoqsError, is_sent: bool) -> None:
    class Failing:
        async def enqueue(self, _: Sequence[Item], **__: Any) -> list[Enqueued]:
            return [Enqueued(error=error)]

    found = Ledger("t")
    assert run(found.enqueue(cast(Client, Failing()))) is error
    assert found.sent_s.keys() == ({b"0"} if is_sent else set())
    assert not found.acknowledged
