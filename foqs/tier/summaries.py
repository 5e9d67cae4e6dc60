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

from foqs.core.item import PRIORITY_MAX, TopicName
from foqs.core.names import SortedNames
from foqs.tier.peers import Peer

_ROOM_PART: Final = 10
"""What was left out is asked for when one in so many places is free."""


class Told(NamedTuple):
    """Of a topic at one host: items by state.

    `best_priority`: None where there is no READY item, or the host has not read which is the best.
    `ready_since`: the oldest READY item's time, on the loop's clock; None where it is not known.
    """

    ready: int
    deferred: int
    leased: int
    dead: int
    best_priority: int | None
    ready_since: float | None
    counts_lag: bool


@dataclass(slots=True, frozen=True)
class Head:
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
    at: float


_BEST: Final = attrgetter("best_priority")
_Topics = dict[str, Told]


class _Known:
    """What one host told."""

    __slots__ = (
        "begun_at",
        "heard_at",
        "left_out",
        "names",
        "told_at",
        "topics",
        "unconfirmed",
        "version",
        "whole_since",
    )

    def __init__(self) -> None:
        self.version: int | None = None
        self.whole_since: int | None = None
        """While it tells everything anew, its version when that began."""
        self.heard_at: float | None = None
        """When all of this was so; None before it has told everything once."""
        self.begun_at = 0.0
        """When the host was asked for what it is telling, or has told last: all that had changed by then is in it."""
        self.told_at = 0.0
        """When the last of this was so."""
        self.topics: dict[str, _Topics] = {}
        """By namespace and name."""
        self.names: dict[str, SortedNames] = {}
        self.unconfirmed: set[TopicName] | None = None
        """While it tells everything anew, what it has not told yet."""
        self.left_out = False
        """There was no room for some of its topics."""

    def of(self, topic: TopicName) -> Told | None:
        topics = self.topics.get(topic[0])
        return None if topics is None else topics.get(topic[1])


