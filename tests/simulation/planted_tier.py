"""Bugs of hosts that pass calls on to plant, to show that the simulation of several hosts would find them.

As `planted`: each is the mistake that a rule prevents, made in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.core.errors import Overloaded, UnknownOutcome
from foqs.tier.enqueues import Enqueues
from foqs.tier.peers import Peer, Unreached


def unanswered_is_unsent() -> None:
    """What a peer was sent and did not answer goes to the next one."""
    _call_otherwise(Unreached)


def unanswered_is_refused() -> None:
    """What a peer was sent and did not answer is said not to be written."""
    _call_otherwise(Overloaded)


def passed_on_twice() -> None:
    """Items go to one host that has room, and then to another."""

    async def to(
        self: Any, peer: Peer | None, request: Any, told: list[Any], places: list[int], deadline: float
    ) -> None:
        await original(self, peer, request, told, places, deadline)
        if peer is None:
            await original(self, peer, request, told, places, deadline)

    original = Enqueues._to
    Enqueues._to = to  # type: ignore[method-assign]


def results_in_the_peer_s_order() -> None:
    """What a peer says of the first item that it was sent is told of the first item of the call."""

    async def to(
        self: Any, peer: Peer | None, request: Any, told: list[Any], places: Sequence[int], deadline: float
    ) -> None:
        before = list(told)
        await original(self, peer, request, told, list(places), deadline)
        results = [told[place] for place in places if told[place] is not before[place]]
        for place in places:
            told[place] = before[place]
        told[: len(results)] = results

    original = Enqueues._to
    Enqueues._to = to  # type: ignore[method-assign]


def _call_otherwise(kind: type[Exception]) -> None:
    """What a peer did not answer has another name."""

    def init(self: Any, local: Any, peers: Any) -> None:
        call = peers.call

        async def careless(*arguments: Any) -> Any:
            try:
                return await call(*arguments)
            except UnknownOutcome as error:
                raise kind(error.message) from None

        peers.call = careless
        original(self, local, peers)

    original = Enqueues.__init__
    Enqueues.__init__ = init  # type: ignore[method-assign]
