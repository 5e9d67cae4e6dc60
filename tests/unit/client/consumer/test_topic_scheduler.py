"""Tests which topics a consumer requests; the host is a dict of counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from foqs_client.consumer.topic_scheduler import MISSES_MAX, QUIET_LISTED_MAX, TopicScheduler
from foqs_client.consumer.topic_selection import TopicSelection, prefix_pattern
from foqs_client.types import Delivery, Topic
from tests.support.example_counts import examples


def row(name: str, ready: int = 1, priority: int = 0, age_ms: int = 0, *, paused: bool = False) -> Topic:
    return Topic(name, ready, 0, 0, 0, priority if ready else None, age_ms if ready else None, None, paused, False)


def serve(backlog: Counter[str], wants: Mapping[str, int], items_max: int, priority: int = 0) -> list[Delivery]:
    """Deliver as a host does: the topics in their order, until the call is full."""
    found: list[Delivery] = []
    for topic, count in wants.items():
        count = min(count, backlog[topic], items_max - len(found))
        backlog[topic] -= count
        found += [Delivery(id=f"{topic}-{n}", topic=topic, priority=priority) for n in range(count)]
    return found


def rounds(turns: TopicScheduler, backlog: Counter[str], items: int, count: int) -> list[Counter[str]]:
    """Return the delivered items of `count` calls, by topic."""
    brought: list[Counter[str]] = []
    for _ in range(count):
        wants = turns.fetch_wants(items)
        found = serve(backlog, wants, items)
        assert len(wants) <= turns.topics_per_call
        turns.on_deliveries(wants, found, items, 0.0)
        brought.append(Counter(delivery.topic for delivery in found))
    return brought


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(-2, 2), st.integers(0, 5_000)), min_size=1, max_size=250),
    st.sampled_from([1, 2, 20, 200]),
)
def test_no_topic_starves(topics: list[tuple[int, int, int]], items: int) -> None:
    weights = {f"t{n}": weight for n, (weight, _, _) in enumerate(topics)}
    turns = TopicScheduler(TopicSelection(["*"], weights))
    turns.on_topics_listed([row(f"t{n}", 9, priority, age) for n, (_, priority, age) in enumerate(topics)], 10.0)
    backlog = Counter(dict.fromkeys(weights, 10**9))
    # While one waits, each other has at most four times as much for its weight, and one count more.
    served_a_round = max(0.5, items * 0.75)
    count_max = max(4.0, 2 * items * 4 / sum(weights.values()) + 1)
    window = int(2 + 4 + len(topics) * (count_max + 4 * count_max) / min(served_a_round, 99))
    brought = rounds(turns, backlog, items, 2 * window)
    for part in (brought[:window], brought[window:]):
        assert set().union(*part) == set(weights)


def test_topics_get_shares_by_their_weights() -> None:
    turns = TopicScheduler(TopicSelection(["*"], {"heavy": 2, "h*": 9}))
    turns.on_topics_listed([row("heavy", 9), row("light", 9, age_ms=60_000)], 100.0)
    total = sum(rounds(turns, Counter(heavy=10**6, light=10**6), 24, 100), Counter())
    assert total.total() == 2_400
    assert abs(total["heavy"] - 1_600) <= 48


def test_late_topic_gets_only_its_share_of_later_calls() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    turns.on_topics_listed([row("early", 9)], 0.0)
    backlog = Counter(early=10**6, late=10**6)
    rounds(turns, backlog, 24, 50)
    turns.on_topics_listed([row("late", 9)], 0.0)
    total = sum(rounds(turns, backlog, 24, 20), Counter())
    assert abs(total["early"] - total["late"]) <= 48


def test_round_through_more_topics_than_a_call_names_requests_few_items_of_each() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    names = {f"t{n}" for n in range(490)}
    turns.on_topics_listed([row(name, 99) for name in sorted(names)], 0.0)
    total = sum(rounds(turns, Counter(dict.fromkeys(names, 10**6)), 400, 5), Counter())
    assert total.keys() == names


def test_topic_with_the_best_priority_is_first_and_gets_a_quarter() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    turns.on_topics_listed([row(f"t{n}", 9) for n in range(500)] + [row("urgent", 9, priority=-5)], 0.0)
    backlog = Counter({f"t{n}": 10**6 for n in range(500)}) + Counter(urgent=10**6)
    for _ in range(20):
        wants = turns.fetch_wants(40)
        assert next(iter(wants)) == "urgent"
        found = serve(backlog, wants, 40)
        turns.on_deliveries(wants, [*found[:10], *(Delivery(topic=d.topic) for d in found[10:])], 40, 0.0)
        assert sum(delivery.topic == "urgent" for delivery in found) == 10
        turns.on_topics_listed([row("urgent", 9, priority=-5)], 0.0)


def test_oldest_topic_is_first_among_equal_priorities() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    turns.on_topics_listed(
        [row("young", 9, age_ms=10), row("old", 9, age_ms=9_000), row("middle", 9, age_ms=500)], 100.0
    )
    assert next(iter(turns.fetch_wants(8))) == "old"


def test_parallel_calls_name_different_topics_and_a_failed_call_gives_turns_back() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    names = {f"t{n:03}" for n in range(297)}
    turns.on_topics_listed([row(name, 9) for name in sorted(names)] + [row("urgent", 9, priority=-5)], 0.0)
    calls = [turns.fetch_wants(400) for _ in range(3)]
    assert all(next(iter(wants)) == "urgent" for wants in calls)
    assert set().union(*calls) == {*names, "urgent"}
    turns.on_call_failed(calls[1])
    assert turns.fetch_wants(400).keys() == calls[1].keys()


def test_single_topic_is_requested_by_several_calls() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    turns.on_topics_listed([row("only", 99)], 0.0)
    assert turns.fetch_wants(10).keys() == turns.fetch_wants(10).keys() == {"only"}


def test_most_urgent_topic_gets_a_quarter_of_small_calls_too() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    turns.on_topics_listed([row(f"t{n}", 9) for n in range(500)] + [row("urgent", 9, priority=-5)], 0.0)
    wants = turns.fetch_wants(1_000)
    assert wants["urgent"] == 33
    assert sum(wants.values()) == 132


def test_empty_topic_is_not_requested_until_it_is_listed_again() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    turns.on_topics_listed([row("a"), row("b")], 0.0)
    turns.on_deliveries(turns.fetch_wants(4), [], 4, 0.0)
    assert turns.hot_count == 0
    assert turns.fetch_wants(4) == {}
    assert list(turns.poll_wants(4)) == ["b", "a"]
    turns.on_topics_listed([row("a")], 0.0)
    assert list(turns.fetch_wants(4)) == ["a"]


def test_topic_becomes_quiet_only_after_several_misses() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    turns.on_topics_listed([row("full", 99), row("empty")], 0.0)
    backlog = Counter(full=10**6)
    for _ in range(MISSES_MAX):
        assert turns.hot_count == 2
        wants = turns.fetch_wants(4)
        turns.on_deliveries(wants, serve(backlog, wants, 400), 400, 0.0)
    assert turns.hot_count == 1


def test_topics_that_a_full_call_did_not_reach_keep_their_turns() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    turns.on_topics_listed([row(f"t{n}", 9) for n in range(10)], 0.0)
    backlog = Counter({f"t{n}": 100 for n in range(10)})
    total = sum(rounds(turns, backlog, 1, 14), Counter())
    assert len(total) == 10
    assert turns.hot_count == 10


def test_named_topics_are_requested_without_a_listing_even_if_another_topic_is_large() -> None:
    turns = TopicScheduler(TopicSelection(["busy", "rare"]))
    backlog = Counter(busy=10**6)
    assert turns.fetch_wants(8) == {}
    assert set(turns.poll_wants(8)) == {"busy", "rare"}
    turns.on_deliveries(turns.poll_wants(8), serve(backlog, {"busy": 8}, 8), 8, 0.0)
    rounds(turns, backlog, 8, 5)
    backlog["rare"] = 3
    brought = rounds(turns, backlog, 8, 2)
    assert sum(brought, Counter())["rare"] == 3


def test_many_named_topics_take_turns_in_long_polls() -> None:
    names = [f"t{n}" for n in range(250)]
    turns = TopicScheduler(TopicSelection(names))
    assert not turns.can_poll_all
    asked: set[str] = set()
    for _ in range(3):
        asked |= turns.poll_wants(5).keys()
    assert asked == set(names)


def test_paused_empty_and_unselected_topics_are_ignored() -> None:
    turns = TopicScheduler(TopicSelection(["mail.*", "sms"]))
    turns.on_topics_listed([row("mail.a", paused=True), row("mail.b", 0), row("other"), row("sms.x")], 0.0)
    assert turns.hot_count == 0


def test_memory_of_quiet_topics_is_bounded() -> None:
    turns = TopicScheduler(TopicSelection(["*"]))
    for n in range(20 * QUIET_LISTED_MAX):
        turns.on_topics_listed([row(f"t{n}")], 0.0)
        turns.on_deliveries(turns.fetch_wants(4), [], 4, 0.0)
    assert len(turns._topics) == QUIET_LISTED_MAX
    assert len(turns._turns) + len(turns._urgent) <= 200


def test_selection_has_patterns_weights_and_prefixes() -> None:
    selection = TopicSelection(["mail.*", "mail.eu.*", "sms", "x[12]"], {"mail.vip": 5, "mail.*": 2})
    assert selection.prefixes == ("mail.", "x")
    assert selection.exact_topics == ("sms",)
    assert [selection.covers(name) for name in ("mail.a", "Mail.a", "sms", "sms2", "x1", "x3")] == [
        True, False, True, False, True, False,
    ]  # fmt: skip
    assert [selection.weight(name) for name in ("mail.vip", "mail.a", "sms")] == [5, 2, 1]
    assert not TopicSelection(["*"], excluded=["mail.*"]).covers("mail.a")
    assert TopicSelection(["a", "b"], excluded=["a"]).exact_topics == ("b",)


def test_prefix_is_literal() -> None:
    selection = TopicSelection([prefix_pattern("a[1]*?")])
    assert selection.covers("a[1]*?b")
    assert not selection.covers("a1xyb")
