"""Names in order, against a sorted list."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from foqs.core import names as module
from foqs.core.names import SortedNames

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
    assert names.following(name, count, beyond=beyond) == expected[:count]
    assert names.following("", 1_000, beyond=False) == sorted(plain)


def test_a_name_moves_one_run_of_bounded_length() -> None:
    rng, names = Random(1), SortedNames()
    for _ in range(20_000):
        names.add(str(rng.random()))
    assert max(map(len, names._runs)) <= module._RUN_MAX
    assert len(names._runs) > 20_000 // module._RUN_MAX
