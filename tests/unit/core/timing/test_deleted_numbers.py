"""The remembered numbers of deleted rows: which numbers are left, and the bound of memory."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.timing.deleted_numbers import BLOCK_NUMBERS, DeletedNumbers, Range

_NUMBERS = st.integers(0, 3 * BLOCK_NUMBERS)


def test_deleted_numbers_are_left_out_of_ranges() -> None:
    deleted = DeletedNumbers()
    deleted.add([(3, 5), (8, 8), (BLOCK_NUMBERS - 1, BLOCK_NUMBERS)])
    assert deleted.without_deleted([(1, 10)]) == [(1, 2), (6, 7), (9, 10)]
    assert deleted.without_deleted([(4, 4), (8, 8)]) == []
    assert deleted.without_deleted([(BLOCK_NUMBERS - 2, BLOCK_NUMBERS + 1)]) == [
        (BLOCK_NUMBERS - 2, BLOCK_NUMBERS - 2),
        (BLOCK_NUMBERS + 1, BLOCK_NUMBERS + 1),
    ]


def test_a_range_of_several_blocks_stays_one_range() -> None:
    whole = (5, 4 * BLOCK_NUMBERS + 7)
    deleted = DeletedNumbers()
    assert deleted.without_deleted([whole]) == [whole]
    deleted.add([whole])
    assert deleted.without_deleted([(0, 5 * BLOCK_NUMBERS)]) == [(0, 4), (4 * BLOCK_NUMBERS + 8, 5 * BLOCK_NUMBERS)]


def test_the_block_that_was_begun_first_is_forgotten_first() -> None:
    deleted = DeletedNumbers(blocks_max=2)
    for block in (0, 1, 2):
        deleted.add([(block * BLOCK_NUMBERS, block * BLOCK_NUMBERS)])
    deleted.add([(BLOCK_NUMBERS + 1, BLOCK_NUMBERS + 1)])
    assert deleted.without_deleted([(0, 0)]) == [(0, 0)]
    assert deleted.without_deleted([(BLOCK_NUMBERS, BLOCK_NUMBERS + 2)]) == [(BLOCK_NUMBERS + 2, BLOCK_NUMBERS + 2)]
    assert deleted.without_deleted([(2 * BLOCK_NUMBERS, 2 * BLOCK_NUMBERS)]) == []


@given(st.lists(st.tuples(_NUMBERS, st.integers(0, 2 * BLOCK_NUMBERS)), max_size=6), st.sets(_NUMBERS, max_size=12))
def test_what_is_left_is_the_difference_of_sets(spans: list[Range], edges: set[int]) -> None:
    added = [(first, first + length) for first, length in spans]
    deleted = DeletedNumbers()
    deleted.add(added)
    ends = sorted(edges)
    asked = list(zip(ends[::2], ends[1::2], strict=False))
    gone = {number for first, last in added for number in range(first, last + 1)}
    left = [number for first, last in asked for number in range(first, last + 1) if number not in gone]
    found = deleted.without_deleted(asked)
    assert [number for first, last in found for number in range(first, last + 1)] == left
    assert all(one[1] + 1 < other[0] for one, other in pairwise(found))
