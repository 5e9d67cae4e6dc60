"""The other hosts of the tier, and calls to them.

Holds `Peers`. Always true: a call is sent to one host, once; `PeerUnreachable`
means that no host has read it; every call ends by its deadline. The list of
peers comes from the last reading of the plan. Knows nothing of what calls mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from thrift.Thrift import TApplicationException

from foqs.routing.port import Address, HostView
from foqs_client.abandoned_dequeues import AbandonedDequeues, ReleaseItems
from foqs_client.connection_pool import ConnectionPool
from foqs_client.credentials import check_served
from foqs_client.host_connection import HostConnection, NoReply, NotSent, TlsRequired
from foqs_contract.contract_version import CONTRACT_VERSION, HostTooOld
from foqs_contract.errors import (
    ERROR_BY_CODE,
    FoqsError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
    error_from_struct,
)
from foqs_contract.idl import ttypes
from foqs_contract.request import Request
from foqs_contract.thrift_method import Refused, ThriftMethod, Unencodable, Unreadable

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 0.5
"""The longest wait for a connection to a peer."""
REPLY_MARGIN_S: Final = 0.02
"""The peer's timeout is shorter than the caller's by this, so that the reply arrives in time."""
SUSPECT_S: Final = 0.25
"""A peer that refused items or was not reached is skipped for this time, if another host can be used."""

_DEQUEUE: Final = ThriftMethod("dequeue")


class PeerUnreachable(Unavailable):
    """The peer could not be reached, or does not accept this host: it has not read the call."""


@dataclass(slots=True, eq=False)
class Peer:
    """Another host of the tier.

    Attributes:
        load: how many items wait there to be written, as last reported.
        can_accept_items: whether a shard there accepts new items, as far as is known.
        suspect_until_s: the moment until which the peer is suspect, on the loop's clock.
        unreachable_reason: why the last call did not reach it; empty if it did.
    """

    view: HostView
    load: float = 0.0
    can_accept_items: bool = True
    suspect_until_s: float = 0.0
    unreachable_reason: str = ""

    @property
    def address(self) -> Address:
        return self.view.address

    @property
    def nonce(self) -> str:
        return self.view.nonce

    @property
    def relative_load(self) -> float:
        """The load divided by the capacity."""
        return self.load / self.view.capacity


class Peers:
    """The peers of one host, and the calls to them.

    Args:
        host_views: returns the cluster's hosts as last read; the same object while nothing changes.
        nonce, tier, region: the nonce, tier and region of this host.
        open_pool: opens authenticated connections to a host.
    """

    def __init__(
        self,
        host_views: Callable[[], Sequence[HostView]],
        nonce: str,
        tier: str,
        region: str,
        open_pool: Callable[[Address], ConnectionPool],
    ) -> None:
        self._host_views = host_views
        self._nonce = nonce
        self._tier = tier
        self._region = region
        self._open_pool = open_pool
        self._last_host_views: Sequence[HostView] | None = None
        self._by_nonce: dict[str, Peer] = {}
        self._own_address: Address | None = None
        self._pools: dict[Address, ConnectionPool] = {}
        self._abandoned_dequeues = AbandonedDequeues(_DEQUEUE)
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._rotation = crc32(nonce.encode())
        """The count that rotates the peers. It starts at a different value on each host, so that hosts begin with different peers."""

    @property
    def by_nonce(self) -> dict[str, Peer]:
        """The peers by nonce; the same object while no peer comes or goes. Read-only."""
        hosts = self._host_views()
        if hosts is not self._last_host_views:
            self._update(hosts)
        return self._by_nonce

    @property
    def own_address(self) -> Address | None:
        """The address of this host; None while the plan does not list it."""
        hosts = self._host_views()
        if hosts is not self._last_host_views:
            self._update(hosts)
        return self._own_address

    def by_address(self, address: tuple[str | None, int | None]) -> Peer | None:
        """Return the peer with this address; None if there is none."""
        return next((peer for peer in self.by_nonce.values() if peer.address == address), None)

    def enqueue_candidates(self) -> list[Peer]:
        """Return the peers that may accept new items, in the order in which to ask them.

        Peers of this region come first. They rotate, and the less loaded of the next two is first. The least loaded of
        all would get the items of every host until its load is reported again.
        """
        now = asyncio.get_running_loop().time()
        candidates = [peer for peer in self.by_nonce.values() if _can_take_items(peer, now)]
        self._rotation += 1
        near = [peer for peer in candidates if peer.view.region == self._region]
        far = [peer for peer in candidates if peer.view.region != self._region]
        return _rotated(near, self._rotation) + _rotated(far, self._rotation)

    def is_suspect(self, peer: Peer) -> bool:
        """Return whether the peer is to be skipped for now."""
        return peer.suspect_until_s > asyncio.get_running_loop().time()

    def mark_suspect(self, peer: Peer) -> None:
        """Skip the peer for a while, because it refused items or was not reached."""
        peer.suspect_until_s = asyncio.get_running_loop().time() + SUSPECT_S

    async def call(
        self, peer: Peer, method: ThriftMethod, request: Request, deadline: float, release: ReleaseItems | None = None
    ) -> Any:
        """Send a request and return the reply's struct. The request is not changed.

        Args:
            release: for a dequeue: releases the items of a reply that comes after this call has ended.

        Raises:
            PeerUnreachable: no host has read the request.
            UnknownOutcome: a write was sent and not answered.
            Unavailable: a read was sent and not answered.
            FoqsError: the peer's error.
        """
        loop = asyncio.get_running_loop()
        request = copy(request)
        pool = self._pools.get(peer.address)
        if pool is None:
            pool = self._pools[peer.address] = self._open_pool(peer.address)
        late_reply = None if release is None else self._abandoned_dequeues.late_reply(release)
        try:
            while True:
                link = pool.ready_connection or await _wait_for_connection(
                    pool, min(deadline, loop.time() + CONNECT_TIMEOUT_S)
                )
                left_s = deadline - loop.time() - REPLY_MARGIN_S
                if left_s <= 0:
                    raise PeerUnreachable(
                        "no time is left to ask another host; give the call more time", retry_after_ms=100
                    )
                request.timeout_ms = max(1, int(left_s * 1_000))
                if method.newer_parts is not None and (link.contract_version or 0) < CONTRACT_VERSION:
                    await check_served(link, method, request, deadline, peer.view.name)
                    if not link.is_ready:
                        continue
                try:
                    body = await link.call(method, method.encode(request), deadline, late_reply)
                    break
                except NotSent:
                    continue
            result = method.decode(body)
        except (NotSent, TlsRequired, OSError) as error:
            raise _unreachable(peer, str(error)) from None
        except (Unauthenticated, PermissionDenied) as error:
            raise _not_accepted(peer, error) from None
        except Refused as error:
            if error.reason == TApplicationException.UNKNOWN_METHOD:
                raise HostTooOld(
                    f"host {peer.view.name} does not know the call {method.name}; upgrade the host"
                ) from None
            raise _no_reply_error(method, f"host {peer.view.name} did not answer: {error}") from None
        except (NoReply, Unreadable) as error:
            raise _no_reply_error(method, f"host {peer.view.name} did not answer: {error}") from None
        except Unencodable as error:
            raise PeerUnreachable(f"the call cannot be forwarded to host {peer.view.name}: {error}") from None
        if result.failed is not None:
            peer_error = error_of_reply(result.failed.error)
            if isinstance(peer_error, Unauthenticated | PermissionDenied):
                raise _not_accepted(peer, peer_error)
            raise peer_error
        _mark_reachable(peer)
        if result.success is None:
            raise _no_reply_error(method, f"host {peer.view.name} sent an empty reply")
        return result.success

    async def wait_abandoned(self, until_s: float) -> None:
        """Wait for the late replies of dequeues, until this moment on the loop's clock."""
        await self._abandoned_dequeues.wait_ended(until_s)

    async def close(self) -> None:
        """Close all connections; calls in flight fail as unanswered."""
        await asyncio.gather(*(pool.close() for pool in self._pools.values()), *self._closing_tasks)

    def _update(self, host_views: Sequence[HostView]) -> None:
        known, self._last_host_views = self._by_nonce, host_views
        others: dict[str, Peer] = {}
        for host in host_views:
            if host.nonce == self._nonce:
                self._own_address = host.address
            if host.tier != self._tier or host.nonce == self._nonce:
                continue
            peer = known.get(host.nonce) or Peer(host, host.load or 0.0)
            if peer.view.load != host.load:
                peer.load = host.load or 0.0
            peer.view = host
            others[host.nonce] = peer
        if others.keys() != known.keys():
            self._by_nonce = others
        addresses = {peer.address for peer in others.values()}
        for address in [address for address in self._pools if address not in addresses]:
            closing = asyncio.ensure_future(self._pools.pop(address).close())
            self._closing_tasks.add(closing)
            closing.add_done_callback(self._closing_tasks.discard)


