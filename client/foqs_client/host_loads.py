"""How busy hosts are, and which of them shall get new items.

Holds `Loads`. Always true: hosts of the client's region come before the others as
long as one of them has room; while nobody is busy hosts simply take turns. What
is known of a host's load is old by the time it is used, and known to all clients
alike: so it counts less with time, what this client has under way counts too, and
a busy host is left out for one that is drawn by lot, not for the idlest, which
would get everybody's. Pure; knows nothing of connections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Final

from foqs_client.routing_table import Address
from foqs_client.types import Routing

HALF_LIFE_S: Final = 2.5
"""After so long half of a load is taken to be worked off: half of the time between two maps."""
BUSY_ITEMS: Final = 64
"""Less that waits is no reason to look for another host: so many make one good flush."""
FULL_S: Final = 0.25
"""A host that refused items for want of room gets none for so long where another may take them."""


class HostLoads:
    """Args:
    region: of the client; None: all hosts are alike.
    rng: draws one of two hosts.
    """

    def __init__(self, region: str | None, rng: Random) -> None:
        self._region = region
        self._rng = rng
        self._turn = 0
        self._reported_loads: dict[Address, float] = {}
        """What waited there, for what the host can take."""
        self._reported_at_s = 0.0
        self._capacity: dict[Address, int] = {}
        self._region_hosts: frozenset[Address] | None = None
        """The hosts of the region; None: all."""
        self._in_flight_items: dict[Address, int] = {}
        """Items that this client has sent and that are not answered."""
        self._full_until_s: dict[Address, float] = {}
        """Hosts that refused items, and until when they get none where others may take them."""

    def on_routing_read(self, routing: Routing, now_s: float) -> None:
        """What hosts say of themselves."""
        self._capacity = {host.address: host.capacity or 1 for host in routing.hosts}
        self._reported_loads = {host.address: (host.load or 0.0) / (host.capacity or 1) for host in routing.hosts}
        self._reported_at_s = now_s
        if self._region is not None:
            self._region_hosts = frozenset(host.address for host in routing.hosts if host.region == self._region)

    def add_in_flight(self, host: Address, items: int) -> None:
        """So many are being sent there."""
        self._in_flight_items[host] = self._in_flight_items.get(host, 0) + items

    def remove_in_flight(self, host: Address, items: int) -> None:
        """They are answered, or nobody waits for them any more."""
        left = self._in_flight_items[host] - items
        if left:
            self._in_flight_items[host] = left
        else:
            del self._in_flight_items[host]

    def on_refused(self, host: Address, now_s: float) -> None:
        """It had no room."""
        self._full_until_s[host] = now_s + FULL_S

    def load(self, host: Address, now_s: float) -> float:
        """What waits at a host, for what it can take, as far as can be known."""
        age_s = max(0.0, now_s - self._reported_at_s)
        told = self._reported_loads.get(host, 0.0) * math.pow(0.5, age_s / HALF_LIFE_S)
        return told + self._in_flight_items.get(host, 0) / self._capacity.get(host, 1)

    def order(self, hosts: Sequence[Address], now_s: float) -> Sequence[Address]:
        """All of them, the one first that shall get new items."""
        best, others = hosts, []
        if self._region_hosts is not None or self._full_until_s:
            self._full_until_s = {at: until_s for at, until_s in self._full_until_s.items() if until_s > now_s}
            ranked = sorted(hosts, key=self._rank)
            best = [at for at in ranked if self._rank(at) == self._rank(ranked[0])]
            others = ranked[len(best) :]
        self._turn = (self._turn + 1) % len(best)
        order = [*best[self._turn :], *best[: self._turn], *others]
        strain = self.load(order[0], now_s)
        if strain > BUSY_ITEMS and len(best) > 1:
            other = self._rng.randrange(1, len(best))
            if 2 * self.load(order[other], now_s) < strain:
                order[0], order[other] = order[other], order[0]
        return order

    def _rank(self, host: Address) -> tuple[bool, bool]:
        return (host in self._full_until_s, self._region_hosts is not None and host not in self._region_hosts)
