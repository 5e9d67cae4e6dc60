"""Gaps are the ids below the last one that no read has found, as long as they are young and few."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from foqs_client.outbox.gaps import Gaps, missing_between


def ids_of(gaps: Gaps) -> set[int]:
    return {id for first, last in gaps.ranges for id in range(first, last + 1)}


@given(st.lists(st.sets(st.integers(1, 60), min_size=1), max_size=6), st.data())
def test_gaps_are_the_ids_that_were_not_found(pages: list[set[int]], data: st.DataObject) -> None:
    gaps, read_to, missing = Gaps(60.0, 1_000), 0, set[int]()
    for page in pages:
        ids = sorted(id for id in page if id > read_to)
        gaps.add(missing_between(read_to, ids), 0.0)
        if ids:
            missing |= set(range(read_to + 1, ids[-1])) - set(ids)
            read_to = ids[-1]
        found = data.draw(st.sets(st.sampled_from(sorted(missing)))) if missing else set()
        gaps.remove_found(found)
        missing -= found
        assert ids_of(gaps) == missing


def test_a_gap_ends_with_a_read_that_comes_when_it_is_old() -> None:
    gaps = Gaps(60.0, 1_000)
    gaps.add([(3, 4)], 10.0)
    gaps.add([(7, 7)], 40.0)

    gaps.remove_old(69.9)
    assert gaps.ranges == [(3, 4), (7, 7)]
    gaps.remove_old(70.0)
    assert gaps.ranges == [(7, 7)]


def test_what_is_left_of_a_gap_keeps_its_age() -> None:
    gaps = Gaps(60.0, 1_000)
    gaps.add([(3, 9)], 10.0)

    gaps.remove_found([5])
    gaps.remove_old(69.0)
    assert gaps.ranges == [(3, 4), (6, 9)]
    gaps.remove_old(70.0)
    assert gaps.ranges == []


def test_ids_with_a_step_are_gaps_of_one_row_each_and_end_the_place_of_a_long_transaction() -> None:
    gaps = Gaps(60.0, 1_000)
    ids = range(10, 10 + 3 * 1_002, 3)
    gaps.add(missing_between(3, ids), 0.0)  # the transaction of 7 has not ended

    assert len(gaps.ranges) == 1_000
    assert not any(first <= 7 <= last for first, last in gaps.ranges)


def test_beyond_the_limit_the_oldest_gaps_end() -> None:
    gaps = Gaps(60.0, 2)
    gaps.add([(3, 3)], 1.0)
    gaps.add([(5, 5), (8, 9)], 2.0)

    assert gaps.ranges == [(5, 5), (8, 9)]