class Summaries:
    """Args:
    topics_max: kept of all hosts together; one topic at two hosts counts twice.
    """

    def __init__(self, topics_max: int) -> None:
        self.on_news: Callable[[Collection[TopicName]], None] = _nobody
        """Told topics that have READY items elsewhere and had none there, or worse or fewer ones, before."""
        self._topics_max = topics_max
        self._known: dict[Peer, _Known] = {}
        self._size = 0

    def __len__(self) -> int:
        """Topics kept, of all hosts together."""
        return self._size

    # --------------------------------------------------------------- what is told

    def version(self, peer: Peer) -> int | None:
        """The version up to which a host was heard; None: it is to tell everything."""
        known = self._known.get(peer)
        if known is None:
            return None
        has_room = self._size <= self._topics_max - self._topics_max // _ROOM_PART
        return None if known.left_out and has_room else known.version

    def whole_since(self, peer: Peer) -> int | None:
        """The version at which a host began to tell everything, while it does."""
        known = self._known.get(peer)
        return None if known is None else known.whole_since

    def told(self, peer: Peer, reply: Any, at: float, *, goes_on: bool = False) -> None:
        """Takes in an ExchangeReply.

        Args:
            at: the loop's clock at a moment not after the reply was written.
            goes_on: it was asked for the rest of the reply before, and not for what has changed since.
        """
        known = self._known.get(peer)
        if known is None:
            known = self._known[peer] = _Known()
        if reply.whole:
            known.left_out = False
            known.unconfirmed = {(space, name) for space, topics in known.topics.items() for name in topics}
        news: list[TopicName] = []
        for summary in reply.topics or ():
            topic = (summary.namespace_name, summary.topic)
            if summary.ready is None:
                self._forget(known, topic)
            elif self._keep(known, topic, _read(summary, at)):
                news.append(topic)
        known.version, known.told_at = reply.version, at
        if not goes_on:
            known.begun_at = at
        known.whole_since = reply.whole_since if reply.more else None
        if not reply.more:
            for topic in known.unconfirmed or ():
                self._forget(known, topic)
            known.unconfirmed = None
            known.heard_at = known.begun_at
        if news:
            self.on_news(news)

    def taken(self, peer: Peer, topic: TopicName, best_priority: int | None, ready: int) -> None:
        """Fresher knowledge, from a reply to a call that was passed on. Of a topic that the host never told of it says nothing."""
        known = self._known.get(peer)
        told = None if known is None else known.of(topic)
        if known is not None and told is not None:
            since = told.ready_since if ready else None
            known.topics[topic[0]][topic[1]] = told._replace(
                ready=ready, best_priority=best_priority if ready else None, ready_since=since
            )

    def gone(self, peers: Iterable[Peer]) -> None:
        """These hosts are there no more, nor is what they had."""
        for peer in peers:
            known = self._known.pop(peer, None)
            if known is not None:
                self._size -= sum(map(len, known.topics.values()))

    def _keep(self, known: _Known, topic: TopicName, told: Told) -> bool:
        """Returns whether its READY items are news."""
        namespace, name = topic
        if known.unconfirmed is not None:
            known.unconfirmed.discard(topic)
        topics = known.topics.get(namespace)
        before = None if topics is None else topics.get(name)
        if before is None:
            if self._size >= self._topics_max:
                known.left_out = True
                return False
            if topics is None:
                topics = known.topics[namespace] = {}
                known.names[namespace] = SortedNames()
            known.names[namespace].add(name)
            self._size += 1
        assert topics is not None
        topics[name] = told
        if not told.ready:
            return False
        return before is None or told.ready > before.ready or _rank(told) < _rank(before)

    def _forget(self, known: _Known, topic: TopicName) -> None:
        namespace, name = topic
        topics = known.topics.get(namespace)
        if topics is None or topics.pop(name, None) is None:
            return
        self._size -= 1
        known.names[namespace].discard(name)
        if not topics:
            del known.topics[namespace], known.names[namespace]

    # -------------------------------------------------------------------- looking

    def heads(self, topic: TopicName) -> Sequence[Head]:
        """Of the hosts that have READY items of it, the best first."""
        found: list[Head] = []
        for peer, known in self._known.items():
            told = known.of(topic)
            if told is not None and told.ready:
                at = known.told_at if known.heard_at is None else known.heard_at
                since = told.ready_since
                age_ms = 0 if since is None else max(0, round((at - since) * 1_000))
                found.append(Head(peer, _rank(told), told.ready, age_ms, at))
        if len(found) > 1:
            found.sort(key=_BEST)
        return found

    def of(self, topic: TopicName) -> list[Told]:
        """What each host that has it told of a topic."""
        return [told for known in self._known.values() if (told := known.of(topic)) is not None]

    def names(self, namespace: str) -> list[SortedNames]:
        """By host, its topics of a namespace. Not to be changed."""
        return [known.names[namespace] for known in self._known.values() if namespace in known.names]

    def is_whole(self, peers: Mapping[str, Peer]) -> bool:
        """Each of these hosts has told everything, and all of it is kept."""
        for peer in peers.values():
            known = self._known.get(peer)
            if known is None or known.heard_at is None or known.left_out:
                return False
        return True

    def heard_at(self, peer: Peer) -> float | None:
        """When what this host told was so, on the loop's clock; None before it has told everything."""
        known = self._known.get(peer)
        return None if known is None else known.heard_at


def _rank(told: Told) -> int:
    """Its best priority as far as it is known."""
    return PRIORITY_MAX if told.best_priority is None else told.best_priority


def _read(summary: Any, at: float) -> Told:
    age_ms = summary.oldest_ready_age_ms
    return Told(
        summary.ready,
        summary.deferred or 0,
        summary.leased or 0,
        summary.dead or 0,
        summary.best_priority,
        None if age_ms is None else at - age_ms / 1_000,
        bool(summary.counts_lag),
    )


def _nobody(topics: Collection[TopicName]) -> None:
    """Nobody waits for news."""
