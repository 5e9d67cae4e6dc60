"""The sums over the topics of all peers."""

from __future__ import annotations

from typing import Any

from foqs.cluster.gossip.gossip_view import GossipView
from foqs.core.items.item import State
from foqs_contract.idl import ttypes
from tests.unit.cluster.gossip.test_change_log import peer


def reply(version: int, *topics: Any, full: bool = False) -> Any:
    return ttypes.GossipReply(version=version, topics=list(topics), full=full, full_since=version, more=False)


def update(topic: str, *counts: int, age_ms: int | None = None) -> Any:
    ready, deferred, leased, dead = counts
    return ttypes.TopicUpdate("n", topic, ready, deferred, leased, dead, 0, age_ms)


def test_totals_follow_every_change_of_a_topic() -> None:
    view, one, two = GossipView(10), peer("one"), peer("two")
    view.apply_reply(one, reply(1, update("a", 5, 4, 3, 2), update("b", 1, 0, 0, 7), full=True), 1.0)
    view.apply_reply(two, reply(1, update("a", 10, 0, 0, 0), full=True), 1.0)
    assert view.totals() == {State.DEFERRED: 4, State.READY: 16, State.LEASED: 3, State.DEAD: 9}
    view.apply_reply(one, reply(2, update("a", 6, 0, 0, 0), ttypes.TopicUpdate("n", "b")), 2.0)
    assert view.totals() == {State.DEFERRED: 0, State.READY: 16, State.LEASED: 0, State.DEAD: 0}
    view.update_topic(two, ("n", "a"), None, 0)
    view.update_topic(two, ("n", "absent"), None, 9)
    assert view.totals()[State.READY] == 6
    view.apply_reply(one, reply(3, full=True), 3.0)
    assert view.totals()[State.READY] == 0
    view.apply_reply(two, reply(2, update("c", 8, 1, 1, 1)), 3.0)
    view.remove_peers([two])
    assert sum(view.totals().values()) == 0


def test_topics_beyond_the_limit_do_not_count() -> None:
    view, one = GossipView(1), peer("one")
    view.apply_reply(one, reply(1, update("a", 5, 0, 0, 0), update("b", 7, 0, 0, 0), full=True), 1.0)
    assert view.totals()[State.READY] == 5
    assert not view.is_complete({one.nonce: one})


def test_the_oldest_item_of_all_peers_is_found() -> None:
    view, one, two = GossipView(10), peer("one"), peer("two")
    assert view.oldest_ready_at_s() is None
    view.apply_reply(one, reply(1, update("a", 5, 0, 0, 0, age_ms=4_000), full=True), 10.0)
    view.apply_reply(two, reply(1, update("b", 5, 0, 0, 0, age_ms=9_000), update("c", 0, 1, 0, 0), full=True), 10.0)
    assert view.oldest_ready_at_s() == 1.0
