"""Planted bugs of surplus deliveries, which no caller gets, for the simulation of several hosts; see `planted`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foqs.cluster.forwarding import peer_dequeues
from foqs.cluster.forwarding.peer_dequeues import PeerDequeues
from foqs_client import Client, Delivery, Nack, conversion
from foqs_client.releases import Releases
from foqs_client.retried_calls import RetriedCallById
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod
from tests.simulation.planted import Bug
from tests.simulation.planting import plant

_NACK: Final = ThriftMethod("nack")


def surplus_kept_by_hosts() -> None:
    """Items that a peer leased too late, or for a caller that has left, stay leased."""
    plant(PeerDequeues, "release", lambda self, peer, namespace, deliveries: None)


def surplus_kept_by_clients() -> None:
    """Items of a poll that no call takes stay leased."""
    plant(Releases, "start", lambda self, deliveries: None)


def surplus_nacked_by_hosts() -> None:
    """A surplus delivery of a peer is nacked, so it counts as an attempt."""

    async def release(self: PeerDequeues, peer: Any, request: Any) -> None:
        nacks = [ttypes.Nack(lease.id, lease.token, delay_ms=0) for lease in request.leases]
        nacked = ttypes.NackRequest(request.namespace_name, nacks)
        await self.peers.call(peer, _NACK, nacked, self._loop.time() + peer_dequeues.RELEASE_TIMEOUT_S)

    plant(PeerDequeues, "_send_release", release)


def surplus_nacked_by_clients() -> None:
    """An item of a poll that no call takes is nacked, so it counts as an attempt."""

    async def release_surplus(self: Client, deliveries: Sequence[Delivery]) -> None:
        nacks = conversion.nacks([Nack(each.id, each.token, delay_ms=0) for each in deliveries])
        await self._call_by_id(_NACK, ttypes.NackRequest, nacks, RetriedCallById, self.timeout_ms, immediate=True)

    plant(Client, "_release_surplus", release_surplus)


BUGS: Final[Mapping[str, Bug]] = {
    "surplus-kept-by-hosts": Bug(surplus_kept_by_hosts, (8,), seed_count=32, first_seed=9),
    "surplus-kept-by-clients": Bug(surplus_kept_by_clients, (8,)),
    "surplus-nacked-by-hosts": Bug(surplus_nacked_by_hosts, (8,), first_seed=8),
    "surplus-nacked-by-clients": Bug(surplus_nacked_by_clients, (8,)),
}
