"""Counts the calls that hosts of a simulated fleet forward, and the redirects of clients.

Holds `CountedPeers`. Always true: it behaves as `Peers`, but a reply may have no result for the
last items of a forwarded enqueue, as that of a host with a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, Final

from foqs.cluster.forwarding.forwarded_dequeue import ForwardedDequeue
from foqs.cluster.peers import Peer, Peers, PeerUnreachable
from foqs_client.abandoned_dequeues import ReleaseItems
from foqs_client.errors import NotOwner
from foqs_client.retried_calls import RetriedCall
from foqs_contract.errors import FoqsError, UnknownOutcome
from foqs_contract.idl import ttypes
from foqs_contract.thrift_method import ThriftMethod
from tests.simulation import surplus
from tests.simulation.planting import wrap
from tests.simulation.surplus import SurplusLedger

_KINDS: Final = ("enqueues", "keys", "dequeues", "calls by id")
NAMES: Final = (
    *(f"{kind} forwarded" for kind in _KINDS),
    *(f"{kind} unanswered" for kind in _KINDS),
    "forwards refused",
    "peers not reached",
    "redirects",
    "replies cut short",
)
"""Forwarded calls: to a host with room, to the owner of a key slot or of an item, or to the host with the best items; calls
without a reply; and entries that one host refused with NOT_OWNER and another did."""
_CUT_SHORT: Final = 0.02
"""The probability that a reply to a forwarded enqueue has no result for its last items."""

_BY_ID: Final = (
    ttypes.AckRequest,
    ttypes.NackRequest,
    ttypes.ExtendLeaseRequest,
    ttypes.ReleaseRequest,
    ttypes.CancelRequest,
    ttypes.UpdateRequest,
    ttypes.RedriveRequest,
    ttypes.GetItemRequest,
)
_RELEASING: Final = {ttypes.ReleaseRequest: "leases", ttypes.NackRequest: "nacks"}


class CountedPeers(Peers):
    """Args:
    counts: the counters, by `NAMES`.
    surplus: the ledger of the items that the host receives.
    name: the name of the host.
    rng: decides which replies are cut short.
    """

    def __init__(self, counts: Counter[str], surplus: SurplusLedger, name: str, rng: Random, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rng = rng
        self.surplus = surplus
        self._counts = counts
        self._name = name

    async def call(
        self, peer: Peer, method: ThriftMethod, request: Any, deadline: float, release: ReleaseItems | None = None
    ) -> Any:
        kind = _kind(request)
        forwarded = getattr(request, "forwarded", None)
        released_field = None if forwarded else _RELEASING.get(type(request))
        leases: Sequence[Any] = () if released_field is None else getattr(request, released_field)
        self.surplus.on_accounted(leases)
        try:
            reply = await super().call(peer, method, request, deadline, release)
        except PeerUnreachable:
            self._counts["peers not reached"] += 1
            raise
        except UnknownOutcome:
            if kind is not None and forwarded:
                self._counts[f"{kind} unanswered"] += 1
            raise
        except FoqsError:
            self._counts["forwards refused"] += 1
            raise
        if kind is not None and forwarded:
            self._counts[f"{kind} forwarded"] += 1
        if kind in ("enqueues", "keys") and self._rng.random() < _CUT_SHORT:
            self._counts["replies cut short"] += 1
            del reply.results[self._rng.randrange(len(reply.results)) :]
        if leases:
            self.surplus.on_released(surplus.NAMES[0], leases, [outcome.error for outcome in reply.outcomes or ()])
        if kind == "dequeues":
            self.surplus.on_received(self._name, reply.items or ())
        return reply


def _kind(request: Any) -> str | None:
    if isinstance(request, ttypes.EnqueueRequest):
        assert request.items
        return "enqueues" if request.items[0].idempotency_key is None else "keys"
    if isinstance(request, ttypes.DequeueRequest):
        return "dequeues"
    return "calls by id" if isinstance(request, _BY_ID) else None


_installed = False
_redirects: Counter[str] = Counter()


def install(counts: Counter[str]) -> None:
    """Start to count in this process the events for which a run has no other hook."""
    global _installed, _redirects
    _redirects = counts
    if not _installed:
        _installed = True
        wrap(RetriedCall, "record_results", _counting_results)
        wrap(ForwardedDequeue, "_reply", _counting_replies)


def _counting_results(original: Callable[..., bool]) -> Callable[..., bool]:
    def record_results(self: RetriedCall[Any, Any], results: Sequence[Any]) -> bool:
        refused: set[int] = vars(self).setdefault("refused", set())
        for place, result in zip(self._indexes, results, strict=False):
            if isinstance(result.error, NotOwner):
                refused.add(place)
            elif result.error is None and place in refused:
                _redirects["redirects"] += 1
        return original(self, results)

    return record_results


def _counting_replies(original: Callable[..., None]) -> Callable[..., None]:
    def reply(self: ForwardedDequeue, to_struct: Any, value: Any, give_back: Any) -> None:
        peers = self._peer_dequeues.peers
        if isinstance(to_struct, partial) and isinstance(peers, CountedPeers):  # a reply of a peer
            peers.surplus.on_accounted(value)
        original(self, to_struct, value, give_back)

    return reply
