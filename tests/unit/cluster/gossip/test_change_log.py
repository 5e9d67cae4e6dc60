"""The change log and the gossip view: a reader of all changes always knows the existing topics."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from foqs.cluster.gossip.change_log import ChangeLog
from foqs.cluster.gossip.gossip_view import GossipView, PeerTopicStats
from foqs.cluster.peers import Peer
from foqs.core.items.item import PRIORITY_MAX, State, TopicName
from foqs.routing.port import HostView
from foqs_contract.idl import ttypes

NAMES: list[TopicName] = [(space, name) for space in ("n", "m") for name in "abc"]


def peer(name: str = "one") -> Peer:
    return Peer(HostView(name, (name, 1), "default", "", 0, f"nonce of {name}"))


class Host:
    """A host that holds topics with their counts of READY items, and reports them by a change log."""

    def __init__(self, rng: Random, gone_max: int = 2) -> None:
        self._rng = rng
        self._gone_max = gone_max
        self.topics: dict[TopicName, int] = {}
        self.change_log: ChangeLog
        self.start()

    def start(self) -> None:
        """Start again, on the same shards."""
        self.change_log = ChangeLog(self._rng.getrandbits(62), self._gone_max)
        for topic in self.topics:
            self.change_log.record(topic, exists=True)

    def set(self, topic: TopicName, ready: int | None) -> None:
        if ready is None:
            self.topics.pop(topic, None)
        else:
            self.topics[topic] = ready
        self.change_log.record(topic, exists=ready is not None)

    def answer(self, version: int | None, topics_max: int, whole_since: int | None = None) -> Any:
        changes = self.change_log.changes_since(version, whole_since, topics_max)
        assert len(changes.topics) <= topics_max
        assert len(set(changes.topics)) == len(changes.topics)
        return ttypes.GossipReply(
            version=changes.version,
            topics=[ttypes.TopicUpdate(*topic, self.topics.get(topic)) for topic in changes.topics],
            full=changes.is_full,
            full_since=changes.full_since,
            more=changes.has_more,
        )


def known(view: GossipView) -> dict[TopicName, int]:
    """Return the READY count of each known topic. Checks that all queries agree."""
    found = {}
    for topic in NAMES:
        report = view.topic_stats(topic)
        assert len(report) <= 1
        names = [each.page_from("", 99, is_exclusive=False) for each in view.topic_names(topic[0])]
        assert any(topic[1] in each for each in names) == bool(report)
        available = [availability.ready for availability in view.best_peers(topic)]
        if report:
            found[topic] = report[0].ready
        assert available == [each.ready for each in report if each.ready]
    assert view.totals()[State.READY] == sum(found.values())
    assert len(view) == len(found)
    return found


EVENTS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(NAMES), st.one_of(st.none(), st.integers(0, 3))),
    st.tuples(st.sampled_from(("ask", "ask without reply", "restart"))),
)


@given(st.lists(EVENTS, min_size=10, max_size=60), st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 4))
def test_reader_of_all_pages_knows_exactly_the_existing_topics(
    events: list[tuple[Any, ...]], seed: int, topics_max: int, gone_max: int
) -> None:
    host, asked, view = Host(Random(seed), gone_max), peer(), GossipView(100)
    clock = 0.0

    def ask(*, lost: bool = False) -> Any:
        reply = host.answer(view.version(asked), topics_max, view.full_since(asked))
        if not lost:
            view.apply_reply(asked, reply, clock)
        return reply

    for event in events:
        clock += 1
        if event[0] == "set":
            host.set(event[1], event[2])
        elif event[0] == "restart":
            host.start()
        else:
            ask(lost=event[0] == "ask without reply")
    full_listings = 0
    for _ in range(4 * len(NAMES)):
        reply = ask()
        full_listings += reply.full
        if not reply.more and view.version(asked) == host.change_log.changes_since(None, None, 100).version:
            break
    assert full_listings <= 2  # a listing under way may have missed a deletion
    assert known(view) == host.topics
    assert view.is_complete({asked.nonce: asked})
    assert ask().topics == []


def test_only_changed_topics_are_reported_again() -> None:
    host = Host(Random(1))
    for name in "abcdef":
        host.set(("n", name), 1)
    version = host.answer(None, 100).version
    host.set(("n", "b"), 2)
    host.set(("n", "e"), None)
    reply = host.answer(version, 100)
    assert [(each.topic, each.ready) for each in reply.topics] == [("b", 2), ("e", None)]
    assert not reply.full


def test_topic_deleted_before_it_was_reported_is_not_reported() -> None:
    change_log = ChangeLog(7, 10)
    change_log.record(("n", "a"), exists=False)
    assert change_log.changes_since(7, None, 10).topics == []


def test_version_of_an_earlier_run_is_unknown() -> None:
    rng = Random(3)
    host = Host(rng)
    host.set(("n", "a"), 1)
    version = host.answer(None, 10).version
    host.topics.clear()
    host.start()
    for name in "bcdefg":
        host.set(("n", name), 1)
    reply = host.answer(version, 100)
    assert reply.full
    assert len(reply.topics) == 6


def test_reader_that_missed_a_forgotten_deletion_gets_a_full_listing() -> None:
    host = Host(Random(1), gone_max=1)
    for name in "abc":
        host.set(("n", name), 1)
    version = host.answer(None, 100).version
    host.set(("n", "a"), None)
    assert not host.answer(version, 100).full
    host.set(("n", "b"), None)
    assert host.answer(version, 100).full
    later = host.answer(None, 100).version
    assert not host.answer(later, 100).full


def test_full_listing_ends_even_if_deletions_are_forgotten() -> None:
    host, asked, view = Host(Random(1), gone_max=1), peer(), GossipView(100)
    for name in "abc":
        host.set(("n", name), 1)
    for name in "xyz":
        host.set(("n", name), 1)
        host.set(("n", name), None)
    pages = []
    for _ in range(3):
        reply = host.answer(view.version(asked), 1, view.full_since(asked))
        view.apply_reply(asked, reply, 1.0)
        pages.append(([each.topic for each in reply.topics], reply.full, reply.more))
    assert pages == [(["a"], True, True), (["b"], False, True), (["c"], False, False)]
    assert known(view) == host.topics
    assert not host.answer(view.version(asked), 1).full


def test_deletion_forgotten_during_a_full_listing_restarts_the_listing() -> None:
    host, asked, view = Host(Random(1), gone_max=0), peer(), GossipView(100)
    for name in "abc":
        host.set(("n", name), 1)
    view.apply_reply(asked, host.answer(None, 2), 1.0)
    assert known(view) == {("n", "a"): 1, ("n", "b"): 1}
    host.set(("n", "a"), None)
    last = host.answer(view.version(asked), 2, view.full_since(asked))
    assert ([each.topic for each in last.topics], last.full, last.more) == (["c"], False, False)
    view.apply_reply(asked, last, 2.0)
    assert view.full_since(asked) is None
    again = host.answer(view.version(asked), 2)
    assert again.full
    view.apply_reply(asked, again, 3.0)
    assert known(view) == host.topics
    assert not host.answer(view.version(asked), 2).full


def test_full_listing_has_no_topics_deleted_before_it() -> None:
    change_log = ChangeLog(7, 10)
    for name in "abc":
        change_log.record(("n", name), exists=True)
    change_log.record(("n", "b"), exists=False)
    first = change_log.changes_since(None, None, 1)
    change_log.record(("n", "a"), exists=False)
    assert first.topics == [("n", "a")]
    rest = change_log.changes_since(first.version, first.full_since, 10)
    assert rest.topics == [("n", "c"), ("n", "a")]
    assert (rest.is_full, rest.has_more) == (False, False)


def test_change_log_size_follows_the_topics_not_the_changes() -> None:
    change_log = ChangeLog(0, 100)
    for n in range(50_000):
        change_log.record(("n", str(n % 10)), exists=True)
        change_log.record(("n", f"brief {n}"), exists=True)
        change_log.record(("n", f"brief {n}"), exists=False)
    assert len(change_log) == 10
    assert len(change_log._logged_topics) < 5_000
    assert len(change_log._version_of) <= 110


def reply(*topics: Any, full: bool = False, version: int = 1, more: bool = False) -> Any:
    return ttypes.GossipReply(version=version, topics=list(topics), full=full, more=more)


def ready(name: str, items: int, best: int | None = 0, age_ms: int | None = None) -> Any:
    return ttypes.TopicUpdate("n", name, items, best_priority=best, oldest_ready_age_ms=age_ms)


def test_the_best_hosts_come_first_and_one_that_does_not_know_its_best_comes_last() -> None:
    one, two, three = peer("one"), peer("two"), peer("three")
    view = GossipView(100)
    view.apply_reply(one, reply(ready("a", 3, 5, 200), full=True), 10.0)
    view.apply_reply(two, reply(ready("a", 1, -2), full=True), 11.0)
    view.apply_reply(three, reply(ready("a", 9, None), full=True), 12.0)
    view.apply_reply(one, reply(version=2), 13.0)
    available = view.best_peers(("n", "a"))
    assert [(availability.peer, availability.ready) for availability in available] == [(two, 1), (one, 3), (three, 9)]
    assert [availability.as_of_s for availability in available] == [11.0, 13.0, 12.0]
    assert available[1].oldest_ready_age_ms == 3_200
    view.remove_peers([two])
    assert [availability.peer for availability in view.best_peers(("n", "a"))] == [one, three]
    assert len(view) == 2


def test_of_a_fair_topic_the_host_whose_group_has_waited_longest_comes_first() -> None:
    peers = [peer(name) for name in ("one", "two", "three", "four")]
    view = GossipView(100, 0.5)
    assert view.turn_lead_s == 1.0
    for each, turn_age_ms, best in zip(peers, (500, 3_000, None, 9_000), (1, 1, 1, 2), strict=True):
        update = ttypes.TopicUpdate("n", "a", 3, best_priority=best, turn_age_ms=turn_age_ms)
        view.apply_reply(each, reply(update, full=True), 10.0)
    one, two, three, four = peers
    available = view.best_peers(("n", "a"))
    assert [availability.peer for availability in available] == [two, one, three, four]
    assert [availability.turn_since_s for availability in available] == [7.0, 9.5, None, 1.0]
    view.update_topic(two, ("n", "a"), 1, 2, turn_since_s=9.9)
    assert [availability.peer for availability in view.best_peers(("n", "a"))] == [one, two, three, four]
    view.update_topic(two, ("n", "a"), 1, 2)
    assert [availability.peer for availability in view.best_peers(("n", "a"))] == [one, two, three, four]


def test_reply_names_topics_with_more_or_better_items() -> None:
    one, view = peer(), GossipView(100)

    def report(*topics: Any, full: bool = False) -> list[str]:
        return [name for _, name in view.apply_reply(one, reply(*topics, full=full), 1.0)]

    assert report(ready("a", 1, 5), ready("b", 0, None), full=True) == ["a"]
    assert report(ready("a", 1, 5), ready("b", 1, 5)) == ["b"]
    assert report(ready("a", 1, 4), ready("b", 1, 6)) == ["a"]
    assert report(ready("a", 1, 9), ready("b", 2, 6)) == ["b"]
    view.update_topic(one, ("n", "b"), None, 0)
    assert view.best_peers(("n", "b")) == []
    assert report(ready("b", 1, 9)) == ["b"]
    # A topic that is reported again without a better item is not among them.
    assert report(ready("a", 1, 9), ready("b", 1, 9), full=True) == []


def test_update_from_a_reply_holds_until_the_next_report() -> None:
    one, view = peer(), GossipView(100)
    view.apply_reply(one, reply(ready("a", 5, 1, 100), full=True), 1.0)
    view.update_topic(one, ("n", "a"), 3, 4)
    [availability] = view.best_peers(("n", "a"))
    assert (availability.best_priority, availability.ready) == (3, 4)
    view.update_topic(one, ("n", "never reported"), 1, 9)
    view.update_topic(peer("two"), ("n", "a"), 1, 9)
    assert view.best_peers(("n", "never reported")) == []
    assert len(view.best_peers(("n", "a"))) == 1
    view.apply_reply(one, reply(ready("a", 2, 2)), 2.0)
    [availability] = view.best_peers(("n", "a"))
    assert (availability.best_priority, availability.ready) == (2, 2)


def limited(name: str, items: int, deliverable: int) -> Any:
    return ttypes.TopicUpdate("n", name, items, deliverable=deliverable)


def test_items_that_groups_hold_back_are_counted_and_not_available() -> None:
    one, view = peer(), GossipView(100)
    topic = ("n", "a")

    def report(update: Any) -> list[str]:
        return [name for _, name in view.apply_reply(one, reply(update), 1.0)]

    assert report(limited("a", 9, 2)) == ["a"]
    assert [available.ready for available in view.best_peers(topic)] == [2]
    view.update_topic(one, topic, None, 0)
    assert view.best_peers(topic) == []
    assert view.topic_stats(topic) == [PeerTopicStats(9, 0, 0, 0, None, None, False, 0)]
    assert report(limited("a", 12, 0)) == [], "more items wait, and none is deliverable"
    assert view.best_peers(topic) == []
    assert report(limited("a", 11, 1)) == ["a"]
    view.update_topic(one, topic, None, 3)
    assert [(each.ready, each.best_priority) for each in view.best_peers(topic)] == [(3, PRIORITY_MAX)]
    assert view.totals()[State.READY] == 11
    assert report(ready("a", 7)) == ["a"], "the limit is gone, or the host is older: all items are deliverable"
    assert [available.ready for available in view.best_peers(topic)] == [7]
    view.update_topic(one, topic, 0, 6)
    assert view.totals()[State.READY] == 6


def test_earlier_report_stays_during_a_full_listing() -> None:
    one, view = peer(), GossipView(100)
    view.apply_reply(one, reply(ready("a", 1), ready("b", 1), ready("c", 1), full=True), 1.0)
    view.apply_reply(one, reply(ready("c", 2), full=True, more=True), 2.0)
    assert {name: len(view.topic_stats(("n", name))) for name in "abc"} == {"a": 1, "b": 1, "c": 1}
    view.apply_reply(one, reply(ready("b", 2)), 3.0)
    assert view.topic_stats(("n", "a")) == []
    assert view.topic_stats(("n", "b")) == [PeerTopicStats(2, 0, 0, 0, 0, None, False)]


def test_view_of_a_host_is_incomplete_before_its_last_page() -> None:
    one, view = peer(), GossipView(100)
    others = {one.nonce: one}
    assert not view.is_complete(others)
    view.apply_reply(one, reply(ready("a", 1), full=True, more=True), 1.0)
    assert not view.is_complete(others)
    assert view.complete_as_of_s(one) is None
    assert [availability.as_of_s for availability in view.best_peers(("n", "a"))] == [1.0]
    view.apply_reply(one, reply(), 2.0)
    assert view.is_complete(others)
    assert view.complete_as_of_s(one) == 2.0


def test_what_is_not_known_of_a_peer_may_be_delivered() -> None:
    one, two, view = peer("one"), peer("two"), GossipView(1)
    known, other = [("n", "a")], [("n", "b")]
    assert view.may_deliver(one, known), "no report"
    view.apply_reply(one, reply(ready("a", 0), full=True, more=True), 1.0)
    assert view.may_deliver(one, other), "half a report"
    view.apply_reply(one, reply(), 2.0)
    assert not view.may_deliver(one, known)
    assert not view.may_deliver(one, other)
    view.apply_reply(two, reply(ready("b", 1), full=True), 2.0)
    assert view.may_deliver(two, other), "left out of a full view"


def test_a_peer_is_silent_after_three_intervals_and_not_before_five_seconds() -> None:
    one = peer("one")
    for interval_s, silent_after_s in ((1.0, 5.0), (60.0, 180.0)):
        view = GossipView(10, interval_s)
        assert not view.is_silent(one, 1_000.0), "it has never answered"
        view.apply_reply(one, reply(full=True), 100.0)
        assert not view.is_silent(one, 100.0 + silent_after_s)
        assert view.is_silent(one, 100.1 + silent_after_s)


def test_continuation_pages_do_not_advance_the_time_of_the_view() -> None:
    one, view = peer(), GossipView(100)
    view.apply_reply(one, reply(ready("a", 1), full=True), 1.0)
    view.apply_reply(one, reply(ready("a", 2), more=True), 2.0)
    assert view.complete_as_of_s(one) == 1.0
    view.apply_reply(one, reply(ready("b", 1), more=True), 3.0, is_continuation=True)
    view.apply_reply(one, reply(ready("c", 1)), 4.0, is_continuation=True)
    assert view.complete_as_of_s(one) == 2.0
    assert [availability.as_of_s for availability in view.best_peers(("n", "c"))] == [2.0]


def test_topics_beyond_the_limit_are_left_out_and_requested_when_there_is_room() -> None:
    one, two = peer("one"), peer("two")
    view = GossipView(10)
    view.apply_reply(one, reply(*(ready(str(n), 1) for n in range(8)), full=True, version=5), 1.0)
    view.apply_reply(two, reply(*(ready(str(n), 1) for n in range(8)), full=True, version=6), 1.0)
    assert len(view) == 10
    assert view.version(one) == 5
    assert view.version(two) == 6
    assert view.is_complete({"one": one})
    assert not view.is_complete({"one": one, "two": two})
    view.apply_reply(one, reply(ttypes.TopicUpdate("n", "0"), version=7), 2.0)
    assert view.version(two) is None
    assert view.version(two) is None  # the answer was lost
    view.apply_reply(two, reply(ready("0", 1), ready("7", 1), full=True, version=8), 3.0)
    assert view.is_complete({"one": one, "two": two})
    assert len(view) == 9
