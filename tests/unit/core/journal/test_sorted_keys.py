"""Keys in segments, against a plain set, and how much of them a change or a read looks at."""

from __future__ import annotations

from random import Random

import pytest

from foqs.core.journal import sorted_keys
from foqs.core.journal.sorted_keys import SortedKeys

ALL = 250_000


class CountedKey(int):
    """A key that counts how often keys are compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        CountedKey.compared += 1
        return int.__lt__(self, other)

    def __gt__(self, other: int) -> bool:
        CountedKey.compared += 1
        return int.__gt__(self, other)

    __hash__ = int.__hash__


def compared() -> int:
    """Return the comparisons since the last call."""
    count, CountedKey.compared = CountedKey.compared, 0
    return count


@pytest.mark.parametrize(("segment_keys", "one_by_one_max"), [(2, 0), (4, 2), (50, 8)])
def test_keys_are_those_of_a_plain_set(monkeypatch: pytest.MonkeyPatch, segment_keys: int, one_by_one_max: int) -> None:
    monkeypatch.setattr(sorted_keys, "SEGMENT_KEYS", segment_keys)
    monkeypatch.setattr(sorted_keys, "_ONE_BY_ONE_MAX", one_by_one_max)
    for seed in range(20):
        random, keys, plain = Random(seed), SortedKeys(), set[int]()
        for _ in range(60):
            first = random.randint(0, 300)
            neighbors = {*range(first, first + random.randint(0, 30))}
            added = (
                neighbors if random.random() < 0.5 else {*random.sample(range(330), random.randint(0, 40))}
            ) - plain
            keys.add([*added])
            plain |= added
            removed = random.sample(sorted(plain), random.randint(0, len(plain)))
            if random.random() < 0.5:
                removed = sorted(plain)[: random.randint(0, len(plain))]
            keys.remove(removed)
            plain -= {*removed}
            keys.check()
            assert (len(keys), bool(keys)) == (len(plain), bool(plain))
            after, keys_max, last = random.randint(-1, 330), random.randint(0, 60), random.choice((None, 0, 150, 400))
            expected = [key for key in sorted(plain) if key > after and (last is None or key <= last)]
            assert keys.first_after(after, keys_max, last) == expected[:keys_max]


def test_new_keys_at_few_places_among_many_take_few_comparisons() -> None:
    keys, priorities = SortedKeys(), 5
    keys.add(
        [CountedKey(priority * 10 * ALL + key) for key in range(ALL // priorities) for priority in range(priorities)]
    )
    compared()
    first = ALL // priorities
    for flush in range(100):
        places = [(priority, first + flush * 6 + key) for priority in range(priorities) for key in range(6)]
        keys.add([CountedKey(priority * 10 * ALL + key) for priority, key in places])
    assert compared() < 100 * 30 * 20


def test_keys_at_random_places_take_few_comparisons_to_add_and_to_remove() -> None:
    random, keys = Random(1), SortedKeys()
    keys.add([CountedKey(2 * key) for key in range(ALL)])
    some = [CountedKey(2 * key + 1) for key in random.sample(range(ALL), 400)]
    compared()
    keys.add([*some])
    keys.remove([*some])
    assert compared() < 400 * 100


def test_page_behind_many_removed_keys_takes_few_comparisons() -> None:
    keys = SortedKeys()
    keys.add([CountedKey(key) for key in range(ALL)])
    keys.remove([CountedKey(key) for key in range(1, ALL - 10)])
    compared()
    assert keys.first_after(-1, 5) == [0, *range(ALL - 10, ALL - 6)]
    assert compared() < 50
