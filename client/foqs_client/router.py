"""The hosts of a cluster, and which of them to call.

Holds `Router`. Always true: a client that was given one host, and was never told
`NotOwner`, asks for no map and calls that host; every other follows the map,
which it reads anew when a host says that it is old, when a host does not answer,
and from time to time while calls are made. Knows nothing of what calls mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from typing import Final

from foqs_client.errors import FoqsError, NotOwner
from foqs_client.loads import Loads
from foqs_client.pool import Pool
from foqs_client.routes import Address, Routes
from foqs_client.types import Routing

REFRESH_S: Final = 5.0
"""The map is read anew after so long while calls are made."""
ASK_MS: Final = 1_000
"""How long a host may take to answer for the map."""
REACH_S: Final = 0.5
"""How long a host of the map is waited for before another way is looked for."""
SHUN_S: Final = 2.0
"""A host that could not be reached is not tried for so long where another will do."""
POOLS_MAX: Final = 256

Ask = Callable[[Pool, Routing | None, int], Awaitable[Routing]]
"""Asks through a pool for the map, given what is known of it; with so many milliseconds."""


class Router:
    """The connections of a client.

    Args:
        seeds: to the first that can be reached of the hosts that the client was given, or of the map's.
        addresses: of the hosts that it was given.
        open_pool: connections to one host.
        follow: ask for the map with the first call.
        region: of the client.
        rng: draws one of two hosts.
    """

    def __init__(
        self,
        seeds: Pool,
        addresses: Sequence[Address],
        open_pool: Callable[[Address], Pool],
        ask: Ask,
        *,
        follow: bool,
        region: str | None,
        rng: Random,
    ) -> None:
        self.seeds = seeds
        self.loads = Loads(region, rng)
        self._given = addresses
        self._map: Routing | None = None
        self.routes: Routes | None = None
        """The map, once there is more than one host in it."""
        self._open_pool = open_pool
        self._ask = ask
        self._pools: dict[Address, Pool] = {}
        self._turn = 0
        self._slot_turns: dict[Address, int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._follow = follow
        self._tried = False
        """The map has been asked for."""
        self._again_s = 0.0
        """When the map is to be read anew, on the loop's clock."""
        self._shunned: dict[Address, float] = {}
        """Hosts of the map that could not be reached, and until when they are not tried where others will do."""
        self._closing: set[asyncio.Task[None]] = set()

    # -------------------------------------------------------------------- the map

    def look(self) -> None:
        """A call is about to be made: reads the map anew where it is time. Nobody waits."""
        if self._follow and self._refreshing is None and asyncio.get_running_loop().time() >= self._again_s:
            self.stale()

    def stale(self) -> None:
        """The map is not right, or may not be: reads it anew. Nobody waits."""
        self._follow = True
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())

    def unreachable(self, at: Address) -> None:
        """A host of the map could not be reached."""
        self._shunned[at] = asyncio.get_running_loop().time() + SHUN_S
        self.stale()

    def heard(self, results: Iterable[FoqsError | None]) -> None:
        """What calls by id or key came to."""
        if any(isinstance(error, NotOwner) for error in results):
            self.stale()

    async def settled(self) -> None:
        """Returns when the map is read, if it is being read."""
        if self._refreshing is not None:
            await asyncio.wait((self._refreshing,))

    async def first_settled(self, within_ms: int) -> int:
        """Waits until the map was read for the first time, or could not be, and returns how many milliseconds it took.

        0 where it was asked for before, or nobody asks for it.
        """
        if self._tried or self._refreshing is None:
            return 0
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.wait((self._refreshing,), timeout=within_ms / 1_000)
        return int((loop.time() - begun) * 1_000)

    async def _refresh(self) -> None:
        try:
            for pool in (*self._known(), self.seeds):
                try:
                    routing = await self._ask(pool, self._map, ASK_MS)
                except FoqsError:
                    continue
                self._take(routing)
                break
        finally:
            self._refreshing = None
            self._tried = True
            self._again_s = asyncio.get_running_loop().time() + REFRESH_S

    def _known(self) -> list[Pool]:
        """Connections that are open, which can be asked at once; those to hosts that do not answer come last."""
        pools = sorted(self._pools.items(), key=lambda each: each[0] in self._shunned)
        return [pool for _, pool in pools if pool.ready_link is not None]

    def _take(self, routing: Routing) -> None:
        known, self._map = self._map, routing
        self.loads.heard(routing, asyncio.get_running_loop().time())
        if known is not None and known.version == routing.version:
            return
        routes = Routes(routing)
        self.routes = routes if len(routes.hosts) > 1 else None
        self.seeds.know([*self._given, *(at for at in routes.hosts if at not in self._given)])
        self._slot_turns = {at: turn for at, turn in self._slot_turns.items() if at in routes.hosts}
        for address in [address for address in self._pools if address not in routes.hosts]:
            pool = self._pools[address]
            if pool.ready_link is None or not pool.in_flight:
                del self._pools[address]
                closing = asyncio.ensure_future(pool.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    # ------------------------------------------------------------------ the hosts

    def pool(self, at: Address | None) -> Pool:
        """Connections to a host; None: to any."""
        if at is None:
            return self.seeds
        pool = self._pools.get(at)
        if pool is None:
            if len(self._pools) >= POOLS_MAX:
                return self.seeds
            pool = self._pools[at] = self._open_pool(at)
        return pool

    def hosts(self) -> Sequence[Address | None]:
        """All of them, each the first in its turn; one that is any while there is no map."""
        if self.routes is None:
            return (None,)
        hosts = self._reachable(self.routes.hosts)
        self._turn = (self._turn + 1) % len(hosts)
        return [*hosts[self._turn :], *hosts[: self._turn]]

    def _reachable(self, hosts: Sequence[Address]) -> Sequence[Address]:
        if self._shunned:
            now_s = asyncio.get_running_loop().time()
            self._shunned = {at: until_s for at, until_s in self._shunned.items() if until_s > now_s}
            return [at for at in hosts if at not in self._shunned] or hosts
        return hosts

    def takers(self) -> Sequence[Address | None]:
        """All of them, the one first that shall get new items: of the client's region, and not busier than others."""
        if self.routes is None:
            return (None,)
        return self.loads.order(self._reachable(self.routes.hosts), asyncio.get_running_loop().time())

    def next_slot(self) -> int | None:
        """A slot for keys of the client's own: hosts take turns, and each one's slots; None where no map tells."""
        if self.routes is None:
            return None
        for host in self.takers():
            assert host is not None
            slots = self.routes.slots_at(host)
            if slots:
                turn = self._slot_turns[host] = (self._slot_turns.get(host, -1) + 1) % len(slots)
                return slots[turn]
        return None

    async def close(self) -> None:
        """Closes all connections."""
        refreshing = self._refreshing
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
        await asyncio.gather(self.seeds.close(), *(pool.close() for pool in self._pools.values()))
