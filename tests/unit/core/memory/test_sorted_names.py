"""Sorted names, compared with a sorted list."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.memory import sorted_names as module
from foqs.core.memory.sorted_names import (
    CHANGES_MIN,
    NAMES_PER_STEP_MAX,
    SORTED_PER_STEP_MAX,
    SortedNames,
    SortedView,
    merge_names,
    merge_views,
)

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


STEPS = st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["add", "remove", "read"]), LETTERS), max_size=60)


@given(STEPS, LETTERS, st.booleans(), st.text("abc", max_size=2))
def test_views_of_changing_names_are_merged_in_order_and_each_once(
    steps: list[tuple[int, str, str]], name: str, is_exclusive: bool, prefix: str
) -> None:
    before, module.RUN_MAX = module.RUN_MAX, 4  # type: ignore[misc]
    pages, module.NAMES_PER_STEP_MAX = module.NAMES_PER_STEP_MAX, 3  # type: ignore[misc]
    try:
        sets: list[dict[str, None]] = [{}, {}]
        views = [SortedView(names) for names in sets]
        for which, step, changed in steps:
            names, view = sets[which], views[which]
            if step == "read":
                list(view.update())
            elif (changed in names) == (step == "remove"):
                names.pop(changed) if step == "remove" else names.setdefault(changed)
                view.note(changed)
        start = max(name, prefix)
        found = [
            each for each in merge_views(views, start, is_exclusive=is_exclusive, prefix=prefix) if each is not None
        ]
    finally:
        module.RUN_MAX = before  # type: ignore[misc]
        module.NAMES_PER_STEP_MAX = pages  # type: ignore[misc]
    assert found == sorted(
        other
        for other in set(sets[0]) | set(sets[1])
        if other.startswith(prefix) and (other > start if is_exclusive else other >= start)
    )


def test_names_that_change_while_a_view_is_sorted_are_in_it() -> None:
    names = dict.fromkeys(f"{number:06}" for number in range(3 * SORTED_PER_STEP_MAX))
    view = SortedView(names)
    first, second = view.update(), view.update()
    next(first)
    next(second)
    for name, is_added in (("0", True), ("000007", False), ("zzz", True)):
        names.setdefault(name) if is_added else names.pop(name)
        view.note(name)
    list(first)
    names.setdefault("1")
    view.note("1")
    list(second)
    list(view.update())
    assert view.page_from("", len(names) + 10, is_exclusive=False) == sorted(names)


def test_view_with_more_changes_than_names_is_not_worth_to_be_kept() -> None:
    names = dict.fromkeys(map(str, range(CHANGES_MIN // 2)))
    view = SortedView(names)
    assert all(view.note("5") for _ in range(CHANGES_MIN))
    assert not view.note("5")
