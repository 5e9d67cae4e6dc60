"""Keys that are kept apart, against a plain set."""

from __future__ import annotations

from random import Random

import pytest

from foqs.core.journal.kept_apart_keys import KeptApartKeys

TOPIC = ("n", "t")


@pytest.mark.parametrize("seed", range(20))
def test_keys_are_kept_as_a_sorted_set(seed: int) -> None:
    random, kept, plain = Random(seed), KeptApartKeys(), set[int]()
    for _ in range(100):
        new = {random.randint(1, 300) for _ in range(random.randint(0, 5))} - plain
        kept.add_many(TOPIC, sorted(new))
        plain |= new
        gone = random.randint(1, 300)
        kept.discard(TOPIC, gone)
        plain.discard(gone)
        assert kept.best(TOPIC) == min(plain, default=None)
        if random.random() < 0.2:
            boundary, keys_max = random.choice((None, random.randint(1, 300))), random.randint(0, 20)
            expected = [key for key in sorted(plain) if boundary is None or key <= boundary][:keys_max]
            assert kept.take_keys(TOPIC, boundary, keys_max) == expected
            plain -= set(expected)
        assert len(kept) == len(plain)


def test_keys_of_a_purged_topic_are_forgotten() -> None:
    kept = KeptApartKeys()
    kept.add_many(TOPIC, [1, 2])
    kept.add_many(("n", "u"), [3])
    kept.forget(TOPIC)
    assert (kept.best(TOPIC), kept.best(("n", "u")), len(kept)) == (None, 3, 1)
