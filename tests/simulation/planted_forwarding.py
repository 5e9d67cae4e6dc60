"""Planted bugs of forwarding, for the simulation of several hosts; see `planted`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.cluster.forwarding.enqueues import EnqueueForwarder, ItemRoutes
from foqs.cluster.peers import Peer, PeerUnreachable
from foqs_contract.errors import Overloaded, UnknownOutcome
from tests.simulation.planting import plant


def unanswered_forward_repeated() -> None:
    """Items that a peer got, but did not answer, are sent to the next peer."""
    _call_raising(PeerUnreachable)


def unanswered_forward_refused() -> None:
    """Items that a peer got, but did not answer, are reported as not written."""
    _call_raising(Overloaded)


def forwarded_twice() -> None:
    """Items are forwarded to one host that has room, and then to another."""

    async def to(
        self: ItemRoutes, peer: Peer | None, request: Any, results: list[Any], places: list[int], deadline: float
    ) -> None:
        await original(self, peer, request, results, places, deadline)
        if peer is None:
            await original(self, peer, request, results, places, deadline)

    original = plant(ItemRoutes, "_forward_to", to)


def results_in_order_of_peer() -> None:
    """The results of a peer are assigned to the first items of the call."""

    async def to(
        self: ItemRoutes,
        peer: Peer | None,
        request: Any,
        results: list[Any],
        places: Sequence[int],
        deadline: float,
    ) -> None:
        before = list(results)
        await original(self, peer, request, results, list(places), deadline)
        changed = [results[place] for place in places if results[place] is not before[place]]
        for place in places:
            results[place] = before[place]
        results[: len(changed)] = changed

    original = plant(ItemRoutes, "_forward_to", to)


def unnamed_items_refused() -> None:
    """Items of which a peer's reply says nothing keep the refusal of the host that forwarded them."""

    def merge(
        self: ItemRoutes, merged: list[Any], places: list[int], results: Sequence[Any], *, is_owner: bool
    ) -> list[int]:
        return original(self, merged, places[: len(results)], results, is_owner=is_owner)

    original = plant(ItemRoutes, "_merge_results", merge)


def _call_raising(kind: type[Exception]) -> None:
    """Replace the error of a call that a peer did not answer."""

    def init(self: EnqueueForwarder, peers: Any) -> None:
        call = peers.call

        async def careless(*arguments: Any) -> Any:
            try:
                return await call(*arguments)
            except UnknownOutcome as error:
                raise kind(error.message) from None

        peers.call = careless
        original(self, peers)

    original = plant(EnqueueForwarder, "__init__", init)
