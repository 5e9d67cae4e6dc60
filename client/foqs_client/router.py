"""The hosts of a cluster, and which of them to call.

Holds `Router`. Always true: a client with one seed host that never got `NotOwner`
calls that host. It reads the routing table from time to time, and uses another host
of it when its own cannot be reached. Every other client follows the routing table. It
reads the table again from time to time while calls are made, when a host says that it
is old, and when a host does not reply or is not ready. Knows nothing of the meaning
of calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final

from foqs_client.connection_pool import ConnectionPool
from foqs_client.errors import FoqsError, NotOwner, Unavailable
from foqs_client.host_loads import HostLoads
from foqs_client.routing_table import Address, TierRoutes
from foqs_client.types import Routing
from foqs_contract.backoff import Backoff

REFRESH_S: Final = 5.0
"""While calls are made, the routing table is read again after this time."""
DISCOVER_S: Final = 1.0
"""A client with one seed host reads the routing table after this time. A client of a few calls has no use for it."""
RECHECK_S_MIN: Final = 0.05
"""The wait before a read after a host replied UNAVAILABLE: its shards may be moving."""
RECHECK_S_MAX: Final = 0.5
"""The longest wait before such a read; the wait doubles with each read without a change."""
_RECHECK: Final = Backoff(RECHECK_S_MIN, RECHECK_S_MAX)
REFRESH_WAIT_MS_MAX: Final = 100
"""The longest wait of a retried call for a read of the routing table."""
ROUTING_TIMEOUT_MS: Final = 1_000
"""The time of a call that reads the routing table."""
CONNECT_S_MAX: Final = 0.5
"""The longest wait for a connection to a host of the table before another host is tried."""
SUSPECT_S: Final = 2.0
"""A host that could not be reached is avoided for this time, if another host will do."""
POOLS_MAX: Final = 256

FetchRouting = Callable[[ConnectionPool, Routing | None, int], Awaitable[Routing]]
"""Reads the routing over a pool: (pool, the last routing, milliseconds)."""


class Router:
    """The routing table of a client, and its connection pools.

    Args:
        seed_pool: connects to the first host that can be reached, of the seeds and of the routing table.
        seed_addresses: the addresses that the client was given.
        open_pool: makes a pool for one host.
        fetch_routing: reads the routing table from a host.
        follow: read the routing table with the first call and call its hosts. False: only remember it.
        region: the region of the client.
        rng: chooses the host that a busy one is compared with.
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
        self.routing_table: TierRoutes | None = None
        """The routing table, if it has more than one host; else None."""
        self._open_pool = open_pool
        self._fetch_routing = fetch_routing
        self._pools: dict[Address, ConnectionPool] = {}
        self._turn = 0
        self._slot_turns: dict[Address, int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._follow = follow
        self._will_discover = False
        """Whether a client that does not follow the table has made its first call."""
        self._was_refresh_tried = False
        """Whether the first read has ended."""
        self._next_refresh_s = 0.0
        """When to read the routing table again, on the loop's clock."""
        self._unchanged_reads = 0
        self._unavailable_at_s = 0.0
        """When a host last replied UNAVAILABLE."""
        self._source_turn = 0
        """A count that chooses the host of the next read, among those with an open connection."""
        self._closed = False
        self._suspected_until_s: dict[Address, float] = {}
        """Hosts that could not be reached, and until when they are avoided."""
        self._closing: set[asyncio.Task[None]] = set()

    # ---------------------------------------------------------- the routing table

    def refresh_if_due(self) -> None:
        """Start to read the routing table if its next read is due. Does not wait. Called before each call."""
        if self._refreshing is None and (now_s := asyncio.get_running_loop().time()) >= self._next_refresh_s:
            if self._follow or self._will_discover:
                self._start_refresh()
            else:
                self._will_discover, self._next_refresh_s = True, now_s + DISCOVER_S

    def mark_stale(self) -> None:
        """Start to read the routing table, because it may be wrong. Does not wait."""
        if not self._follow:
            self._follow = True
            if self._routing is not None:
                self._set_routing_table(TierRoutes(self._routing))
        self._start_refresh()

    def _start_refresh(self) -> None:
        if self._refreshing is None and not self._closed:
            # A later doubt makes it sooner.
            self._next_refresh_s = asyncio.get_running_loop().time() + REFRESH_S
            self._refreshing = asyncio.ensure_future(self._refresh())

    def on_unreachable(self, host: Address) -> None:
        """Record that a host could not be reached. While this lasts, `on_call_errors` decides on further reads."""
        now_s = asyncio.get_running_loop().time()
        was_suspected = self._suspected_until_s.get(host, 0.0) > now_s
        self._suspected_until_s[host] = now_s + SUSPECT_S
        if not was_suspected:
            self.mark_stale()

    def on_reached(self, host: Address) -> None:
        """Record that a host has replied."""
        if self._suspected_until_s:
            self._suspected_until_s.pop(host, None)

    def on_call_errors(self, errors: Iterable[FoqsError | None]) -> None:
        """Record the errors of calls by id or key, which may mean that the routing table is old."""
        kinds = {type(error) for error in errors}
        if NotOwner in kinds:
            self.mark_stale()
        elif Unavailable in kinds and self._follow:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._unavailable_at_s + REFRESH_S:
                self._unchanged_reads = 0
            self._unavailable_at_s = now_s
            self._next_refresh_s = min(self._next_refresh_s, now_s + _RECHECK.pause_s(self._unchanged_reads))

    async def refresh_for_retry(self, timeout_ms: int) -> int:
        """Read the routing table if its next read is due, and wait for that at most `REFRESH_WAIT_MS_MAX`.

        Called before a retry.

        Returns the rest of the call's time, at least 1 ms.
        """
        self.refresh_if_due()
        return max(1, timeout_ms - await self.wait_refreshed_within(min(REFRESH_WAIT_MS_MAX, timeout_ms)))

    async def wait_refreshed(self) -> None:
        """Wait for the read of the routing table that is in flight, if there is one."""
        await self._wait_refreshed(None)

    async def _wait_refreshed(self, timeout_s: float | None) -> None:
        if self._refreshing is not None:
            await asyncio.wait((self._refreshing,), timeout=timeout_s)

    @property
    def is_first_refresh_running(self) -> bool:
        """Whether the routing table is being read for the first time."""
        return self._follow and self._refreshing is not None and not self._was_refresh_tried

    async def wait_refreshed_within(self, timeout_ms: int) -> int:
        """Wait at most `timeout_ms` for a read of the routing table that is in flight. Return the time waited, in milliseconds."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        await self._wait_refreshed(timeout_ms / 1_000)
        return int((loop.time() - begun_s) * 1_000)

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
                        self._next_refresh_s,
                        asyncio.get_running_loop().time() + _RECHECK.pause_s(self._unchanged_reads),
                    )
        finally:
            self._refreshing = None
            self._was_refresh_tried = True

    def _routing_sources(self) -> Iterator[ConnectionPool]:
        """Yield the pools to read from: first those with an open connection, suspected hosts last among them."""
        ready = [at for at, pool in self._pools.items() if pool.ready_connection is not None]
        first = self._source_turn % max(1, len(ready))
        for at in sorted((*ready[first:], *ready[:first]), key=self._suspected_until_s.__contains__):
            yield self._pools[at]
        yield self.seed_pool
        for at in () if self.routing_table is None else self._reachable(self.routing_table.hosts):
            if at not in ready:
                yield self.pool(at)

    def _apply_routing(self, routing: Routing) -> None:
        previous, self._routing = self._routing, routing
        self.loads.on_routing_read(routing, asyncio.get_running_loop().time())
        if previous is not None and previous.version == routing.version:
            self._on_routing_unchanged()
            return
        self._unchanged_reads = 0
        table = TierRoutes(routing)
        if self._follow:
            self._set_routing_table(table)
        self.seed_pool.set_addresses(
            [*self._seed_addresses, *(at for at in table.hosts if at not in self._seed_addresses)]
        )
        self._slot_turns = {at: turn for at, turn in self._slot_turns.items() if at in table.hosts}
        for address in [address for address in self._pools if address not in table.hosts]:
            pool = self._pools[address]
            if pool.ready_connection is None or not pool.in_flight_count:
                del self._pools[address]
                closing = asyncio.ensure_future(pool.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def _set_routing_table(self, routing_table: TierRoutes) -> None:
        # If one host is left of several, the seeds may still lead to another one, which is stopping.
        self.routing_table = (
            routing_table
            if len(routing_table.hosts) > 1 or (self.routing_table is not None and routing_table.hosts)
            else None
        )

    def _on_routing_unchanged(self) -> None:
        """Wait longer before the next read, and read from another host: an isolated host knows nothing newer."""
        self._unchanged_reads += 1
        self._source_turn += 1

    # ------------------------------------------------------------------ the hosts

    def pool(self, host: Address | None) -> ConnectionPool:
        """Return the connections to a host; None: to any host."""
        if host is None:
            return self.seed_pool
        pool = self._pools.get(host)
        if pool is None:
            if self._closed or len(self._pools) >= POOLS_MAX:  # after `close`, a new pool would stay open
                return self.seed_pool
            pool = self._pools[host] = self._open_pool(host)
        return pool

    def hosts(self) -> Sequence[Address | None]:
        """Return all hosts, another one first each time; (None,), which is any host, without a routing table."""
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
        """Return all hosts, first the one that gets new items: in the client's region, and not too busy."""
        if self.routing_table is None:
            return (None,)
        return self.loads.order(self._reachable(self.routing_table.hosts), asyncio.get_running_loop().time())

    def next_slot(self) -> int | None:
        """Return a slot for automatic keys; hosts and their slots take turns. None without a routing table."""
        if self.routing_table is None:
            return None
        for host in self.enqueue_hosts():
            assert host is not None
            slots = self.routing_table.key_slots_of(host)
            if slots:
                turn = self._slot_turns[host] = (self._slot_turns.get(host, -1) + 1) % len(slots)
                return slots[turn]
        return None

    def hand_over_calls(self) -> None:
        """See `HostConnection.hand_over_calls`."""
        for pool in (self.seed_pool, *self._pools.values()):
            pool.hand_over_calls()

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        refreshing = self._refreshing
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
        await asyncio.gather(self.seed_pool.close(), *(pool.close() for pool in self._pools.values()))
