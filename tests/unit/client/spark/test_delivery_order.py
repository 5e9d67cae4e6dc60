"""The order of deliveries is measured as the BDQS paper does, with its examples."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from foqs_client.spark.pipelines.delivery_order import measure_order


@pytest.mark.parametrize(
    ("received", "out_of_order_rate", "average_displacement"),
    [([2, 1, 3, 4, 5], 0.2, 0.4), ([2, 3, 4, 5, 1], 0.2, 1.6), ([1, 2, 3, 4, 5], 0.0, 0.0)],
)
def test_examples_of_the_paper(received: list[int], out_of_order_rate: float, average_displacement: float) -> None:
    order = measure_order(received)
    assert order.out_of_order / len(received) == out_of_order_rate
    assert order.displacement / len(received) == average_displacement


def test_nothing_received_is_in_order() -> None:
    assert measure_order([]) == (0, 0)


def test_out_of_order_items_are_those_outside_a_longest_rising_part() -> None:
    for received in permutations(range(1, 7)):
        longest = max(
            size for size in range(1, 7) for part in combinations(received, size) if list(part) == sorted(part)
        )
        assert measure_order(received).out_of_order == 6 - longest
