"""Sorted names, compared with a sorted list."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.memory import sorted_names as module
from foqs.core.memory.sorted_names import NAMES_PER_STEP_MAX, SORTED_PER_STEP_MAX, SortedNames, merge_names

LETTERS = st.text("abc", max_size=4)


@given(st.lists(st.tuples(st.booleans(), LETTERS)), LETTERS, st.integers(1, 12), st.booleans())
def test_a_page_holds_the_same_names_as_a_sorted_list(
    steps: list[tuple[bool, str]], name: str, count: int, is_exclusive: bool
) -> None:
    before, module.RUN_MAX = module.RUN_MAX, 3  # type: ignore[misc]
    try:
        names, plain = SortedNames(), set[str]()
        for is_add, step_name in steps:
            (names.add if is_add else names.discard)(step_name)
            (plain.add if is_add else plain.discard)(step_name)
            assert len(names) == len(plain)
    finally:
        module.RUN_MAX = before  # type: ignore[misc]
    expected = sorted(other for other in plain if (other > name if is_exclusive else other >= name))
    assert names.page_from(name, count, is_exclusive=is_exclusive) == expected[:count]
    assert names.page_from("", 1_000, is_exclusive=False) == sorted(plain)


def test_runs_have_a_bounded_length() -> None:
    rng, names = Random(1), SortedNames()
    for _ in range(20_000):
        names.add(str(rng.random()))
    runs = names._runs
    assert max(map(len, runs)) <= module.RUN_MAX
    assert len(runs) > 20_000 // module.RUN_MAX


@given(st.lists(st.lists(LETTERS, unique=True), max_size=4), LETTERS, st.booleans(), st.text("abc", max_size=2))
def test_the_names_of_several_lists_are_merged_in_order_and_each_once(
    lists: list[list[str]], name: str, is_exclusive: bool, prefix: str
) -> None:
    all_names = {other for names in lists for other in names if other.startswith(prefix)}
    assert list(merge_names(lists, name, is_exclusive=is_exclusive, prefix=prefix)) == sorted(
        other for other in all_names if (other > name if is_exclusive else other >= name)
    )


def test_many_names_are_sorted_and_yielded_with_pauses() -> None:
    names = [str(number) for number in range(3 * SORTED_PER_STEP_MAX)]
    Random(1).shuffle(names)
    found = list(merge_names([names[:100], names[50:]], ""))
    assert [name for name in found if name is not None] == sorted(names)
    assert found[:3] == [None] * 3, "before each further SORTED_PER_STEP_MAX names"
    gaps = [place for place, name in enumerate(found) if name is None]
    assert max(after - before for before, after in pairwise(gaps)) == NAMES_PER_STEP_MAX + 1
