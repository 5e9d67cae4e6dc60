"""The turns of fair topics that the shards of a host share."""

from __future__ import annotations

import gc

from foqs.core.groups.host_turns import HostTurns

TOPIC = ("default", "t")


def test_shards_of_a_host_share_the_turns_of_a_topic() -> None:
    turns = HostTurns(lambda: 0.0, lambda _: 1)
    one = turns.of(TOPIC, {"a": 2}, by_time=False)
    one.served = 77
    two = turns.of(TOPIC, {"a": 3}, by_time=False)
    assert two is one
    assert (two.weights, two.served) == ({"a": 3}, 77)
    assert turns.of(("other", "t"), {}, by_time=False) is not one


def test_turns_that_are_counted_otherwise_are_new_for_all_shards() -> None:
    turns = HostTurns(lambda: 0.0, lambda _: 1)
    by_items = turns.of(TOPIC, {}, by_time=False)
    by_time = turns.of(TOPIC, {}, by_time=True)
    assert by_time is not by_items
    assert by_time.by_time
    assert turns.of(TOPIC, {}, by_time=True) is by_time


def test_turns_that_no_shard_holds_are_forgotten() -> None:
    turns = HostTurns(lambda: 0.0, lambda _: 1)
    turns.of(TOPIC, {}, by_time=False).served = 77
    gc.collect()
    assert turns.of(TOPIC, {}, by_time=False).served == 0
