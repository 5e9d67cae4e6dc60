"""The measures of order: worked examples of the paper on BDQS, and the definitions in their plainest form."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs_client import OrderMeasures, measure_order

SENT = ["m1", "m2", "m3", "m4", "m5"]


@pytest.mark.parametrize(
    ("received", "out_of_order_rate", "mean_displacement"),
    [
        (["m1", "m2", "m3", "m4", "m5"], 0.0, 0.0),
        (["m2", "m1", "m3", "m4", "m5"], 0.2, 0.4),
        (["m2", "m3", "m4", "m5", "m1"], 0.2, 1.6),
    ],
)
def test_the_worked_examples_of_the_paper(
    received: list[str], out_of_order_rate: float, mean_displacement: float
) -> None:
    measures = measure_order(SENT, received)
    assert measures == OrderMeasures(5, 0, 0, out_of_order_rate, mean_displacement)


def test_duplicates_are_counted_apart_and_only_first_receipts_have_a_place() -> None:
    assert measure_order(SENT, ["m1", "m1", "m2", "m3", "m1", "m4", "m5", "m5"]) == OrderMeasures(5, 3, 0, 0.0, 0.0)


def test_lost_items_are_counted_apart_and_leave_no_gap() -> None:
    assert measure_order(SENT, ["m2", "m4"]) == OrderMeasures(2, 0, 3, 0.0, 0.0)


def test_nothing_received_is_in_order() -> None:
    assert measure_order(SENT, []) == OrderMeasures(0, 0, 5, 0.0, 0.0)


def test_values_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="sent: 'm1' is there twice"):
        measure_order(["m1", "m2", "m1"], [])
    with pytest.raises(ValueError, match="received: 'm9' is not in sent"):
        measure_order(SENT, ["m9"])


@given(st.lists(st.integers(0, 7), max_size=8))
def test_the_measures_are_what_their_definitions_say(received: list[int]) -> None:
    firsts = list(dict.fromkeys(received))
    stay = max(
        length
        for length in range(len(firsts) + 1)
        for kept in combinations(firsts, length)
        if list(kept) == sorted(kept)
    )
    count = len(firsts)
    moved = sum(abs(firsts.index(item) - sorted(firsts).index(item)) for item in firsts)
    measures = measure_order(range(8), received)
    assert (measures.received, measures.duplicates, measures.lost) == (count, len(received) - count, 8 - count)
    assert round(measures.out_of_order_rate * count) == count - stay
    assert measures.mean_displacement * count == pytest.approx(moved)
