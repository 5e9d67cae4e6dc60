"""Sorted keys with old ones among them, against a plain set."""

from __future__ import annotations

from random import Random

import pytest

from foqs.core.journal.ready_keys import ReadyKeys

TOPIC = ("n", "t")


@pytest.mark.parametrize("seed", range(20))
def test_first_keys_are_those_that_still_count(seed: int) -> None:
    random, keys, plain = Random(seed), ReadyKeys(), set[int]()
    for _ in range(200):
        new = [random.randint(1, 300) for _ in range(random.randint(1, 8))]
        keys.add_many(TOPIC, new)
        plain |= {*new}
        plain -= {random.randint(1, 300) for _ in range(random.randint(0, 12))}
        keys.drop_old_keys(TOPIC, len(plain), plain.__contains__)
        after, keys_max = random.choice((None, random.randint(0, 300))), random.randint(0, 20)
        expected = sorted(key for key in plain if after is None or key > after)[:keys_max]
        assert keys.first_after(TOPIC, after, keys_max, plain.__contains__) == expected


def test_keys_of_a_topic_are_forgotten() -> None:
    keys = ReadyKeys()
    keys.add_many(TOPIC, [2, 1])
    keys.forget(TOPIC)
    assert keys.first_after(TOPIC, None, 9, lambda _: True) == []
