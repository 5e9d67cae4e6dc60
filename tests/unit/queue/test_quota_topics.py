"""The number of a namespace's topics over the shards of a host: counted only as exactly as needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import State
from foqs.core.memory.topic_counts import TopicCounts
from foqs.queue.quota import TopicTotals


class Counts:
    """The counts of one shard; records whether the names were read."""

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


class ShardWithTopics:
    """A shard that holds topics."""

    def __init__(self, *names: str) -> None:
        self.counts = Counts(set(names))


def topics(shards: Sequence[ShardWithTopics], new_topics: int, topics_max: int) -> int:
    return TopicTotals().total(cast("Any", shards), "n", new_topics, topics_max)


def room(count: int, new_topics: int, topics_max: int) -> int:
    """Return how many of the new topics are allowed."""
    return min(new_topics, max(0, topics_max - count))


@given(
    st.lists(st.sets(st.sampled_from("abcdef")), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(1, 10),
)
def test_limit_is_the_same_as_with_an_exact_count(held: list[set[str]], new_topics: int, topics_max: int) -> None:
    shards = [ShardWithTopics(*names) for names in held]
    exact_count = len(set().union(*held))
    assert room(topics(shards, new_topics, topics_max), new_topics, topics_max) == room(
        exact_count, new_topics, topics_max
    )


def test_names_are_read_only_if_shared_topics_may_matter() -> None:
    def reads_names(new_topics: int, topics_max: int) -> bool:
        shards = [ShardWithTopics("a", "b", "c"), ShardWithTopics("b", "c")]
        topics(shards, new_topics, topics_max)
        return any(shard.counts.listed for shard in shards)

    assert not reads_names(new_topics=1, topics_max=6)  # room even if no name is shared
    assert not reads_names(new_topics=1, topics_max=3)  # one shard alone has as many
    assert reads_names(new_topics=1, topics_max=5)
    assert reads_names(new_topics=3, topics_max=7)


class CountingShard:
    """A shard with real counts; records how often the names were read."""

    def __init__(self) -> None:
        self.counts = self
        self.listings = 0
        self.real = TopicCounts()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def topic_names(self, namespace: str) -> list[str]:
        self.listings += 1
        return self.real.topic_names(namespace)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdef"), st.integers(1, 4)), max_size=40))
def test_earlier_counts_give_the_same_limit_as_counting_again(steps: list[tuple[int, str, int]]) -> None:
    shards, totals = [CountingShard() for _ in range(3)], TopicTotals()
    for number, name, new_topics in steps:
        counts = shards[number].real
        counts.add(("n", name), State.READY, -1 if ("n", name) in counts else 1)
        exact_count = len(set().union(*[shard.real.topic_names("n") for shard in shards]))
        for topics_max in (2, 4):
            assert room(totals.total(cast("Any", shards), "n", new_topics, topics_max), new_topics, topics_max) == room(
                exact_count, new_topics, topics_max
            )


def test_names_are_not_read_again_while_changes_do_not_matter() -> None:
    shards, totals = [CountingShard(), CountingShard()], TopicTotals()
    for shard in shards:
        shard.real.complete_initial([(("n", str(number)), State.READY, 1) for number in range(60)])

    def total(topics_max: int) -> int:
        return totals.total(cast("Any", shards), "n", 1, topics_max)

    assert total(100) == 60
    for number in range(30):
        shards[0].real.add(("n", f"new {number}"), State.READY, 1)
        assert total(100) == 61 + number
    assert total(91) == 90
    assert total(90) == 90
    assert [shard.listings for shard in shards] == [1, 1]
    shards[0].real.forget(("n", "new 1"))
    assert total(90) == 89
    assert [shard.listings for shard in shards] == [2, 2]
