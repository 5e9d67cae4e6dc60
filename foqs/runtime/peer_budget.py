"""A limit on memory or places, shared by the peers of a server.

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
        """Set what is held; 0 forgets it. If it grows, any holding may be evicted, this one too, before this returns."""
        if not self._set(holding, amount):
            return
        while self.amount > self._amount_max:
            self.evict()

    def evict(self) -> bool:
        """Evict the oldest holding of the peer that holds most. Return False if nothing is held."""
        if not self._peers:
            return False
        largest = max(self._peers.values(), key=_amount)
        oldest = next(iter(largest.holdings))
        self._set(oldest, 0)
        oldest.on_evicted()
        return True

    def _set(self, holding: Holding, amount: int) -> bool:
        """Set what is held. Return whether it has grown."""
        peer = self._peers.get(holding.peer)
        if peer is None:
            if not amount:
                return False
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
        return more > 0


def _amount(peer: _Peer) -> int:
    return peer.amount
