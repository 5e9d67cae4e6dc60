"""The other hosts of the tier, and calls to them.

Holds `Peers`. Always true: a call is sent to one host, once; `Unreached` means
that nobody read it, and every call ends by its deadline. Who is there
comes from the plan as it was read last. Knows nothing of what calls mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from foqs.core.errors import BY_CODE, Code, FoqsError, PermissionDenied, Unauthenticated, Unavailable, UnknownOutcome
from foqs.service.cluster import Address, HostView
from foqs_client.errors import FoqsError as NotWelcome
from foqs_client.link import NoReply, NotSent, NotServed
from foqs_client.message import Method, Refused, Unencodable, Unreadable
from foqs_client.pool import Pool

log = logging.getLogger(__name__)

REACH_S: Final = 0.5
"""How long a connection to a peer is waited for."""
MARGIN_S: Final = 0.02
"""A peer gets so much less time than there is, so that its answer comes in time."""
SHUN_S: Final = 0.25
"""A peer that refused what it was asked, or was not reached, is passed over for so long where another will do."""


class Unreached(Unavailable):
    """The peer could not be reached, or does not know this host: it has not read the call."""


@dataclass(slots=True, eq=False)
class Peer:
    """Another host of the tier.

    Attributes:
        load: what waits there to be written, in items; as it told last.
        takes_items: some shard there takes new items, as far as is known.
        shunned_until: on the loop's clock.
        trouble: why it could not be reached the last time; empty when it was.
    """

    view: HostView
    load: float = 0.0
    takes_items: bool = True
    shunned_until: float = 0.0
    trouble: str = ""

    @property
    def address(self) -> Address:
        return self.view.address

    @property
    def nonce(self) -> str:
        return self.view.nonce

    @property
    def strain(self) -> float:
        """Its load, for what it can take."""
        return self.load / self.view.capacity


class Peers:
    """Args:
    hosts: of the cluster, as they were read last; the same object while nothing changed.
    nonce, tier, region: of this host.
    open_pool: connections to a host, which authenticate themselves.
    """

    def __init__(
        self,
        hosts: Callable[[], Sequence[HostView]],
        nonce: str,
        tier: str,
        region: str,
        open_pool: Callable[[Address], Pool],
    ) -> None:
        self._hosts = hosts
        self._nonce = nonce
        self._tier = tier
        self._region = region
        self._open_pool = open_pool
        self._seen: Sequence[HostView] | None = None
        self._others: dict[str, Peer] = {}
        self._here: Address | None = None
        self._pools: dict[Address, Pool] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._turn = crc32(nonce.encode())
        """Hosts begin with different peers."""

    @property
    def others(self) -> dict[str, Peer]:
        """By nonce; stays the same object while nobody comes or goes. Not to be changed."""
        hosts = self._hosts()
        if hosts is not self._seen:
            self._take(hosts)
        return self._others

    @property
    def here(self) -> Address | None:
        """Where this host is reached; None while the plan does not have it."""
        hosts = self._hosts()
        if hosts is not self._seen:
            self._take(hosts)
        return self._here

    def at(self, address: Address) -> Peer | None:
        """The peer that is reached there."""
        return next((peer for peer in self.others.values() if peer.address == address), None)

    def with_capacity(self) -> list[Peer]:
        """Those that may take new items, the one to ask first: of this region, and of two whose turn it is the less loaded.

        The least loaded of all would get what every host passes on until it tells its load again.
        """
        now = asyncio.get_running_loop().time()
        able = [peer for peer in self.others.values() if _is_able(peer, now)]
        self._turn += 1
        near = [peer for peer in able if peer.view.region == self._region]
        far = [peer for peer in able if peer.view.region != self._region]
        return _in_turn(near, self._turn) + _in_turn(far, self._turn)

    def is_shunned(self, peer: Peer) -> bool:
        """It is passed over for now."""
        return peer.shunned_until > asyncio.get_running_loop().time()

    def shun(self, peer: Peer) -> None:
        """It did not take what it was asked to take."""
        peer.shunned_until = asyncio.get_running_loop().time() + SHUN_S

    async def call(self, peer: Peer, method: Method, request: Any, deadline: float) -> Any:
        """Sends a request, and returns the reply's struct. The request stays as it is.

        Raises:
            Unreached: nobody has read it.
            UnknownOutcome: it was sent and not answered, and may write.
            Unavailable: it was sent and not answered, and only reads.
            FoqsError: what the peer says.
        """
        loop = asyncio.get_running_loop()
        request = copy(request)
        pool = self._pools.get(peer.address)
        if pool is None:
            pool = self._pools[peer.address] = self._open_pool(peer.address)
        try:
            while True:
                link = pool.ready_link or await pool.link(min(deadline, loop.time() + REACH_S))
                left_s = deadline - loop.time() - MARGIN_S
                if left_s <= 0:
                    raise Unreached("no time is left to ask another host", retry_after_ms=100)
                request.timeout_ms = max(1, int(left_s * 1_000))
                seqid, reply = link.send(method, method.encode(request), deadline)
                try:
                    body = await reply
                    break
                except NotSent:
                    continue
                except BaseException:
                    link.forget(seqid)
                    raise
            result = method.decode(body)
        except (NotSent, NotServed, NotWelcome) as error:
            raise _unreached(peer, str(error)) from None
        except (NoReply, Unreadable, Refused) as error:
            raise _unanswered(method, f"{peer.view.name} did not answer: {error}") from None
        except Unencodable as error:
            raise Unreached(f"the call cannot be passed on to {peer.view.name}: {error}") from None
        if result.failed is not None:
            told = core_error(result.failed.error)
            if isinstance(told, Unauthenticated | PermissionDenied):
                raise _unreached(peer, f"it does not know this host as an administrator: {told.message}")
            raise told
        _is_well(peer)
        if result.success is None:
            raise _unanswered(method, f"{peer.view.name} sent an empty reply")
        return result.success

    async def close(self) -> None:
        """Closes all connections; calls under way end as unanswered."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()), *self._closing)

    def _take(self, hosts: Sequence[HostView]) -> None:
        known, self._seen = self._others, hosts
        others: dict[str, Peer] = {}
        for host in hosts:
            if host.nonce == self._nonce:
                self._here = host.address
            if host.tier != self._tier or host.nonce == self._nonce:
                continue
            peer = known.get(host.nonce) or Peer(host, host.load or 0.0)
            if peer.view.load != host.load:
                peer.load = host.load or 0.0
            peer.view = host
            others[host.nonce] = peer
        if others.keys() != known.keys():
            self._others = others
        addresses = {peer.address for peer in others.values()}
        for address in [address for address in self._pools if address not in addresses]:
            closing = asyncio.ensure_future(self._pools.pop(address).close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


def core_error(failed: Any) -> FoqsError:
    """An error struct of a peer as this host would raise it."""
    if failed is None or failed.code not in BY_CODE:
        return UnknownOutcome("a peer's error has no meaning here; the call may have taken effect")
    owner = failed.owner
    return BY_CODE[Code(failed.code)](
        failed.message or "the peer gave no reason",
        field=failed.field,
        retry_after_ms=failed.retry_after_ms,
        owner=None if owner is None else (owner.host, owner.port),
    )


def _is_able(peer: Peer, now: float) -> bool:
    view = peer.view
    return peer.takes_items and not (view.drained or view.leaving) and peer.shunned_until <= now


def _in_turn(peers: list[Peer], turn: int) -> list[Peer]:
    """From the one whose turn it is on, or from the next where that is less loaded."""
    if len(peers) < 2:
        return peers
    first = turn % len(peers)
    ordered = peers[first:] + peers[:first]
    if ordered[1].strain < ordered[0].strain:
        ordered[:2] = reversed(ordered[:2])
    return ordered


def _unreached(peer: Peer, why: str) -> Unreached:
    if peer.trouble != why:
        log.warning("%s cannot be asked anything: %s", peer.view.name, why)
        peer.trouble = why
    return Unreached(f"{peer.view.name} cannot be asked: {why}", retry_after_ms=100)


def _is_well(peer: Peer) -> None:
    if peer.trouble:
        log.info("%s answers again", peer.view.name)
        peer.trouble = ""


def _unanswered(method: Method, why: str) -> FoqsError:
    if method.writes:
        return UnknownOutcome(f"{why}; the call may have taken effect")
    return Unavailable(why, retry_after_ms=100)
