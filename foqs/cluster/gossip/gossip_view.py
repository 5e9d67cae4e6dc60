"""The topics of the peers and the items in each, as last reported.

Holds `GossipView`. Always true: after a peer's first full listing, this is exactly
what the peer reported; it stays until the plan no longer lists the peer, even if
the peer does not answer; the number of topics is limited. Topics beyond the limit are
left out, the peer's view is marked as truncated, and a full listing is requested
when there is room. Pure; knows nothing of calls or of this host's own topics.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, NamedTuple

from foqs.cluster.peers import Peer
from foqs.core.items.item import PRIORITY_MAX, State, TopicName
from foqs.core.memory.sorted_names import SortedNames
from foqs_contract.idl import ttypes

_RESYNC_FREE_DIVISOR: Final = 10
"""Truncated topics are requested again when one in this many places is free."""

TURN_LEAD_INTERVALS: Final = 2
"""A report may be an interval old, and the group of which it says how long it has waited may have been served since."""

SILENT_S: Final = 5.0
"""A host that has not answered for this long, or for three gossip intervals, cannot be expected to deliver."""


class PeerTopicStats(NamedTuple):
    """The items of a topic at one host, by state.

    `best_priority`: None if there is no READY item, or the host has not read the best one.
    `oldest_ready_at_s`: the oldest READY item's time on the loop's clock; None if unknown.
    `deliverable`: the READY items that no group holds back; None if the topic has no limit on the leases of groups.
    `turn_since_s`: since when the next group of a fair topic has waited, on the loop's clock; None if the topic is not fair, or none waits.
    """

    ready: int
    deferred: int
    leased: int
    dead: int
    best_priority: int | None
    oldest_ready_at_s: float | None
    counts_lag: bool
    deliverable: int | None = None
    turn_since_s: float | None = None

    @property
    def available(self) -> int:
        """The items that the host may deliver now."""
        return self.ready if self.deliverable is None else self.deliverable


@dataclass(slots=True, frozen=True)
class PeerAvailability:
    """The availability of a topic at a peer, as last reported.

    Attributes:
        best_priority: the worst possible priority if the host has not read its best item.
        ready: without the items that groups hold back.
        oldest_ready_age_ms: at `as_of_s`; 0 if unknown.
        as_of_s: the time of the report, on the loop's clock.
        turn_since_s: see `PeerTopicStats`.
    """

    peer: Peer
    best_priority: int
    ready: int
    oldest_ready_age_ms: int
    as_of_s: float
    turn_since_s: float | None = None


def _by_priority_and_turn(availability: PeerAvailability) -> tuple[int, float]:
    return availability.best_priority, inf if availability.turn_since_s is None else availability.turn_since_s


_StatsByTopic = dict[str, PeerTopicStats]


class _PeerView:
    """The topics of one peer, as it last reported them."""

    __slots__ = (
        "as_of_s",
        "asked_at_s",
        "complete_as_of_s",
        "full_since",
        "is_truncated",
        "topic_names",
        "topics",
        "totals",
        "unavailable_shards",
        "unconfirmed",
        "version",
    )

    def __init__(self) -> None:
        self.version: int | None = None
        self.full_since: int | None = None
        """During a full listing, the peer's version when the listing started."""
        self.complete_as_of_s: float | None = None
        """A time since which no change is missing; None before the first full listing ends."""
        self.asked_at_s = 0.0
        """When the first page of the current, or last, report was requested: changes before that are in the report."""
        self.as_of_s = 0.0
        """When the last page was requested."""
        self.topics: dict[str, _StatsByTopic] = {}
        """The topics of the peer, by namespace and topic name."""
        self.topic_names: dict[str, SortedNames] = {}
        self.totals = [0] * (max(State) + 1)
        """The items of all topics, by state."""
        self.unconfirmed: set[TopicName] | None = None
        """During a full listing, the known topics that it has not contained yet."""
        self.unavailable_shards = 0
        """The number of shards that the peer serves and that cannot deliver."""
        self.is_truncated = False
        """Whether some topics were left out because of the limit."""

    def topic_stats(self, topic: TopicName) -> PeerTopicStats | None:
        topics = self.topics.get(topic[0])
        return None if topics is None else topics.get(topic[1])

    def count(self, stats: PeerTopicStats, sign: int) -> None:
        """Add the items of a topic to the totals, or subtract them."""
        totals = self.totals
        totals[State.READY] += sign * stats.ready
        totals[State.DEFERRED] += sign * stats.deferred
        totals[State.LEASED] += sign * stats.leased
        totals[State.DEAD] += sign * stats.dead


