"""How many topics a namespace has over the shards of a host: counted no further than it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import State
from foqs.core.memory.topic_counts import TopicCounts
from foqs.queue.quota import TopicTotals


class Counts:
    """Of one shard; says whether anybody asked for the names."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.listed = False
        self.begun_count = len(names)
        self.ended_count = 0

    def topic_count(self, namespace: str) -> int:
        return len(self._names)

    def topic_names(self, namespace: str) -> list[str]:
        self.listed = True
        return sorted(self._names)


class Holder:
    """A shard that holds topics."""

    def __init__(self, *names: str) -> None:
        self.counts = Counts(set(names))


def topics(holders: Sequence[Holder], more: int, most: int) -> int:
    return TopicTotals().total(cast("Any", holders), "n", more, most)


def room(count: int, more: int, most: int) -> int:
    """So many of the new topics may begin."""
    return min(more, max(0, most - count))


@given(
    st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(1, 10),
)
def test_as_many_may_begin_as_if_all_names_were_counted(held: list[set[str]], more: int, most: int) -> None:
    holders = [Holder(*names) for names in held]
    exactly = len(set().union(*held))
    assert room(topics(holders, more, most), more, most) == room(exactly, more, most)


def test_names_are_looked_at_only_where_shards_may_share_some_and_it_matters() -> None:
    def looked(more: int, most: int) -> bool:
        holders = [Holder("a", "b", "c"), Holder("b", "c")]
        topics(holders, more, most)
        return any(holder.counts.listed for holder in holders)

    assert not looked(more=1, most=6)  # room even if no name is shared
    assert not looked(more=1, most=3)  # one shard alone has as many
    assert looked(more=1, most=5)
    assert looked(more=3, most=7)


class Counted:
    """A shard that counts its topics, and how often it was asked for their names."""

    def __init__(self) -> None:
        self.counts = self
        self.listings = 0
        self._real = TopicCounts()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def topic_names(self, namespace: str) -> list[str]:
        self.listings += 1
        return self._real.topic_names(namespace)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdef"), st.integers(1, 4)), max_size=40))
def test_what_was_counted_before_is_as_good_as_counting_again(steps: list[tuple[int, str, int]]) -> None:
    shards, totals = [Counted() for _ in range(3)], TopicTotals()
    for number, name, more in steps:
        counts = shards[number]._real
        counts.add(("n", name), State.READY, -1 if ("n", name) in counts else 1)
        exactly = len(set().union(*[shard._real.topic_names("n") for shard in shards]))
        for most in (2, 4):
            assert room(totals.total(cast("Any", shards), "n", more, most), more, most) == room(exactly, more, most)


def test_names_are_not_looked_at_again_while_what_has_changed_since_does_not_matter() -> None:
    shards, totals = [Counted(), Counted()], TopicTotals()
    for shard in shards:
        shard._real.complete_initial([(("n", str(number)), State.READY, 1) for number in range(60)])

    def total(most: int) -> int:
        return totals.total(cast("Any", shards), "n", 1, most)

    assert total(100) == 60
    for number in range(30):
        shards[0]._real.add(("n", f"new {number}"), State.READY, 1)
        assert total(100) == 61 + number
    assert total(91) == 90
    assert total(90) == 90
    assert [shard.listings for shard in shards] == [1, 1]
    shards[0]._real.forget(("n", "new 1"))
    assert total(90) == 89
    assert [shard.listings for shard in shards] == [2, 2]
