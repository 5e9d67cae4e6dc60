"""The hosts of a cluster, and which of them to call.

Holds `Router`. Always true: a client that was given one host, and never got
`NotOwner`, calls that host; it reads the map from time to time, and goes on with
another host of it when its own cannot be reached. Every other client follows the
map, which it reads anew when a host says that it is old, when a host does not
answer or not yet, and from time to time while calls are made. Knows nothing of
what calls mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final

from foqs_client.connection_pool import ConnectionPool
from foqs_client.errors import FoqsError, NotOwner, Unavailable
from foqs_client.host_loads import HostLoads
from foqs_client.routing_table import Address, RoutingTable
from foqs_client.types import Routing

REFRESH_S: Final = 5.0
"""The map is read anew after so long while calls are made."""
DISCOVER_S: Final = 1.0
"""A client of one host asks for the others after so long: one that makes a few calls has no use for them."""
RECHECK_S_MIN: Final = 0.05
"""The same after a host has said UNAVAILABLE: its shards may be on their way."""
RECHECK_S_MAX: Final = 0.5
"""It is twice as long each time the map was right or nobody told it, up to this."""
REFRESH_WAIT_MS_MAX: Final = 100
"""A call that is made again waits at most so long for a map that is being read."""
ROUTING_TIMEOUT_MS: Final = 1_000
"""How long a host may take to answer for the map."""
CONNECT_S_MAX: Final = 0.5
"""How long a host of the map is waited for before another way is looked for."""
SUSPECT_S: Final = 2.0
"""A host that could not be reached is not tried for so long where another will do."""
POOLS_MAX: Final = 256

FetchRouting = Callable[[ConnectionPool, Routing | None, int], Awaitable[Routing]]
"""Asks through a pool for the map, given what is known of it; with so many milliseconds."""


class Router:
    """The connections of a client.

    Args:
        seed_pool: to the first that can be reached of the hosts that the client was given, or of the map's.
        seed_addresses: of the hosts that it was given.
        open_pool: connections to one host.
        follow: ask for the map with the first call, and call its hosts; else only know them.
        region: of the client.
        rng: draws one of two hosts.
    """

    def __init__(
        self,
        seed_pool: ConnectionPool,
        seed_addresses: Sequence[Address],
        open_pool: Callable[[Address], ConnectionPool],
        fetch_routing: FetchRouting,
        *,
        follow: bool,
        region: str | None,
        rng: Random,
    ) -> None:
        self.seed_pool = seed_pool
        self.loads = HostLoads(region, rng)
        self._seed_addresses = seed_addresses
        self._routing: Routing | None = None
        self.routing_table: RoutingTable | None = None
        """The map, once there was more than one host in it."""
        self._open_pool = open_pool
        self._fetch_routing = fetch_routing
        self._pools: dict[Address, ConnectionPool] = {}
        self._turn = 0
        self._slot_turns: dict[Address, int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._follow = follow
        self._will_discover = False
        """A first call was made, by a client that does not follow."""
        self._was_refresh_tried = False
        """The map has been asked for."""
        self._next_refresh_s = 0.0
        """When the map is to be read anew, on the loop's clock."""
        self._recheck_s = RECHECK_S_MIN
        self._unavailable_at_s = 0.0
        """When a host said UNAVAILABLE last."""
        self._source_turn = 0
        """Whose turn it is to tell the map, of those that can be asked at once."""
        self._closed = False
        self._suspected_until_s: dict[Address, float] = {}
        """Hosts of the map that could not be reached, and until when they are not tried where others will do."""
        self._closing: set[asyncio.Task[None]] = set()

    # -------------------------------------------------------------------- the map

    def refresh_if_due(self) -> None:
        """A call is about to be made: reads the map anew where it is time. Nobody waits."""
        if self._refreshing is None and (now_s := asyncio.get_running_loop().time()) >= self._next_refresh_s:
            if self._follow or self._will_discover:
                self._start_refresh()
            else:
                self._will_discover, self._next_refresh_s = True, now_s + DISCOVER_S

    def mark_stale(self) -> None:
        """The map is not right, or may not be: reads it anew. Nobody waits."""
        if not self._follow:
            self._follow = True
            if self._routing is not None:
                self._set_routing_table(RoutingTable(self._routing))
        self._start_refresh()

    def _start_refresh(self) -> None:
        if self._refreshing is None and not self._closed:
            self._next_refresh_s = (
                asyncio.get_running_loop().time() + REFRESH_S
            )  # sooner, where it is doubted from now on
            self._refreshing = asyncio.ensure_future(self._refresh())

    def on_unreachable(self, host: Address) -> None:
        """A host of the map could not be reached. That the map is doubted while this goes on is up to `on_call_errors`."""
        now_s = asyncio.get_running_loop().time()
        known = self._suspected_until_s.get(host, 0.0) > now_s
        self._suspected_until_s[host] = now_s + SUSPECT_S
        if not known:
            self.mark_stale()

    def on_reached(self, host: Address) -> None:
        """A host of the map has answered."""
        if self._suspected_until_s:
            self._suspected_until_s.pop(host, None)

    def on_call_errors(self, errors: Iterable[FoqsError | None]) -> None:
        """What calls by id or key came to."""
        kinds = {type(error) for error in errors}
        if NotOwner in kinds:
            self.mark_stale()
        elif Unavailable in kinds and self._follow:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._unavailable_at_s + REFRESH_S:
                self._recheck_s = RECHECK_S_MIN
            self._unavailable_at_s = now_s
            self._next_refresh_s = min(self._next_refresh_s, now_s + self._recheck_s)

    async def refresh_for_retry(self, timeout_ms: int) -> int:
        """As `look`, for a call that is made again: it follows the newer map where that comes soon.

        Returns how much of its time is left, 1 ms at least.
        """
        self.refresh_if_due()
        return max(1, timeout_ms - await self.wait_refreshed_within(min(REFRESH_WAIT_MS_MAX, timeout_ms)))

    async def wait_refreshed(self) -> None:
        """Returns when the map is read, if it is being read."""
        await self._wait_refreshed(None)

    async def _wait_refreshed(self, timeout_s: float | None) -> None:
        if self._refreshing is not None:
            await asyncio.wait((self._refreshing,), timeout=timeout_s)

    @property
    def is_first_refresh_running(self) -> bool:
        """The map is being read for the first time."""
        return self._follow and self._refreshing is not None and not self._was_refresh_tried

    async def wait_refreshed_within(self, timeout_ms: int) -> int:
        """Waits until the map is read, or could not be, if it is being read; returns how many milliseconds it took."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self._wait_refreshed(timeout_ms / 1_000)
        return int((loop.time() - begun) * 1_000)

    async def _refresh(self) -> None:
        try:
            for pool in self._routing_sources():
                try:
                    routing = await self._fetch_routing(pool, self._routing, ROUTING_TIMEOUT_MS)
                except FoqsError:
                    continue
                self._apply_routing(routing)
                break
            else:
                self._on_routing_unchanged()
                if self._follow:
                    self._next_refresh_s = min(
                        self._next_refresh_s, asyncio.get_running_loop().time() + self._recheck_s
                    )
        finally:
            self._refreshing = None
            self._was_refresh_tried = True

    def _routing_sources(self) -> Iterator[ConnectionPool]:
        """Who may tell the map: first connections that are open, and of those last the ones to hosts that do not answer."""
        ready = [at for at, pool in self._pools.items() if pool.ready_connection is not None]
        first = self._source_turn % max(1, len(ready))
        for at in sorted((*ready[first:], *ready[:first]), key=self._suspected_until_s.__contains__):
            yield self._pools[at]
        yield self.seed_pool
        for at in () if self.routing_table is None else self._reachable(self.routing_table.hosts):
            if at not in ready:
                yield self.pool(at)

    def _apply_routing(self, routing: Routing) -> None:
        known, self._routing = self._routing, routing
        self.loads.on_routing_read(routing, asyncio.get_running_loop().time())
        if known is not None and known.version == routing.version:
            self._on_routing_unchanged()
            return
        self._recheck_s = RECHECK_S_MIN
        routes = RoutingTable(routing)
        if self._follow:
            self._set_routing_table(routes)
        self.seed_pool.set_addresses(
            [*self._seed_addresses, *(at for at in routes.hosts if at not in self._seed_addresses)]
        )
        self._slot_turns = {at: turn for at, turn in self._slot_turns.items() if at in routes.hosts}
        for address in [address for address in self._pools if address not in routes.hosts]:
            pool = self._pools[address]
            if pool.ready_connection is None or not pool.in_flight_count:
                del self._pools[address]
                closing = asyncio.ensure_future(pool.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def _set_routing_table(self, routing_table: RoutingTable) -> None:
        # Where one is left of several, the seeds may still lead to another, which is on its way out.
        self.routing_table = (
            routing_table
            if len(routing_table.hosts) > 1 or (self.routing_table is not None and routing_table.hosts)
            else None
        )

    def _on_routing_unchanged(self) -> None:
        """The next doubt waits longer, and is put to another host: one that is cut off from the others knows no better."""
        self._recheck_s = min(2 * self._recheck_s, RECHECK_S_MAX)
        self._source_turn += 1

    # ------------------------------------------------------------------ the hosts

    def pool(self, host: Address | None) -> ConnectionPool:
        """Connections to a host; None: to any."""
        if host is None:
            return self.seed_pool
        pool = self._pools.get(host)
        if pool is None:
            if self._closed or len(self._pools) >= POOLS_MAX:  # nobody would close another one
                return self.seed_pool
            pool = self._pools[host] = self._open_pool(host)
        return pool

    def hosts(self) -> Sequence[Address | None]:
        """All of them, each the first in its turn; one that is any while there is no map."""
        if self.routing_table is None:
            return (None,)
        hosts = self._reachable(self.routing_table.hosts)
        self._turn = (self._turn + 1) % len(hosts)
        return [*hosts[self._turn :], *hosts[: self._turn]]

    def _reachable(self, hosts: Sequence[Address]) -> Sequence[Address]:
        if self._suspected_until_s:
            now_s = asyncio.get_running_loop().time()
            self._suspected_until_s = {
                at: until_s for at, until_s in self._suspected_until_s.items() if until_s > now_s
            }
            return [at for at in hosts if at not in self._suspected_until_s] or hosts
        return hosts

    def enqueue_hosts(self) -> Sequence[Address | None]:
        """All of them, the one first that shall get new items: of the client's region, and not busier than others."""
        if self.routing_table is None:
            return (None,)
        return self.loads.order(self._reachable(self.routing_table.hosts), asyncio.get_running_loop().time())

    def next_slot(self) -> int | None:
        """A slot for keys of the client's own: hosts take turns, and each one's slots; None where no map tells."""
        if self.routing_table is None:
            return None
        for host in self.enqueue_hosts():
            assert host is not None
            slots = self.routing_table.key_slots_of(host)
            if slots:
                turn = self._slot_turns[host] = (self._slot_turns.get(host, -1) + 1) % len(slots)
                return slots[turn]
        return None

    async def close(self) -> None:
        """Closes all connections."""
        self._closed = True
        refreshing = self._refreshing
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
        await asyncio.gather(self.seed_pool.close(), *(pool.close() for pool in self._pools.values()))
