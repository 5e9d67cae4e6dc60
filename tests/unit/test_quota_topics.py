"""How many topics a namespace has over the shards of a host: counted no further than it matters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from foqs.service.quota import _topics


class Counts:
    """Of one shard; says whether anybody asked for the names."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.listed = False

    def topics_of(self, namespace: str) -> int:
        return len(self._names)

    def topics(self, namespace: str) -> list[str]:
        self.listed = True
        return sorted(self._names)


class Holder:
    """A shard that holds topics."""

    def __init__(self, *names: str) -> None:
        self.counts = Counts(set(names))


def topics(holders: Sequence[Holder], more: int, most: int) -> int:
    return _topics(cast("Any", holders), "n", more, most)


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
