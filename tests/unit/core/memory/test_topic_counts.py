"""Items by topic and state, against a plain count of items."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import State, TopicName
from foqs.core.memory.topic_counts import TopicCounts

A: TopicName = ("n", "a")
B: TopicName = ("n", "b")
OTHER: TopicName = ("m", "a")

topics = st.sampled_from([A, B, OTHER])
states = st.sampled_from(State)
changes = st.lists(st.tuples(topics, states, st.integers(-2, 3)), max_size=30)


def check(counts: TopicCounts, plain: Counter[tuple[TopicName, State]]) -> None:
    for topic in (A, B, OTHER):
        assert [counts.count(topic, state) for state in State] == [plain[topic, state] for state in State]
        assert (topic in counts) == any(plain[topic, state] for state in State)
    for namespace in ("n", "m", "none"):
        here = [topic[1] for topic in (A, B, OTHER) if topic[0] == namespace and topic in counts]
        assert sorted(counts.topic_names(namespace)) == here
    assert len(counts) == sum(topic in counts for topic in (A, B, OTHER))
    assert [counts.totals[state] for state in State] == [
        sum(plain[topic, state] for topic in (A, B, OTHER)) for state in State
    ]


@given(changes, changes, changes, changes)
def test_counts_are_those_of_the_table_and_of_the_changes_since_they_began(
    lost: list[tuple[TopicName, State, int]],
    before: list[tuple[TopicName, State, int]],
    found: list[tuple[TopicName, State, int]],
    afterwards: list[tuple[TopicName, State, int]],
) -> None:
    counts = TopicCounts()
    plain: Counter[tuple[TopicName, State]] = Counter()
    for topic, state, by in lost:
        counts.add(topic, state, by)
    counts.restart_initial()
    for topic, state, by in before:
        counts.add(topic, state, by)
        plain[topic, state] += by
    check(counts, plain)
    assert counts.is_lagging
    counts.complete_initial(found)
    for topic, state, by in found:
        plain[topic, state] += by
    assert not counts.is_lagging
    check(counts, plain)
    many: Counter[tuple[str, str, State]] = Counter()
    for topic, state, by in afterwards:
        many[(*topic, state)] += by
        plain[topic, state] -= by
    counts.add_all(many, -1)
    check(counts, plain)
    counts.move_all(many, State.LEASED)
    for topic, state, by in afterwards:
        plain[topic, state] -= by
        plain[topic, State.LEASED] += by
    check(counts, plain)
    gone, none = counts.emptied_topics(many, State.READY)
    assert set(gone) == {spot[:2] for spot in many if not any(plain[spot[:2], state] for state in State)}
    assert set(none) == {spot[:2] for spot in many if not plain[spot[:2], State.READY]} - set(gone)


def test_a_topic_is_there_while_it_has_an_item_in_any_state() -> None:
    counts = TopicCounts()
    counts.complete_initial([])
    counts.add(A, State.READY, 1)
    counts.add(A, State.LEASED, 1)
    counts.add(A, State.READY, -1)
    assert counts.topic_names("n") == ["a"]
    counts.add(A, State.LEASED, -1)
    assert counts.topic_names("n") == []
    assert A not in counts


def test_changes_before_the_tables_counts_may_be_negative_and_are_made_good_by_them() -> None:
    counts = TopicCounts()
    counts.add_all({(*A, State.READY): 2}, -1)
    counts.add_all({(*A, State.LEASED): 2}, 1)
    assert counts.is_lagging
    assert counts.count(A, State.READY) == -2
    counts.complete_initial([(A, State.READY, 2), (B, State.DEAD, 1)])
    assert [counts.count(A, state) for state in State] == [0, 0, 2, 0]
    assert counts.count(B, State.DEAD) == 1
    counts.add_all({(*A, State.LEASED): 2}, -1)
    assert counts.topic_names("n") == ["b"]