class GossipView:
    """The topics of all peers, as they last reported them.

    Args:
        topics_max: the limit over all peers; a topic at two peers counts twice.
        interval_s: the time between two reports of a peer.
    """

    def __init__(self, topics_max: int, interval_s: float = 1.0) -> None:
        self._topics_max = topics_max
        self.turn_lead_s: Final = TURN_LEAD_INTERVALS * interval_s
        """How much longer than here a group of a fair topic must have waited at a peer, so that the peer is asked."""
        self._silent_after_s = max(SILENT_S, 3 * interval_s)
        self._peer_views: dict[Peer, _PeerView] = {}
        self._topic_count = 0

    def __len__(self) -> int:
        """Return the number of topics, over all peers."""
        return self._topic_count

    # ------------------------------------------------------------------- updating

    def version(self, peer: Peer) -> int | None:
        """Return the version after which to ask a peer for changes; None: request a full listing."""
        view = self._peer_views.get(peer)
        if view is None:
            return None
        has_room = self._topic_count <= self._topics_max - self._topics_max // _RESYNC_FREE_DIVISOR
        return None if view.is_truncated and has_room else view.version

    def full_since(self, peer: Peer) -> int | None:
        """Return the version at which a peer's current full listing started; None if there is none."""
        view = self._peer_views.get(peer)
        return None if view is None else view.full_since

    def apply_reply(
        self, peer: Peer, reply: ttypes.GossipReply, as_of_s: float, *, is_continuation: bool = False
    ) -> Collection[TopicName]:
        """Apply the reply of a peer to a `gossip` call. Return the topics of which the peer may now deliver more or better items than before.

        Args:
            as_of_s: on the loop's clock, a time not after the reply was written.
            is_continuation: whether the request asked for the next page and not for newer changes.
        """
        view = self._peer_views.get(peer)
        if view is None:
            view = self._peer_views[peer] = _PeerView()
        if reply.full:
            view.is_truncated = False
            view.unconfirmed = {(space, name) for space, topics in view.topics.items() for name in topics}
        improved: list[TopicName] = []
        updates: Sequence[Any] = reply.topics or ()  # each names its topic
        for update in updates:
            topic = (update.namespace_name, update.topic)
            if update.ready is None:
                self._remove(view, topic)
            elif self._store(view, topic, _parse_update(update, as_of_s)):
                improved.append(topic)
        view.version, view.as_of_s = reply.version, as_of_s
        view.unavailable_shards = reply.unavailable_shards or 0
        if not is_continuation:
            view.asked_at_s = as_of_s
        view.full_since = reply.full_since if reply.more else None
        if not reply.more:
            for topic in view.unconfirmed or ():
                self._remove(view, topic)
            view.unconfirmed = None
            view.complete_as_of_s = view.asked_at_s
        return improved

    def update_topic(
        self,
        peer: Peer,
        topic: TopicName,
        best_priority: int | None,
        ready: int,
        turn_since_s: float | None = None,
    ) -> None:
        """Update a topic from the reply to a forwarded call. Ignored if the peer has never reported the topic.

        Args:
            best_priority: None if it is unknown, or there is none.
            ready: without the items that groups hold back; of a topic with a limit, the last report still says how many there are in all.
            turn_since_s: see `PeerTopicStats`.
        """
        view = self._peer_views.get(peer)
        stats = None if view is None else view.topic_stats(topic)
        if view is not None and stats is not None and stats.deliverable is not None:
            best_priority = best_priority if ready else None
            view.topics[topic[0]][topic[1]] = stats._replace(
                deliverable=ready, best_priority=best_priority, turn_since_s=turn_since_s
            )
        elif view is not None and stats is not None:
            oldest_ready_at_s = stats.oldest_ready_at_s if ready else None
            view.topics[topic[0]][topic[1]] = stats._replace(
                ready=ready,
                best_priority=best_priority if ready else None,
                oldest_ready_at_s=oldest_ready_at_s,
                turn_since_s=turn_since_s,
            )
            view.totals[State.READY] += ready - stats.ready

    def remove_peers(self, peers: Iterable[Peer]) -> None:
        """Forget peers that left, with their topics."""
        for peer in peers:
            view = self._peer_views.pop(peer, None)
            if view is not None:
                self._topic_count -= sum(map(len, view.topics.values()))

    def _store(self, view: _PeerView, topic: TopicName, stats: PeerTopicStats) -> bool:
        """Store a topic. Returns whether more or better items may be delivered than before."""
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
        else:
            view.count(before, -1)
        assert topics is not None
        topics[name] = stats
        view.count(stats, 1)
        if not stats.available:
            return False
        return (
            before is None
            or stats.available > before.available
            or _priority_or_worst(stats) < _priority_or_worst(before)
        )

    def _remove(self, view: _PeerView, topic: TopicName) -> None:
        namespace, name = topic
        topics = view.topics.get(namespace)
        stats = None if topics is None else topics.pop(name, None)
        if topics is None or stats is None:
            return
        view.count(stats, -1)
        self._topic_count -= 1
        view.topic_names[namespace].discard(name)
        if not topics:
            del view.topics[namespace], view.topic_names[namespace]

    # -------------------------------------------------------------------- reading

    def best_peers(self, topic: TopicName) -> Sequence[PeerAvailability]:
        """Return the peers that may deliver items of a topic: the best first, and of a fair topic the one whose group has waited longest."""
        found: list[PeerAvailability] = []
        for peer, view in self._peer_views.items():
            stats = view.topic_stats(topic)
            if stats is not None and stats.available:
                as_of_s = view.as_of_s if view.complete_as_of_s is None else view.complete_as_of_s
                oldest_ready_at_s = stats.oldest_ready_at_s
                age_ms = 0 if oldest_ready_at_s is None else max(0, round((as_of_s - oldest_ready_at_s) * 1_000))
                found.append(
                    PeerAvailability(
                        peer, _priority_or_worst(stats), stats.available, age_ms, as_of_s, stats.turn_since_s
                    )
                )
        if len(found) > 1:
            found.sort(key=_by_priority_and_turn)
        return found

    def topic_stats(self, topic: TopicName) -> list[PeerTopicStats]:
        """Return the reports of all peers that have a topic."""
        return [stats for view in self._peer_views.values() if (stats := view.topic_stats(topic)) is not None]

    def totals(self) -> dict[State, int]:
        """Return the items of all peers, by state."""
        return {state: sum(view.totals[state] for view in self._peer_views.values()) for state in State}

    def oldest_ready_at_s(self) -> float | None:
        """Return the time of the oldest READY item of all peers, on the loop's clock; None if it is not known. Reads all topics."""
        times = [
            stats.oldest_ready_at_s
            for view in self._peer_views.values()
            for topics in view.topics.values()
            for stats in topics.values()
            if stats.oldest_ready_at_s is not None
        ]
        return min(times, default=None)

    def topic_names(self, namespace: str) -> list[SortedNames]:
        """Return the topic names of a namespace, one collection per peer. Read-only."""
        return [view.topic_names[namespace] for view in self._peer_views.values() if namespace in view.topic_names]

    def is_complete(self, peers: Mapping[str, Peer]) -> bool:
        """Return whether each of these peers has reported everything, and nothing was left out."""
        for peer in peers.values():
            view = self._peer_views.get(peer)
            if view is None or view.complete_as_of_s is None or view.is_truncated:
                return False
        return True

    def unavailable_shards(self, peer: Peer) -> int:
        """Return how many of the shards that the peer serves cannot deliver, as last reported."""
        view = self._peer_views.get(peer)
        return 0 if view is None else view.unavailable_shards

    def all_unavailable_shards(self) -> int:
        """Return `unavailable_shards` of all peers together."""
        return sum(view.unavailable_shards for view in self._peer_views.values())

    def may_deliver(self, peer: Peer, topics: Collection[TopicName]) -> bool:
        """Return whether the peer has items of these topics that are READY, or may become READY; True if it is not known."""
        view = self._peer_views.get(peer)
        if view is None or view.complete_as_of_s is None:
            return True
        found = [view.topic_stats(topic) for topic in topics]
        if view.is_truncated and None in found:
            return True
        return any(stats and (stats.counts_lag or stats.ready or stats.deferred or stats.leased) for stats in found)

    def is_silent(self, peer: Peer, now_s: float) -> bool:
        """Return whether a peer has not answered for long. One that has never answered is not silent yet."""
        view = self._peer_views.get(peer)
        return view is not None and now_s - view.as_of_s > self._silent_after_s

    def complete_as_of_s(self, peer: Peer) -> float | None:
        """Return the time of a peer's view on the loop's clock; None before the first full listing ends."""
        view = self._peer_views.get(peer)
        return None if view is None else view.complete_as_of_s


def _priority_or_worst(stats: PeerTopicStats) -> int:
    return PRIORITY_MAX if stats.best_priority is None else stats.best_priority


def _parse_update(update: ttypes.TopicUpdate, as_of_s: float) -> PeerTopicStats:
    age_ms = update.oldest_ready_age_ms
    return PeerTopicStats(
        update.ready or 0,
        update.deferred or 0,
        update.leased or 0,
        update.dead or 0,
        update.best_priority,
        None if age_ms is None else as_of_s - age_ms / 1_000,
        bool(update.counts_lag),
        update.deliverable,
        None if update.turn_age_ms is None else as_of_s - update.turn_age_ms / 1_000,
    )
