"""Where the best items of a topic are: what hosts told of it with their answers.

Holds `Heads`, pure. Always true: of what is known of a topic at a host, the
newest counts, for `KNOWN_S`; a host of which nothing is known is asked first, so
that none is forgotten; hosts that have equally good items take turns, and so do
the topics of one call in choosing its host. Knows nothing of connections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Any, Final

from foqs_client.routes import Address

KNOWN_S: Final = 2.0
"""What was told is believed for so long. Hosts tell each other about once a second."""
TOPICS_MAX: Final = 10_000
"""Topics that are remembered: beyond, the one that was asked for longest ago is forgotten."""
HOSTS_MAX: Final = 256
"""Hosts that are remembered of one topic."""
_NOTHING: Final = inf
"""In place of a priority: no item is READY."""
_UNKNOWN: Final = -inf


class _Head:
    """Of a topic at one host."""

    __slots__ = ("at", "best")

    def __init__(self, best: float, at: float) -> None:
        self.best = best
        self.at = at


class Heads:
    """Of one client. Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._topics: OrderedDict[str, dict[Address, _Head]] = OrderedDict()
        self._turns = 0
        self._asked: dict[Address, int] = {}
        """When each host was last the first to be asked, in turns."""

    def __len__(self) -> int:
        return len(self._topics)

    # ------------------------------------------------------------------ learning

    def told(
        self, host: Address, topics: Iterable[str], heads: Sequence[Any] | None, now: float, *, some: bool
    ) -> None:
        """A host answered a dequeue of these topics.

        Args:
            heads: the contract's `TopicHead`s; None: it tells nothing of others, or of itself.
            some: it gave some item. One that gave none is taken to have none, whatever it says.
        """
        if heads is None:
            return
        for topic in topics:
            self._learn(topic, host, _NOTHING, now)
        for head in heads:
            if head.host is None or head.best_priority is None:
                continue
            at = (head.host.host, head.host.port)
            if at != host:
                self._learn(head.topic, at, head.best_priority, now - (head.age_ms or 0) / 1_000)
            elif some:
                self._learn(head.topic, at, head.best_priority, now)

    def returned(self, host: Address, topic: str, priority: int, now: float) -> None:
        """An item was given back, and is READY at its host."""
        known = self._topics.get(topic, {}).get(host)
        self._learn(topic, host, priority if known is None else min(known.best, priority), now)

    def _learn(self, topic: str, host: Address, best: float, at: float) -> None:
        hosts = self._topics.get(topic)
        if hosts is None:
            hosts = self._topics[topic] = {}
            if len(self._topics) > TOPICS_MAX:
                self._topics.popitem(last=False)
        known = hosts.get(host)
        if known is None:
            if len(hosts) >= HOSTS_MAX:
                hosts.clear()
            hosts[host] = _Head(best, at)
        elif at >= known.at:
            known.best, known.at = best, at

    # ------------------------------------------------------------------ choosing

    def has_nothing(self, host: Address, topics: Iterable[str], now: float) -> bool:
        """It had nothing of any of these topics, as far as is known."""
        for topic in topics:
            head = self._topics.get(topic, {}).get(host)
            if head is None or head.best < _NOTHING or head.at + KNOWN_S <= now:
                return False
        return True

    def order(self, hosts: Sequence[Address], topics: Collection[str], now: float) -> list[Address]:
        """The hosts in the order in which to ask them for these topics."""
        self._turns += 1
        asked = self._asked
        if asked.keys() - hosts:
            self._forget(hosts)
        best = self._best(hosts, topics, now)
        ordered = sorted(hosts, key=lambda host: (best[host], asked.get(host, 0)))
        asked[ordered[0]] = self._turns
        return ordered

    def _best(self, hosts: Sequence[Address], topics: Collection[str], now: float) -> dict[Address, float]:
        """What each host has of the topic whose turn it is, of those that some host has."""
        names = list(topics)
        best = dict.fromkeys(hosts, _UNKNOWN)
        for step in range(len(names)):
            topic = names[(self._turns + step) % len(names)]
            known = self._topics.get(topic)
            if known is None:
                continue
            self._topics.move_to_end(topic)
            for host in hosts:
                head = known.get(host)
                best[host] = head.best if head is not None and head.at + KNOWN_S > now else _UNKNOWN
            if any(_UNKNOWN < each < _NOTHING for each in best.values()):
                break
        return best

    def _forget(self, hosts: Sequence[Address]) -> None:
        """Of hosts that are not in the map any more nothing is kept."""
        self._asked = {host: turn for host, turn in self._asked.items() if host in hosts}
        for known in self._topics.values():
            for host in known.keys() - hosts:
                del known[host]
