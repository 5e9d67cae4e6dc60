"""What the other hosts of the tier have, topic by topic, as each told last.

Holds `Summaries`. Always true: of a host that has told everything once, this is
what it said, no more and no less; what a host said last stays until it is gone
from the plan, however long it is silent; all of them together are kept within a
number of topics, beyond which new ones are left out, said to be, and asked for
again when there is room. Pure; knows nothing of calls, and nothing of what this
host has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

from foqs.cluster.peers import Peer
from foqs.core.items.item import PRIORITY_MAX, TopicName
from foqs.core.memory.sorted_names import SortedNames

_RESYNC_FREE_DIVISOR: Final = 10
"""What was left out is asked for when one in so many places is free."""


class PeerTopicStats(NamedTuple):
    """Of a topic at one host: items by state.

    `best_priority`: None where there is no READY item, or the host has not read which is the best.
    `oldest_ready_at_s`: the oldest READY item's time, on the loop's clock; None where it is not known.
    """

    ready: int
    deferred: int
    leased: int
    dead: int
    best_priority: int | None
    oldest_ready_at_s: float | None
    counts_lag: bool


@dataclass(slots=True, frozen=True)
class PeerAvailability:
    """Of one topic at one other host, as it told last.

    Attributes:
        best_priority: the worst there is, where the host has not read which of its items is the best.
        oldest_ready_age_ms: as it was at `at`; 0 where it is not known.
        at: the loop's clock when it was so.
    """

    peer: Peer
    best_priority: int
    ready: int
    oldest_ready_age_ms: int
    as_of_s: float


_BY_PRIORITY: Final = attrgetter("best_priority")
_StatsByTopic = dict[str, PeerTopicStats]


class _PeerView:
    """What one host told."""

    __slots__ = (
        "as_of_s",
        "asked_at_s",
        "complete_as_of_s",
        "full_since",
        "is_truncated",
        "topic_names",
        "topics",
        "unconfirmed",
        "version",
    )

    def __init__(self) -> None:
        self.version: int | None = None
        self.full_since: int | None = None
        """While it tells everything anew, its version when that began."""
        self.complete_as_of_s: float | None = None
        """When all of this was so; None before it has told everything once."""
        self.asked_at_s = 0.0
        """When the host was asked for what it is telling, or has told last: all that had changed by then is in it."""
        self.as_of_s = 0.0
        """When the last of this was so."""
        self.topics: dict[str, _StatsByTopic] = {}
        """By namespace and name."""
        self.topic_names: dict[str, SortedNames] = {}
        self.unconfirmed: set[TopicName] | None = None
        """While it tells everything anew, what it has not told yet."""
        self.is_truncated = False
        """There was no room for some of its topics."""

    def topic_stats(self, topic: TopicName) -> PeerTopicStats | None:
        topics = self.topics.get(topic[0])
        return None if topics is None else topics.get(topic[1])


class GossipView:
    """Args:
    topics_max: kept of all hosts together; one topic at two hosts counts twice.
    """

    def __init__(self, topics_max: int) -> None:
        self.on_items_available: Callable[[Collection[TopicName]], None] = _ignore
        """Told topics that have READY items elsewhere and had none there, or worse or fewer ones, before."""
        self._topics_max = topics_max
        self._peer_views: dict[Peer, _PeerView] = {}
        self._topic_count = 0

    def __len__(self) -> int:
        """Topics kept, of all hosts together."""
        return self._topic_count

    # --------------------------------------------------------------- what is told

    def version(self, peer: Peer) -> int | None:
        """The version up to which a host was heard; None: it is to tell everything."""
        known = self._peer_views.get(peer)
        if known is None:
            return None
        has_room = self._topic_count <= self._topics_max - self._topics_max // _RESYNC_FREE_DIVISOR
        return None if known.is_truncated and has_room else known.version

    def full_since(self, peer: Peer) -> int | None:
        """The version at which a host began to tell everything, while it does."""
        known = self._peer_views.get(peer)
        return None if known is None else known.full_since

    def apply_reply(self, peer: Peer, reply: Any, as_of_s: float, *, is_continuation: bool = False) -> None:
        """Takes in an ExchangeReply.

        Args:
            as_of_s: the loop's clock at a moment not after the reply was written.
            is_continuation: it was asked for the rest of the reply before, and not for what has changed since.
        """
        known = self._peer_views.get(peer)
        if known is None:
            known = self._peer_views[peer] = _PeerView()
        if reply.full:
            known.is_truncated = False
            known.unconfirmed = {(space, name) for space, topics in known.topics.items() for name in topics}
        news: list[TopicName] = []
        for summary in reply.topics or ():
            topic = (summary.namespace_name, summary.topic)
            if summary.ready is None:
                self._remove(known, topic)
            elif self._store(known, topic, _parse_summary(summary, as_of_s)):
                news.append(topic)
        known.version, known.as_of_s = reply.version, as_of_s
        if not is_continuation:
            known.asked_at_s = as_of_s
        known.full_since = reply.full_since if reply.more else None
        if not reply.more:
            for topic in known.unconfirmed or ():
                self._remove(known, topic)
            known.unconfirmed = None
            known.complete_as_of_s = known.asked_at_s
        if news:
            self.on_items_available(news)

    def update_topic(self, peer: Peer, topic: TopicName, best_priority: int | None, ready: int) -> None:
        """Fresher knowledge, from a reply to a call that was passed on. Of a topic that the host never told of it says nothing."""
        known = self._peer_views.get(peer)
        told = None if known is None else known.topic_stats(topic)
        if known is not None and told is not None:
            since = told.oldest_ready_at_s if ready else None
            known.topics[topic[0]][topic[1]] = told._replace(
                ready=ready, best_priority=best_priority if ready else None, oldest_ready_at_s=since
            )

    def remove_peers(self, peers: Iterable[Peer]) -> None:
        """These hosts are there no more, nor is what they had."""
        for peer in peers:
            known = self._peer_views.pop(peer, None)
            if known is not None:
                self._topic_count -= sum(map(len, known.topics.values()))

    def _store(self, view: _PeerView, topic: TopicName, stats: PeerTopicStats) -> bool:
        """Returns whether its READY items are news."""
        namespace, name = topic
        if view.unconfirmed is not None:
            view.unconfirmed.discard(topic)
        topics = view.topics.get(namespace)
        before = None if topics is None else topics.get(name)
        if before is None:
            if self._topic_count >= self._topics_max:
                view.is_truncated = True
                return False
            if topics is None:
                topics = view.topics[namespace] = {}
                view.topic_names[namespace] = SortedNames()
            view.topic_names[namespace].add(name)
            self._topic_count += 1
        assert topics is not None
        topics[name] = stats
        if not stats.ready:
            return False
        return before is None or stats.ready > before.ready or _priority_or_worst(stats) < _priority_or_worst(before)

    def _remove(self, view: _PeerView, topic: TopicName) -> None:
        namespace, name = topic
        topics = view.topics.get(namespace)
        if topics is None or topics.pop(name, None) is None:
            return
        self._topic_count -= 1
        view.topic_names[namespace].discard(name)
        if not topics:
            del view.topics[namespace], view.topic_names[namespace]

    # -------------------------------------------------------------------- looking

    def best_peers(self, topic: TopicName) -> Sequence[PeerAvailability]:
        """Of the hosts that have READY items of it, the best first."""
        found: list[PeerAvailability] = []
        for peer, known in self._peer_views.items():
            told = known.topic_stats(topic)
            if told is not None and told.ready:
                at = known.as_of_s if known.complete_as_of_s is None else known.complete_as_of_s
                since = told.oldest_ready_at_s
                age_ms = 0 if since is None else max(0, round((at - since) * 1_000))
                found.append(PeerAvailability(peer, _priority_or_worst(told), told.ready, age_ms, at))
        if len(found) > 1:
            found.sort(key=_BY_PRIORITY)
        return found

    def topic_stats(self, topic: TopicName) -> list[PeerTopicStats]:
        """What each host that has it told of a topic."""
        return [told for known in self._peer_views.values() if (told := known.topic_stats(topic)) is not None]

    def topic_names(self, namespace: str) -> list[SortedNames]:
        """By host, its topics of a namespace. Not to be changed."""
        return [known.topic_names[namespace] for known in self._peer_views.values() if namespace in known.topic_names]

    def is_complete(self, peers: Mapping[str, Peer]) -> bool:
        """Each of these hosts has told everything, and all of it is kept."""
        for peer in peers.values():
            known = self._peer_views.get(peer)
            if known is None or known.complete_as_of_s is None or known.is_truncated:
                return False
        return True

    def complete_as_of_s(self, peer: Peer) -> float | None:
        """When what this host told was so, on the loop's clock; None before it has told everything."""
        known = self._peer_views.get(peer)
        return None if known is None else known.complete_as_of_s


def _priority_or_worst(stats: PeerTopicStats) -> int:
    """Its best priority as far as it is known."""
    return PRIORITY_MAX if stats.best_priority is None else stats.best_priority


def _parse_summary(summary: Any, as_of_s: float) -> PeerTopicStats:
    age_ms = summary.oldest_ready_age_ms
    return PeerTopicStats(
        summary.ready,
        summary.deferred or 0,
        summary.leased or 0,
        summary.dead or 0,
        summary.best_priority,
        None if age_ms is None else as_of_s - age_ms / 1_000,
        bool(summary.counts_lag),
    )


def _ignore(topics: Collection[TopicName]) -> None:
    """Nobody waits for news."""
