"""Names in order, against a sorted list."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.memory import sorted_names as module
from foqs.core.memory.sorted_names import NAMES_PER_STEP_MAX, SORTED_PER_STEP_MAX, SortedNames, merge_names

LETTERS = st.text("abc", max_size=4)


@given(st.lists(st.tuples(st.booleans(), LETTERS)), LETTERS, st.integers(1, 12), st.booleans())
def test_what_follows_a_name_is_what_a_sorted_list_says(
    steps: list[tuple[bool, str]], name: str, count: int, beyond: bool
) -> None:
    before, module._RUN_MAX = module._RUN_MAX, 3  # type: ignore[misc]
    try:
        names, plain = SortedNames(), set[str]()
        for comes, each in steps:
            (names.add if comes else names.discard)(each)
            (plain.add if comes else plain.discard)(each)
            assert len(names) == len(plain)
    finally:
        module._RUN_MAX = before  # type: ignore[misc]
    expected = sorted(each for each in plain if (each > name if beyond else each >= name))
    assert names.page_from(name, count, is_exclusive=beyond) == expected[:count]
    assert names.page_from("", 1_000, is_exclusive=False) == sorted(plain)


def test_a_name_moves_one_run_of_bounded_length() -> None:
    rng, names = Random(1), SortedNames()
    for _ in range(20_000):
        names.add(str(rng.random()))
    assert max(map(len, names._runs)) <= module._RUN_MAX
    assert len(names._runs) > 20_000 // module._RUN_MAX


@given(st.lists(st.lists(LETTERS, unique=True), max_size=4), LETTERS, st.booleans())
def test_names_of_several_lists_come_in_order_and_each_once(lists: list[list[str]], name: str, beyond: bool) -> None:
    every = {each for names in lists for each in names}
    assert list(merge_names(lists, name, is_exclusive=beyond)) == sorted(
        each for each in every if (each > name if beyond else each >= name)
    )


def test_many_names_are_sorted_and_given_out_with_pauses() -> None:
    names = [str(number) for number in range(3 * SORTED_PER_STEP_MAX)]
    Random(1).shuffle(names)
    found = list(merge_names([names[:100], names[50:]], ""))
    assert [name for name in found if name is not None] == sorted(names)
    assert found[:3] == [None] * 3, "before each further SORTED_MAX names"
    gaps = [place for place, name in enumerate(found) if name is None]
    assert max(after - before for before, after in pairwise(gaps)) == NAMES_PER_STEP_MAX + 1
