"""What the peers of a port hold of something that is limited, such as memory for replies that they do not read.

Always true: peers hold at most the limit together. Beyond it, the peer that holds most
loses its oldest holding. So a peer that holds little is never harmed by one that holds
much, and behind one address the slow are harmed before the quick. Knows nothing of
what is held.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol


class Holding(Protocol):
    """Something of one peer that may be taken away."""

    @property
    def peer(self) -> Hashable:
        """The peer, which does not change."""
        ...

    def on_evicted(self) -> None:
        """Give up what is held. The budget has forgotten it already."""
        ...


class _Peer:
    """The holdings of one peer, oldest first, and their sum."""

    __slots__ = ("amount", "holdings")

    def __init__(self) -> None:
        self.amount = 0
        self.holdings: dict[Holding, int] = {}


class PeerBudget:
    """The holdings of all peers.

    Attributes:
        amount: the sum of all.
    """

    def __init__(self, amount_max: int) -> None:
        self.amount = 0
        self._amount_max = amount_max
        self._peers: dict[Hashable, _Peer] = {}

    def hold(self, holding: Holding, amount: int) -> None:
        """Set what is held; 0 forgets it. May evict any holding, this one too, before it returns."""
        peer = self._peers.get(holding.peer)
        if peer is None:
            if not amount:
                return
            peer = self._peers[holding.peer] = _Peer()
        more = amount - peer.holdings.get(holding, 0)
        self.amount += more
        peer.amount += more
        if amount:
            peer.holdings[holding] = amount
        else:
            peer.holdings.pop(holding, None)
            if not peer.holdings:
                del self._peers[holding.peer]
        while self.amount > self._amount_max:
            self._evict()

    def _evict(self) -> None:
        largest = max(self._peers.values(), key=_amount)
        oldest = next(iter(largest.holdings))
        self.hold(oldest, 0)
        oldest.on_evicted()


def _amount(peer: _Peer) -> int:
    return peer.amount
