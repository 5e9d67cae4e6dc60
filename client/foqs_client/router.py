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

from foqs_client.errors import FoqsError, NotOwner, Unavailable
from foqs_client.loads import Loads
from foqs_client.pool import Pool
from foqs_client.routes import Address, Routes
from foqs_client.types import Routing

REFRESH_S: Final = 5.0
"""The map is read anew after so long while calls are made."""
LEARN_S: Final = 1.0
"""A client of one host asks for the others after so long: one that makes a few calls has no use for them."""
DOUBT_S: Final = 0.05
"""The same after a host has said UNAVAILABLE: its shards may be on their way."""
DOUBT_S_MAX: Final = 0.5
"""It is twice as long each time the map was right or nobody told it, up to this."""
SETTLED_MS: Final = 100
"""A call that is made again waits at most so long for a map that is being read."""
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
        follow: ask for the map with the first call, and call its hosts; else only know them.
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
        """The map, once there was more than one host in it."""
        self._open_pool = open_pool
        self._ask = ask
        self._pools: dict[Address, Pool] = {}
        self._turn = 0
        self._slot_turns: dict[Address, int] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._follow = follow
        self._will_learn = False
        """A first call was made, by a client that does not follow."""
        self._tried = False
        """The map has been asked for."""
        self._again_s = 0.0
        """When the map is to be read anew, on the loop's clock."""
        self._doubt_s = DOUBT_S
        self._doubted_s = 0.0
        """When a host said UNAVAILABLE last."""
        self._teller = 0
        """Whose turn it is to tell the map, of those that can be asked at once."""
        self._closed = False
        self._shunned: dict[Address, float] = {}
        """Hosts of the map that could not be reached, and until when they are not tried where others will do."""
        self._closing: set[asyncio.Task[None]] = set()

    # -------------------------------------------------------------------- the map

    def look(self) -> None:
        """A call is about to be made: reads the map anew where it is time. Nobody waits."""
        if self._refreshing is None and (now_s := asyncio.get_running_loop().time()) >= self._again_s:
            if self._follow or self._will_learn:
                self._read()
            else:
                self._will_learn, self._again_s = True, now_s + LEARN_S

    def stale(self) -> None:
        """The map is not right, or may not be: reads it anew. Nobody waits."""
        if not self._follow:
            self._follow = True
            if self._map is not None:
                self._route(Routes(self._map))
        self._read()

    def _read(self) -> None:
        if self._refreshing is None and not self._closed:
            self._again_s = asyncio.get_running_loop().time() + REFRESH_S  # sooner, where it is doubted from now on
            self._refreshing = asyncio.ensure_future(self._refresh())

    def unreachable(self, at: Address) -> None:
        """A host of the map could not be reached. That the map is doubted while this goes on is up to `heard`."""
        now_s = asyncio.get_running_loop().time()
        known = self._shunned.get(at, 0.0) > now_s
        self._shunned[at] = now_s + SHUN_S
        if not known:
            self.stale()

    def reached(self, at: Address) -> None:
        """A host of the map has answered."""
        if self._shunned:
            self._shunned.pop(at, None)

    def heard(self, results: Iterable[FoqsError | None]) -> None:
        """What calls by id or key came to."""
        kinds = {type(error) for error in results}
        if NotOwner in kinds:
            self.stale()
        elif Unavailable in kinds and self._follow:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._doubted_s + REFRESH_S:
                self._doubt_s = DOUBT_S
            self._doubted_s = now_s
            self._again_s = min(self._again_s, now_s + self._doubt_s)

    async def looked(self, timeout_ms: int) -> int:
        """As `look`, for a call that is made again: it follows the newer map where that comes soon.

        Returns how much of its time is left, 1 ms at least.
        """
        self.look()
        return max(1, timeout_ms - await self.settled_within(min(SETTLED_MS, timeout_ms)))

    async def settled(self) -> None:
        """Returns when the map is read, if it is being read."""
        await self._settled(None)

    async def _settled(self, within_s: float | None) -> None:
        if self._refreshing is not None:
            await asyncio.wait((self._refreshing,), timeout=within_s)

    @property
    def is_reading_first(self) -> bool:
        """The map is being read for the first time."""
        return self._follow and self._refreshing is not None and not self._tried

    async def settled_within(self, within_ms: int) -> int:
        """Waits until the map is read, or could not be, if it is being read; returns how many milliseconds it took."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await self._settled(within_ms / 1_000)
        return int((loop.time() - begun) * 1_000)

    async def _refresh(self) -> None:
        try:
            for pool in self._askable():
                try:
                    routing = await self._ask(pool, self._map, ASK_MS)
                except FoqsError:
                    continue
                self._take(routing)
                break
            else:
                self._nothing_new()
                if self._follow:
                    self._again_s = min(self._again_s, asyncio.get_running_loop().time() + self._doubt_s)
        finally:
            self._refreshing = None
            self._tried = True

    def _askable(self) -> Iterator[Pool]:
        """Who may tell the map: first connections that are open, and of those last the ones to hosts that do not answer."""
        ready = [at for at, pool in self._pools.items() if pool.ready_link is not None]
        first = self._teller % max(1, len(ready))
        for at in sorted((*ready[first:], *ready[:first]), key=self._shunned.__contains__):
            yield self._pools[at]
        yield self.seeds
        for at in () if self.routes is None else self._reachable(self.routes.hosts):
            if at not in ready:
                yield self.pool(at)

    def _take(self, routing: Routing) -> None:
        known, self._map = self._map, routing
        self.loads.heard(routing, asyncio.get_running_loop().time())
        if known is not None and known.version == routing.version:
            self._nothing_new()
            return
        self._doubt_s = DOUBT_S
        routes = Routes(routing)
        if self._follow:
            self._route(routes)
        self.seeds.know([*self._given, *(at for at in routes.hosts if at not in self._given)])
        self._slot_turns = {at: turn for at, turn in self._slot_turns.items() if at in routes.hosts}
        for address in [address for address in self._pools if address not in routes.hosts]:
            pool = self._pools[address]
            if pool.ready_link is None or not pool.in_flight:
                del self._pools[address]
                closing = asyncio.ensure_future(pool.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    def _route(self, routes: Routes) -> None:
        # Where one is left of several, the seeds may still lead to another, which is on its way out.
        self.routes = routes if len(routes.hosts) > 1 or (self.routes is not None and routes.hosts) else None

    def _nothing_new(self) -> None:
        """The next doubt waits longer, and is put to another host: one that is cut off from the others knows no better."""
        self._doubt_s = min(2 * self._doubt_s, DOUBT_S_MAX)
        self._teller += 1

    # ------------------------------------------------------------------ the hosts

    def pool(self, at: Address | None) -> Pool:
        """Connections to a host; None: to any."""
        if at is None:
            return self.seeds
        pool = self._pools.get(at)
        if pool is None:
            if self._closed or len(self._pools) >= POOLS_MAX:  # nobody would close another one
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
        self._closed = True
        refreshing = self._refreshing
        if refreshing is not None:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
        await asyncio.gather(self.seeds.close(), *(pool.close() for pool in self._pools.values()))