async def _wait_for_connection(pool: ConnectionPool, deadline: float) -> HostConnection:
    """Return a connection of the pool. Raises NotSent, also if the peer refuses this host."""
    try:
        return await pool.wait_for_connection(deadline)
    except FoqsError as error:
        raise NotSent(str(error)) from None


def error_of_reply(failed: ttypes.Error | None) -> FoqsError:
    """Return the error of a peer's reply; `UnknownOutcome` if its code is missing or unknown."""
    if failed is None or failed.code not in ERROR_BY_CODE:
        return UnknownOutcome(
            "another host failed the call with a code that this host does not know; the call may have taken effect, so check before you repeat it"
        )
    return error_from_struct(failed, "the other host gave no reason")


def _can_take_items(peer: Peer, now: float) -> bool:
    view = peer.view
    return peer.can_accept_items and not (view.drained or view.leaving) and peer.suspect_until_s <= now


def _rotated(peers: list[Peer], rotation: int) -> list[Peer]:
    """Rotate the peers; put the less loaded of the first two first."""
    if len(peers) < 2:
        return peers
    first = rotation % len(peers)
    ordered = peers[first:] + peers[:first]
    if ordered[1].relative_load < ordered[0].relative_load:
        ordered[:2] = reversed(ordered[:2])
    return ordered


def _unreachable(peer: Peer, reason: str) -> PeerUnreachable:
    if peer.unreachable_reason != reason:
        log.warning("host %s cannot be called: %s", peer.view.name, reason)
        peer.unreachable_reason = reason
    return PeerUnreachable(f"host {peer.view.name} cannot be called: {reason}", retry_after_ms=100)


def _not_accepted(peer: Peer, error: FoqsError) -> PeerUnreachable:
    return _unreachable(peer, f"it does not accept this host as an administrator: {error.message}")


def _mark_reachable(peer: Peer) -> None:
    if peer.unreachable_reason:
        log.info("host %s answers calls again", peer.view.name)
        peer.unreachable_reason = ""


def _no_reply_error(method: ThriftMethod, reason: str) -> FoqsError:
    if method.is_write:
        return UnknownOutcome(f"{reason}; the call may have taken effect, so check before you repeat it")
    return Unavailable(reason, retry_after_ms=100)
