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


def test_topics_are_walked_in_the_order_in_which_they_entered_the_table() -> None:
    table = TopicTable(100)
    names = [f"t{number * 7 % 50}" for number in range(50)]
    for name in names:
        table.add(("n", name))
    table.add(("m", "a"))
    assert table.names("n") == names
    assert table.names_by_namespace() == [("n", names), ("m", ["a"])]
    assert [topic for page in table.pages(7) for topic in page] == [*(("n", name) for name in names), ("m", "a")]
