"""The loads of hosts, and the order in which hosts get new items.

Holds `HostLoads`. Always true: hosts of the client's region come first while one of
them has room. While no host is busy, hosts take turns. A reported load is old, and
all clients know the same one. So it counts less with time, the client's own calls in
flight count too, and a busy host is replaced by a random one: the idlest host would
get the items of all clients. Pure; knows nothing of connections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

from foqs_client.routing_table import Address
from foqs_client.types import Routing

HALF_LIFE_S: Final = 2.5
"""A reported load counts half after this time, half of the time between two reads of the routing table."""
BUSY_ITEMS: Final = 64
"""A host with at most this number of waiting items is not busy: they make one good flush."""
FULL_S: Final = 0.25
"""A host that had no room for items gets none for this time, if another host can accept them."""


class HostLoads:
    """The loads of a tier's hosts.

    Args:
        region: the client's region; None: all hosts are equal.
        rng: chooses the host that a busy one is compared with.
    """

    def __init__(self, region: str | None, rng: Random) -> None:
        self._region = region
        self._rng = rng
        self._turn = 0
        self._reported_loads: dict[Address, float] = {}
        """The waiting items per unit of the host's capacity."""
        self._reported_at_s = 0.0
        self._capacity: dict[Address, int] = {}
        self._region_hosts: frozenset[Address] | None = None
        """The hosts of the region; None: all."""
        self._in_flight_items: dict[Address, int] = {}
        """The items of this client's calls in flight."""
        self._full_until_s: dict[Address, float] = {}
        """Hosts without room, and until when they come last."""

    def on_routing_read(self, routing: Routing, now_s: float) -> None:
        """Record the loads and capacities that hosts reported."""
        self._capacity = {host.address: host.capacity or 1 for host in routing.hosts}
        self._reported_loads = {host.address: (host.load or 0.0) / (host.capacity or 1) for host in routing.hosts}
        self._reported_at_s = now_s
        if self._region is not None:
            self._region_hosts = frozenset(host.address for host in routing.hosts if host.region == self._region)

    def add_in_flight(self, host: Address, items: int) -> None:
        """Count the items of a call to a host."""
        self._in_flight_items[host] = self._in_flight_items.get(host, 0) + items

    def remove_in_flight(self, host: Address, items: int) -> None:
        """Subtract the items of an ended call to a host."""
        left = self._in_flight_items[host] - items
        if left:
            self._in_flight_items[host] = left
        else:
            del self._in_flight_items[host]

    def on_refused(self, host: Address, now_s: float) -> None:
        """Record that a host had no room."""
        self._full_until_s[host] = now_s + FULL_S

    def load(self, host: Address, now_s: float) -> float:
        """Estimate a host's waiting items per unit of its capacity."""
        age_s = max(0.0, now_s - self._reported_at_s)
        reported = self._reported_loads.get(host, 0.0) * math.pow(0.5, age_s / HALF_LIFE_S)
        return reported + self._in_flight_items.get(host, 0) / self._capacity.get(host, 1)

    def order(self, hosts: Sequence[Address], now_s: float) -> Sequence[Address]:
        """Return all hosts, first the one that gets new items."""
        best, others = hosts, []
        if self._region_hosts is not None or self._full_until_s:
            self._full_until_s = {at: until_s for at, until_s in self._full_until_s.items() if until_s > now_s}
            ranked = sorted(hosts, key=self._rank)
            best = [at for at in ranked if self._rank(at) == self._rank(ranked[0])]
            others = ranked[len(best) :]
        self._turn = (self._turn + 1) % len(best)
        order = [*best[self._turn :], *best[: self._turn], *others]
        first_load = self.load(order[0], now_s)
        if first_load > BUSY_ITEMS and len(best) > 1:
            other = self._rng.randrange(1, len(best))
            if 2 * self.load(order[other], now_s) < first_load:
                order[0], order[other] = order[other], order[0]
        return order

    def _rank(self, host: Address) -> tuple[bool, bool]:
        return (host in self._full_until_s, self._region_hosts is not None and host not in self._region_hosts)
