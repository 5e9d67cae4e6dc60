"""The account of items when consumers are killed."""

from __future__ import annotations

import pytest

from perf.lib.killing import Account, account
from perf.lib.worker import ACKED, ACKING, RECEIVED

NEVER = 0


def made(
    fates: list[int],
    *,
    marks: list[list[int]],
    again_at: list[float] | None = None,
    killed_at: list[float | None] | None = None,
    seen: list[list[int]] | None = None,
) -> Account:
    return account(
        bytes(fates),
        [bytes(each) for each in marks],
        [bytes(each) for each in (seen or [[int(mark > 0) for mark in each] for each in marks])],
        again_at or [0.0] * len(fates),
        killed_at or [None] * len(marks),
    )


def test_items_that_were_acked_once_are_neither_lost_nor_doubled() -> None:
    found = made([1, 1, 0], marks=[[ACKED, NEVER, NEVER], [NEVER, ACKED, NEVER]])

    assert found == Account(lost=0, doubled=0, in_hand=0, again_s=[])


def test_an_item_that_nobody_received_is_lost() -> None:
    assert made([1], marks=[[NEVER]]).lost == 1


def test_an_item_of_a_killed_consumer_that_nobody_received_again_is_lost() -> None:
    found = made([1], marks=[[RECEIVED], [NEVER]], killed_at=[10.0, None])

    assert (found.lost, found.in_hand) == (1, 1)


def test_an_item_whose_ack_was_on_the_way_is_not_lost() -> None:
    found = made([1], marks=[[ACKING], [NEVER]], killed_at=[10.0, None])

    assert (found.lost, found.in_hand, found.again_s) == (0, 1, [])


def test_an_ack_on_the_way_of_a_consumer_that_lives_is_a_loss_at_the_end() -> None:
    assert made([1], marks=[[ACKING]]).lost == 1


def test_items_of_a_killed_consumer_that_came_back_give_the_time() -> None:
    found = made(
        [1, 1, 1],
        marks=[[RECEIVED, ACKING, ACKED], [ACKED, ACKED, NEVER]],
        again_at=[15.0, 12.0, 0.0],
        killed_at=[10.0, None],
    )

    assert (found.lost, found.doubled, found.in_hand) == (0, 0, 2)
    assert found.again_s == [2.0, 5.0]
    assert found.figures()["again_max_s"] == 5.0


def test_an_item_that_two_consumers_acked_is_doubled() -> None:
    assert made([1], marks=[[ACKED], [ACKED]]).doubled == 1


def test_an_item_that_one_consumer_received_twice_is_doubled() -> None:
    assert made([1], marks=[[ACKED]], seen=[[2]]).doubled == 1


@pytest.mark.parametrize("fate", [0, 2])
def test_items_that_were_not_acknowledged_cannot_be_lost(fate: int) -> None:
    assert made([fate], marks=[[NEVER]]).lost == 0
