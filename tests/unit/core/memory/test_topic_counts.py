"""Items by topic and state, compared with a plain count."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from foqs.core.items.item import State, TopicName
from foqs.core.memory.sorted_names import CHANGES_MIN, merge_views
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
        expected = [topic[1] for topic in (A, B, OTHER) if topic[0] == namespace and topic in counts]
        assert sorted(counts.topic_names(namespace)) == expected
        view = counts.sorted_topics(namespace)
        assert (view is None) == (not expected)
        assert list(merge_views([view] if view else [], "")) == expected
    assert len(counts) == sum(topic in counts for topic in (A, B, OTHER))
    assert [counts.totals[state] for state in State] == [
        sum(plain[topic, state] for topic in (A, B, OTHER)) for state in State
    ]


@given(changes, changes, changes, changes)
def test_counts_are_the_initial_counts_plus_the_changes_since(
    discarded: list[tuple[TopicName, State, int]],
    early: list[tuple[TopicName, State, int]],
    initial: list[tuple[TopicName, State, int]],
    late: list[tuple[TopicName, State, int]],
) -> None:
    counts = TopicCounts()
    plain: Counter[tuple[TopicName, State]] = Counter()
    for topic, state, delta in discarded:
        counts.add(topic, state, delta)
        plain[topic, state] += delta
    check(counts, plain)
    counts.restart_initial()
    plain.clear()
    for topic, state, delta in early:
        counts.add(topic, state, delta)
        plain[topic, state] += delta
    check(counts, plain)
    assert counts.is_lagging
    counts.complete_initial(initial)
    for topic, state, delta in initial:
        plain[topic, state] += delta
    assert not counts.is_lagging
    check(counts, plain)
    deltas: Counter[tuple[str, str, State]] = Counter()
    for topic, state, delta in late:
        deltas[(*topic, state)] += delta
        plain[topic, state] -= delta
    counts.add_all(deltas, -1)
    check(counts, plain)
    counts.move_all(deltas, State.LEASED)
    for topic, state, delta in late:
        plain[topic, state] -= delta
        plain[topic, State.LEASED] += delta
    check(counts, plain)
    ended, none_ready = counts.emptied_topics(deltas, State.READY)
    changed = {(namespace, topic) for namespace, topic, _ in deltas}
    assert set(ended) == {topic for topic in changed if not any(plain[topic, state] for state in State)}
    assert set(none_ready) == {topic for topic in changed if not plain[topic, State.READY]} - set(ended)


def test_beginnings_and_ends_of_topics_are_counted() -> None:
    counts = TopicCounts()
    assert (counts.begun_count, counts.ended_count) == (0, 0)
    counts.add(A, State.READY, 2)
    counts.add(A, State.DEAD, 1)
    counts.add(B, State.READY, 1)
    assert (counts.begun_count, counts.ended_count) == (2, 0)
    counts.add(B, State.READY, -1)
    assert (counts.begun_count, counts.ended_count) == (2, 1)


def test_subscriber_gets_the_changed_topics() -> None:
    counts = TopicCounts()
    counts.add(OTHER, State.READY, 1)
    counts.changed = {}
    counts.add(A, State.READY, 1)
    counts.mark_changed([B])
    assert list(counts.changed) == [(*A, State.READY), B]


def test_topics_that_nobody_lists_any_more_keep_no_changes() -> None:
    counts = TopicCounts()
    counts.add(A, State.READY, 1)
    view = counts.sorted_topics("n")
    for _ in range(CHANGES_MIN):
        counts.add(B, State.READY, 1)
        counts.add(B, State.READY, -1)
    assert counts.sorted_topics("n") is not view
    assert view is not None
    assert len(view._changed) <= CHANGES_MIN + 1
