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

from foqs_client.routing_table import Address

FRESH_S: Final = 2.0
"""What was told is believed for so long. Hosts tell each other about once a second."""
TOPICS_MAX: Final = 10_000
"""Topics that are remembered: beyond, the one that was asked for longest ago is forgotten."""
HOSTS_MAX: Final = 256
"""Hosts that are remembered of one topic."""
_NO_ITEM: Final = inf
"""In place of a priority: no item is READY."""
_UNKNOWN: Final = -inf


class _BestPriority:
    """Of a topic at one host."""

    __slots__ = ("as_of_s", "priority")

    def __init__(self, priority: float, as_of_s: float) -> None:
        self.priority = priority
        self.as_of_s = as_of_s


class BestPriorities:
    """Of one client. Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._topics: OrderedDict[str, dict[Address, _BestPriority]] = OrderedDict()
        self._turns = 0
        self._last_first_turn: dict[Address, int] = {}
        """When each host was last the first to be asked, in turns."""

    def __len__(self) -> int:
        return len(self._topics)

    # ------------------------------------------------------------------ learning

    def on_dequeue_reply(
        self, host: Address, topics: Iterable[str], best_items: Sequence[Any] | None, now_s: float, *, has_items: bool
    ) -> None:
        """A host answered a dequeue of these topics.

        Args:
            best_items: the contract's `TopicHead`s; None: it tells nothing of others, or of itself.
            has_items: it gave some item. One that gave none is taken to have none, whatever it says.
        """
        if best_items is None:
            return
        for topic in topics:
            self._record(topic, host, _NO_ITEM, now_s)
        for head in best_items:
            if head.host is None or head.best_priority is None:
                continue
            at = (head.host.host, head.host.port)
            if at != host:
                self._record(head.topic, at, head.best_priority, now_s - (head.age_ms or 0) / 1_000)
            elif has_items:
                self._record(head.topic, at, head.best_priority, now_s)

    def on_released(self, host: Address, topic: str, priority: int, now_s: float) -> None:
        """An item was given back, and is READY at its host."""
        known = self._topics.get(topic, {}).get(host)
        self._record(topic, host, priority if known is None else min(known.priority, priority), now_s)

    def _record(self, topic: str, host: Address, priority: float, as_of_s: float) -> None:
        hosts = self._topics.get(topic)
        if hosts is None:
            hosts = self._topics[topic] = {}
            if len(self._topics) > TOPICS_MAX:
                self._topics.popitem(last=False)
        known = hosts.get(host)
        if known is None:
            if len(hosts) >= HOSTS_MAX:
                hosts.clear()
            hosts[host] = _BestPriority(priority, as_of_s)
        elif as_of_s >= known.as_of_s:
            known.priority, known.as_of_s = priority, as_of_s

    # ------------------------------------------------------------------ choosing

    def is_known_empty(self, host: Address, topics: Iterable[str], now_s: float) -> bool:
        """It had nothing of any of these topics, as far as is known."""
        for topic in topics:
            head = self._topics.get(topic, {}).get(host)
            if head is None or head.priority < _NO_ITEM or head.as_of_s + FRESH_S <= now_s:
                return False
        return True

    def order(self, hosts: Sequence[Address], topics: Collection[str], now_s: float) -> list[Address]:
        """The hosts in the order in which to ask them for these topics."""
        self._turns += 1
        asked = self._last_first_turn
        if asked.keys() - hosts:
            self._evict_unknown_hosts(hosts)
        best = self._best_by_host(hosts, topics, now_s)
        ordered = sorted(hosts, key=lambda host: (best[host], asked.get(host, 0)))
        asked[ordered[0]] = self._turns
        return ordered

    def _best_by_host(self, hosts: Sequence[Address], topics: Collection[str], now_s: float) -> dict[Address, float]:
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
                best[host] = head.priority if head is not None and head.as_of_s + FRESH_S > now_s else _UNKNOWN
            if any(_UNKNOWN < each < _NO_ITEM for each in best.values()):
                break
        return best

    def _evict_unknown_hosts(self, hosts: Sequence[Address]) -> None:
        """Of hosts that are not in the map any more nothing is kept."""
        self._last_first_turn = {host: turn for host, turn in self._last_first_turn.items() if host in hosts}
        for known in self._topics.values():
            for host in known.keys() - hosts:
                del known[host]
