"""The topics table of a shard, as its owner knows it."""

from __future__ import annotations

from foqs.core.items.item import TopicName
from foqs.core.memory.topic_table import TopicTable

A: TopicName = ("n", "a")
B: TopicName = ("n", "b")


def test_a_topic_is_empty_from_its_last_item_until_it_gets_another_or_leaves_the_table() -> None:
    table = TopicTable(100)
    table.apply([A, B], [], {})
    assert not table.has_empty_topics
    table.note_empty([A], 5)
    table.note_empty([B], 7)
    assert (table.has_empty_topics, table.oldest_empty_since_ms, table.is_empty(A)) == (True, 5, True)
    table.apply([], [], {"n": {"a"}})
    assert (table.has_empty_topics, table.oldest_empty_since_ms, table.is_empty(A)) == (True, 7, False)
    table.apply([], [B], {})
    assert not table.has_empty_topics
    assert (A in table, B in table) == (True, False)
