"""The best priority of a topic at each host, as hosts report it in their replies.

Holds `BestPriorities`, pure. Always true: the newest report of a topic at a host
counts, for `FRESH_S`. A host without a report is asked first, so that none is
forgotten. Hosts with equally good items take turns. The topics of a call take turns
in choosing its host. Knows nothing of connections.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Any, Final

from foqs_client.routing_table import Address

FRESH_S: Final = 2.0
"""A report counts for this time. Hosts exchange reports about once a second."""
TOPICS_MAX: Final = 10_000
"""Limit of the topics that are remembered. Beyond that, the least recently requested topic is forgotten."""
HOSTS_MAX: Final = 256
"""Limit of the hosts that are remembered for a topic."""
_NO_ITEM: Final = inf
"""The priority of a topic without a READY item."""
_UNKNOWN: Final = -inf


class _BestPriority:
    """The best priority of a topic at one host."""

    __slots__ = ("as_of_s", "priority")

    def __init__(self, priority: float, as_of_s: float) -> None:
        self.priority = priority
        self.as_of_s = as_of_s


class BestPriorities:
    """The best-priority cache of a client. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._topics: OrderedDict[str, dict[Address, _BestPriority]] = OrderedDict()
        self._turns = 0
        self._last_first_turn: dict[Address, int] = {}
        """The number of the last turn in which each host was first."""

    def __len__(self) -> int:
        return len(self._topics)

    # ------------------------------------------------------------------- reports

    def on_dequeue_reply(
        self, host: Address, topics: Iterable[str], best_items: Sequence[Any] | None, now_s: float, *, has_items: bool
    ) -> None:
        """Record a host's reply to a dequeue of these topics.

        Args:
            best_items: the contract's `TopicAvailability` structs; None: the host sent no report.
            has_items: whether it delivered an item. A host that delivered none counts as empty, also if it reports items.
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
        """Record that an item was released and is READY at its host."""
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

    # -------------------------------------------------------------------- choice

    def is_known_empty(self, host: Address, topics: Iterable[str], now_s: float) -> bool:
        """Return whether fresh reports say that a host has no item of any of these topics."""
        for topic in topics:
            best = self._topics.get(topic, {}).get(host)
            if best is None or best.priority < _NO_ITEM or best.as_of_s + FRESH_S <= now_s:
                return False
        return True

    def order(self, hosts: Sequence[Address], topics: Collection[str], now_s: float) -> list[Address]:
        """Return the hosts in the order in which to ask them for these topics."""
        self._turns += 1
        last_turns = self._last_first_turn
        if last_turns.keys() - hosts:
            self._evict_unknown_hosts(hosts)
        best = self._best_by_host(hosts, topics, now_s)
        ordered = sorted(hosts, key=lambda host: (best[host], last_turns.get(host, 0)))
        last_turns[ordered[0]] = self._turns
        return ordered

    def _best_by_host(self, hosts: Sequence[Address], topics: Collection[str], now_s: float) -> dict[Address, float]:
        """Return each host's best priority of the topic whose turn it is, among topics with items."""
        names = list(topics)
        best = dict.fromkeys(hosts, _UNKNOWN)
        for step in range(len(names)):
            topic = names[(self._turns + step) % len(names)]
            known = self._topics.get(topic)
            if known is None:
                continue
            self._topics.move_to_end(topic)
            for host in hosts:
                report = known.get(host)
                best[host] = report.priority if report is not None and report.as_of_s + FRESH_S > now_s else _UNKNOWN
            if any(_UNKNOWN < priority < _NO_ITEM for priority in best.values()):
                break
        return best

    def _evict_unknown_hosts(self, hosts: Sequence[Address]) -> None:
        """Forget hosts that have left the routing table."""
        self._last_first_turn = {host: turn for host, turn in self._last_first_turn.items() if host in hosts}
        for known in self._topics.values():
            for host in known.keys() - hosts:
                del known[host]
